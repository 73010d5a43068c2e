"""What becomes of jobs: order, ends, crashes, restarts, refusals. The runner is a fake that does
what a test says.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from web_jobs import FakeRunner, Service, graph, job, serving, submission

from katz_graph.errors import KatzError, RunError
from katz_graph.events import Progress
from katz_graph.web.events import ClientEvent, Ended, JobError, JobEvent, Started
from katz_graph.web.jobs.admission import Refused
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.queue import NotWaiting
from katz_graph.web.jobs.records import StoredFile
from katz_graph.web.jobs.retention import Retention
from katz_graph.web.jobs.store import FILE, JobStore, open_folder
from katz_graph.web.options import MB, Limits


def run(data: Path, use: Callable[[Service], Coroutine[Any, Any, None]], **given: Any) -> None:
    async def main() -> None:
        async with serving(data, **given) as service:
            await asyncio.wait_for(use(service), 20)

    asyncio.run(main())


async def submit(service: Service, *ids: str, **given: Any) -> list[Job]:
    return [await service.jobs.submit(submission(id, **given)) for id in ids]


def on_disk(data: Path) -> dict[str, str]:
    with contextlib.closing(sqlite3.connect(data / FILE)) as connection:
        return dict(connection.execute("select id, status from jobs"))


def test_jobs_run_in_order_and_so_many_at_once(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "a", "b", "c", "d")
        await service.until(lambda: service.runner.names == ["a", "b"])
        assert service.running() == ["a", "b"] and service.pending() == ["c", "d"]
        service.runner.end("b")
        await service.until(lambda: service.runner.names == ["a", "b", "c"])
        service.runner.end("a")
        service.runner.end("c")
        await service.until(lambda: service.runner.names == ["a", "b", "c", "d"])
        service.runner.end("d")
        await service.all_ended("a", "b", "c", "d")
        assert await service.statuses() == dict.fromkeys("bacd", "completed")
        assert (
            service.runner.safe == ["b", "a", "c", "d"]
            and service.running() == service.pending() == []
        )

    run(tmp_path, use, jobs_at_once=2)


def test_an_end_is_told_only_when_it_is_on_disk(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "a")
        assert on_disk(tmp_path)["a"] in ("pending", "in_progress")
        await service.until(lambda: service.runner.names == ["a"])
        service.runner.tell("a", Progress("1", 1, 2))
        service.runner.end("a", outputs={"1": {"images": []}})
        assert not any(
            isinstance(event, Ended) for _, event in service.events
        ) and service.running() == ["a"]
        while not any(isinstance(event, Ended) for _, event in service.events):
            await asyncio.sleep(0)
        assert on_disk(tmp_path) == {"a": "completed"}
        assert [type(event) for _, event in service.events] == [Started, Progress, Ended]
        assert [job.status for job, _ in service.events] == [
            "in_progress",
            "in_progress",
            "completed",
        ]
        service.runner.tell("a", Progress("1", 2, 2))
        service.runner.end("a", outputs={"1": {"images": ["another"]}})
        await asyncio.sleep(0.05)
        assert len(service.events) == 3, "what comes after the end is not the job's"
        kept = await service.jobs.job("a")
        assert (
            kept is not None
            and kept.result is not None
            and kept.result.outputs == {"1": {"images": []}}
        )

    run(tmp_path, use)


def test_priorities_front_and_moves_decide_who_is_next(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        await submit(service, "a", "b", "c")
        await submit(service, "urgent", number=-5.0)
        await submit(service, "first", front=True)
        assert service.pending() == ["first", "urgent", "a", "b", "c"]
        assert (await service.jobs.move("c", front=True)).id == "c"
        await service.jobs.move("b", before="first")
        await service.jobs.move("urgent", number=100.0)
        assert service.pending() == ["c", "b", "first", "a", "urgent"]
        with pytest.raises(NotWaiting, match="no job nobody waits"):
            await service.jobs.move("nobody", front=True)
        with pytest.raises(NotWaiting):
            await service.jobs.move("a", number=float("nan"))

    run(tmp_path, use)

    async def later(service: Service) -> None:
        assert service.jobs.paused and service.pending() == ["c", "b", "first", "a", "urgent"], (
            "places and the pause survive a restart"
        )
        assert service.runner.names == []
        (new,) = await submit(service, "new")
        assert new.number == 6.0
        await service.jobs.resume()
        assert not service.jobs.paused
        await service.all_ended("c", "b", "first", "a", "new", "urgent")
        assert service.runner.names == ["c", "b", "first", "a", "new", "urgent"]

    run(tmp_path, later, runner=FakeRunner(seconds=0.0))


def test_cancelling_stops_what_waits_and_what_runs(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "runs", "waits", "other", "more")
        await service.until(lambda: service.runner.names == ["runs"])
        assert await service.jobs.cancel(["waits", "nobody"]) == {"waits": True, "nobody": False}
        assert on_disk(tmp_path)["waits"] == "cancelled", (
            "the answer means that it will not run, whatever happens"
        )
        await service.jobs.interrupt("other")
        assert service.runner.cancelled == [] and service.pending() == ["other", "more"]
        assert await service.jobs.cancel(["runs"]) == {"runs": True}
        await service.all_ended("runs", "waits")
        assert service.runner.cancelled == ["runs"]
        await service.until(lambda: service.running() == ["other"])
        await service.jobs.interrupt(None)
        await service.until(lambda: service.running() == ["more"])
        assert await service.jobs.cancel_all() == 1
        await service.all_ended("more")
        assert await service.statuses() == dict.fromkeys(
            ("waits", "runs", "other", "more"), "cancelled"
        )
        assert await service.jobs.cancel(["runs"]) == {"runs": False}

    run(tmp_path, use)


def test_a_full_queue_refuses_with_the_time_until_there_is_room(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "known")
        await service.until(lambda: service.runner.names == ["known"])
        service.runner.tell("known", Ended("completed", time.time() + 4.0))
        await service.all_ended("known")
        await submit(service, "runs")
        await submit(service, "a", "b")
        with pytest.raises(Refused, match="the queue is full: 2 jobs wait") as refused:
            await service.jobs.submit(submission("c"))
        assert (refused.value.status, refused.value.kind) == (429, "queue_full")
        assert refused.value.retry_after == pytest.approx(4.0, abs=0.5), (
            "the running job takes as long as the one before"
        )
        with pytest.raises(Refused):
            await service.jobs.admit(None, "unknown key")
        assert service.pending() == ["a", "b"] and await service.jobs.job("c") is None
        await service.jobs.cancel(["a"])
        await service.jobs.admit(None, None)

    run(tmp_path, use, limits=Limits(queue=2))


def test_many_at_once_never_get_beyond_the_limit(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        answers = await asyncio.gather(
            *(service.jobs.submit(submission()) for _ in range(50)), return_exceptions=True
        )
        assert sum(isinstance(answer, Job) for answer in answers) == 5 == len(service.pending())
        assert all(isinstance(answer, Job | Refused) for answer in answers)

    run(tmp_path, use, limits=Limits(queue=5))


def test_a_repeated_submission_gives_the_job_of_then(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        same = submission(key="k", client="ann", deadline=time.time() + 1000)
        jobs = await asyncio.gather(*(service.jobs.submit(same) for _ in range(3)))
        assert {job.id for job in jobs} == {jobs[0].id} and len(service.pending()) == 1
        later = submission(key="k", client="ann", deadline=time.time() + 2000)
        assert (await service.jobs.submit(later)).id == jobs[0].id, (
            "a deadline is counted from the arrival"
        )
        with pytest.raises(Refused, match="exists already"):
            await service.jobs.submit(submission(jobs[0].id))
        await submit(service, "b", "c")
        await service.jobs.admit("ann", "k")
        with pytest.raises(Refused, match="full"):
            await service.jobs.admit("bob", "k")
        assert (await service.jobs.submit(same)).id == jobs[0].id, "though the queue is full"
        with pytest.raises(Refused, match="used for another body") as refused:
            await service.jobs.submit(submission(key="k", client="ann", prompt=graph(seed=2)))
        assert refused.value.status == 409

    run(tmp_path, use, limits=Limits(queue=3))


def test_a_client_that_hangs_up_while_its_job_is_accepted_has_queued_it(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        for turns in range(12):
            request = asyncio.create_task(service.jobs.submit(submission(f"{turns}")))
            for _ in range(turns):
                await asyncio.sleep(0)
            request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await request
        await asyncio.sleep(0.2)
        waiting = set(service.pending())
        assert waiting == set(on_disk(tmp_path)) and waiting >= {"1", "11"}

    run(tmp_path, use)


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
            bad.result.error.message
            == "set aside: what ran it died 2 times under it, the last time: signal 11"
        )
        assert not left.exists()

    run(tmp_path, use, jobs_at_once=2)


def test_a_job_whose_device_is_given_up_goes_back_as_if_its_runner_had_died(tmp_path: Path) -> None:
    gone = JobError("DeviceGone", "device cuda:1: its worker died 5 times")

    async def use(service: Service) -> None:
        await submit(service, "a")
        for attempt in (1, 2):
            await service.until(lambda: len(service.runner.names) == attempt)  # noqa: B023
            service.jobs.heard(JobEvent("a", Ended("failed", time.time(), gone)))
        await service.all_ended("a")
        kept = await service.jobs.job("a")
        assert (
            kept is not None
            and kept.crashes == 2
            and kept.result is not None
            and kept.result.error is not None
        )
        assert (
            kept.result.error.message
            == f"set aside: what ran it died 2 times under it, the last time: {gone.message}"
        )

    run(tmp_path, use)


def test_a_job_under_which_runners_die_before_they_say_anything_of_it_is_set_aside(
    tmp_path: Path,
) -> None:
    class Silent(FakeRunner):
        def tell(self, job_id: str, event: ClientEvent) -> None: ...

    async def use(service: Service) -> None:
        await submit(service, "a")
        for attempt in (1, 2):
            await service.until(lambda: len(service.runner.names) == attempt)  # noqa: B023
            service.jobs.lost(["a"], "killed")
        await service.all_ended("a")
        assert await service.statuses() == {"a": "failed"}

    run(tmp_path, use, runner=Silent())


def test_a_job_that_no_runner_had_taken_is_not_blamed(tmp_path: Path) -> None:
    class Dying(FakeRunner):
        async def run(self, job: Job) -> None:
            self.taken.append(job)
            if len(self.taken) < 5:
                raise KatzError("there is none")
            self.end(job.id)

    async def use(service: Service) -> None:
        await submit(service, "a")
        await service.all_ended("a")
        kept = await service.jobs.job("a")
        assert kept is not None and (kept.status, kept.crashes) == ("completed", 0)

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
        kept = await service.jobs.job("b")
        assert kept is not None and kept.result is not None and kept.result.error is not None
        assert kept.result.error.message == "the job could not be handed to the runner: odd"

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


def test_draining_waits_then_gives_back(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "quick", "slow", "waits")
        await service.until(lambda: service.running() == ["quick", "slow"])
        service.runner.write("slow", service.output / "half.png")
        asyncio.get_running_loop().call_later(0.05, service.runner.end, "quick")
        started = time.monotonic()
        await service.jobs.drain(0.2)
        assert 0.2 <= time.monotonic() - started < 2.0
        assert service.runner.names == ["quick", "slow"] and service.runner.cancelled == ["slow"]
        assert await service.statuses() == {"quick": "completed"} and service.pending() == [
            "slow",
            "waits",
        ]
        assert not (service.output / "half.png").exists()
        with pytest.raises(Refused, match="shutting down") as refused:
            await service.jobs.submit(submission())
        assert refused.value.status == 503

    run(tmp_path, use, jobs_at_once=2)
    assert on_disk(tmp_path) == {"quick": "completed", "slow": "pending", "waits": "pending"}


def test_draining_ends_at_once_when_nothing_runs(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await asyncio.wait_for(service.jobs.drain(30), 0.5)

    run(tmp_path, use)


def test_a_deadline_that_cannot_be_met_is_refused_on_arrival(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "teaches")
        await service.until(lambda: service.running() == ["teaches"])
        service.runner.tell("teaches", Ended("completed", time.time() + 10.0))
        await service.all_ended("teaches")
        await submit(service, "runs")
        await service.until(lambda: service.running() == ["runs"])
        with pytest.raises(
            Refused, match=r"the deadline in 5\.0 s cannot be met: the job takes 10\.0 s"
        ) as refused:
            await service.jobs.submit(submission("short", deadline=time.time() + 5.0))
        assert (refused.value.status, refused.value.kind, refused.value.retry_after) == (
            409,
            "deadline",
            None,
        )
        with pytest.raises(Refused, match=r"waits for (10\.0|9\.9) s and takes 10\.0 s") as refused:
            await service.jobs.submit(submission("late", deadline=time.time() + 15.0))
        assert refused.value.status == 429 and refused.value.retry_after == pytest.approx(
            5.0, abs=0.3
        )
        await service.jobs.submit(submission("fits", deadline=time.time() + 21.0))
        with pytest.raises(Refused) as refused:
            await service.jobs.submit(submission("odd", deadline=float("nan")))
        assert refused.value.status == 400
        assert service.jobs.expected_wait() == pytest.approx(20.0, abs=0.3)
        assert service.jobs.expected_waits() == {"fits": pytest.approx(10.0, abs=0.3)}

    run(tmp_path, use)


def test_a_job_whose_deadline_passed_ends_without_running(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        await submit(service, "late", deadline=time.time() + 0.1)
        await service.all_ended("late")
        kept = await service.jobs.job("late")
        assert kept is not None and kept.result is not None and kept.result.error is not None
        assert kept.status == "failed" and kept.result.error.message.startswith(
            "its deadline passed "
        )
        assert service.runner.names == []

    run(tmp_path, use)


def test_results_wait_for_a_full_disk_and_nothing_is_started_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("katz_graph.web.jobs.dispatch.AGAIN", 0.05)
    opened = open_folder(tmp_path)

    async def use(service: Service) -> None:
        await submit(service, "a", "b", "c")
        await service.until(lambda: service.running() == ["a"])
        await service.jobs.listed()  # all is on disk
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
        kept = await service.jobs.job("a")
        assert kept is not None and kept.result is not None and kept.result.error is not None
        assert kept.status == "failed" and "cannot be kept" in kept.result.error.message

    run(tmp_path, use)


def test_a_result_that_is_too_large_fails_its_job_and_others_go_on(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        for name in "ab":
            await submit(service, name)
        await service.until(lambda: service.running() == ["a"])
        service.runner.end("a", outputs={str(node): {"text": ["x" * MB]} for node in range(65)})
        await service.until(lambda: service.running() == ["b"])
        kept = await service.jobs.job("a")
        assert kept is not None and kept.result is not None and kept.result.error is not None
        assert (
            kept.status == "failed" and "cannot be kept: it has 68,1" in kept.result.error.message
        )

    run(tmp_path, use)


@pytest.mark.parametrize(("faults", "status"), [(1, "failed"), (2, "in_progress")])
def test_a_fault_of_ours_holds_up_no_other_job(
    faults: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that cannot be kept fails its job; one of which not even that can be kept is left to
    the next start.
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


def test_a_start_deletes_what_a_waiting_job_left(tmp_path: Path) -> None:
    """An attempt's first words on disk may be its files."""
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
    """The runner deletes what it was not told to keep when it loses the server: before it is told,
    the store knows the files; the result comes after that, so that a kill in between never leaves a
    result without files.
    """
    seen: list[tuple[dict[str, str], list[Any]]] = []

    class Watching(FakeRunner):
        def kept(self, job_id: str) -> None:
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


@pytest.mark.parametrize(
    ("retention", "limits", "left"),
    [
        (Retention(), Limits(history=1), {"new"}),
        (Retention(days=1.0), Limits(), {"new"}),
        (Retention(bytes=10), Limits(), {"new"}),
        (Retention(bytes=14), Limits(), {"old", "new"}),
        (Retention(), Limits(), {"old", "new"}),
    ],
)
def test_cleaning_forgets_jobs_and_their_temporary_files(
    tmp_path: Path, retention: Retention, limits: Limits, left: set[str]
) -> None:
    async def before(service: Service) -> None:
        for id, at in (("old", time.time() - 100_000), ("new", time.time())):
            await submit(service, id)
            await service.until(lambda id=id: service.running() == [id])  # type: ignore[misc]
            service.runner.write(id, service.output / f"{id}.png")
            service.runner.write(id, service.temp / f"{id}.png", "temp")
            service.runner.tell(id, Ended("completed", at))
            await service.all_ended(id)

    run(tmp_path, before)

    async def after(service: Service) -> None:
        if left != {"old", "new"}:
            await service.until(lambda: not (service.temp / "old.png").exists())
        else:
            await asyncio.sleep(0.1)
        assert set(await service.statuses()) == left
        assert {path.stem for path in service.temp.iterdir()} == left
        assert {path.stem for path in service.output.iterdir()} == {"old", "new"}, (
            "outputs are the person's"
        )

    run(tmp_path, after, retention=retention, limits=limits)


def test_forgetting_leaves_running_jobs_alone(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "a", "b", "c")
        await service.until(lambda: service.running() == ["a"])
        service.runner.end("a")
        await service.until(lambda: service.running() == ["b"])
        await service.all_ended("a")
        await service.jobs.forget_all()
        await service.jobs.forget(["b", "c", "nobody"])
        assert (
            await service.jobs.history() == []
            and service.running() == ["b"]
            and service.pending() == ["c"]
        )
        found, total = await service.jobs.listed(
            ("pending", "in_progress"), sort_by="created_at", descending=False
        )
        assert ([job.id for job in found], total) == (["b", "c"], 2)

    run(tmp_path, use)


def test_a_store_that_was_damaged_stops_the_start_in_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"rubbish" * 1000)
    with pytest.raises(RunError, match="damaged"):
        run(tmp_path, lambda service: service.jobs.forget_all())
