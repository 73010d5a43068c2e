"""Records the spans of a request's work on a device and reports them while the request runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from katz_graph.core.events import Span, SpanKind, Timeline
from katz_graph.executor.worker.stream import Clock, StreamEvent

MIN_REPORT_INTERVAL_S = 0.25  # minimum seconds between two reports, except the last


@dataclass(frozen=True, slots=True)
class _Enqueued:
    kind: SpanKind
    target: str
    peer: str | None
    evaluation: int | None
    began: StreamEvent
    ended: StreamEvent


class SpanRecorder:
    """Records the spans of one request on one device. Queues spans that the device has not
    completed, so that the caller never waits. `emitted` holds all reported spans.
    """

    def __init__(
        self, device: str, node: str, clock: Clock, report: Callable[[Timeline], None]
    ) -> None:
        self._device, self._node, self._report = device, node, report
        self.clock = clock
        self.emitted: list[Span] = []
        self._enqueued: deque[_Enqueued] = deque()
        self._ended: list[Span] = []
        self._reported = time.perf_counter()

    def add(
        self,
        kind: SpanKind,
        target: str,
        began: StreamEvent,
        evaluation: int | None = None,
        peer: str | None = None,
    ) -> None:
        """Records a span of the work enqueued between `began` and now."""
        self._enqueued.append(_Enqueued(kind, target, peer, evaluation, began, self.clock()))
        self.emit()

    def emit(self, last: bool = False) -> None:
        """Reports completed spans if the last report is old enough. With `last`, waits for the
        device and reports all spans.
        """
        while self._enqueued and (last or self._enqueued[0].ended.known):
            self._ended.append(self._span(self._enqueued.popleft()))
        now = time.perf_counter()
        if self._ended and (last or now - self._reported >= MIN_REPORT_INTERVAL_S):
            self._report(Timeline(self._node, tuple(self._ended)))
            self.emitted += self._ended
            self._ended, self._reported = [], now

    def _span(self, one: _Enqueued) -> Span:
        start = one.began.at
        return Span(
            self._device,
            _name(one),
            start,
            max(0.0, one.ended.at - start),
            one.evaluation,
            one.kind,
            one.target,
            one.peer,
        )


def _name(one: _Enqueued) -> str:
    match one.kind:
        case "patch":
            return f"patch {one.target}"
        case "send":
            return f"send {one.target} to {one.peer}"
    return one.target
