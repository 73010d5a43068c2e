"""Reports how long each phase took from the command to the end of the first job: in the log and in
the metrics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from katz_graph.core.events import NodeDone, NodeStarted, Progress
from katz_graph.core.phases import Phase, Phases, covered
from katz_graph.web.events import ClientEvent, Ended, PlanMade, Started

log = logging.getLogger("katz.start")


class StartReport:
    """Adds the phases of the first job to those of the server and its first runner, and logs them
    when the job has succeeded. `of_runner` returns the phases of the runner and its workers.
    """

    def __init__(self, server: Phases, of_runner: Callable[[], Sequence[Phase]]) -> None:
        self._server, self._of_runner = server, of_runner
        self._began = server.done[0].began if server.done else time.monotonic()
        self._job = ""
        self._phases: Phases | None = None  # of the first job
        self._is_over = False

    def phases(self) -> list[Phase]:
        """Returns all phases known so far, in the order of their processes."""
        job = self._phases.done if self._phases is not None else []
        return [*self._server.done, *self._of_runner(), *job]

    def on_event(self, job: str, event: ClientEvent) -> None:
        """Follows the first job. If it does not succeed, the next one counts as the first."""
        if self._is_over:
            return
        if isinstance(event, Started) and not self._job:
            self._job, self._phases = job, Phases("first job")
        if job != self._job or self._phases is None:
            return
        match event:
            case NodeStarted():
                self._phases.end("between nodes")
            case PlanMade():
                self._phases.end("plan")
            case Progress(value=value, maximum=maximum, evaluations=True):
                self._phases.end(_evaluations(value, maximum, self._phases))
            case NodeDone(type=type, cached=False):
                self._phases.end(type)
            case Ended(status="completed"):
                self._phases.end("end the job")
                self._is_over = True
                self._log()
            case Ended():
                self._job, self._phases = "", None

    def _log(self) -> None:
        phases, ended = self.phases(), time.monotonic()
        rows = [
            {"process": one.process, "phase": one.name, "at": at, "seconds": seconds}
            for one in phases
            for at, seconds in [(round(one.began - self._began, 3), round(one.seconds, 3))]
        ]
        total = ended - self._began
        idle = total - covered(phases, self._began, ended)
        log.info(
            "the first job ended %.1f s after the command; %.1f s of this, waiting for a client "
            "included, belong to no phase",
            total,
            idle,
            extra={"phases": rows, "seconds": round(total, 3), "idle_seconds": round(idle, 3)},
        )
        for line in _lines(phases):
            log.info("phases of %s", line)


def _evaluations(value: int, maximum: int, phases: Phases) -> str:
    """Names the evaluations since the last progress event."""
    if value == 1:
        return "load models, first evaluation"
    if any(phase.name.startswith("load models") for phase in phases.done):
        return "other evaluations"
    return "load models, first evaluations"


def _lines(phases: Sequence[Phase]) -> Iterator[str]:
    """Yields a text for each process: its phases with their seconds, equal ones added up."""
    for process, group in groupby(phases, attrgetter("process")):
        sums: dict[str, float] = {}
        for phase in group:
            sums[phase.name] = sums.get(phase.name, 0.0) + phase.seconds
        yield f"{process}: " + ", ".join(
            f"{name} {seconds:.2f} s" for name, seconds in sums.items()
        )
