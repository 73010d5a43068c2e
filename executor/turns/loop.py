"""Runs the tasks of a device worker in one thread, one unit at a time: an evaluation of a request,
or part of one, up to the next value from another device; or an evaluation of several requests that
share its calls.

Weights are patched in place, so a task runs only while its weight set is resident. `device_order`
decides the order of tasks.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import Any, Protocol

import torch

from katz_graph.core.errors import Cancelled, with_causes
from katz_graph.executor.turns.affinity import Awake, give_way
from katz_graph.executor.turns.device_order import DeviceOrder, Place
from katz_graph.executor.turns.openmp import SpinGuard
from katz_graph.executor.turns.together import OfferingTask, SharedCalls, run_together
from katz_graph.ir.program import evaluation_key
from katz_graph.models.loading.residency import NoRoom

OUTSIDE = Place()
"""The place of a task outside runs."""

WeightSetKey = tuple[Hashable, Hashable]
"""A module and the LoRAs wanted in it; an empty tuple means none."""


class ThreadTask(OfferingTask, Protocol):
    """Defines a task that a worker runs in units."""

    @property
    def weight_set(self) -> WeightSetKey | None:
        """Returns the weight set that must be resident for the next unit; None for any."""

    @property
    def original_set(self) -> WeightSetKey | None:
        """Returns the weight set without LoRAs if these may apply to the task's rows only, else
        None.
        """

    by_row: bool
    """Whether its LoRAs apply to its rows only, at the original weights; set between units."""

    @property
    def ready(self) -> bool:
        """Returns whether a unit can run now. The task calls `DeviceThread.wake` when that may have
        changed.
        """

    @property
    def alone(self) -> bool:
        """Returns whether the task uses this device only, so that it can safely wait for memory."""

    @property
    def loads(self) -> bool:
        """Returns whether the next unit has to load models."""

    @property
    def switched(self) -> float:
        """Returns the seconds that the last unit spent on making a weight set resident."""

    @property
    def rows(self) -> int:
        """Returns the rows of the task's largest call that other tasks may share."""

    @property
    def remaining(self) -> float:
        """Returns the predicted seconds of the rest of the task, if it runs alone; 0: unknown."""

    @property
    def result(self) -> Any: ...

    def step(self) -> bool:
        """Runs one unit; returns true if it was the last. Raises NoRoom, after releasing its
        models, if models in use by other tasks leave too little memory.
        """

    def close(self) -> None:
        """Releases the task's resources, after success or failure."""


class ServiceTask:
    """Runs a function in a single unit, such as a VAE call, or a generator, one unit up to each
    `yield`. `ready` returns whether its inputs are available; `close` releases them; `loads`
    returns whether it has to load models; `report` receives what a generator yields.
    """

    weight_set = original_set = None
    by_row = False
    alone = True
    switched = 0.0
    rows = 0
    remaining = 0.0
    offer = None
    prepares: Collection[str] = ()
    upcoming: Sequence[str] = ()
    paired = True

    def __init__(
        self,
        run: Callable[[], Any],
        ready: Callable[[], bool] = lambda: True,
        close: Callable[[], None] = lambda: None,
        loads: Callable[[], bool] = lambda: False,
        report: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self._run, self._ready, self._close, self._loads = run, ready, close, loads
        self._report = report
        self._units: Generator[Any, None, Any] | None = None
        self.result: Any = None
        self.start = self.seconds = 0.0  # on the clock of time.perf_counter

    @property
    def ready(self) -> bool:
        return self._ready()

    @property
    def loads(self) -> bool:
        return self._loads()

    def step(self) -> bool:
        return self.advance()

    def advance(self, outputs: Any = None) -> bool:
        started = time.perf_counter()
        self.start = self.start or started
        try:
            return self._advanced()
        finally:
            self.seconds += time.perf_counter() - started

    def _advanced(self) -> bool:
        if self._units is None:
            self.result = self._run()
            if not isinstance(self.result, Generator):
                return True
            self._units = self.result
        try:
            done = next(self._units)
        except StopIteration as end:
            self.result = end.value
            return True
        self._report(done)
        return False

    def close(self) -> None:
        if self._units is not None:
            self._units.close()
        self._close()


class SubmittedTask:
    """Tracks a submitted task, to wait for it or to cancel it."""

    def __init__(self, task: ThreadTask, wake: Callable[[], None]) -> None:
        self.task = task
        self.future: Future[Any] = Future()
        self.waits = False  # for another job to end and free memory
        self._wake = wake
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Stops before the next unit."""
        self._cancelled.set()
        self._wake()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def result(self) -> Any:
        """Returns the task's result or raises its error; raises Cancelled if it was cancelled. An
        interrupt while waiting cancels the task.
        """
        try:
            return self.future.result()
        except BaseException:
            self.cancel()
            raise
        finally:
            del self  # the error's traceback references this frame, the future the error

    def succeed(self) -> None:
        """Ends the task and delivers its result."""
        result = self.task.result
        self.task.close()
        self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Ends the task and releases its resources immediately instead of at the next garbage
        collection.
        """
        with suppress(Exception):
            self.task.close()
        clear_frames(error)
        self.future.set_exception(error)


class DeviceThread:
    """Runs jobs until closed. `threads`: torch's threads for computing. `awake`: seconds for which
    the thread keeps its processor busy while requests wait for other workers (see
    `affinity.Awake`). `within`: creates a context manager around each unit and the end of a job.
    `shared`: computes calls of several tasks; None: tasks share no calls.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        awake: float = 0.0,
        within: Callable[[], AbstractContextManager[object]] = nullcontext,
        shared: SharedCalls | None = None,
    ) -> None:
        self.name = name
        self._shared = shared
        self._within = within
        self._threads, self._awake, self._guard = threads, Awake(awake), SpinGuard(threads)
        self._jobs: list[SubmittedTask] = []
        self._order: DeviceOrder[SubmittedTask] = DeviceOrder(
            self._needs_switch, lambda job: job.task.loads
        )
        self._changed = threading.Condition()
        self._changes = 0  # a count, so it can be read without the lock
        self._closing = False
        # by module, the weight set that the last task left in it
        self._resident: dict[Hashable, Hashable] = {}
        self._thread = threading.Thread(target=self._loop, name=f"katz-{name}", daemon=True)
        self._thread.start()

    def submit(self, task: ThreadTask, place: Place = OUTSIDE) -> SubmittedTask:
        """Adds a task of the run with this place."""
        job = SubmittedTask(task, self.wake)
        with self._changed:
            if self._closing:
                raise RuntimeError(f"worker {self.name} is closed")
            self._jobs.append(job)
            self._order.join(job, place)
            self._note_change()
        return job

    def run_ended(self, arrival: float) -> None:
        """Keeps the device free no longer for the next task of a run."""
        with self._changed:
            self._order.ended(arrival)
            self._note_change()

    def wake(self) -> None:
        """Checks again which tasks are ready."""
        with self._changed:
            self._note_change()

    def _note_change(self) -> None:
        self._changes += 1
        self._changed.notify()

    def close(self) -> None:
        """Cancels the remaining jobs and waits for the current unit."""
        with self._changed:
            self._closing = True
            jobs = list(self._jobs)
            self._note_change()
        for job in jobs:
            job.cancel()
        self._thread.join()
        self._guard.close()

    def _loop(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while (job := self._await()) is not None:
                self._advance(job)
                del job  # do not keep it alive while waiting for the next one

    def _await(self) -> SubmittedTask | None:
        """Returns the next job, once one may run; None if the worker is closed and all jobs are
        done.
        """
        self._awake.begin()
        while True:
            with self._changed:
                seen, now = self._changes, time.perf_counter()
                job, until = self._chosen(now)
                if job is not None:
                    return job
                if self._closing and not self._jobs:
                    return None
                if not self._jobs or not self._awake.goes_on:
                    self._guard.rest()
                    self._changed.wait(None if until == math.inf else until - now)
                    self._awake.slept()
                    continue
            while self._changes == seen and self._awake.goes_on and time.perf_counter() < until:
                give_way()

    def _chosen(self, now: float) -> tuple[SubmittedTask | None, float]:
        """Returns the next job; or None, and the time at which one may run."""
        for job in self._jobs:
            if job.cancelled:
                return job, now
        for job in self._jobs:
            self._order.predict(job, job.task.remaining, job.task.rows)
        ready = [job for job in self._jobs if job.task.ready and not job.waits]
        chosen, until = self._order.choose(ready, now)
        if chosen is not None:
            chosen = self._prepared_first(chosen, ready, now)
        return chosen, until

    def _prepared_first(
        self, leader: SubmittedTask, ready: Sequence[SubmittedTask], now: float
    ) -> SubmittedTask:
        """Returns the first job that has to prepare before it can join the leader's calls, as long
        as these have room for it; else the leader. Jobs that have to load models wait.
        """
        if (shared := self._shared) is None or len(ready) == 1:
            return leader
        if not (keys := self._keys(leader)):
            return leader
        room = min(map(shared.most_rows, keys)) - sum(
            job.task.rows for job in ready if not keys.isdisjoint(job.task.upcoming)
        )
        for job in self._order.ranked(ready, now):
            if not (job.task.rows > room or keys.isdisjoint(job.task.prepares) or job.task.loads):
                return job
        return leader

    def _keys(self, job: SubmittedTask) -> set[str]:
        """Returns the keys of the calls of the job's next unit that jobs may share."""
        return {*job.task.upcoming} - {""}

    def _is_resident(self, wanted: WeightSetKey | None) -> bool:
        return wanted is None or self._resident.get(wanted[0], ()) == wanted[1]

    def _needs_switch(self, job: SubmittedTask) -> bool:
        return not any(self._is_resident(_set_of(job, by_row)) for by_row in (False, True))

    def _advance(self, job: SubmittedTask) -> None:
        """Runs one unit of a job, and of the jobs that share calls with it."""
        jobs = [job, *self._company(job)]
        try:
            for number in range(len(jobs)):
                jobs[number].task.paired = len(jobs) == 1
            if len(jobs) == 1:
                return self._run(job, job.task.step)
            key, rows = evaluation_key(self._keys(job)), sum(one.task.rows for one in jobs)
            began = time.perf_counter()
            run_together(
                len(jobs),
                lambda one: None if jobs[one].future.done() else jobs[one].task.offer,
                lambda one: jobs[one].task.upcoming,
                lambda one, result: self._move(jobs[one], result),
                lambda some: self._compute([jobs[one] for one in some]),
            )
            if self._shared is not None:
                self._shared.ran_evaluation(key, rows, time.perf_counter() - began)
        finally:
            jobs.clear()
            del job  # the traceback of a job's error references this frame

    def _company(self, job: SubmittedTask) -> list[SubmittedTask]:
        """Returns the jobs that share calls of the job's next unit, and decides whether LoRAs are
        merged for it.
        """
        if self._shared is None or job.cancelled:
            return []
        with self._changed:
            keys = self._keys(job)
            later = keys or {*job.task.prepares}
            others = [
                one
                for one in self._jobs
                if not (one is job or one.cancelled or one.waits)
                and one.task.ready
                and not later.isdisjoint(one.task.upcoming)
            ]
            company = self._joined(job, keys, others, by_row=False)
            by_row = False
            sets = {one.task.weight_set for one in (job, *others)}
            if (original := job.task.original_set) is not None and sets != {original}:
                all_sets = self._joined(job, keys, others, by_row=True)
                # it prepares to join others, so weights for that need not be switched twice
                peers = (
                    all_sets if keys else [one for one in others if _set_of(one, True) == original]
                )
                if by_row := self._by_row_pays(job, later, peers):
                    company = all_sets
            for one in (job, *company):
                one.task.by_row = by_row
            return company

    def _joined(
        self,
        job: SubmittedTask,
        keys: Collection[str],
        others: Sequence[SubmittedTask],
        by_row: bool,
    ) -> list[SubmittedTask]:
        """Returns the jobs that share the leader's calls, without a switch of weights within the
        unit.
        """
        wanted = _set_of(job, by_row)
        candidates = [one for one in others if _set_of(one, by_row) == wanted]
        if (shared := self._shared) is None or not (keys and candidates):
            return []
        return self._order.joined(
            job,
            candidates,
            lambda rows: shared.seconds(keys, rows, by_row),
            time.perf_counter(),
            min(map(shared.most_rows, keys)),
        )

    def _by_row_pays(
        self, leader: SubmittedTask, keys: Collection[str], company: Sequence[SubmittedTask]
    ) -> bool:
        """Returns whether the LoRAs of jobs apply to their rows in the leader's next unit, instead
        of jobs of each set of LoRAs sharing calls of their own. `keys`: of the calls that they may
        share.
        """
        shared, task = self._shared, leader.task
        if shared is None or shared.always_by_row:
            return shared is not None
        rows: Counter[WeightSetKey | None] = Counter()
        for one in (leader, *company):
            rows[one.task.weight_set] += one.task.rows
        alone = shared.seconds(keys, task.rows)
        apart = [shared.seconds(keys, some) for some in rows.values()]
        by_row = shared.seconds(
            keys, rows.total(), by_row=any(loras for _, loras in filter(None, rows))
        )
        known = [one for one in apart if one is not None]
        if alone is None or by_row is None or len(known) < len(apart):
            return len(rows) > 1
        return self._order.by_row_pays(
            by_row,
            known,
            max(1.0, task.remaining / alone),
            lambda originals: not self._is_resident(_set_of(leader, originals)),
        )

    def _compute(self, jobs: Sequence[SubmittedTask]) -> list[Any]:
        """Computes the offers of some jobs, and charges each for its rows."""
        assert self._shared is not None  # jobs with company share calls
        began = time.perf_counter()
        made = self._shared.together([job.task.offer for job in jobs])
        with self._changed:
            now = time.perf_counter()
            self._order.worked(jobs, now, now - began)
        return made

    def _move(self, job: SubmittedTask, result: Any) -> None:
        """Continues a job of a shared unit with the outputs, or the error, of its offer."""

        try:
            self._run(job, partial(_continued, job.task, result))
        finally:
            del job, result  # the traceback of a job's error references this frame

    def _run(self, job: SubmittedTask, work: Callable[[], bool]) -> None:
        """Runs a unit of a job or part of it; ends the job if that was the last or failed."""
        try:
            with self._within():
                if self._worked(job, work):
                    self._leave(job)
                    job.succeed()
        except NoRoom as error:
            if not self._may_wait(job):
                self._leave(job)
                job.fail(error)
        except BaseException as error:
            self._leave(job)
            job.fail(error)
        finally:
            # the error's traceback references this frame, the job's future the error
            del job, work

    def _worked(self, job: SubmittedTask, work: Callable[[], bool]) -> bool:
        wanted = _set_of(job, job.task.by_row)
        switches = not self._is_resident(wanted)
        if job.cancelled:
            raise Cancelled("cancelled")
        self._guard.begin()
        began = time.perf_counter()
        done = work()
        # the unit may have changed the task's weight set
        if wanted is not None and (left := _set_of(job, job.task.by_row) or wanted):
            self._resident[left[0]] = left[1]
        with self._changed:
            switched = job.task.switched if switches else 0.0
            now = time.perf_counter()
            self._order.worked([job], now, now - began, switched)
        return done

    def _may_wait(self, job: SubmittedTask) -> bool:
        """Makes a job wait until another one ends, if one can end. Returns whether it waits."""
        with self._changed:
            job.waits = job.task.alone and any(
                not other.waits for other in self._jobs if other is not job
            )
        return job.waits

    def _leave(self, job: SubmittedTask) -> None:
        """Removes a job from the queue, if it is still queued."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                self._order.leave(job, time.perf_counter())
            for other in self._jobs:
                other.waits = False


def _set_of(job: SubmittedTask, by_row: bool) -> WeightSetKey | None:
    """Returns the weight set that must be resident; the merged one if none may apply by row."""
    return (job.task.original_set if by_row else None) or job.task.weight_set


def _continued(task: ThreadTask, result: Any) -> bool:
    """Continues a task with the outputs of its offer, or raises its error."""
    if isinstance(result, Exception):
        raise result
    return task.advance(result)


def clear_frames(error: BaseException) -> None:
    """Releases the objects that the tracebacks of an error and its causes hold, and those of ended
    calls that led to them; locations stay.
    """
    for one in with_causes(error):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            caller: FrameType | None = frame
            while caller is not None:
                with suppress(RuntimeError):  # still runs
                    caller.clear()
                caller = caller.f_back
