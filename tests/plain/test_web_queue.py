"""Tests jobs and the queue as ComfyUI clients use them, over a runner that executes nothing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from web_server import GRAPH, Served, run

from katz_graph.core.events import Progress
from katz_graph.web.events import JobError, JobEvent
from katz_graph.web.options import Limits
from katz_graph.web.runner_client.facts import CheckedPrompt

UUID = "0b5bd7a4-4b5a-4f5a-8f7e-0123456789ab"
PICTURE = {"2": {"images": [{"filename": "a_00001_.png", "subfolder": "", "type": "output"}]}}


def test_a_job_from_queue_to_history(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        extra = {
            "extra_pnginfo": {"workflow": {"id": "w1"}},
            "auth_token_comfy_org": "s3cret",
            "note": 1,
        }
        answer = await server.client.post(
            "/prompt",
            json={"prompt": GRAPH, "client_id": "alice", "extra_data": extra, "prompt_id": UUID},
        )
        assert answer.json() == {
            "prompt_id": UUID,
            "number": answer.json()["number"],
            "node_errors": {},
        }
        waiting = await server.submit(client_id="bob")
        queue = (await server.client.get("/queue")).json()
        (number, id, prompt, data, targets) = queue["queue_running"][0]
        assert (id, prompt, targets) == (UUID, GRAPH, ["2"])
        assert data["note"] == 1 and data["create_time"] > 1.7e12
        assert queue["queue_pending"][0][1] == waiting and queue["queue_pending"][0][0] > number
        assert (await server.client.get("/api/prompt")).json() == {
            "exec_info": {"queue_remaining": 2}
        }
        server.runner.end(UUID, outputs=PICTURE, cached=("1",))
        entry = await server.finished(UUID)
        assert entry["prompt"][:3] == [number, UUID, GRAPH]
        assert entry["outputs"] == PICTURE
        assert (entry["status"]["status_str"], entry["status"]["completed"]) == ("success", True)
        messages = entry["status"]["messages"]
        assert [name for name, _ in messages] == [
            "execution_start",
            "execution_cached",
            "execution_success",
        ]
        assert messages[1][1]["nodes"] == ["1"] and messages[1][1]["prompt_id"] == UUID
        everything = ""
        for path in (
            "/queue",
            "/history",
            f"/history/{UUID}",
            "/api/jobs",
            f"/api/jobs/{UUID}",
            "/katz/queue",
        ):
            everything += (await server.client.get(path)).text
        assert not {"alice", "bob", "s3cret", "client_id"} & set(
            everything.replace('"', " ").split()
        )

    run(tmp_path, scenario)


@pytest.mark.defect(29)
@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_no_view_of_a_job_shows_the_secrets_of_its_urls(tmp_path: Path, ended: bool) -> None:
    secret = "https://me:pass-w0rd@models.example/a.safetensors?token=s3cret#sha256=" + "0" * 64
    shown = "https://models.example/a.safetensors#sha256=" + "0" * 64
    loader = {"class_type": "LoraLoaderModelOnly", "inputs": {"lora_name": secret}}
    stacked = {"class_type": "CLIPTextEncode", "inputs": {"text": f"<{secret}> a cat\nhttp://[b?"}}
    workflow = {"nodes": [{"id": 1, "widgets_values": [secret, 1.0]}]}
    outputs = PICTURE | {"9": {"text": [f"loaded {secret}"]}}

    async def scenario(server: Served) -> None:
        body = {
            "prompt": GRAPH | {"8": stacked, "9": loader},
            "extra_data": {"extra_pnginfo": {"workflow": workflow}},
            "prompt_id": UUID,
        }
        assert (await server.client.post("/prompt", json=body)).status_code == 200
        if ended:
            server.runner.end(UUID, outputs=outputs)
            await server.finished(UUID)
        views = ["/api/jobs", f"/api/jobs/{UUID}", "/katz/queue"]
        views += ["/history", f"/history/{UUID}"] if ended else ["/queue", "/api/queue"]
        answers = [await server.client.get(path) for path in views]
        assert [answer.json() for answer in answers]
        texts = [answer.text for answer in answers]
        assert not [text for text in texts if "s3cret" in text or "pass-w0rd" in text]
        times = 4 if ended else 3
        assert [text.count(shown) for text in texts] == [0, times, 0, times, times]

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff\xfe",
        b'{"prompt": []}',
        b'{"prompt": "x"}',
        b'{"prompt": {}, "number": "abc"}',
        b'{"prompt": {}, "number": NaN}',
        b'{"prompt": {"1": {"inputs": {"a": Infinity}}}}',
        b'{"prompt": {}, "number": 1e999}',
        b'{"prompt": {}, "number": 1' + b"0" * 400 + b"}",
        b'{"prompt": {}, "extra_data": []}',
        b'{"prompt": {}, "extra_data": {"extra_pnginfo": 7}}',
        b'{"prompt": {}, "client_id": {}}',
        b'{"prompt": {}, "front": "yes"}',
        b'{"prompt": {}, "partial_execution_targets": "2"}',
        b'{"prompt": {}, "deadline_seconds": -1}',
        b'{"prompt": {}, "prompt": {}}',
        b'{"prompt": {"a": "\\ud800"}}',
        b"[" * 5000,
        b'{"prompt": ' * 101 + b"1" + b"}" * 101,
    ],
)
def test_malformed_prompts_are_400_in_the_convention_s_shape(tmp_path: Path, body: bytes) -> None:
    async def scenario(server: Served) -> None:
        answer = await server.client.post("/prompt", content=body)
        assert answer.status_code == 400, answer.text
        assert set(answer.json()["error"]) == {"type", "message", "details", "extra_info"}
        assert answer.json()["node_errors"] == {}
        assert not server.runner.checked

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({}, "no_prompt"),
        ({"prompt": None}, "no_prompt"),
        ({"prompt": GRAPH, "prompt_id": UUID.upper()}, "invalid_prompt_id"),
    ]
    + [
        ({"prompt": GRAPH, "prompt_id": value}, "invalid_prompt_id")
        for value in ("x", UUID.replace("-", ""), 7, f"{{{UUID}}}")
    ],
)
def test_errors_have_the_convention_s_names(
    tmp_path: Path, body: dict[str, Any], kind: str
) -> None:
    async def scenario(server: Served) -> None:
        answer = await server.client.post("/prompt", json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, kind)

    run(tmp_path, scenario)


def test_refused_prompts_report_the_reason_without_paths_of_the_server(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        problem = {
            "type": "value_not_in_list",
            "message": "x",
            "details": f"looked in {tmp_path}/input/a and /usr/lib/x.py",
            "extra_info": {},
        }
        errors = {"2": {"errors": [problem], "dependent_outputs": ["2"], "class_type": "SaveImage"}}
        error = {
            "type": "prompt_outputs_failed_validation",
            "message": "m",
            "details": "",
            "extra_info": {},
        }
        server.runner.refusal = CheckedPrompt(None, (), ("2",), error, errors, (), None)
        answer = await server.client.post("/prompt", json={"prompt": GRAPH})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "prompt_outputs_failed_validation"
        assert (
            answer.json()["node_errors"]["2"]["errors"][0]["details"]
            == "looked in input/a and x.py"
        )
        server.runner.refusal = CheckedPrompt(GRAPH, ("2",), ("3",), None, errors, (), None)
        partly = await server.client.post("/prompt", json={"prompt": GRAPH})
        assert (
            partly.status_code == 200
            and partly.json()["node_errors"]["2"]["class_type"] == "SaveImage"
        )

    run(tmp_path, scenario)


def test_a_full_queue_answers_429_with_a_time_and_keys_still_find_their_job(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        await server.submit()
        await server.settled(lambda: len(server.state.jobs.running) == 1)
        key = {"Idempotency-Key": "k1"}
        first = await server.client.post("/prompt", json={"prompt": GRAPH}, headers=key)
        await server.submit()
        refused = await server.client.post("/prompt", json={"prompt": GRAPH})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "queue_full"
        assert len(server.runner.checked) == 3  # refusals are cheap: the prompt was not checked
        again = await server.client.post("/prompt", json={"prompt": GRAPH}, headers=key)
        assert again.json()["prompt_id"] == first.json()["prompt_id"]
        other = await server.client.post(
            "/prompt", json={"prompt": {**GRAPH, "9": GRAPH["1"]}}, headers=key
        )
        assert other.status_code in (409, 422)
        assert (
            'katz_jobs_refused_total{reason="queue_full"} 1.0'
            in (await server.client.get("/metrics")).text
        )

    run(tmp_path, scenario, Limits(queue=2))


def test_an_id_is_taken_once(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        await server.submit(prompt_id=UUID)
        answer = await server.client.post("/prompt", json={"prompt": GRAPH, "prompt_id": UUID})
        assert answer.status_code in (400, 409)
        assert "node_errors" in answer.json()

    run(tmp_path, scenario)


def test_shutting_down_refuses_new_jobs_and_reports_it(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        assert (await server.client.get("/readyz")).status_code == 200
        server.state.draining = True
        answer = await server.client.post("/prompt", json={"prompt": GRAPH})
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
        assert (await server.client.get("/readyz")).status_code == 503
        assert (
            (await server.client.get("/livez")).status_code
            == (await server.client.get("/api/livez")).status_code
            == 200
        )

    run(tmp_path, scenario)


def test_excluded_devices_are_reported_to_watchers(tmp_path: Path) -> None:
    """The server accepts jobs; those that need an excluded device fail when they run."""

    async def scenario(server: Served) -> None:
        assert (await server.client.get("/readyz")).text == "ok\n"
        server.runner.facts = replace(
            server.runner.facts, excluded=("cuda:6", "cuda:7"), unplaceable=("controlnet",)
        )
        answer = await server.client.get("/readyz")
        assert (answer.status_code, answer.text) == (
            200,
            "ok, without cuda:6, cuda:7: jobs that need controlnet fail\n",
        )
        metrics = (await server.client.get("/metrics")).text
        for device, up in (("cpu", 1), ("cuda:6", 0), ("cuda:7", 0)):
            assert f'katz_device_up{{device="{device}"}} {up}.0' in metrics

    run(tmp_path, scenario)


def test_queue_is_cleared_and_single_jobs_deleted_while_the_running_one_goes_on(
    tmp_path: Path,
) -> None:
    async def scenario(server: Served) -> None:
        running = await server.submit()
        await server.settled(lambda: server.runner.taken)
        waiting = [await server.submit() for _ in range(3)]
        answer = await server.client.post(
            "/queue", content=json.dumps({"delete": [waiting[1], running, "no such"]})
        )
        assert (answer.status_code, answer.content) == (200, b"")
        assert [
            item[1] for item in (await server.client.get("/queue")).json()["queue_pending"]
        ] == [waiting[0], waiting[2]]
        await server.client.post("/queue", json={"clear": True})
        queue = (await server.client.get("/queue")).json()
        assert queue["queue_pending"] == [] and queue["queue_running"][0][1] == running
        assert server.runner.cancelled == []

    run(tmp_path, scenario)


def test_interrupt_takes_no_body_or_the_id_of_a_running_job(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        first = await server.submit()
        await server.settled(lambda: server.runner.taken)
        second = await server.submit()
        assert (
            await server.client.post("/interrupt", json={"prompt_id": second})
        ).status_code == 200
        assert server.runner.cancelled == []
        assert (await server.client.post("/interrupt")).status_code == 200
        assert (await server.finished(first))["status"]["messages"][-1][
            0
        ] == "execution_interrupted"
        assert (await server.client.get(f"/api/jobs/{first}")).json()["status"] == "cancelled"
        await server.settled(lambda: [job.id for job in server.runner.taken] == [first, second])

    run(tmp_path, scenario)


def test_later_jobs_of_the_runner_wait(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        ids = [await server.submit() for _ in range(5)]
        await server.settled(lambda: len(server.runner.taken) == 3)
        queue = (await server.client.get("/queue")).json()
        assert [item[1] for item in queue["queue_running"]] == ids[:1]
        assert [item[1] for item in queue["queue_pending"]] == ids[1:]
        assert (await server.client.post("/interrupt")).status_code == 200
        assert server.runner.cancelled == ids[:1]
        await server.finished(ids[0])
        await server.client.post("/queue", json={"delete": [ids[2]]})
        await server.finished(ids[2])
        await server.client.post("/queue", json={"clear": True})
        assert server.runner.cancelled[:2] == [ids[0], ids[2]]
        server.runner.end(ids[1], outputs=PICTURE)
        assert (await server.finished(ids[1]))["status"]["completed"]
        assert not (await server.finished(ids[3]))["status"]["completed"]
        queue = (await server.client.get("/queue")).json()
        assert queue == {"queue_running": [], "queue_pending": []}

    run(tmp_path, scenario, jobs_at_once=None)


def test_metrics_count_the_jobs_that_end_by_their_due_times(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        due = [await server.submit(deadline_seconds=seconds) for seconds in (60, 0.5)]
        free = await server.submit()
        await server.settled(lambda: len(server.runner.taken) == 3)
        await asyncio.sleep(0.5)
        for id in (*due, free):
            server.runner.end(id)
            await server.finished(id)
        metrics = (await server.client.get("/metrics")).text
        assert 'katz_jobs_due_total{on_time="true"} 1.0' in metrics
        assert 'katz_jobs_due_total{on_time="false"} 1.0' in metrics

    run(tmp_path, scenario, jobs_at_once=3, devices="cpu*3", devices_per_job="1")


def test_jobs_in_one_list(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        workflow = {"extra_pnginfo": {"workflow": {"id": "w1"}}}
        done = await server.submit(extra_data=workflow)
        failed, waiting, last = [await server.submit() for _ in range(3)]
        server.runner.end(done, outputs=PICTURE)
        await server.finished(done)
        await server.settled(lambda: len(server.runner.taken) == 2)
        server.runner.end(failed, JobError("RunError", "NaN in node 3", "3", "KSampler"))
        await server.finished(failed)
        page = (await server.client.get("/api/jobs?limit=2&sort_order=asc")).json()
        assert [job["id"] for job in page["jobs"]] == [done, failed]
        assert page["pagination"] == {"offset": 0, "limit": 2, "total": 4, "has_more": True}
        assert page["jobs"][0]["outputs_count"] == 1
        assert page["jobs"][0]["preview_output"] == {
            **PICTURE["2"]["images"][0],
            "nodeId": "2",
            "mediaType": "images",
        }
        error = page["jobs"][1]["execution_error"]
        assert (error["exception_message"], error["prompt_id"], error["executed"]) == (
            "NaN in node 3",
            failed,
            [],
        )
        assert (await server.finished(failed))["status"]["messages"][-1] == [
            "execution_error",
            error,
        ]
        assert error["timestamp"] == page["jobs"][1]["execution_end_time"]
        found = (await server.client.get("/api/jobs?status=completed&workflow_id=w1")).json()[
            "jobs"
        ]
        assert [job["id"] for job in found] == [done]
        assert (await server.client.get(f"/api/jobs/{done}")).json()["workflow"]["prompt"] == GRAPH
        assert (await server.client.get("/api/jobs/none")).json() == {"error": "Job not found"}
        for query in (
            "limit=0",
            "limit=x",
            "offset=-1",
            "sort_by=color",
            "status=done",
            "sort_order=up",
        ):
            answer = await server.client.get(f"/api/jobs?{query}")
            assert (answer.status_code, set(answer.json())) == (400, {"error"}), query
        assert (await server.client.get("/jobs")).status_code == 404
        batch = await server.client.post("/api/jobs/cancel", json={"job_ids": [last, "nonsense"]})
        assert (batch.status_code, batch.json()["invalid_ids"]) == (400, ["nonsense"])
        assert (await server.client.post("/api/jobs/cancel", json={"job_ids": [last]})).json() == {
            "cancelled": True
        }
        assert (await server.client.post(f"/api/jobs/{last}/cancel")).json() == {"cancelled": False}
        assert (await server.client.post(f"/api/jobs/{waiting}/cancel")).json() == {
            "cancelled": True
        }

    run(tmp_path, scenario)


def test_history_by_pieces_and_forgetting(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        ids = [await server.submit() for _ in range(5)]
        for id in ids:
            await server.settled(
                lambda id=id: any(job.id == id for job in server.state.jobs.running)
            )
            server.runner.end(id)
            await server.finished(id)

        async def listed(query: str) -> list[int]:
            return [ids.index(id) for id in (await server.client.get(f"/history?{query}")).json()]

        assert await listed("") == [0, 1, 2, 3, 4]
        assert await listed("max_items=2") == [3, 4]
        assert await listed("max_items=2&offset=1") == [1, 2]
        assert await listed("max_items=0") == []
        assert (await server.client.get("/history?max_items=-3")).status_code == 400
        assert (await server.client.get("/history/none")).json() == {}
        await server.client.post("/history", json={"delete": [ids[1]]})
        assert await listed("") == [0, 2, 3, 4]
        await server.client.post("/history", json={"clear": True})
        assert await listed("") == []

    run(tmp_path, scenario)


def test_pause_reorder_resume(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        assert (await server.client.post("/katz/queue/pause")).json() == {"paused": True}
        first, second, third = [await server.submit() for _ in range(3)]
        assert (await server.client.post(f"/katz/jobs/{third}/move", json={"front": True})).json()[
            "position"
        ] == 0
        assert (
            await server.client.post(f"/katz/jobs/{second}/move", json={"before": first})
        ).json()["position"] == 1
        assert (await server.client.post(f"/katz/jobs/{second}/move", json={})).status_code == 400
        assert (
            await server.client.post("/katz/jobs/none/move", json={"front": True})
        ).status_code == 409
        state = (await server.client.get("/api/katz/queue")).json()
        assert state["paused"] and [job["id"] for job in state["pending"]] == [third, second, first]
        assert all(job["expected_wait_seconds"] >= 0 for job in state["pending"])
        assert not server.runner.taken
        await server.client.post("/katz/queue/resume")
        await server.settled(lambda: [job.id for job in server.runner.taken] == [third])

        async def remaining() -> float | None:
            (running,) = (await server.client.get("/katz/queue")).json()["running"]
            assert running["id"] == third
            seconds: float | None = running["remaining_seconds"]
            return seconds

        assert await remaining() is None
        for done in (1, 2):
            progress = Progress("3", done, 1_000_000, evaluations=True)
            server.state.jobs.on_event(JobEvent(third, progress))
            await asyncio.sleep(0.005)  # reports at the same time tell no pace
        assert (await remaining() or 0.0) > 0
        assert (await server.client.post("/katz/queue/clear")).json() == {"cancelled": 3}

    run(tmp_path, scenario)


def test_whole_numbers_are_written_as_integers(tmp_path: Path) -> None:
    """Clients in typed languages reject 1.0 for ComfyUI's integers."""

    async def scenario(server: Served) -> None:
        await server.client.post("/katz/queue/pause")
        answer = await server.client.post(
            "/prompt", json={"prompt": GRAPH, "number": 7, "prompt_id": UUID}
        )
        assert '"number":7,' in answer.text
        assert f'[[7,"{UUID}",' in (await server.client.get("/queue")).text
        assert '"priority":7,' in (await server.client.get("/api/jobs")).text
        assert (
            '"number":-3,'
            in (await server.client.post(f"/katz/jobs/{UUID}/move", json={"number": -3})).text
        )
        assert (
            '"number":2.5,'
            in (await server.client.post(f"/katz/jobs/{UUID}/move", json={"number": 2.5})).text
        )
        assert (
            '"number":1e+300,'
            in (await server.client.post(f"/katz/jobs/{UUID}/move", json={"number": 1e300})).text
        )

    run(tmp_path, scenario)


def test_a_job_that_starts_while_it_is_moved_has_no_place(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        await server.client.post("/katz/queue/pause")
        job, jobs = await server.submit(), server.state.jobs
        move = jobs.move

        async def moved_late(*given: Any, **options: Any) -> Any:
            moved = await move(*given, **options)
            await jobs.resume()
            return moved

        jobs.move = moved_late  # type: ignore[method-assign]
        answer = await server.client.post(f"/katz/jobs/{job}/move", json={"front": True})
        assert (answer.status_code, answer.json()["position"]) == (200, None)

    run(tmp_path, scenario)


def test_long_histories_and_queues_come_in_whole(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        ids = []
        for _ in range(40):
            ids.append(await server.submit(extra_data={"note": "é"}))
            server.runner.end(ids[-1])
            await server.finished(ids[-1])
        running, *waiting = [await server.submit() for _ in range(20)]
        assert list((await server.client.get("/history")).json()) == ids
        for query, wanted in {
            "max_items=18": ids[-18:],
            "max_items=100": ids,
            "max_items=0": [],
            "max_items=20&offset=5": ids[5:25],
            "offset=30": ids[30:],
            "offset=99": [],
        }.items():
            assert list((await server.client.get(f"/history?{query}")).json()) == wanted, query
        queue = (await server.client.get("/queue")).json()
        assert [
            [item[1] for item in queue[name]] for name in ("queue_running", "queue_pending")
        ] == [[running], waiting]

    run(tmp_path, scenario)


def test_a_job_may_hold_only_so_much(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        large = {"prompt": GRAPH, "extra_data": {"note": "x" * 2000}}
        answer = await server.client.post("/prompt", json=large)
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "too_large")
        form = {
            "workflow": (None, json.dumps(GRAPH)),
            "extra_data": (None, json.dumps(large["extra_data"])),
        }
        assert (await server.client.post("/prompt", files=form)).status_code == 413
        assert (await server.client.post("/prompt", json={"prompt": GRAPH})).status_code == 200
        assert not server.state.jobs.pending

    run(tmp_path, scenario, Limits(prompt_bytes=2000))
