"""A device's work is recorded with its times; timelines arrive during a request."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from katz_graph.core.events import Timeline
from katz_graph.executor.worker import spans
from katz_graph.executor.worker.spans import SpanRecorder


@dataclass
class Place:
    """Is an event in the queue of a slow device."""

    device: SlowDevice
    number: int

    @property
    def known(self) -> bool:
        return self.number < self.device.ended

    @property
    def at(self) -> float:
        self.device.waited += not self.known
        self.device.ended = max(self.device.ended, self.number + 1)
        return 10.0 * self.number


@dataclass
class SlowDevice:
    """Reaches its events when a test says so; event n at second 10 n."""

    ended: int = 0
    waited: int = 0
    places: list[Place] = field(default_factory=list)

    def __call__(self) -> Place:
        self.places.append(Place(self, len(self.places)))
        return self.places[-1]


@pytest.fixture
def timelines() -> list[Timeline]:
    return []


def test_spans_have_the_device_s_times_and_wait_until_it_has_ended_them(
    timelines: list[Timeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "MIN_REPORT_INTERVAL_S", 0.0)
    device = SlowDevice()
    recorder = SpanRecorder("cuda:0", "5", device, timelines.append)
    recorder.add("segment", "v0.0", device(), 0)
    recorder.add("send", "5.mid", device(), 0, "cuda:1")
    assert timelines == []
    device.ended = 2
    recorder.emit()
    ((first,),) = (one.segments for one in timelines)
    assert (first.start, first.seconds, first.kind, first.target) == (0.0, 10.0, "segment", "v0.0")
    assert device.waited == 0
    recorder.emit(last=True)
    (second,) = timelines[-1].segments
    assert (second.name, second.peer, second.start) == ("send 5.mid to cuda:1", "cuda:1", 20.0)
    assert device.waited and recorder.emitted == [first, second]


def test_spans_are_reported_rarely_and_none_is_lost(timelines: list[Timeline]) -> None:
    device = SlowDevice(ended=10_000)
    recorder = SpanRecorder("cpu:0", "5", device, timelines.append)
    for evaluation in range(1000):
        recorder.add("segment", "v0.0", device(), evaluation)
    recorder.emit(last=True)
    assert [span.evaluation for one in timelines for span in one.segments] == list(range(1000))
    assert len(timelines) <= 3
