"""Turns what a run reports into what clients are told: plain data, seldom enough, within limits."""

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
from katz_graph.core.errors import Cancelled, DeviceGone, InputError, KatzError
from katz_graph.executor.cluster.requests import WorkerLost
from katz_graph.executor.worker.device_fault import device_fault
from katz_graph.files.folders import TEMP
from katz_graph.node.ui_results import Place
from katz_graph.picture.preview import as_jpeg
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

# seconds, at least, between two events of progress that are not the last; a picture brings what was
# kept back
PACE = 0.25
LONGEST_TEXT = 100_000  # characters of a pack's object that is no plain data


class JobReporter:
    """Reports one run, from any of its threads, to `tell`.

    `output` is where its files go; `most` is the limit `shown`. `outputs`, `meta`, `executed`,
    `reused` (cached nodes, as clients count them) and `failure` collect what the job's end has to
    say. `behind` names the nodes that only cached ones read, which clients count as cached too.
    """

    def __init__(
        self,
        output: Path,
        most: int,
        tell: Callable[[ClientEvent], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._output, self._most, self._tell, self._clock = output, most, tell, clock
        self.outputs: dict[str, Mapping[str, Sequence[Any]]] = {}
        self.meta: dict[str, Mapping[str, str | None]] = {}
        self.executed: list[str] = []
        self.reused: list[str] = []
        self.failure: JobError | None = None
        self.behind: Callable[[Sequence[str]], Sequence[str]] = lambda cached: ()
        self._lock = threading.RLock()
        self._began = clock()
        self._nodes: dict[str, events.NodeStarted] = {}  # nodes that work
        self._node = ""  # the one that began last
        self._waiting: list[events.NodeDone] | None = []  # cached ones before the first that runs
        self._progressed = -PACE
        self._withheld: events.Progress | None = None  # what came too soon after the last
        self._shown = 0  # characters

    def listen(self, event: events.Event) -> None:
        """Takes in an event. InputError for a node with which the job shows too much."""
        with self._lock:
            match event:
                case events.NodeStarted():
                    self.open()
                    self._nodes.pop(event.node, None)
                    self._nodes[event.node], self._node = event, event.node
                    self._tell(event)
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
                    picture = as_jpeg(event.picture)
                    self._tell_progress()  # both in one packet
                    node = self._worker_of(event.node)
                    self._tell(EncodedPicture(node, self._display_of(node), picture))
                case events.Planned():
                    self._tell(PlanMade(self._worker_of(event.node), as_json(event.program)))
                case events.PackMessage():
                    self._tell(replace(event, data=plain(event.data)))
                case events.Warned():
                    self._tell(event)

    # nodes

    def open(self) -> None:
        """Reports the results found before the run; later ones are reported one by one."""
        with self._lock:
            if self._waiting is None:
                return
            found, self._waiting = self._waiting, None
            names = [event.node for event in found]
            self._tell_cached(*names, *self.behind(names))
            for event in found:
                self._done(event)

    def _was_cached(self, event: events.NodeDone) -> None:
        if self._waiting is not None:
            self._waiting.append(event)
            return
        self._tell_cached(event.node)
        self._done(event)

    def _tell_cached(self, *nodes: str) -> None:
        self.reused += nodes
        self._tell(Cached(nodes, time.time()))

    def _as_data(self, event: events.NodeDone) -> events.NodeDone:
        """Returns the event with plain data for editors."""
        if event.ui is None:
            return event
        ui: Mapping[str, Sequence[Any]] = plain(event.ui)
        self._shown += len(json.dumps(ui, ensure_ascii=False))
        if self._shown > self._most:
            raise InputError(
                f"the job shows more than this server's limit of {self._most:,} characters "
                "(shown); save it to files instead"
            )
        return replace(event, ui=ui)

    def _leave(self, node: str) -> None:
        """Takes a node off the running ones."""
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
        self._tell(event)

    @property
    def running(self) -> JobNode | None:
        """Returns the node that runs, of several the one that began last."""
        with self._lock:
            begun = next(reversed(self._nodes.values()), None)
        return None if begun is None else JobNode(begun.node, begun.type, begun.display)

    # what goes on in them

    def _worker_of(self, shown: str) -> str:
        """Returns the running node that is shown as this one; without one, the latest begun."""
        return next(
            (node for node, begun in reversed(self._nodes.items()) if begun.display == shown),
            shown or self._node,
        )

    def _display_of(self, node: str) -> str:
        begun = self._nodes.get(node)
        return node if begun is None else begun.display

    def _progress(self, event: events.Progress) -> None:
        node = self._worker_of(event.node) if event.evaluations else event.node
        value, maximum = int(event.value), int(event.maximum)  # packs count in what they like
        self._withheld = replace(
            event, node=node, display=self._display_of(node), value=value, maximum=maximum
        )
        if event.value >= event.maximum or self._clock() - self._progressed >= PACE:
            self._tell_progress()

    def _tell_progress(self) -> None:
        if self._withheld is not None:
            self._tell(self._withheld)
            self._withheld, self._progressed = None, self._clock()

    def _worked(self, node: str, *spans: events.Span) -> None:
        told = (replace(span, start=span.start - self._began) for span in spans)
        self._tell(events.Timeline(node, tuple(told)))

    # what nodes give through their context

    def wrote(self, file: Path) -> bool:
        """Reports a file in the output folder; False for others, which clients may not know."""
        inside, folder = file.resolve(), self._output.resolve()
        if not inside.is_relative_to(folder):
            return False
        place: Place = "temp" if inside.is_relative_to(folder / TEMP) else "output"
        self._tell(
            Wrote(
                inside.relative_to(folder / TEMP if place == "temp" else folder).as_posix(), place
            )
        )
        return True

    def picture(self, png: bytes) -> None:
        """Reports a picture that the running node sends instead of saving it."""
        self._tell(
            EncodedPicture(self._node, self._display_of(self._node), png, "image/png", lasting=True)
        )

    def close(self) -> None:
        """Reports what is left; the job's end follows."""
        with self._lock:
            self.open()
            self._nodes.clear()


def described(error: KatzError, node: str = "", kind: str = "", display: str = "") -> JobError:
    """Describes an error for clients. A lost worker or device is told apart from a fault of the
    node.
    """
    named = next(
        (
            type(one).__name__
            for one in (error.__cause__, error)
            if isinstance(one, (WorkerLost, DeviceGone, Cancelled))
        ),
        None,
    )
    lost = DeviceGone.__name__ if device_fault(error) else None
    return JobError(named or lost or type(error).__name__, str(error), node, kind, display)


def plain(value: Any) -> Any:
    """Converts a pack's data to plain data: tuples and sets become lists, numbers that JSON lacks
    null, and other objects their text.

    Never fails, whatever the pack's objects do when they are asked.
    """
    try:
        return to_jsonable_python(
            value, inf_nan_mode="null", bytes_mode="base64", fallback=text_of, by_alias=False
        )
    except Exception as error:
        return text_of(f"cannot be shown: {text_of(error)}")


def text_of(value: Any) -> str:
    """Returns an object's text, or its type when it fails to give one."""
    try:
        return str(value)[:LONGEST_TEXT]
    except Exception as error:
        return f"{type(value).__name__} whose text cannot be had ({type(error).__name__})"
