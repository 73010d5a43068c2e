"""Runs a server: assembles its parts, starts them, and shuts them down on a signal. The shutdown
loses no job and ends all processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

from katz_graph.core.phases import Phases
from katz_graph.files.urls import NONE
from katz_graph.host.garbage import imports_are_done
from katz_graph.web.app import build
from katz_graph.web.events import ClientEvent, Ended, JobEvent
from katz_graph.web.files.paths import folder_of
from katz_graph.web.http.connections import HttpServer, check_reach, listen, url
from katz_graph.web.http.responses import PathRedactor
from katz_graph.web.jobs.dispatch import Concurrency
from katz_graph.web.jobs.job import DueTimes, Job
from katz_graph.web.jobs.jobs import Jobs
from katz_graph.web.jobs.retention import JobFiles, Retention, drop_unfinished
from katz_graph.web.jobs.store import JobStore
from katz_graph.web.live.channel import JobState
from katz_graph.web.live.hub import Hub
from katz_graph.web.live.report import packed, report_of
from katz_graph.web.metrics import Metrics
from katz_graph.web.options import ServeOptions
from katz_graph.web.runner_client.manager import Runner, Workers, no_fork_server
from katz_graph.web.runner_client.process import ForkedProcess
from katz_graph.web.start_report import StartReport
from katz_graph.web.state import State

log = logging.getLogger("katz.web")


def serve(
    options: ServeOptions,
    say: Callable[[str], None],
    workers: Workers = no_fork_server,
    first: ForkedProcess | None = None,
    phases: Phases | None = None,
) -> None:
    """Serves until a signal arrives. `workers` and `first` are passed to `Runner`; `phases` has the
    phases before this call. Raises InputError for an invalid address or folder, and RunError if
    the job store or the runner cannot start.
    """
    phases = phases or Phases("server")
    imports_are_done()
    phases.end("load the server")
    check_reach(options.host, options.token)
    listening = listen(options.host, options.port)
    try:
        new_runner = partial(Runner, workers=workers, first=first)
        asyncio.run(_serve(options, listening, say, new_runner, phases))
    finally:
        listening.close()


async def _serve(
    options: ServeOptions,
    listening: socket.socket,
    say: Callable[[str], None],
    new_runner: Callable[..., Runner],
    phases: Phases,
) -> None:
    address = url(options.host, listening.getsockname()[1])
    async with contextlib.AsyncExitStack() as opened:  # callbacks run in reverse order
        store = await asyncio.to_thread(JobStore.open, options.data)
        opened.push_async_callback(store.close)
        for note in store.notes:
            log.error("%s", note)
        state = assemble(options, store, new_runner, phases)
        stops = opened.enter_context(_signals())
        opened.push_async_callback(lambda: _unless(stops, state.runner.close()))
        opened.push_async_callback(lambda: _unless(stops, state.jobs.close()))
        opened.callback(state.runner.refuse)
        # before the server answers requests: jobs left by a crash are queued before new jobs
        await _unless(stops, state.jobs.start())
        server = HttpServer(build(state), options.limits.connections)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        opened.push_async_callback(_farewell, state, server, serving, stops)
        phases.end("open the job store and the port")
        await _unless(stops, _start(state))
        if stops.empty():
            say(
                f"listening on {address}"
                + ("" if options.token is None else " (a token is needed)")
            )
            await _unless(stops, asyncio.shield(serving))
        state.draining = True
        log.info(
            "ending: %d running jobs have %.0f s; interrupt again to end at once",
            len(state.jobs.served),
            options.drain_seconds,
        )
        if not stops.empty():
            stops.get_nowait()
        await _unless(stops, state.jobs.drain(options.drain_seconds))


def assemble(
    options: ServeOptions,
    store: JobStore,
    new_runner: Callable[..., Runner] = Runner,
    phases: Phases | None = None,
) -> State:
    """Builds and connects the parts without starting them."""
    settings = options.settings()
    folders = replace(settings.folders(NONE), paths=False)
    concealment = PathRedactor.of(options, folders)
    start = StartReport(phases or Phases("server"), lambda: runner.facts.phases)
    metrics = Metrics(start=start)

    def on_event(reported: JobEvent) -> None:
        jobs.on_event(concealment.event(reported))

    def lost(ids: Sequence[str], why: str, blamed: bool) -> None:
        jobs.lost(ids, concealment.text(why), blamed)

    def publish(job: Job, event: ClientEvent) -> None:
        metrics.on_event(job.id, event)
        start.on_event(job.id, event)
        if isinstance(event, Ended):
            if job.due is not None and event.status == "completed":
                metrics.was_due(job.due, event.at)
            log.info(
                "job %s: %s after %.2f s%s",
                job.id,
                event.status,
                event.seconds.get("total", 0.0),
                _why(event),
            )
        hub.publish(job, event)

    def facts() -> dict[str, Any]:
        return {
            "version": version("katz-graph"),
            "devices": [device.name for device in runner.facts.devices],
            "ready": runner.ready,
        }

    runner = new_runner(options, on_event, lost)

    def ended(job: Job, state: JobState) -> None:
        jobs.keep_report(job.id, lambda: packed(report_of(job, state)))

    hub = Hub(lambda: jobs, facts, options.limits, ended)
    written = {"output": folder_of(folders, "output"), "temp": folder_of(folders, "temp")}
    files = JobFiles(written, options.data)
    retention = Retention(options.keep_days, options.keep_bytes)
    jobs = Jobs(
        store,
        runner,
        publish,
        hub.status,
        options.limits,
        Concurrency(
            options.jobs_running,
            options.jobs_served,
            min(options.groups, options.jobs_served),
            options.rows.most,
        ),
        files,
        retention,
        stop_seconds=options.stop_seconds,
        due_times=DueTimes(options.slo, options.late == "fail"),
    )
    return State(options, folders, concealment, jobs, runner, hub, metrics)


def _why(end: Ended) -> str:
    """Names the type of the failed node and the kind of the error. Omits the message and the node's
    id because both may contain a client's text.
    """
    return (
        ""
        if end.error is None
        else f" ({end.error.kind}{' in ' + end.error.node_type if end.error.node_type else ''})"
    )


async def _start(state: State) -> None:
    """Starts the runner. Requests that need the runner wait for it."""
    await asyncio.to_thread(
        drop_unfinished, (state.folders.input, state.folders.output, state.data), time.time()
    )
    await state.runner.start()
    for problem in state.runner.facts.problems:
        log.warning("%s", problem)


async def _farewell(
    state: State, server: HttpServer, serving: asyncio.Task[None], stops: asyncio.Queue[int]
) -> None:
    """Closes all connections: gracefully, or immediately on another signal."""
    state.hub.close(1001, "the server is shutting down")
    server.end()
    await _unless(stops, asyncio.shield(serving))
    server.force_exit = not stops.empty()
    await serving


async def _unless(
    stops: asyncio.Queue[int], work: Coroutine[Any, Any, Any] | asyncio.Future[Any]
) -> None:
    """Runs the work until it is done or a signal arrives. The signal stays in the queue. Raises the
    work's exceptions.
    """
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stops.get())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    if stopped.done():
        stops.put_nowait(stopped.result())
    else:
        stopped.cancel()
    if not working.done():
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
    else:
        working.result()


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Queue[int]]:
    loop, stops = asyncio.get_running_loop(), asyncio.Queue[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stops.put_nowait, number)
    try:
        yield stops
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
