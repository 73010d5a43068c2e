"""Device memory of recordings, and their fate when memory runs out."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from stage_calls import Computed
from torch import Tensor, nn

from katz_graph.executor.calls.computing import StageCall
from katz_graph.executor.recorded.recorder import NO_MEMORY, TOO_LARGE, WARMING_UP, Recorder
from katz_graph.testing.tapes import Tape, Tapes


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


@dataclass
class Pool:
    """Records like a GPU: a recording may use memory that its pool already has, with size 0, and
    memory may run out. Remembers the live recordings.
    """

    room: float = 1e9
    sizes: list[int] = field(default_factory=list)  # of the next recordings; then 0
    full: bool = False
    strict: bool = False
    generation: int = 0
    made: list[tuple[int, weakref.ReferenceType[Tape]]] = field(default_factory=list)

    def record(self, call: Callable[[], Any], given: Iterable[Tensor]) -> Tape:
        if self.full:
            raise torch.OutOfMemoryError("CUDA out of memory")
        tape = Tapes().record(call, given)
        tape.size = self.sizes.pop(0) if self.sizes else 0
        self.made.append((self.generation, weakref.ref(tape)))
        return tape

    def drop(self) -> None:
        self.generation += 1

    @property
    def alone(self) -> list[int]:
        """Returns the pools that lost some recordings, but not all."""
        gc.collect()
        live = {number for number, one in self.made if one() is not None}
        freed = {number for number, one in self.made if one() is None}
        return sorted(live & freed)


STAGE = Computed(call=lambda module, given: given["x"] * module.weight)


def scaled(compute: Recorder, module: Scale, rows: int = 2) -> None:
    with torch.no_grad():
        (made,) = compute(STAGE, module, {"x": torch.full((rows, 3), 2.0)})
    assert torch.equal(made, torch.full((rows, 3), 2.0))


@pytest.mark.defect(34)
@pytest.mark.parametrize("sizes", [[0, 0], [100, 0], [0, 100]])
@pytest.mark.parametrize("goes", [0, 1])
def test_no_recording_goes_alone_with_its_module(sizes: list[int], goes: int) -> None:
    """Recordings of one pool share library memory, even if their own size is 0."""
    pool = Pool(sizes=sizes)
    compute, modules = Recorder(pool, eager=0), [Scale(), Scale()]
    for module in modules:
        scaled(compute, module)
    compute.forget(modules[goes])
    assert pool.alone == [] and pool.generation == 1 and compute.use.drops == 1
    assert compute.use.bytes == 0
    scaled(compute, modules[1 - goes])
    assert compute.use.captures == 3


@pytest.mark.defect(34)
def test_no_recording_that_is_too_large_goes_alone() -> None:
    pool = Pool(room=1000, sizes=[0, 5000])
    compute, module = Recorder(pool, eager=0), Scale()
    scaled(compute, module)
    for _ in range(3):
        scaled(compute, module, rows=4)
    assert pool.alone == [] and len(pool.made) == 2  # not recorded again
    assert compute.use.eager == {f"test: {TOO_LARGE}": 3}


def test_a_module_without_recordings_takes_none_of_others_along() -> None:
    pool = Pool()
    compute, module, other = Recorder(pool), Scale(), Scale()
    for _ in range(3):
        scaled(compute, module)
    scaled(compute, other)  # warms up
    compute.forget(other)
    scaled(compute, module)
    assert pool.generation == 0 and compute.use.replays == 2


@pytest.mark.defect(36)
@pytest.mark.parametrize("reason", ["not recordable", "out of memory", "too large"])
def test_inputs_of_a_refused_recording_are_freed(reason: str) -> None:
    pool = Pool(room=1e6, full=reason == "out of memory")
    if reason == "too large":
        pool.sizes = [2_000_000] * 10
    compute = Recorder(pool, eager=0)

    def call(module: Any, given: Mapping[str, Tensor]) -> Tensor:
        if reason == "not recordable":
            float(given["x"].sum())
        return given["x"] * 2

    stage = Computed(call=call)
    inputs: list[weakref.ReferenceType[Tensor]] = []

    def noted(*given: Any, **options: Any) -> Tensor:
        tensor = torch.zeros(*given, **options)
        inputs.append(weakref.ref(tensor))
        return tensor

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch, "empty_strided", lambda size, stride, **o: noted(size, **o))
        for rows in range(1, 8):
            x = torch.ones(rows, 100_000)
            assert torch.equal(compute(stage, None, {"x": x})[0], x * 2)
    assert len(inputs) == 7
    gc.collect()
    assert [one for one in inputs if one() is not None] == []
    assert compute.use.captures == 0 and compute.use.bytes == 0


@pytest.mark.defect(36)
def test_inputs_count_against_the_budget() -> None:
    """If inputs did not count, the call would be recorded and dropped repeatedly."""
    pool = Pool(room=1000, sizes=[10] * 20)
    compute, module = Recorder(pool, eager=0), Scale()
    for _ in range(6):
        scaled(compute, module, rows=200)
    assert len(pool.made) == 1 and compute.use.bytes <= 1000
    assert compute.use.eager == {f"test: {TOO_LARGE}": 6}
    scaled(compute, module)
    scaled(compute, module)
    assert compute.use.replays == 2 and 0 < compute.use.bytes <= 1000


@pytest.mark.defect(36)
def test_recordings_that_lacked_memory_are_made_once_it_is_free() -> None:
    pool = Pool(full=True)
    compute, module = Recorder(pool), Scale()
    for _ in range(20):
        scaled(compute, module)
    assert compute.use.captures == 0
    assert compute.use.eager == {WARMING_UP: 2, NO_MEMORY: 18}
    pool.full = False
    for _ in range(40):
        scaled(compute, module)
    assert compute.use.captures == 1 and compute.use.replays > 10


@pytest.mark.defect(36)
def test_it_is_tried_at_once_when_a_module_is_evicted() -> None:
    pool = Pool(full=True)
    compute, module, other = Recorder(pool, eager=0), Scale(), Scale()
    for _ in range(40):
        scaled(compute, module)
    scaled(compute, other)
    pool.full = False
    compute.forget(other)
    scaled(compute, module)
    assert compute.use.captures == compute.use.replays == 1


@pytest.mark.defect(36)
def test_it_is_tried_less_often_while_memory_lacks() -> None:
    pool, tries = Pool(full=True), []
    record = pool.record
    pool.record = lambda *given: (tries.append(1), record(*given))[1]  # type: ignore[method-assign]
    compute, module = Recorder(pool, eager=0), Scale()
    for _ in range(1000):
        compute.together([StageCall(STAGE, module, {"x": torch.ones(2, 3)})])
    assert len(tries) == 10  # at calls 1, 3, 6, 11 ...
