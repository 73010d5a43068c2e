"""Provides jobs over a runner that a test controls, for tests of the queue and the store."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from katz_graph.web.events import ClientEvent, Ended, JobEvent, Started, Wrote
from katz_graph.web.jobs.dispatch import STOP_SECONDS, Concurrency
from katz_graph.web.jobs.job import NO_DUE_TIMES, DueTimes, Job, Submission
from katz_graph.web.jobs.jobs import Jobs
from katz_graph.web.jobs.retention import JobFiles, Retention
from katz_graph.web.jobs.store import FILE, JobStore
from katz_graph.web.options import Limits


def graph(**inputs: Any) -> dict[str, Any]:
    return {"1": {"class_type": "Paint", "inputs": inputs}}


def submission(id: str | None = None, **given: Any) -> Submission:
    return Submission(given.pop("prompt", graph(seed=1)), ("1",), id, **given)


def job(id: str, number: float = 1.0, order: int = 1, **given: Any) -> Job:
    return replace(
        Job(id, number, graph(seed=1), ("1",), None, {}, "pending", 1000.0, order=order), **given
    )


def ended(job: Job, at: float = 1010.0, status: str = "completed", **given: Any) -> Job:
    result = Ended(status, at, **given)  # type: ignore[arg-type]
    return replace(
        job, status=result.status, started=job.started or at - 1.0, ended=at, result=result
    )


@dataclass(slots=True)
class Clock:
    """Changes only when a test sets it."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class FakeRunner:
    """Accepts jobs. They end when a test ends them, or automatically after `seconds`. `taken`: all
    accepted jobs, in order. Events carry the time of the service's clock.
    """

    jobs: Jobs | None = None
    seconds: float | None = None
    ready: bool = True
    refuses: Exception | None = None
    taken: list[Job] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    safe: list[str] = field(default_factory=list)
    obedient: bool = True  # ends cancelled jobs
    replaced: list[str] = field(default_factory=list)  # reasons for replacements
    prepared: int = 0  # number of `prepare` calls
    clock: Callable[[], float] = time.time

    async def run(self, job: Job, seconds_after: object = None) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.taken.append(job)
        self.emit(job.id, Started(self.clock()))
        if self.seconds is not None:
            asyncio.get_running_loop().call_later(self.seconds, self.end, job.id)

    async def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)
        if self.obedient:
            self.emit(job_id, Ended("cancelled", self.clock()))

    def prepare(self) -> None:
        self.prepared += 1

    def replace(self, why: str) -> None:
        assert self.jobs is not None
        self.replaced.append(why)
        self.jobs.lost([job.id for job in self.jobs.running], why, blamed=False)

    def keep_files(self, job_id: str) -> None:
        self.safe.append(job_id)

    def emit(self, job_id: str, event: ClientEvent) -> None:
        assert self.jobs is not None
        self.jobs.on_event(JobEvent(job_id, event))

    def write(self, job_id: str, file: Path, place: Any = "output") -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"picture")
        self.emit(job_id, Wrote(file.name, place))

    def end(self, job_id: str, **given: Any) -> None:
        self.emit(job_id, Ended("completed", self.clock(), **given))

    @property
    def names(self) -> list[str]:
        return [job.id for job in self.taken]


@dataclass(slots=True)
class Service:
    """Holds jobs with everything that they need. `events`: published events with the job's
    status.
    """

    jobs: Jobs
    runner: FakeRunner
    store: JobStore
    events: list[tuple[Job, ClientEvent]]
    output: Path
    temp: Path

    def pending(self) -> list[str]:
        return [job.id for job in self.jobs.pending]

    def running(self) -> list[str]:
        return [job.id for job in self.jobs.running]

    async def statuses(self) -> dict[str, str]:
        return {job.id: job.status for job in await self.jobs.history()}

    async def until(self, holds: Callable[[], bool], seconds: float = 5.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "nothing happened"
            await asyncio.sleep(0.002)

    async def all_ended(self, *ids: str) -> None:
        await self.until(
            lambda: set(ids) <= {job.id for job, event in self.events if isinstance(event, Ended)}
        )


@contextlib.asynccontextmanager
async def serving(
    data: Path,
    jobs_at_once: int = 1,
    served: int | None = None,
    groups: int | None = None,
    limits: Limits | None = None,
    retention: Retention | None = None,
    runner: FakeRunner | None = None,
    clock: Callable[[], float] = time.time,
    store: JobStore | None = None,
    stop_seconds: float = STOP_SECONDS,
    due_times: DueTimes = NO_DUE_TIMES,
) -> AsyncIterator[Service]:
    """Yields started jobs on a data folder. On exit, ends them like a server that does not drain."""
    store = store or JobStore.open(data)
    events: list[tuple[Job, ClientEvent]] = []
    runner = runner or FakeRunner()
    output, temp = data / "output", data / "temp"
    jobs = Jobs(
        store,
        runner,
        lambda job, event: events.append((job, event)),
        lambda: None,
        limits or Limits(),
        Concurrency(jobs_at_once, served or jobs_at_once, groups or served or jobs_at_once),
        JobFiles({"output": output, "temp": temp}, data),
        retention or Retention(),
        clock,
        stop_seconds,
        due_times,
    )
    runner.jobs, runner.clock = jobs, clock
    await jobs.start()
    try:
        yield Service(jobs, runner, store, events, output, temp)
    finally:
        await jobs.close()
        await store.close()


def run(data: Path, use: Callable[[Service], Coroutine[Any, Any, None]], **given: Any) -> None:
    async def main() -> None:
        async with serving(data, **given) as service:
            await asyncio.wait_for(use(service), 20)

    asyncio.run(main())


async def submit(service: Service, *ids: str, **given: Any) -> list[Job]:
    return [await service.jobs.submit(submission(id, **given)) for id in ids]


async def end_after(service: Service, clock: Clock, seconds: float, id: str) -> None:
    """Ends a job after the clock's time has passed."""
    clock.now += seconds
    service.runner.end(id)
    await service.all_ended(id)


async def teach(
    service: Service, clock: Clock, seconds: float = 10.0, id: str = "teaches", **given: Any
) -> Job:
    """Completes a job, so that jobs of its shape are predicted."""
    [job] = await submit(service, id, **given)
    await service.until(lambda: service.running() == [id])
    await end_after(service, clock, seconds, id)
    return job


def on_disk(data: Path) -> dict[str, str]:
    with contextlib.closing(sqlite3.connect(data / FILE)) as connection:
        return dict(connection.execute("select id, status from jobs"))
