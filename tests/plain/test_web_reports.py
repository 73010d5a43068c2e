"""A job's report is bounded, visible only to its client, and survives a restart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_web_job_store import add_finished, with_store
from web_server import Served, run

from katz_graph.core.events import NodeDone, NodeStarted, Span, Timeline, Warned
from katz_graph.web.events import JobError, JobEvent, PlanMade
from katz_graph.web.jobs.store import JobStore
from katz_graph.web.live.channel import SEGMENTS


async def report(server: Served, job: str, spans: int = 1) -> None:
    on_event = server.state.jobs.on_event
    await server.settled(lambda: server.runner.taken)
    on_event(JobEvent(job, NodeStarted("5.end", "5", "KSampler")))
    on_event(JobEvent(job, PlanMade("5.end", {"sampler": "5"})))
    for number in range(spans):
        on_event(
            JobEvent(job, Timeline("5.end", (Span("cpu:0", "v0.0", float(number), 0.5, number),)))
        )
    on_event(JobEvent(job, NodeDone("5.end", "5", "KSampler", seconds=2.0, why="seed changed")))
    on_event(JobEvent(job, Warned("careful")))


def test_a_report_stays_through_a_restart(tmp_path: Path) -> None:
    async def first(server: Served) -> tuple[str, Any]:
        job = await server.submit()
        await report(server, job)
        live = (await server.client.get(f"/katz/jobs/{job}/report")).json()
        assert live["status"] == "in_progress" and live["plans"] == {"5.end": {"sampler": "5"}}
        server.runner.end(job)
        await server.finished(job)
        return job, (await server.client.get(f"/katz/jobs/{job}/report")).json()

    async def second(server: Served) -> Any:
        return (await server.client.get(f"/katz/jobs/{job}/report")).json()

    job, stored = run(tmp_path, first)
    assert stored["status"] == "completed" and stored["seconds"] == {"total": 0.5}
    assert stored["nodes"]["5.end"] == {
        "display": "5",
        "type": "KSampler",
        "status": "finished",
        "cached": False,
        "seconds": 2.0,
        "why": "seed changed",
    }
    assert stored["timeline"][0]["segments"][0]["name"] == "v0.0" and stored["warnings"] == [
        "careful"
    ]
    assert run(tmp_path, second) == stored


def test_a_report_is_for_the_client_of_its_job(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        job = await server.submit(client_id="me")
        await report(server, job)
        server.runner.end(job, JobError("RunError", "no"))
        await server.finished(job)
        path = f"/katz/jobs/{job}/report"
        for client in ("", "you"):
            answer = await server.client.get(path, params={"client_id": client})
            assert answer.status_code == 404
        answered = (await server.client.get(path, params={"client_id": "me"})).json()
        assert answered["error"]["message"] == "no"
        await server.client.post("/history", json={"delete": [job]})
        assert (await server.client.get(path, params={"client_id": "me"})).status_code == 404
        assert await server.state.jobs.report(job) is None

    run(tmp_path, scenario)


def test_a_long_job_has_a_bounded_report(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        job = await server.submit()
        await report(server, job, spans=3 * SEGMENTS)
        server.runner.end(job)
        await server.finished(job)
        answered = (await server.client.get(f"/katz/jobs/{job}/report")).json()
        evaluations = [one["segments"][0]["evaluation"] for one in answered["timeline"]]
        assert evaluations == list(range(2 * SEGMENTS, 3 * SEGMENTS))

    run(tmp_path, scenario)


def test_only_the_newest_reports_are_stored(tmp_path: Path) -> None:
    async def use(store: JobStore) -> list[bool]:
        await add_finished(store, 5)
        for number in range(5):
            await store.keep_report(f"job-{number}", os.urandom(100))
        await store.keep_report("unknown", b"x")
        await store.drop_reports(250)
        return [await store.report(f"job-{number}") is not None for number in range(5)]

    assert with_store(tmp_path, use) == [False, False, False, True, True]


@pytest.mark.parametrize("path", ["none", "..%2f..%2fkatz.sqlite3", "a" * 5000])
def test_a_job_that_is_not_there_has_none(tmp_path: Path, path: str) -> None:
    async def scenario(server: Served) -> None:
        assert (await server.client.get(f"/katz/jobs/{path}/report")).status_code == 404

    run(tmp_path, scenario)
