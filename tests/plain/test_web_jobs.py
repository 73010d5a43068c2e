"""Tests the order, ends, refusals and deadlines of jobs. Each test controls a fake runner."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from web_jobs import (
    Clock,
    FakeRunner,
    Service,
    end_after,
    graph,
    on_disk,
    run,
    submission,
    submit,
    teach,
)

from katz_graph.core.events import Progress
from katz_graph.web.events import Ended, Started
from katz_graph.web.jobs.admission import Refused
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.jobs import STOPPING
from katz_graph.web.jobs.queue import NotWaiting
from katz_graph.web.jobs.retention import Retention
from katz_graph.web.options import Limits


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


def test_an_end_is_reported_only_when_it_is_on_disk(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "a")
        assert on_disk(tmp_path)["a"] in ("pending", "in_progress")
        await service.until(lambda: service.runner.names == ["a"])
        service.runner.emit("a", Progress("1", 1, 2))
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
        service.runner.emit("a", Progress("1", 2, 2))
        service.runner.end("a", outputs={"1": {"images": ["another"]}})
        await asyncio.sleep(0.05)
        assert len(service.events) == 3, "what comes after the end is not the job's"
        stored = await service.jobs.job("a")
        assert (
            stored is not None
            and stored.result is not None
            and stored.result.outputs == {"1": {"images": []}}
        )

    run(tmp_path, use)


def test_priorities_front_and_moves_decide_the_next_job(tmp_path: Path) -> None:
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
        with pytest.raises(NotWaiting, match="job nobody is not waiting"):
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


def test_cancelling_stops_waiting_and_running_jobs(tmp_path: Path) -> None:
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
    clock = Clock()

    async def use(service: Service) -> None:
        await teach(service, clock, 4.0, "known")
        await submit(service, "runs")
        await service.until(lambda: service.runner.names == ["known", "runs"])
        await submit(service, "a", "b")
        clock.now += 1.0
        with pytest.raises(Refused, match="the queue is full: 2 jobs wait") as refused:
            await service.jobs.submit(submission("c"))
        assert (refused.value.status, refused.value.kind) == (429, "queue_full")
        assert refused.value.retry_after == pytest.approx(3.0), (
            "the running job takes as long as the one before"
        )
        with pytest.raises(Refused):
            await service.jobs.admit(None, "unknown key")
        assert service.pending() == ["a", "b"] and await service.jobs.job("c") is None
        await service.jobs.cancel(["a"])
        await service.jobs.admit(None, None)

    run(tmp_path, use, limits=Limits(queue=2), clock=clock)


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
        await submit(service, "b", "c", client="ann")
        await service.jobs.admit("ann", "k")
        with pytest.raises(Refused, match="full"):
            await service.jobs.admit("ann", "another")
        assert (await service.jobs.submit(same)).id == jobs[0].id, "though the queue is full"
        with pytest.raises(Refused, match="used with another body") as refused:
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


def test_draining_waits_then_gives_back(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "quick", "slow", "waits")
        await service.until(lambda: service.running() == ["quick", "slow"])
        service.runner.write("slow", service.output / "half.png")
        started = time.monotonic()
        draining = asyncio.create_task(service.jobs.drain(0.2))
        await asyncio.sleep(0)  # it waits
        service.runner.end("quick")
        await draining
        assert 0.2 <= time.monotonic() - started < STOPPING, "what stops is waited for no longer"
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
        await asyncio.wait_for(service.jobs.drain(30), 5)

    run(tmp_path, use)


def test_the_time_of_a_job_begins_when_devices_serve_it(tmp_path: Path) -> None:
    """Otherwise predictions would count the seconds of earlier jobs as well."""
    clock = Clock()

    async def use(service: Service) -> None:
        await submit(service, "a", "b", "c")
        await service.until(lambda: service.runner.names == ["a", "b", "c"])
        began = clock.now
        await end_after(service, clock, 10.0, "c")
        await end_after(service, clock, 5.0, "a")
        await end_after(service, clock, 7.0, "b")
        jobs = {id: await service.jobs.job(id) for id in "abc"}
        times = {id: (job.started - began, job.ended - began) for id, job in jobs.items() if job}
        assert times == {"a": (0.0, 15.0), "b": (15.0, 22.0), "c": (0.0, 10.0)}

    run(tmp_path, use, jobs_at_once=3, served=1, clock=clock)


def test_jobs_that_share_a_device_are_charged_for_their_parts_of_its_time(tmp_path: Path) -> None:
    """Otherwise predictions, and due times by them, would grow with the load."""
    clock = Clock()

    async def use(service: Service) -> None:
        await submit(service, "a", "b", "c")
        await service.until(lambda: service.runner.names == ["a", "b", "c"])
        await end_after(service, clock, 12.0, "b")
        await end_after(service, clock, 2.0, "c")
        await end_after(service, clock, 10.0, "a")
        [waits] = await submit(service, "next")
        assert waits.predicted == pytest.approx(6.0), "the median of 6, 1 and 17"

    run(tmp_path, use, jobs_at_once=3, served=2, groups=1, clock=clock)


def test_a_pause_returns_later_jobs_to_their_places(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        for id in "abcd":
            await submit(service, id, client=id)
        await service.until(lambda: service.runner.names == ["a", "b", "c"])
        await service.jobs.pause()
        await service.until(lambda: service.pending() == ["b", "c", "d"])
        assert service.running() == ["a"]
        service.runner.end("a")
        await service.all_ended("a")
        await service.jobs.resume()
        await service.until(lambda: service.runner.names == ["a", "b", "c", "b", "c", "d"])

    run(tmp_path, use, jobs_at_once=3, served=1)


def test_a_deadline_that_passes_ends_a_later_job(tmp_path: Path) -> None:
    clock = Clock()

    async def use(service: Service) -> None:
        await submit(service, "a", "b", deadline=clock.now + 30)
        await submit(service, "c")
        await service.until(lambda: service.runner.names == ["a", "b", "c"])
        clock.now += 31.0
        await service.all_ended("b")
        assert service.running() == ["a", "c"] and service.runner.cancelled == ["b"]
        job = await service.jobs.job("b")
        assert job is not None and job.result is not None and job.result.error is not None
        assert "its deadline passed 1.0 s ago, before it could start" in job.result.error.message

    run(tmp_path, use, jobs_at_once=3, served=1, clock=clock)


def test_each_cancelled_job_is_counted_once(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, *"abcd")
        await service.until(lambda: service.runner.names == ["a", "b", "c"])
        service.runner.obedient = False  # so that jobs which the runner has stay there
        assert await service.jobs.cancel_all() == 4
        for id in "abc":
            service.runner.end(id)

    run(tmp_path, use, jobs_at_once=3, served=1)


def test_a_crash_during_several_jobs_leaves_them_in_their_order(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        for id in "abcd":
            await submit(service, id, client=id)
        await service.until(lambda: service.runner.names == ["a", "b", "c"])
        service.jobs.lost(["a", "b", "c"], "killed")
        for id in "abc":
            await service.until(lambda last=id: service.runner.names[-1] == last)
            assert service.running() == [id], "one that may have killed the runner runs alone"
            service.runner.end(id)
            await service.all_ended(id)

    run(tmp_path, use, jobs_at_once=3, served=1)


def test_a_cancelled_later_job_that_does_not_stop_ends_no_runner(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await submit(service, "a", "b")
        await service.until(lambda: service.runner.names == ["a", "b"])
        service.runner.obedient = False
        await service.jobs.cancel(["b"])
        await asyncio.sleep(0.2)
        assert not service.runner.replaced
        service.runner.end("a")
        # a is being stored; b was cancelled before devices served it, so no list shows it
        assert [job.id for job in (*service.jobs.served, *service.jobs.waiting)] == ["a"]
        await service.all_ended("a", "b")
        assert len(service.runner.replaced) == 1
        assert await service.statuses() == {"a": "completed", "b": "cancelled"}

    run(tmp_path, use, jobs_at_once=3, served=1, stop_seconds=0.05)


@pytest.mark.defect(46)
def test_a_deadline_that_cannot_be_met_is_refused_on_arrival(tmp_path: Path) -> None:
    clock = Clock()

    async def use(service: Service) -> None:
        await teach(service, clock)
        await submit(service, "runs", deadline=clock.now + 12.0)
        await service.until(lambda: service.runner.names == ["teaches", "runs"])
        clock.now += 1.0
        with pytest.raises(
            Refused, match=r"the deadline in 5\.0 s cannot be met: the job takes 10\.0 s"
        ) as refused:
            await service.jobs.submit(submission("short", deadline=clock.now + 5.0))
        assert (refused.value.status, refused.value.kind, refused.value.retry_after) == (
            409,
            "deadline",
            None,
        )
        with pytest.raises(Refused, match=r"waits for 9\.0 s and takes 10\.0 s") as refused:
            await service.jobs.submit(submission("late", deadline=clock.now + 15.0))
        assert refused.value.status == 429 and refused.value.retry_after == pytest.approx(4.0)
        await service.jobs.submit(submission("fits", deadline=clock.now + 19.5))
        with pytest.raises(Refused) as refused:
            await service.jobs.submit(submission("odd", deadline=float("nan")))
        assert refused.value.status == 400
        with pytest.raises(Refused, match=r"^the deadline has passed$"):
            await service.jobs.submit(submission("past", deadline=clock.now - 1e-9))
        assert service.jobs.expected_wait() == pytest.approx(19.0)
        assert service.jobs.expected_waits() == {"fits": pytest.approx(9.0)}

    run(tmp_path, use, clock=clock)


def test_a_job_past_its_deadline_ends_without_running(tmp_path: Path) -> None:
    clock = Clock()

    async def use(service: Service) -> None:
        await service.jobs.pause()
        await submit(service, "late", deadline=clock.now + 0.1)
        assert service.pending() == ["late"]
        clock.now += 2.0
        await service.all_ended("late")
        stored = await service.jobs.job("late")
        assert stored is not None and stored.result is not None and stored.result.error is not None
        assert stored.status == "failed" and stored.result.error.message == (
            "its deadline passed 1.9 s ago, before it could start"
        )
        assert service.runner.names == []

    run(tmp_path, use, clock=clock)


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
            service.runner.emit(id, Ended("completed", at))
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
