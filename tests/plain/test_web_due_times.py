"""Waiting jobs run in the order of their due times, without losing numbers, moves and turns."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner
from web_jobs import Clock, Service, end_after, job, run, submission, submit, teach

from katz_graph.cli.main import app
from katz_graph.core.errors import InputError
from katz_graph.web.jobs.admission import Refused
from katz_graph.web.jobs.job import DueTimes, Job
from katz_graph.web.jobs.queue import JobQueue

START = 1_000_000.0


def waiting(*jobs: Job, now: float = START) -> JobQueue:
    queue = JobQueue(lambda: now)
    for each in jobs:
        queue.add(each)
    return queue


def names(queue: JobQueue) -> list[str]:
    return [each.id for each in queue]


def arrived(id: str, order: int, due: float | None = None, **given: object) -> Job:
    """Makes a job that takes 10 s, and is due some seconds after the start."""
    return job(
        id,
        float(order),
        order,
        created=START + order,
        due=None if due is None else START + due,
        predicted=10.0,
        **given,
    )


def test_due_jobs_come_first_then_turns_of_clients_then_late_jobs() -> None:
    jobs = (
        arrived("late", 1, due=9.0, client="a"),
        arrived("free", 2, client="a"),
        arrived("free too", 3, client="a"),
        arrived("other", 4, client="b"),
        arrived("due", 5, due=50.0, client="b"),
        arrived("due first", 6, due=40.0, client="a"),
        arrived("late too", 7, due=5.0, client="b"),
    )
    expected = ["due first", "due", "free", "other", "free too", "late", "late too"]
    assert names(waiting(*jobs)) == expected
    queue = waiting(*jobs)
    taken = [each.id for each in iter(lambda: queue.take(lambda _: True), None)]
    # a tenth of the time is reserved for jobs without due times
    assert taken == ["due first", "free", "due", "other", "free too", "late", "late too"]


def test_moved_jobs_stay_before_the_earlier_jobs_that_they_were_moved_before() -> None:
    draw = random.Random(1)
    moved = 0
    for _ in range(300):
        jobs = [
            arrived(f"{order}", order, due=draw.choice([None, 5.0, draw.uniform(20, 90)]))
            for order in range(draw.randint(2, 8))
        ]
        queue = waiting(*jobs)
        for _ in range(draw.randint(0, 3)):
            first, second = draw.sample([each.id for each in jobs], 2)
            queue.place(
                draw.choice(
                    [
                        [queue.moved_to_front(first)],
                        queue.moved_before(first, second),
                        [queue.renumbered(first, draw.uniform(-5, 10))],
                    ]
                )
            )
        ordered = list(queue)
        by_number = sorted(ordered, key=lambda each: (each.number, each.order))
        # the due times of the jobs that each must not delay
        bound = [
            min(rank(later) for later in by_number[place:] if later.created <= first.created)
            for place, first in enumerate(by_number)
        ]
        places = {each.id: place for place, each in enumerate(ordered)}
        by_place = sorted(range(len(jobs)), key=lambda place: places[by_number[place].id])
        assert [bound[place] for place in by_place] == sorted(bound)
        for place, first in enumerate(by_number):
            for second in by_number[place:]:
                if second.created < first.created:
                    moved += 1
                    assert places[first.id] < places[second.id]
    assert moved > 300


def rank(job: Job) -> tuple[int, float]:
    if job.due is None:
        return 1, 0.0
    return (0, job.due) if job.due >= START + 10.0 else (2, job.created)


def test_a_job_that_is_moved_to_the_front_goes_before_due_jobs_of_its_client() -> None:
    queue = waiting(
        arrived("due", 1, due=50.0, client="a"),
        arrived("other", 2, due=20.0, client="b"),
        arrived("last", 3, due=90.0, client="a"),
        arrived("free", 4, client="a"),
    )
    assert names(queue) == ["other", "due", "last", "free"]
    queue.place([queue.moved_to_front("free")])
    assert names(queue) == ["other", "free", "due", "last"]
    queue.place(queue.moved_before("last", "due"))
    assert names(queue) == ["other", "free", "last", "due"]


def test_predictions_follow_the_last_jobs_while_a_job_waits(tmp_path: Path) -> None:
    """A job that turns out to take too long for its due time lets the others go first."""
    clock = Clock()

    async def use(service: Service) -> None:
        large, small = (
            {"1": {"class_type": "KSampler", "inputs": {"steps": steps}}} for steps in (20, 5)
        )
        await teach(service, clock, 10.0, "a", prompt=large)
        await teach(service, clock, 2.0, "b", prompt=small)
        await submit(service, "runs", prompt=large)
        await service.until(lambda: service.running() == ["runs"])
        await submit(service, "large", prompt=large, deadline=clock.now + 70.0)
        await service.until(lambda: service.running() == ["runs", "large"])
        await submit(service, "next", prompt=large, deadline=clock.now + 90.0)
        await submit(service, "small", prompt=small, deadline=clock.now + 100.0)
        assert service.pending() == ["next", "small"]
        service.runner.ready = False  # takes no other job
        await end_after(service, clock, 60.0, "large")
        # it took 60 s, so the median is 35 s, and 30 s are left
        assert service.pending() == ["small", "next"]

    run(tmp_path, use, clock=clock)


async def no_jobs(service: Service) -> None: ...


def test_jobs_are_due_after_a_multiple_of_their_predicted_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    caplog.set_level("INFO", "katz.jobs")

    async def use(service: Service) -> None:
        small, large = (
            {"1": {"class_type": "KSampler", "inputs": {"steps": steps}}} for steps in (5, 20)
        )
        first = await teach(service, clock, 5.0, "teaches 5", prompt=small)
        assert first.due is None, "nothing is predicted yet"
        await teach(service, clock, 20.0, "teaches 20", prompt=large)
        await service.jobs.pause()
        [job] = await submit(service, "large", prompt=large)
        assert job.due == pytest.approx(clock.now + 60.0)
        await submit(service, "small", prompt=small)
        await submit(service, "soon", prompt=large, deadline=clock.now + 29.0)
        assert service.pending() == ["small", "soon", "large"]
        with pytest.raises(Refused, match=r"waits for 5\.0 s and takes 20\.0 s"):
            await service.jobs.submit(submission("sooner", prompt=large, deadline=clock.now + 24.0))
        clock.now += 50.0
        await service.all_ended("soon")  # its deadline passed
        assert service.pending() == ["large", "small"], "both are late now, so the first goes first"

    line = "--slo: nothing is predicted yet; jobs have due times once a job has completed"
    run(tmp_path, use, clock=clock, due_times=DueTimes(3.0))
    assert caplog.messages.count(line) == 1
    run(tmp_path, no_jobs, clock=clock, due_times=DueTimes(3.0))
    assert caplog.messages.count(line) == 1, "the earlier server's jobs are known"


def test_due_times_follow_jobs_that_ran_alone_not_those_that_shared_a_device(
    tmp_path: Path,
) -> None:
    clock = Clock()

    async def use(service: Service) -> None:
        await teach(service, clock, 10.0)
        for first, second in ("ab", "cd", "ef"):
            await submit(service, first, second)
            await service.until(lambda both=[first, second]: service.running() == both)
            clock.now += 8.0  # each is charged for 4 s
            for one in (first, second):
                service.runner.end(one)
            await service.all_ended(first, second)
        [job] = await submit(service, "next")
        assert job.due == clock.now + 30.0

    run(tmp_path, use, jobs_at_once=2, groups=1, clock=clock, due_times=DueTimes(3.0))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--slo=0", "--slo 0: expected a number of at least 1"),
        ("--slo=0.9", "--slo 0.9: expected a number of at least 1"),
        ("--slo=nan", "--slo nan: expected a number of at least 1"),
        ("--slo=inf", "--slo inf: expected a number of at least 1"),
        ("--late=never", "--late never: expected finish or fail"),
    ],
)
def test_wrong_options_are_refused_in_one_line(option: str, message: str) -> None:
    result = CliRunner().invoke(app, ["serve", option])
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(message)
    assert "\n" not in str(result.exception)


def test_a_job_due_before_all_running_ones_is_served_at_once_one_for_each_place(
    tmp_path: Path,
) -> None:
    clock = Clock()

    async def use(service: Service) -> None:
        await submit(service, "a", "b", client="many")
        await submit(service, "soon", deadline=clock.now + 60.0)
        await service.until(lambda: service.runner.names == ["a", "b", "soon"])
        assert [each.id for each in service.jobs.served] == ["a", "soon"]
        await submit(service, "sooner", deadline=clock.now + 50.0)
        await submit(service, "later", deadline=clock.now + 70.0)
        assert service.pending() == ["sooner", "later"], "one more than the places, at most"
        await end_after(service, clock, 10.0, "soon")
        [next_one] = await submit(service, "next", client="many")
        assert next_one.predicted == 10.0, "the device served no other job"
        await service.until(lambda: service.runner.names[3:] == ["sooner"])
        service.runner.end("a")
        service.runner.end("sooner")
        await service.all_ended("a", "sooner")
        await service.until(lambda: service.runner.names[4:] == ["later"])

    run(tmp_path, use, jobs_at_once=2, served=1, clock=clock)


def test_a_deadline_is_promised_over_running_jobs_that_are_due_later_or_never(
    tmp_path: Path,
) -> None:
    clock = Clock()

    async def use(service: Service) -> None:
        await teach(service, clock)
        await submit(service, "runs")
        # a tenth of the time is for jobs without due times
        with pytest.raises(Refused, match=r"waits for 1\.\d s and takes 10\.0 s"):
            await service.jobs.submit(submission("sooner", deadline=clock.now + 11.0))
        await submit(service, "first", deadline=clock.now + 12.0)
        with pytest.raises(Refused, match=r"waits for 1[12]\.\d s and takes 10\.0 s"):
            await service.jobs.submit(submission("second", deadline=clock.now + 19.0))
        await submit(service, "third", deadline=clock.now + 23.0)

    run(tmp_path, use, clock=clock)


def test_late_jobs_fail_before_they_start_if_the_operator_says_so(tmp_path: Path) -> None:
    clock = Clock()

    async def use(service: Service) -> None:
        await teach(service, clock)
        await service.jobs.pause()
        await submit(service, "waits")
        clock.now += 20.5  # of 30
        await service.all_ended("waits")
        ended = await service.jobs.job("waits")
        assert ended is not None and ended.result is not None and ended.result.error is not None
        assert ended.result.error.message == (
            "it cannot end by its due time, in 9.5 s: it takes 10.0 s (--late fail)"
        )

    run(tmp_path, use, clock=clock, due_times=DueTimes(3.0, fail_late=True))
