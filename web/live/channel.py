"""Defines the types shared by the hub and the channels: the state of a running job, the snapshot
for a new session, and the channel protocol. Must not know sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from katz_graph.core.events import NodeDone, NodeStarted, Progress, Timeline, Warned
from katz_graph.web.events import Cached, ClientEvent, EncodedPicture, Ended, PlanMade, Started
from katz_graph.web.jobs.job import Job
from katz_graph.web.live.outbox import ClientFrame

SEGMENTS = 2_000  # spans in the timeline; older ones are dropped
PLANS = 32
WARNINGS = 100


@dataclass(frozen=True, slots=True)
class QueueView:
    """Holds the state of the queue. `places`: for each client, its waiting jobs with the number of
    jobs ahead of each.
    """

    running: int
    pending: int
    paused: bool
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        return self.running + self.pending


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Holds the data that a client gets when it connects."""

    client: str
    queue: QueueView
    jobs: tuple[Job, ...]  # of the client, recently ended ones first
    states: Mapping[str, JobState]  # of running jobs
    missed: tuple[Job, ...]  # ended jobs that the client may not know
    facts: Mapping[str, Any]  # about the server


class Channel(Protocol):
    """Serializes events to one protocol's messages, for one session. `state` already includes the
    event.
    """

    def greeting(self, snapshot: Snapshot) -> Iterable[ClientFrame]: ...

    def event(
        self, job: Job, event: ClientEvent, state: JobState, queue: Callable[[], QueueView]
    ) -> Iterable[ClientFrame]: ...

    def queue(self, client: str, queue: QueueView) -> Iterable[ClientFrame]: ...

    def due(self) -> float | None:
        """Returns the seconds until `delayed_frames` has messages to send, or None."""

    def delayed_frames(self) -> Iterable[ClientFrame]: ...


@dataclass(slots=True)
class NodeProgress:
    """The progress of a node: `value` of `maximum` is done. A cached node is finished."""

    display: str
    type: str = ""
    status: Literal["running", "finished", "error"] = "running"
    value: int = 0
    maximum: int = 1
    cached: bool = False
    seconds: float = 0.0
    why: str = ""
    ui: Mapping[str, Sequence[Any]] | None = None


@dataclass(slots=True)
class JobState:
    """Accumulates a job's events. Nodes are in the order in which they started or were cached."""

    started: float | None = None
    nodes: dict[str, NodeProgress] = field(default_factory=dict)
    plans: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    timeline: deque[Timeline] = field(default_factory=deque)
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=WARNINGS))
    preview: EncodedPicture | None = None
    segments: int = 0  # spans in the timeline

    def on_event(self, event: ClientEvent) -> None:
        """Updates the state. Ignores events without lasting state (pack messages, and pictures that
        a node sends in place of a file).
        """
        match event:
            case Started(at=at):
                self.started = at
            case Cached(nodes=nodes):
                for node in nodes:
                    self._node(node, node).cached = True
                    self._finish(node)
            case NodeStarted(node=node, display=display, type=type):
                self.nodes.pop(node, None)
                self._node(node, display, type)
            case Progress(node=node, display=display, value=value, maximum=maximum):
                known = self._node(node, display)
                known.value, known.maximum = value, maximum
            case NodeDone():
                known = self._node(event.node, event.display, event.type)
                known.cached = event.cached
                known.seconds = event.seconds
                known.why = event.why
                known.ui = event.ui
                self._finish(event.node)
            case EncodedPicture(lasting=False):
                self.preview = event
            case PlanMade(node=node, plan=plan):
                self.plans.pop(node, None)
                self.plans[node] = plan
                if len(self.plans) > PLANS:
                    del self.plans[next(iter(self.plans))]
            case Timeline(segments=segments):
                self.timeline.append(event)
                self.segments += len(segments)
                while self.segments > SEGMENTS and len(self.timeline) > 1:
                    self.segments -= len(self.timeline.popleft().segments)
            case Warned(message=message):
                self.warnings.append(message)
            case Ended(error=error) if error is not None and error.node:
                known = self.nodes.setdefault(
                    error.node, NodeProgress(error.display or error.node, error.node_type)
                )
                known.status = "error"

    @property
    def running(self) -> tuple[str, ...]:
        """Returns the running nodes, most recently started last."""
        return tuple(
            identifier for identifier, node in self.nodes.items() if node.status == "running"
        )

    def _node(self, identifier: str, display: str, type: str = "") -> NodeProgress:
        known = self.nodes.setdefault(identifier, NodeProgress(display))
        known.display, known.type = display, type or known.type
        return known

    def _finish(self, identifier: str) -> None:
        node = self.nodes[identifier]
        node.status, node.value = "finished", node.maximum
