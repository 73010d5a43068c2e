"""The recorder alone, on one-line stages: what it refuses, what it copies, and when it records."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from stage_calls import Computed
from torch import Tensor, nn

from katz_graph.executor.recorded.cuda import CudaGraphs
from katz_graph.executor.recorded.recorder import WARMING_UP, Recorder
from katz_graph.executor.recorded.trace import NotRecordable, Watch
from katz_graph.testing.tapes import Tapes, Trace

OUTSIDE = torch.ones(3)


def strict() -> Recorder:
    """Records every call at its first use."""
    return Recorder(Tapes(strict=True), eager=0)


class Graph:
    """Allows weak references to a fake graph."""


class Cuda:
    """Fakes torch's CUDA graphs. A capture's start writes torch's random state. As on a GPU, a
    failed capture keeps its pool blocked.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pools, self.open, self._state = 0, set[int](), torch.zeros(1)
        self.broken = self.renewed = False
        self.started: list[weakref.ReferenceType[object]] = []
        for name, stand_in in {
            "CUDAGraph": Graph,
            "current_stream": lambda device: None,
            "memory_reserved": lambda device: 0,
            "device": lambda device: nullcontext(),
            "graph_pool_handle": self._pool,
            "graph": self._graph,
            "default_generators": [self],
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._end, raising=False)
        self.graphs = CudaGraphs(torch.device("cuda:0"))

    def clone_state(self) -> Cuda:
        return self

    def graphsafe_set_state(self, state: Cuda) -> None:
        self.renewed = True

    def _pool(self) -> int:
        self.pools += 1
        return self.pools

    @contextmanager
    def _graph(self, graph: object, pool: int, *given: object, **options: object) -> Iterator[None]:
        assert pool not in self.open and not gc.isenabled()
        self.started.append(weakref.ref(graph))
        self._state.fill_(1)
        self.open.add(pool)
        try:
            yield
        finally:
            if self.broken:
                raise RuntimeError("broken off")
            self.open.remove(pool)

    def _end(self, number: int, pool: int) -> None:
        if pool not in self.open:
            raise RuntimeError("not being recorded")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def test_start_of_a_cuda_graph_is_not_part_of_the_call(cuda: Cuda) -> None:
    """Garbage collection is off during a start."""
    given = torch.ones(3)
    for _ in range(2):
        recording = cuda.graphs.record(lambda: 2 * given, [given])
        assert torch.equal(recording.outputs, torch.full((3,), 2.0))
    assert cuda.pools == 1 and gc.isenabled() and not cuda.renewed


def test_a_recording_that_breaks_off_leaves_room_for_the_next(cuda: Cuda) -> None:
    given, cuda.broken = torch.ones(3), True
    with pytest.raises(RuntimeError, match="broken off"):
        cuda.graphs.record(lambda: 2 * given, [given])
    cuda.broken = False
    cuda.graphs.record(lambda: 2 * given, [given])
    assert cuda.renewed and cuda.pools == 2


def test_a_recording_that_is_refused_goes_on_in_its_pool(cuda: Cuda) -> None:
    given = torch.ones(3)
    with pytest.raises(NotRecordable):
        cuda.graphs.record(lambda: given + OUTSIDE, [given])
    cuda.graphs.record(lambda: 2 * given, [given])
    assert cuda.pools == 1 and not cuda.renewed


@pytest.mark.defect(34)
def test_the_graph_of_a_refused_recording_goes_with_the_others(cuda: Cuda) -> None:
    """Others may use library memory that the refused one allocated."""
    given = torch.ones(3)
    with pytest.raises(NotRecordable):
        cuda.graphs.record(lambda: given + OUTSIDE, [given])
    recording = cuda.graphs.record(lambda: 2 * given, [given])
    gc.collect()
    assert all(one() is not None for one in cuda.started)
    del recording
    cuda.graphs.drop()
    assert all(one() is None for one in cuda.started)


def test_a_watched_call_keeps_no_tensor() -> None:
    """The tensor's memory can be reused, as without recording."""
    given = torch.ones(3)
    with Watch([given]):
        made = 2 * given
        product = weakref.ref(made)
        made = made + 1
        assert product() is None
    with Trace([given]) as trace:
        made = 2 * given
        product = weakref.ref(made)
        made = made + 1
        assert product() is not None
    assert len(trace.operations) == 2


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda module, given: given["x"] * float(given["x"].sum()), "waits for the device"),
        (
            lambda module, given: given["x"] if bool(given["x"].sum() > 0) else -given["x"],
            "waits for the device",
        ),
        (
            lambda module, given: given["x"] * torch.tensor([1.0, 2.0, 3.0]),
            "makes a tensor from Python values",
        ),
        (lambda module, given: given["x"] + OUTSIDE, "neither an input, nor a weight"),
        (lambda module, given: given["x"].add_(1), "writes into an input or a weight"),
        (lambda module, given: module.weight.add_(given["x"]), "writes into an input or a weight"),
        (
            lambda module, given: torch.add(given["x"], 1, out=module.weight),
            "writes into an input or a weight",
        ),
    ],
)
def test_unrecordable_calls_run_eagerly(call: Callable[[Any, Any], Tensor], reason: str) -> None:
    compute, stage = Recorder(Tapes(), eager=0), Computed(call=call)
    with torch.no_grad():
        for number in (1.0, 2.0):
            given = {"x": torch.full((3,), number)}
            (made,) = compute(stage, Scale(), given)
            (expected,) = stage.computed(Scale(), {"x": torch.full((3,), number)})
            assert torch.equal(made, expected)
    (refused,) = compute.use.eager
    assert reason in refused and refused.startswith("test: ")
    assert compute.use.captures == 0


def test_the_first_calls_of_a_form_are_computed_as_they_are() -> None:
    compute, scale = Recorder(Tapes()), Scale()
    stage = Computed(call=lambda module, given: given["x"] * module.weight)
    with torch.no_grad():
        for number in range(5):
            (made,) = compute(stage, scale, {"x": torch.full((2, 3), float(number))})
            assert torch.equal(made, torch.full((2, 3), float(number)))
    assert (compute.use.captures, compute.use.replays) == (1, 3)
    assert compute.use.eager == {WARMING_UP: 2}
    with torch.no_grad():
        compute(stage, scale, {"x": torch.ones(4, 3)})  # another shape
        compute(stage, Scale(), {"x": torch.ones(2, 3)})  # another module
    assert compute.use.eager == {WARMING_UP: 4}


def test_inputs_may_share_their_values_or_lie_apart() -> None:
    compute = strict()
    stage = Computed(call=lambda module, given: given["x"] * 2)
    with torch.no_grad():
        for number in range(3):
            row = torch.arange(6.0) + number
            for x in (row[None].expand(4, 6), row[::2], row.view(2, 3).t()):
                assert torch.equal(compute(stage, None, {"x": x})[0], x * 2)
    assert (compute.use.captures, compute.use.replays) == (3, 9)


def test_a_value_of_an_earlier_replay_is_seen() -> None:
    """If a call writes only part of its output, eager values of the rest are arbitrary."""
    results = []

    def call(module: Any, given: Mapping[str, Tensor]) -> Tensor:
        made = torch.empty_like(given["x"])
        made[0] = given["x"][0]
        results.append(made)
        return made

    with torch.no_grad():
        (made,) = strict()(Computed(call=call), Scale(), {"x": torch.ones(3)})
        assert torch.isnan(made[1:]).all()


def test_replay_outputs_are_released_once_taken() -> None:
    made = []

    def call(module: Any, given: Mapping[str, Tensor]) -> Tensor:
        made.append(given["x"] * 2)
        return made[-1]

    with torch.no_grad():
        (found,) = strict()(Computed(call=call), None, {"x": torch.ones(3)})
    assert found.tolist() == [2.0] * 3 and torch.isnan(made[-1]).all()


def test_a_weight_that_was_replaced_is_seen() -> None:
    compute, scale = strict(), Scale()
    stage = Computed(call=lambda module, given: given["x"] * module.weight)
    with torch.no_grad():
        for expected in (1.0, 2.0, 3.0):
            (made,) = compute(stage, scale, {"x": torch.ones(3)})
            assert made.tolist() == [expected] * 3
            scale.weight.add_(1)  # like a patch
        scale.weight = nn.Parameter(torch.zeros(3))
        with pytest.raises(RuntimeError, match="weight"):
            compute(stage, scale, {"x": torch.ones(3)})


def test_a_changed_input_is_read_again() -> None:
    compute, x = strict(), torch.zeros(3)
    stage = Computed(call=lambda module, given: given["x"] * 2)
    with torch.no_grad():
        for number in range(3):
            x.fill_(number)
            assert compute(stage, None, {"x": x})[0].tolist() == [2.0 * number] * 3


def test_inputs_that_last_are_copied_where_others_lie() -> None:
    """Tests values computed once per request. Two requests alternate; one ends in between."""
    compute = strict()
    stage = Computed(
        hoists={"kept": "made before"},
        call=lambda module, given: given["x"] * given["kept"]["layer"],
    )
    with torch.no_grad():
        first, second = ({"layer": torch.full((3,), number)} for number in (2.0, 3.0))
        for layers in (first, first, second, first, second, second):
            (made,) = compute(stage, None, {"x": torch.ones(3), "kept": layers})
            assert torch.equal(made, layers["layer"])
        del layers, second
        for number in range(4, 40):  # one of them gets an earlier one's address
            layers = {"layer": torch.full((3,), float(number))}
            (made,) = compute(stage, None, {"x": torch.ones(3), "kept": layers})
            assert torch.equal(made, torch.full((3,), float(number)))
