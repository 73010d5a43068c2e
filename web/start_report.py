"""Reports how long each phase took from the command to the end of the first job: in the log and in
the metrics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from katz_graph.core.events import NodeDone, NodeStarted, Progress
from katz_graph.core.phases import Phase, Phases, add, covered
from katz_graph.web.events import ClientEvent, Ended, PlanMade, Started

log = logging.getLogger("katz.start")


JOB = "first job"
FIRST, OTHER = "first evaluations", "other evaluations"
# parts of the time until the first evaluation, by their names in `Ended.seconds`
PARTS = {"load": "load models", "prepare": "encode texts"}


class StartReport:
    """Adds the phases of the first job to those of the server and its runner, and logs them when
    the job has succeeded. `of_runner` returns the phases of the runner and its workers.
    """

    def __init__(self, server: Phases, of_runner: Callable[[], Sequence[Phase]]) -> None:
        self._server, self._of_runner = server, of_runner
        self._job = ""
        self._job_began = self._since = 0.0  # of the first job, and of its current phase
        self._of_job: dict[tuple[str, str], Phase] = {}
        self._report: Sequence[Phase] | None = None  # when the job has succeeded

    def totals(self) -> Sequence[Phase]:
        """Returns the total of each phase known so far: by process, then by name."""
        if self._report is not None:
            return self._report
        found: dict[tuple[str, str], Phase] = {}
        for phase in (*self._server.done, *self._of_runner(), *self._of_job.values()):
            add(found, phase)
        return tuple(found.values())

    def on_event(self, job: str, event: ClientEvent) -> None:
        """Follows the first job. If it does not succeed, the next one counts as the first."""
        if self._report is not None:
            return
        if isinstance(event, Started) and not self._job:
            self._job, self._of_job = job, {}
            self._job_began = self._since = time.monotonic()
        if job != self._job:
            return
        match event:
            case NodeStarted():
                self._end("between nodes")
            case PlanMade():
                self._end("plan")
            case Progress(evaluations=True):
                self._end(OTHER if (JOB, FIRST) in self._of_job else FIRST)
            case NodeDone(type=type, cached=False):
                self._end(type)
            case Ended(status="completed", seconds=seconds):
                self._end("end the job")
                self._divide(seconds)
                self._report = self.totals()
                self._log(self._report)
            case Ended():
                self._job = ""

    def _end(self, name: str) -> None:
        """Ends a phase of the job. Only totals are stored, because jobs may have many nodes."""
        began, self._since = self._since, time.monotonic()
        add(self._of_job, Phase(JOB, name, began, self._since))

    def _divide(self, seconds: Mapping[str, float]) -> None:
        """Takes loading and encoding out of the phase until the first evaluation, in which they
        happen.
        """
        phases, self._of_job = self._of_job.values(), {}
        for phase in phases:
            began = phase.began
            for kind, name in PARTS.items() if phase.name == FIRST else ():
                until = min(began + seconds.get(kind, 0.0), phase.ended)
                add(self._of_job, Phase(JOB, name, began, until))
                began = until
            add(self._of_job, replace(phase, began=began))

    def _log(self, totals: Sequence[Phase]) -> None:
        processes = (*self._server.done, *self._of_runner())
        began = min((phase.began for phase in processes), default=self._job_began)
        total = self._since - began
        job = Phase(JOB, "", self._job_began, self._since)
        idle = total - covered((*processes, job), began, self._since)
        rows = [
            {
                "process": one.process,
                "phase": one.name,
                "at": round(one.began - began, 3),
                "seconds": round(one.seconds, 3),
            }
            for one in totals
        ]
        fields = {"phases": rows, "seconds": round(total, 3), "idle_seconds": round(idle, 3)}
        log.info(
            "the first job ended %.1f s after the command; %.1f s of this, waiting for a client "
            "included, belong to no phase",
            total,
            idle,
            extra={"fields": fields},
        )
        for process, group in groupby(totals, attrgetter("process")):
            parts = (f"{one.name} {one.seconds:.2f} s" for one in group)
            log.info("phases of %s: %s", process, ", ".join(parts))
