"""A server provides node types, metrics, front ends, templates and routes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from web_server import GRAPH, Served, run

from katz_graph.web.routes import frontend


def test_object_info_is_asked_for_again_from_another_runner(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        asked = 0

        async def described(name: str | None = None) -> bytes:
            nonlocal asked
            asked += 1
            return json.dumps({f"Node{asked}": {}}).encode()

        server.runner.object_info = described  # type: ignore[method-assign]
        assert [(await server.client.get("/object_info")).json() for _ in range(3)] == 3 * [
            {"Node1": {}}
        ]
        server.runner.restarts += 1
        assert (await server.client.get("/object_info")).json() == {"Node2": {}}
        assert (await server.client.get("/object_info/a%2Fb")).json() == {"Node3": {}}

    run(tmp_path, scenario)


def test_object_info_is_sent_once_and_packed(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        answer = await server.client.get("/object_info", headers={"Accept-Encoding": "identity"})
        assert set(answer.json()) == {"EmptyImage", "SaveImage"}
        assert (
            await server.client.get(
                "/api/object_info", headers={"If-None-Match": answer.headers["etag"]}
            )
        ).status_code == 304
        async with server.client.stream(
            "GET", "/object_info", headers={"Accept-Encoding": "gzip"}
        ) as packed:
            assert (
                json.loads(gzip.decompress(b"".join([part async for part in packed.aiter_raw()])))
                == answer.json()
            )
        assert (await server.client.get("/object_info/None")).json() == {}

    run(tmp_path, scenario)


def test_metrics_count_and_reveal_nothing_of_prompts(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        prompt = {
            **GRAPH,
            "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "a very private wish"}},
        }
        answer = await server.client.post(
            "/prompt", json={"prompt": prompt, "client_id": "secret-client"}
        )
        id = answer.json()["prompt_id"]
        server.runner.end(id)
        await server.finished(id)
        await server.client.get("/no/such/secret-path")
        text = (await server.client.get("/metrics")).text
        assert 'katz_job_seconds_count{status="completed"} 1.0' in text
        assert 'katz_http_requests_total{method="POST",route="/prompt",status="200"} 1.0' in text
        assert 'katz_http_requests_total{method="GET",route="/history/{id}",status="200"}' in text
        assert 'katz_controlnet_hits_total{device="cpu"} 7.0' in text
        assert 'katz_model_evictions_total{device="cpu"} 2.0' in text
        assert "katz_worker_restarts_total 2.0" in text
        assert "katz_queue_pending 0.0" in text
        for private in ("wish", "secret", id):
            assert private not in text

    run(tmp_path, scenario)


def test_a_sane_request_id_is_echoed_and_another_one_replaced(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        assert (await server.client.get("/queue", headers={"X-Request-ID": "abc-1.2_3"})).headers[
            "x-request-id"
        ] == "abc-1.2_3"
        minted = (await server.client.get("/queue", headers={"X-Request-ID": "a b\tc"})).headers[
            "x-request-id"
        ]
        assert len(minted) == 32 and minted.isalnum()

    run(tmp_path, scenario)


def test_a_front_end_is_served_from_its_folder_alone(tmp_path: Path) -> None:
    built = tmp_path / "built"
    (built / "assets").mkdir(parents=True)
    (built / "index.html").write_text("<p>editor</p>")
    (built / "assets" / "main.js").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    (built / "link.txt").symlink_to(tmp_path / "secret.txt")

    async def scenario(server: Served) -> None:
        assert (await server.client.get("/")).text == "<p>editor</p>"
        script = await server.client.get("/assets/main.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert (await server.client.get("/queue")).json()["queue_running"] == []
        for path in (
            "/link.txt",
            "/../secret.txt",
            "/%2e%2e/secret.txt",
            "/..%2fsecret.txt",
            "/%00",
            "/a" * 3000,
            "/" + "x" * 300,
        ):
            answer = await server.client.get(path)
            assert answer.status_code == 404 and "secret" not in answer.text, path

    run(tmp_path, scenario, frontend=built)


def test_packs_bring_scripts(tmp_path: Path) -> None:
    (tmp_path / "web" / "deep").mkdir(parents=True)
    (tmp_path / "web" / "deep" / "a #1.js").write_text("1")
    (tmp_path / "pack.py").write_text("secret")

    async def scenario(server: Served) -> None:
        server.runner.web = {"my pack": str(tmp_path / "web")}
        (address,) = (await server.client.get("/extensions")).json()
        assert address == "/extensions/my%20pack/deep/a%20%231.js"
        assert (
            (await server.client.get(address)).headers["content-type"].startswith("text/javascript")
        )
        for path in (
            "/extensions/my pack/../pack.py",
            "/extensions/my pack/%2e%2e/pack.py",
            "/extensions/none/a.js",
        ):
            assert (await server.client.get(path)).status_code == 404

    run(tmp_path, scenario)


def test_the_shipped_workflows_are_templates_of_any_client(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        listed = (await server.client.get("/katz/templates")).json()
        assert "txt2img" in [template["name"] for template in listed]
        for template in listed:
            assert template["title"] and "\n" not in template["description"]
            picture = await server.client.get(f"/{template['picture']}")
            assert picture.headers["content-type"] == "image/webp", template
        assert (await server.client.get("/katz/templates/txt2img")).json() == {"nodes": []}
        assert (await server.client.get("/katz/templates/none")).status_code == 404

    run(tmp_path, scenario)


def test_the_shipped_workflows_are_templates_of_the_stock_dialog(tmp_path: Path) -> None:
    """They also work below a front end, whose page links to the user's stylesheet."""
    built = tmp_path / "built"
    built.mkdir()
    (built / "index.html").write_text("<html></html>")

    async def scenario(server: Served) -> None:
        listed = await server.client.get("/templates/index.json")
        assert listed.headers["content-type"] == "application/json"
        found = [template for category in listed.json() for template in category["templates"]]
        assert "txt2img" in [template["name"] for template in found]
        for template in found:
            picture = await server.client.get(
                f"/templates/{template['name']}-1.{template['mediaSubtype']}"
            )
            assert (
                picture.headers["content-type"] == "image/webp" and picture.content[8:12] == b"WEBP"
            )
        workflow = await server.client.get("/templates/txt2img.json")
        assert (
            workflow.json() == {"nodes": []}
            and workflow.headers["content-type"] == "application/json"
        )
        assert (await server.client.get("/templates/index_logo.json")).json() == {}
        outside = ("__init__.py", "../__init__.py", "%2e%2e/__init__.py", "..%2ftxt2img.json")
        for path in ("none.json", "index.zh.json", "none-1.webp", *outside):
            assert (await server.client.get(f"/templates/{path}")).status_code == 404, path
        style = await server.client.get("/user.css")
        assert (
            style.status_code == 200
            and style.content == b""
            and style.headers["content-type"].startswith("text/css")
        )

    run(tmp_path, scenario)
    run(tmp_path, scenario, frontend=built)


def test_start_requests_of_the_stock_front_end_return_json(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        asked = [
            "features",
            "users",
            "system_stats",
            "settings",
            "i18n",
            "extensions",
            "object_info",
            "global_subgraphs",
            "node_replacements",
        ]
        asked += [
            "workflow_templates",
            "experiment/models",
            "jobs?status=in_progress,pending&limit=200&offset=0",
            "queue",
        ]
        asked += [
            "history?max_items=64",
            "userdata?dir=workflows&recurse=true&split=false&full_info=true",
        ]
        for path in asked:
            answer = await server.client.get(f"/api/{path}")
            assert answer.status_code in (200, 404), (path, answer.text)
            if answer.status_code == 200:
                answer.json()
        stats = (await server.client.get("/system_stats")).json()
        assert stats["devices"][0]["vram_free"] == 400 and stats["system"]["argv"] == []
        assert (await server.client.get("/api/assets")).status_code == 503
        assert "Running: 0" in (await server.client.get("/status")).text

    run(tmp_path, scenario)


def test_a_failing_part_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        async def broken(name: str | None = None) -> bytes:
            raise OSError(5, "Input/output error", str(tmp_path / "x"))

        server.runner.object_info = broken  # type: ignore[method-assign]
        answer = await server.client.get("/object_info")
        assert (
            answer.status_code == 503
            and str(tmp_path) not in answer.text
            and "Traceback" not in answer.text
        )

    run(tmp_path, scenario)


def test_every_route_is_described(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        schema = (await server.client.get("/openapi.json")).json()
        assert {
            "/prompt",
            "/queue",
            "/history",
            "/history/{id}",
            "/api/jobs",
            "/view",
            "/upload/image",
            "/object_info",
        } <= set(schema["paths"])
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                assert "422" not in operation["responses"] and "400" in operation["responses"], (
                    method,
                    path,
                )
                if method == "post" and path in ("/prompt", "/queue", "/history", "/interrupt"):
                    assert "application/json" in operation["requestBody"]["content"], path

    run(tmp_path, scenario)


def test_the_editor_is_served_under_a_strict_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dist" / "assets").mkdir(parents=True)
    (tmp_path / "dist" / "index.html").write_text("<p>editor</p>")
    (tmp_path / "dist" / "assets" / "index.js").write_text("1")
    monkeypatch.setattr(frontend, "EDITOR", tmp_path / "dist")

    async def scenario(server: Served) -> None:
        page = await server.client.get("/")
        policy = page.headers["content-security-policy"]
        assert page.text == "<p>editor</p>"
        assert "unsafe" not in policy and "default-src 'none'" in policy
        script = await server.client.get("/assets/index.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        assert "Running: 0" in (await server.client.get("/status")).text

    run(tmp_path, scenario)


def test_without_an_editor_the_plain_page_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontend, "EDITOR", tmp_path / "none")

    async def scenario(server: Served) -> None:
        for path in ("/", "/status"):
            assert "Running: 0" in (await server.client.get(path)).text

    run(tmp_path, scenario)
