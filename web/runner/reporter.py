"""Converts the engine's events to client events: plain data, rate-limited, within size limits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from katz_graph.core import events
from katz_graph.core.errors import Cancelled, DeviceFailed, InputError, KatzError
from katz_graph.executor.cluster.requests import WorkerLost
from katz_graph.executor.worker.device_fault import device_fault
from katz_graph.files.folders import TEMP
from katz_graph.files.images import preview_as_jpeg
from katz_graph.node.ui_results import Place
from katz_graph.planner.report.describe import as_json
from katz_graph.web.events import (
    Cached,
    ClientEvent,
    EncodedPicture,
    JobError,
    JobNode,
    PlanMade,
    Wrote,
)

# minimum seconds between progress events, except the last and the one in the middle of a sampler,
# so that the rest of short jobs can be predicted; a preview flushes withheld progress
PACE = 0.25
LONGEST_TEXT = 100_000  # characters of a pack object that is not plain data


class JobReporter:
    """Reports the events of one run to `emit`. Any thread of the run may call it.

    `output` is the folder of the run's files; `max_characters` is `Limits.shown`. `outputs`,
    `meta`, `executed`, `reused` (cached nodes, as clients count them) and `failure` collect the
    contents of `Ended`. `behind` returns the nodes that only cached nodes read, which clients also
    count as cached.
    """

    def __init__(
        self,
        output: Path,
        max_characters: int,
        emit: Callable[[ClientEvent], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._output, self._max_characters, self._emit, self._clock = (
            output,
            max_characters,
            emit,
            clock,
        )
        self.outputs: dict[str, Mapping[str, Sequence[Any]]] = {}
        self.meta: dict[str, Mapping[str, str | None]] = {}
        self.executed: list[str] = []
        self.reused: list[str] = []
        self.failure: JobError | None = None
        self.behind: Callable[[Sequence[str]], Sequence[str]] = lambda cached: ()
        self._lock = threading.RLock()
        self._began = clock()
        self._nodes: dict[str, events.NodeStarted] = {}  # running nodes
        self._node = ""  # the most recently started node
        self._waiting: list[events.NodeDone] | None = []  # cached nodes before the first run
        self._progressed = -PACE
        self._withheld: events.Progress | None = None  # progress since the last report
        self._shown = 0  # characters

    def listen(self, event: events.Event) -> None:
        """Handles an event. Raises InputError if a node's editor results exceed the job's limit."""
        with self._lock:
            match event:
                case events.NodeStarted():
                    self.open()
                    self._nodes.pop(event.node, None)
                    self._nodes[event.node], self._node = event, event.node
                    self._emit(event)
                case events.NodeDone(cached=True):
                    self._was_cached(self._as_data(event))
                case events.NodeDone():
                    done = self._as_data(event)
                    self._leave(event.node)
                    self._done(done)
                case events.NodeFailed():
                    self._leave(event.node)
                    self.failure = self.failure or described(
                        event.error, event.node, event.type, event.display
                    )
                case events.Progress():
                    self._progress(event)
                case events.Timeline():
                    self._worked(self._worker_of(event.node), *event.segments)
                case events.StageDone():
                    self._worked(self._node, event.span)
                case events.Previewed():
                    picture = preview_as_jpeg(event.picture)
                    self._emit_progress()  # both in one packet
                    node = self._worker_of(event.node)
                    self._emit(EncodedPicture(node, self._display_of(node), picture))
                case events.Planned():
                    self._emit(PlanMade(self._worker_of(event.node), as_json(event.program)))
                case events.PackMessage():
                    self._emit(replace(event, data=plain(event.data)))
                case events.Warned():
                    self._emit(event)

    # nodes

    def open(self) -> None:
        """Reports the results cached before the run; later ones are reported individually."""
        with self._lock:
            if self._waiting is None:
                return
            found, self._waiting = self._waiting, None
            names = [event.node for event in found]
            self._emit_cached(*names, *self.behind(names))
            for event in found:
                self._done(event)

    def _was_cached(self, event: events.NodeDone) -> None:
        if self._waiting is not None:
            self._waiting.append(event)
            return
        self._emit_cached(event.node)
        self._done(event)

    def _emit_cached(self, *nodes: str) -> None:
        self.reused += nodes
        self._emit(Cached(nodes, time.time()))

    def _as_data(self, event: events.NodeDone) -> events.NodeDone:
        """Converts an event's editor results to plain data."""
        if event.ui is None:
            return event
        ui: Mapping[str, Sequence[Any]] = plain(event.ui)
        self._shown += len(json.dumps(ui, ensure_ascii=False))
        if self._shown > self._max_characters:
            raise InputError(
                f"the job shows more than this server's limit of {self._max_characters:,} "
                "characters (shown); save it to files instead"
            )
        return replace(event, ui=ui)

    def _leave(self, node: str) -> None:
        """Removes a node from the running ones."""
        self.open()
        self._nodes.pop(node, None)
        if self._withheld is not None and self._withheld.node == node:
            self._withheld = None

    def _done(self, event: events.NodeDone) -> None:
        self.executed.append(event.node)
        if event.ui is not None:
            self.outputs[event.node] = event.ui
            self.meta[event.node] = {
                "node_id": event.node,
                "display_node": event.display,
                "parent_node": event.display if event.node != event.display else None,
                "real_node_id": event.display,
            }
        self._emit(event)

    @property
    def running(self) -> JobNode | None:
        """Returns the running node; of several, the most recently started."""
        with self._lock:
            started = next(reversed(self._nodes.values()), None)
        return None if started is None else JobNode(started.node, started.type, started.display)

    # activity within nodes

    def _worker_of(self, shown: str) -> str:
        """Returns the running node displayed as `shown`; without one, returns `shown`, or the most
        recently started node if `shown` is empty.
        """
        return next(
            (node for node, started in reversed(self._nodes.items()) if started.display == shown),
            shown or self._node,
        )

    def _display_of(self, node: str) -> str:
        started = self._nodes.get(node)
        return node if started is None else started.display

    def _progress(self, event: events.Progress) -> None:
        node = self._worker_of(event.node) if event.evaluations else event.node
        value, maximum = int(event.value), int(event.maximum)  # packs count in any numeric type
        self._withheld = replace(
            event, node=node, display=self._display_of(node), value=value, maximum=maximum
        )
        ends = event.value >= event.maximum or self._is_middle(event)
        if ends or self._clock() - self._progressed >= PACE:
            self._emit_progress()

    def _is_middle(self, event: events.Progress) -> bool:
        """Returns whether half of a sampler's evaluations have just been done."""
        return event.evaluations and int(event.value) == (int(event.maximum) + 1) // 2

    def _emit_progress(self) -> None:
        if self._withheld is not None:
            self._emit(self._withheld)
            self._withheld, self._progressed = None, self._clock()

    def _worked(self, node: str, *spans: events.Span) -> None:
        reported = (replace(span, start=span.start - self._began) for span in spans)
        self._emit(events.Timeline(node, tuple(reported)))

    # results that nodes deliver through their context

    def wrote(self, file: Path) -> bool:
        """Reports a file in the output folder. Returns False for other files, which clients must
        not see.
        """
        inside, folder = file.resolve(), self._output.resolve()
        if not inside.is_relative_to(folder):
            return False
        place: Place = "temp" if inside.is_relative_to(folder / TEMP) else "output"
        self._emit(
            Wrote(
                inside.relative_to(folder / TEMP if place == "temp" else folder).as_posix(), place
            )
        )
        return True

    def picture(self, png: bytes) -> None:
        """Reports a picture that the running node sends instead of saving it."""
        self._emit(
            EncodedPicture(self._node, self._display_of(self._node), png, "image/png", lasting=True)
        )

    def close(self) -> None:
        """Reports pending results before the job's end."""
        with self._lock:
            self.open()
            self._nodes.clear()


def described(error: KatzError, node: str = "", kind: str = "", display: str = "") -> JobError:
    """Describes an error for clients. Distinguishes a lost worker or device from a node's error."""
    named = next(
        (
            type(one).__name__
            for one in (error.__cause__, error)
            if isinstance(one, (WorkerLost, DeviceFailed, Cancelled))
        ),
        None,
    )
    lost = DeviceFailed.__name__ if device_fault(error) else None
    return JobError(named or lost or type(error).__name__, str(error), node, kind, display)


def plain(value: Any) -> Any:
    """Converts a pack's data to plain data: tuples and sets become lists, NaN and infinities null,
    and other objects strings.

    Never raises an exception, even if the pack's objects do.
    """
    try:
        return to_jsonable_python(
            value, inf_nan_mode="null", bytes_mode="base64", fallback=text_of, by_alias=False
        )
    except Exception as error:
        return text_of(f"cannot be shown: {text_of(error)}")


def text_of(value: Any) -> str:
    """Returns an object's text, or its type name if `str` fails."""
    try:
        return str(value)[:LONGEST_TEXT]
    except Exception as error:
        return f"{type(value).__name__} without a readable text ({type(error).__name__})"
