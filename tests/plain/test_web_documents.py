"""An editor opens and checks workflows, over a runner that executes nothing."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin
from web_server import GRAPH, Served, run

from katz_graph.core.allowed_approximations import APPROXIMATIONS
from katz_graph.formats.read import SHIPPED
from katz_graph.web.options import Limits
from katz_graph.web.runner_client.facts import CheckedPrompt, PlannedGraph, WrittenOut

EDITORS: dict[str, Any] = {
    "id": "d1",
    "nodes": [
        {"id": 7, "type": "KSampler", "pos": [0, 0], "widgets_values": [2**64 - 1, "fixed", 1.0]},
        {"id": 8, "type": "NobodyKnows", "made_by": {"somebody": [1, None, 0.1]}},
    ],
    "links": [],
    "extra": {"ds": {"scale": 0.75}},
    "version": 0.4,
}
TEMPLATES = find_spec("comfyui_workflow_templates_json")


def picture(**texts: Any) -> bytes:
    chunks = PngImagePlugin.PngInfo()
    for key, value in texts.items():
        chunks.add_text(key, json.dumps(value))
    encoded = io.BytesIO()
    Image.new("RGB", (8, 8)).save(encoded, "png", pnginfo=chunks)
    return encoded.getvalue()


def test_documents_come_back_unchanged(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        for content in (json.dumps(EDITORS).encode(), picture(prompt=GRAPH, workflow=EDITORS)):
            plain = await server.client.post("/katz/open", content=content)
            form = await server.client.post("/api/katz/open", files={"file": ("a", content)})
            assert plain.json() == form.json() == {"document": EDITORS, "notes": []}
            assert str(2**64 - 1) in plain.text

    run(tmp_path, scenario)


@pytest.mark.skipif(TEMPLATES is None, reason="pip install comfyui-workflow-templates-json")
def test_every_official_template_comes_back_as_it_is(tmp_path: Path) -> None:
    assert TEMPLATES is not None and TEMPLATES.submodule_search_locations
    folder = Path(TEMPLATES.submodule_search_locations[0])

    async def scenario(server: Served) -> None:
        count = 0
        for file in sorted(folder.rglob("*.json")):
            document = json.loads(file.read_text("utf-8"))
            if isinstance(document, dict) and isinstance(document.get("nodes"), list):
                answer = await server.client.post("/katz/open", content=file.read_bytes())
                assert answer.json() == {"document": document, "notes": []}, file.name
                count += 1
        assert count > 500

    run(tmp_path, scenario)


def test_other_formats_are_drawn(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        for content in (json.dumps(GRAPH).encode(), picture(prompt=GRAPH)):
            document = (await server.client.post("/katz/open", content=content)).json()["document"]
            assert {node["type"] for node in document["nodes"]} == {"EmptyImage", "SaveImage"}
            again = await server.client.post("/katz/open", json=document)
            assert again.json()["document"] == document
        for file in sorted(SHIPPED.glob("*.json")):
            answer = await server.client.post("/katz/open", content=file.read_bytes())
            assert answer.json()["document"]["nodes"], file.name

    run(tmp_path, scenario)


def twice() -> dict[str, Any]:
    return {**EDITORS, "nodes": [EDITORS["nodes"][0]] * 2}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is empty"),
        (b"{", "JSON"),
        (b'{"nodes": [', "JSON"),
        (b"\x00\x01\x02" * 9, "is a binary file"),
        (b"\xff\xd8\xff\xe0", "is a JPEG picture"),
        (picture(), "without a workflow"),
        (picture(workflow=EDITORS)[:90], "PNG"),
        (b"[" * 101 + b"]" * 101, "deep"),
        (b'{"nodes": [{"id": 1, "type": "A", "pos": [NaN, 0]}]}', "NaN"),
        (json.dumps({**EDITORS, "version": 9}).encode(), "newer"),
        (json.dumps(twice()).encode(), "this id occurs twice"),
        (b"{}", "has no nodes"),
        (b"[]", "is a list"),
        (b'{"format": "other"}', "format is"),
        (b'{"__proto__": {"polluted": 1}}', "__proto__"),
        (json.dumps({"nodes": [{"id": n, "type": "A"} for n in range(21)]}).encode(), "21 nodes"),
    ],
)
def test_unopenable_documents_give_one_line(tmp_path: Path, content: bytes, line: str) -> None:
    async def scenario(server: Served) -> None:
        answer = await server.client.post("/katz/open", content=content)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error.startswith("the file cannot be opened: ") and line in error
        assert "Traceback" not in error

    run(tmp_path, scenario, replace(Limits(), nodes=20))


def test_a_file_of_more_bytes_than_a_prompt_has_is_413(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        answer = await server.client.post("/katz/open", content=b" " * 2000)
        assert answer.status_code == 413 and "prompt_bytes" in answer.json()["error"]

    run(tmp_path, scenario, replace(Limits(), prompt_bytes=1000))


def test_a_sampler_that_cannot_be_written_out_is_one_line(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        server.runner.written = WrittenOut(error=f"{tmp_path / 'input'}: no, not this one")
        body = {"prompt": GRAPH, "node": "2"}
        answer = await server.client.post("/katz/unfold", json=body)
        assert answer.status_code == 400 and "not this one" in answer.json()["error"]
        assert str(tmp_path) not in answer.text
        for wrong in ({"prompt": GRAPH}, {**body, "node": "2" * 201}, {**body, "prompt": 5}):
            assert (await server.client.post("/katz/unfold", json=wrong)).status_code == 400

    run(tmp_path, scenario)


def test_a_check_answers_as_queueing_would_and_queues_nothing(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        checked = (await server.client.post("/katz/check", json={"prompt": GRAPH})).json()
        assert checked == {
            "error": None,
            "node_errors": {},
            "targets": ["2"],
            "refused": [],
            "notes": [],
        }
        server.runner.refusal = CheckedPrompt(
            error={"type": "prompt_no_outputs", "message": "m", "details": "d", "extra_info": {}},
            node_errors={"1": {"errors": []}},
            notes=("a line",),
        )
        body = {"prompt": GRAPH, "partial_execution_targets": ["2"]}
        checked = (await server.client.post("/katz/check", json=body)).json()
        refused = (await server.client.post("/prompt", json=body)).json()
        assert {key: checked[key] for key in refused} == refused
        assert checked["notes"] == ["a line"]
        assert not server.runner.taken and not server.state.jobs.pending
        broken = await server.client.post("/katz/check", content=b"{")
        assert broken.status_code == 400 and "JSON" in broken.json()["error"]

    run(tmp_path, scenario)


def test_plans_are_made_without_a_job(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        server.runner.plans = PlannedGraph(({"sampler": "5"},), ("a line",))
        body = {"prompt": GRAPH, "client_id": "me"}
        planned = (await server.client.post("/katz/plan", json=body)).json()
        assert planned == {
            "plans": [{"sampler": "5"}],
            "error": None,
            "node_errors": {},
            "notes": ["a line"],
            "approximations": list(APPROXIMATIONS),
        }
        await server.client.post("/katz/plan", json={**body, "packs": True})
        asked = list(server.runner.planned)
        assert [(one.client, one.packs) for one in asked] == [("me", False), ("me", True)]
        assert [one.changes for one in asked] == [{}, {}]
        assert [one.origin for one in asked] == ["loopback"] * 2
        assert not server.runner.taken and not server.state.jobs.pending
        server.runner.refusal = CheckedPrompt(error={"type": "t"}, node_errors={"1": {}})
        planned = (await server.client.post("/katz/plan", json=body)).json()
        assert planned["plans"] == [] and planned["error"] == {"type": "t"}
        assert len(server.runner.planned) == 2
        server.runner.refusal = None
        changes = {"devices": ["cpu*2"], "place": ["controlnet=cpu"], "batching": False}
        await server.client.post("/katz/plan", json={**body, **changes})
        assert server.runner.planned[-1].changes == changes
        for wrong in ({"devices": "cpu"}, {"batching": "no"}, {"place": ["x" * 201]}):
            answer = await server.client.post("/katz/plan", json={**body, **wrong})
            assert answer.status_code == 400, wrong

    run(tmp_path, scenario)


@pytest.mark.parametrize(("refusal", "status"), [("replaced", 409), ("late", 503), ("busy", 503)])
def test_a_refused_plan_gives_the_reason(tmp_path: Path, refusal: Any, status: int) -> None:
    async def scenario(server: Served) -> None:
        server.runner.plans = PlannedGraph(refusal=refusal)
        answer = await server.client.post("/katz/plan", json={"prompt": GRAPH})
        assert answer.status_code == status and answer.json()["error"]
        assert ("retry-after" in answer.headers) == (status == 503)

    run(tmp_path, scenario)


def test_a_graph_that_is_too_large_is_not_planned(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        body = {"prompt": {"1": {"class_type": "A", "inputs": {"text": "a" * 2000}}}}
        assert (await server.client.post("/katz/plan", json=body)).status_code == 413

    run(tmp_path, scenario, replace(Limits(), prompt_bytes=1000))


@pytest.mark.defect(46)
@pytest.mark.parametrize(
    ("route", "field", "line"),
    [
        ("/katz/plan", "pack", "pack: unknown field; did you mean 'packs'?"),
        ("/katz/tokens", "promt", "promt: unknown field; did you mean 'prompt'?"),
        ("/katz/unfold", "x", "x: unknown field"),
        ("/katz/jobs/1/move", "fornt", "fornt: unknown field; did you mean 'front'?"),
        ("/katz/files/trash", "kind", "kind: unknown field"),
    ],
)
def test_a_field_that_our_own_routes_do_not_know_is_named(
    tmp_path: Path, route: str, field: str, line: str
) -> None:
    right = {
        "/katz/jobs/1/move": {"front": True},
        "/katz/files/trash": {"names": []},
        "/katz/unfold": {"prompt": GRAPH, "node": "5"},
    }.get(route, {"prompt": GRAPH})

    async def scenario(server: Served) -> None:
        answer = await server.client.post(route, json={**right, field: 1})
        assert answer.status_code == 400 and line in answer.text

    run(tmp_path, scenario)


@pytest.mark.defect(46)
def test_a_choice_of_a_job_that_is_misspelt_is_named(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        extra = {"katz": {"batchin": True}, "another_programs": 1}
        answer = await server.client.post("/prompt", json={"prompt": GRAPH, "extra_data": extra})
        assert answer.status_code == 400 and "did you mean 'batching'" in answer.text
        del extra["katz"]
        answer = await server.client.post(
            "/prompt", json={"prompt": GRAPH, "extra_data": extra, "another_programs": 1}
        )
        assert answer.status_code == 200

    run(tmp_path, scenario)
