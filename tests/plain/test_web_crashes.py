"""Tests jobs whose runner dies, whose server is killed, or whose result cannot be stored. Each test
controls a fake runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from web_jobs import FakeRunner, Service, graph, job, on_disk, run, serving, submission, submit

from katz_graph.core.errors import KatzError, RunError
from katz_graph.core.events import NodeDone, NodeStarted
from katz_graph.web.events import ClientEvent, Ended, JobError, JobEvent, JobNode
from katz_graph.web.jobs.admission import Refused
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.records import StoredFile
from katz_graph.web.jobs.retention import JobFiles
from katz_graph.web.jobs.store import FILE, JobStore, open_folder
from katz_graph.web.jobs.store_file import explained
from katz_graph.web.options import MB


def test_the_first_crash_puts_a_job_back_and_the_second_one_sets_it_aside(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "bad", "good", "next")
        await service.until(lambda: service.runner.names == ["bad", "good"])
        left = service.output / "half.png"
        service.runner.write("bad", left)
        service.jobs.lost(["bad", "good"], "signal 11")
        await service.until(lambda: service.runner.names[2:] == ["bad"])
        assert not left.exists(), "nothing of the attempt is left"
        assert service.running() == ["bad"] and service.pending() == ["good", "next"], (
            "a suspect runs alone"
        )
        left.touch()
        service.runner.write("bad", left)
        service.jobs.lost(["bad"], "signal 11")
        await service.all_ended("bad")
        await service.until(lambda: service.runner.names[3:] == ["good"])
        service.runner.end("good")
        await service.until(lambda: service.runner.names[4:] == ["next"])
        service.runner.end("next")
        await service.all_ended("good", "next")
        assert await service.statuses() == {
            "bad": "failed",
            "good": "completed",
            "next": "completed",
        }
        bad = await service.jobs.job("bad")
        assert (
            bad is not None
            and bad.crashes == 2
            and bad.result is not None
            and bad.result.error is not None
        )
        assert bad.result.error.kind == "WorkerLost"
        assert (
            bad.result.error.message == "given up: its process died 2 times; last reason: signal 11"
        )
        assert not left.exists()

    run(tmp_path, use, jobs_at_once=2)


@pytest.mark.defect(23)
@pytest.mark.parametrize("together", [False, True], ids=["once", "both of two"])
def test_a_cancelled_job_that_does_not_stop_costs_the_others_their_place_and_nothing_else(
    tmp_path: Path, together: bool
) -> None:
    async def use(service: Service) -> None:
        service.runner.obedient = False
        await submit(service, "hangs", "runs", "next")
        await service.until(lambda: service.runner.names == ["hangs", "runs"])
        await service.jobs.interrupt("hangs")
        if together:
            await service.jobs.interrupt("runs")
        began = time.monotonic()
        await service.until(lambda: len(service.runner.names) > 2)
        assert 0.05 < time.monotonic() - began < 3
        assert service.runner.replaced == ["cancelled job hangs did not stop within 0.1 s"]
        assert service.runner.prepared
        again = [] if together else ["runs"]
        await service.until(lambda: set(service.runner.names[2:]) == {*again, "next"})
        assert [job.crashes for job in service.jobs.running] == [0] * len(service.jobs.running)
        for name in service.running():
            service.runner.end(name)
        await service.all_ended("hangs", "runs", "next")
        assert await service.statuses() == {
            "hangs": "cancelled",
            "runs": "cancelled" if together else "completed",
            "next": "completed",
        }

    run(tmp_path, use, jobs_at_once=2, stop_seconds=0.1)


@pytest.mark.defect(23)
def test_a_cancelled_job_that_stops_in_time_replaces_nothing(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "a")
        await service.until(lambda: service.runner.names == ["a"])
        await service.jobs.interrupt("a")
        await service.all_ended("a")
        await asyncio.sleep(0.05)
        assert service.runner.replaced == [] and not service.runner.prepared

    run(tmp_path, use, stop_seconds=0.01)


def test_a_job_of_an_abandoned_device_runs_again_as_if_its_runner_had_died(tmp_path: Path) -> None:
    error = JobError("DeviceFailed", "device cuda:1: its worker died 5 times")

    async def use(service: Service) -> None:
        await submit(service, "a")
        for attempt in (1, 2):
            await service.until(lambda: len(service.runner.names) == attempt)  # noqa: B023
            service.jobs.on_event(JobEvent("a", Ended("failed", time.time(), error)))
        await service.all_ended("a")
        stored = await service.jobs.job("a")
        assert (
            stored is not None
            and stored.crashes == 2
            and stored.result is not None
            and stored.result.error is not None
        )
        assert (
            stored.result.error.message
            == f"given up: its process died 2 times; last reason: {error.message}"
        )

    run(tmp_path, use)


def test_a_job_is_set_aside_if_runners_die_before_they_report_it(
    tmp_path: Path,
) -> None:
    class Silent(FakeRunner):
        def emit(self, job_id: str, event: ClientEvent) -> None: ...

    async def use(service: Service) -> None:
        await submit(service, "a")
        for attempt in (1, 2):
            await service.until(lambda: len(service.runner.names) == attempt)  # noqa: B023
            service.jobs.lost(["a"], "killed")
        await service.all_ended("a")
        assert await service.statuses() == {"a": "failed"}

    run(tmp_path, use, runner=Silent())


@pytest.mark.defect(19)
def test_a_cancelled_job_of_a_killed_runner_names_the_running_node(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "a")
        await service.until(lambda: service.runner.names == ["a"])
        for event in (
            NodeStarted("3", "3", "KSampler"),
            NodeStarted("3.end", "3", "StepEnd"),
            NodeDone("3.end", "3", "StepEnd"),
        ):
            service.runner.emit("a", event)
        await service.jobs.cancel(["a"])
        service.jobs.lost(["a"], "it did not stop")
        await service.all_ended("a")
        ended = await service.jobs.job("a")
        assert ended is not None and ended.result is not None
        assert ended.result.interrupted == JobNode("3", "KSampler", "3")

    run(tmp_path, use, runner=FakeRunner(obedient=False))


@pytest.mark.defect(31)
def test_jobs_that_find_the_disk_full_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("katz_graph.web.jobs.dispatch.FULL_DISK_RETRY_S", 0.01)
    room = [False]
    monkeypatch.setattr(JobFiles, "have_room", lambda files: room[0])

    def found_full(service: Service, name: str) -> None:
        why = JobError("DiskFull", "node 9 (SaveImage): the disk is full")
        service.runner.emit(name, Ended("failed", time.time(), why))

    async def use(service: Service) -> None:
        await submit(service, "a", "b", "next")
        await service.until(lambda: service.runner.names == ["a", "b"])
        for name in "ab":
            found_full(service, name)
        await service.until(lambda: len(service.pending()) == 3)
        await asyncio.sleep(0.05)
        assert service.running() == [] and "the disk is full" in service.jobs.trouble
        room[0] = True
        await service.until(lambda: len(service.running()) == 2)
        assert service.jobs.trouble == "" and {*service.running()} == {"a", "b"}
        service.runner.end("b")
        await service.until(lambda: "next" in service.running())
        service.runner.end("next")
        found_full(service, "a")  # despite free space: a quota, or another disk
        await service.until(lambda: service.runner.names.count("a") == 3)
        found_full(service, "a")
        await service.all_ended("a", "b")
        expected = {"a": "failed", "b": "completed", "next": "completed"}
        assert await service.statuses() == expected

    run(tmp_path, use, jobs_at_once=2)


@pytest.mark.defect(31)
def test_a_full_disk_is_reported_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("katz_graph.web.jobs.dispatch.FULL_DISK_RETRY_S", 0.01)
    room = [False]
    monkeypatch.setattr(JobFiles, "have_room", lambda files: room[0])
    add = JobStore.add

    async def full(*given: Any) -> Any:
        if not room[0]:
            failure = sqlite3.OperationalError("database or disk is full")
            failure.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise explained(Path("katz.sqlite3"), failure)
        return await add(*given)

    async def use(service: Service) -> None:
        monkeypatch.setattr(JobStore, "add", full)
        with pytest.raises(Refused, match="the disk is full"):
            await submit(service, "a")
        assert "the disk is full" in service.jobs.trouble
        room[0] = True
        await service.until(lambda: not service.jobs.trouble)
        await submit(service, "a")
        await service.until(lambda: service.runner.names == ["a"])

    run(tmp_path, use)


def test_a_job_that_no_runner_had_taken_is_not_blamed(tmp_path: Path) -> None:
    class Dying(FakeRunner):
        async def run(self, job: Job, seconds_after: object = None) -> None:
            self.taken.append(job)
            if len(self.taken) < 5:
                raise KatzError("there is none")
            self.end(job.id)

    async def use(service: Service) -> None:
        await submit(service, "a")
        await service.all_ended("a")
        stored = await service.jobs.job("a")
        assert stored is not None and (stored.status, stored.crashes) == ("completed", 0)

    run(tmp_path, use, runner=Dying())


def test_a_runner_that_takes_nothing_leaves_jobs_waiting(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "a")
        await asyncio.sleep(0.05)
        assert service.pending() == ["a"]
        service.runner.refuses = None
        await service.until(lambda: service.running() == ["a"])

    run(tmp_path, use, runner=FakeRunner(refuses=KatzError("the runner is down")))

    async def broken(service: Service) -> None:
        await service.all_ended("a")
        await submit(service, "b")
        await service.all_ended("b")
        stored = await service.jobs.job("b")
        assert stored is not None and stored.result is not None and stored.result.error is not None
        assert stored.result.error.message == "the job could not be passed to the runner: odd"

    run(tmp_path, broken, runner=FakeRunner(refuses=TypeError("odd")))


def test_a_job_that_is_cancelled_when_its_runner_dies_does_not_come_back(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        service.runner.obedient = False
        await submit(service, "a")
        await service.until(lambda: service.running() == ["a"])
        assert await service.jobs.cancel(["a"]) == {"a": True}
        service.jobs.lost(["a"], "killed")
        await service.all_ended("a")
        assert await service.statuses() == {"a": "cancelled"}

    run(tmp_path, use)


def test_a_job_that_is_cancelled_when_its_server_is_killed_does_not_come_back(
    tmp_path: Path,
) -> None:
    async def before(service: Service) -> None:
        service.runner.obedient = False
        await submit(service, "a", "b")
        await service.until(lambda: service.running() == ["a"])
        service.runner.write("a", service.output / "half.png")
        assert await service.jobs.cancel(["a"]) == {"a": True}
        assert on_disk(tmp_path)["a"] == "cancelled"
        assert await service.jobs.finished() == 0, (
            "it is still being stopped: the last of the history is another one"
        )

    async def after(service: Service) -> None:
        await service.all_ended("a")
        assert await service.statuses() == {"a": "cancelled"}
        assert service.runner.names == ["b"] and not (service.output / "half.png").exists()

    run(tmp_path, before)
    run(tmp_path, after)


def test_a_killed_servers_jobs_are_taken_up_once(tmp_path: Path) -> None:
    async def before(service: Service) -> None:
        await submit(service, "done", "broken off", "waits")
        await service.until(lambda: service.running() == ["done"])
        service.runner.write("done", service.output / "done.png")
        service.runner.end(
            "done", outputs={"1": {"images": [{"filename": "done.png", "type": "output"}]}}
        )
        await service.until(lambda: service.running() == ["broken off"])
        service.runner.write("broken off", service.output / "half.png")
        service.runner.write("broken off", service.temp / "look.png", "temp")

    run(tmp_path, before)
    assert on_disk(tmp_path) == {
        "done": "completed",
        "broken off": "in_progress",
        "waits": "pending",
    }

    async def after(service: Service) -> None:
        assert (
            not (service.output / "half.png").exists() and not (service.temp / "look.png").exists()
        )
        assert (service.output / "done.png").exists()
        await service.until(lambda: service.runner.names == ["broken off"])
        assert service.jobs.running[0].crashes == 0 and service.pending() == ["waits"]
        service.runner.end("broken off")
        await service.until(lambda: service.running() == ["waits"])
        service.runner.end("waits")
        await service.all_ended("waits")
        done = await service.jobs.history()
        assert [(job.id, job.status) for job in done] == [
            ("done", "completed"),
            ("broken off", "completed"),
            ("waits", "completed"),
        ]
        assert (
            done[0].result is not None
            and done[0].result.outputs["1"]["images"][0]["filename"] == "done.png"
        )

    run(tmp_path, after)


def test_results_wait_for_a_full_disk_and_nothing_is_started_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("katz_graph.web.jobs.dispatch.FULL_DISK_RETRY_S", 0.05)
    opened = open_folder(tmp_path)

    async def use(service: Service) -> None:
        await submit(service, "a", "b", "c")
        await service.until(lambda: service.running() == ["a"])
        await service.jobs.listed()  # waits until all is on disk
        (pages,) = opened.writing.execute("pragma page_count").fetchone()
        opened.writing.execute(f"pragma max_page_count = {pages}")
        service.runner.end("a", outputs={"1": {"text": ["x" * 100_000]}})
        await service.until(lambda: service.runner.names == ["a", "b"])
        await asyncio.sleep(0.1)
        service.runner.end("b", outputs={"1": {"text": ["x" * 100_000]}})
        await asyncio.sleep(0.1)
        assert (
            service.runner.names == ["a", "b"]
            and service.running() == ["a", "b"]
            and service.pending() == ["c"]
        )
        with pytest.raises(Refused, match="the disk is full") as refused:
            await service.jobs.submit(submission("d", prompt=graph(text="x" * 100_000)))
        assert refused.value.status == 503 and refused.value.retry_after is not None
        opened.writing.execute("pragma max_page_count = 100000")
        await service.all_ended("a", "b")
        await service.until(lambda: service.running() == ["c"])
        assert await service.statuses() == {"a": "completed", "b": "completed"}

    run(tmp_path, use, store=JobStore(opened))


def test_a_result_that_cannot_be_written_as_json_fails_the_job(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "a")
        await service.until(lambda: service.running() == ["a"])
        service.runner.end("a", outputs={"1": {"text": [object()]}})
        await service.all_ended("a")
        stored = await service.jobs.job("a")
        assert stored is not None and stored.result is not None and stored.result.error is not None
        assert stored.status == "failed" and "cannot be stored" in stored.result.error.message

    run(tmp_path, use)


def test_a_result_that_is_too_large_fails_its_job_and_others_go_on(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        for name in "ab":
            await submit(service, name)
        await service.until(lambda: service.running() == ["a"])
        service.runner.end("a", outputs={str(node): {"text": ["x" * MB]} for node in range(65)})
        await service.until(lambda: service.running() == ["b"])
        stored = await service.jobs.job("a")
        assert stored is not None and stored.result is not None and stored.result.error is not None
        assert (
            stored.status == "failed"
            and "cannot be stored: it has 68,1" in stored.result.error.message
        )

    run(tmp_path, use)


@pytest.mark.parametrize(("faults", "status"), [(1, "failed"), (2, "in_progress")])
def test_a_fault_of_ours_holds_up_no_other_job(
    faults: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job fails if its result cannot be stored. If the failure cannot be stored either, the job
    waits for the next start.
    """
    finish, left = JobStore.finish, [TypeError("a fault of ours")] * faults

    async def faulty(store: JobStore, job: Job, temporary: Any) -> bool:
        if left:
            raise left.pop()
        return await finish(store, job, temporary)

    async def use(service: Service) -> None:
        await submit(service, "a", "b")
        await service.until(lambda: service.running() == ["a"])
        service.runner.end("a")
        await service.until(lambda: service.running() == ["b"])
        service.runner.end("b")
        await service.all_ended("b")

    monkeypatch.setattr(JobStore, "finish", faulty)
    run(tmp_path, use)
    assert on_disk(tmp_path) == {"a": status, "b": "completed"}


def test_a_move_that_cannot_be_written_down_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(store: JobStore, jobs: Any) -> None:
        raise RunError("the disk is full")

    async def use(service: Service) -> None:
        await service.jobs.pause()
        await submit(service, "a", "b", "c")
        for move in ({"front": True}, {"before": "a"}, {"number": -3.0}):
            with pytest.raises(RunError, match="the disk is full"):
                await service.jobs.move("c", **move)
        assert service.pending() == ["a", "b", "c"]

    monkeypatch.setattr(JobStore, "place", full)
    run(tmp_path, use)


def test_a_start_deletes_leftovers_of_a_waiting_job(tmp_path: Path) -> None:
    """An attempt may first record its files."""
    store, left = JobStore.open(tmp_path), tmp_path / "output" / "half.png"
    left.parent.mkdir()
    left.touch()

    async def before() -> None:
        await store.add(job("a"))
        await store.wrote("a", [StoredFile("output", "half.png")])
        await store.close()

    asyncio.run(before())

    async def after(service: Service) -> None:
        assert not left.exists() and await service.store.files("a") == []

    run(tmp_path, after)


def test_files_are_in_somebodys_care_at_every_moment(tmp_path: Path) -> None:
    """A runner that loses the server deletes files, except after `keep_files`. The store records
    files before that call and the result after it, so a kill never leaves a result without files.
    """
    seen: list[tuple[dict[str, str], list[Any]]] = []

    class Watching(FakeRunner):
        def keep_files(self, job_id: str) -> None:
            with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as connection:
                seen.append(
                    (
                        on_disk(tmp_path),
                        connection.execute("select place, path from files").fetchall(),
                    )
                )

    async def use(service: Service) -> None:
        await submit(service, "a")
        await service.until(lambda: service.running() == ["a"])
        service.runner.write("a", service.output / "a.png")
        service.runner.write("a", service.temp / "a.png", "temp")
        service.runner.end("a")
        await service.all_ended("a")
        assert seen == [({"a": "in_progress"}, [("output", "a.png"), ("temp", "a.png")])]
        assert on_disk(tmp_path) == {"a": "completed"}

    run(tmp_path, use, runner=Watching())


def test_a_listener_that_fails_does_not_stop_the_jobs(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, runner=FakeRunner(seconds=0.0)) as service:

            def broken(job: Job, event: Any) -> None:
                raise RuntimeError("a bug elsewhere")

            service.jobs._dispatcher._publish = broken
            await submit(service, "a", "b")
            await service.until(lambda: service.runner.safe == ["a", "b"])

    asyncio.run(main())


def test_a_store_that_was_damaged_stops_the_start_in_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"rubbish" * 1000)
    with pytest.raises(RunError, match="damaged"):
        run(tmp_path, lambda service: service.jobs.forget_all())
