"""Independent calls on two streams: their order, what they may share, and when two streams are
used.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_cuda import DEVICE, Gpu, simulated
from stage_calls import Computed
from torch import Tensor, nn

from katz_graph.executor.calls.computing import StageCall
from katz_graph.executor.recorded.cuda import CudaGraphs
from katz_graph.executor.recorded.recorder import NOT_DECLARED, Recorder
from katz_graph.executor.recorded.recording import Recording
from katz_graph.executor.recorded.trial import ATTEMPTS, LAPS, Trial
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.device_program import device_program
from katz_graph.executor.worker.execution import Execution
from katz_graph.executor.worker.host import computing_of
from katz_graph.executor.worker.stream import CudaStream, HostLap, HostStream, Lap, Made
from katz_graph.ir.region import Region
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region
from katz_graph.testing.tapes import Tapes

FASTER, SLOWER = 0.97, 0.99  # relative to one stream; two must save 2 %


class Paced:
    """Times laps on one stream as 1 s, on two as `two`."""

    def __init__(self, two: float) -> None:
        self._two = two
        self._concurrent = False
        self.laps = 0

    def timing(self) -> Callable[[], Lap]:
        self._concurrent, self.laps = False, self.laps + 1
        return lambda: HostLap(self._two if self._concurrent else 1.0)


class PacedHost(Paced, HostStream):
    def concurrently(
        self, aside: Callable[[], Made], here: Callable[[], Made]
    ) -> tuple[Made, Made]:
        self._concurrent = True
        return super().concurrently(aside, here)


class PacedGpu(Paced, CudaStream):
    def __init__(self, two: float) -> None:
        Paced.__init__(self, two)
        CudaStream.__init__(self, DEVICE)

    def concurrently(
        self, aside: Callable[[], Made], here: Callable[[], Made]
    ) -> tuple[Made, Made]:
        self._concurrent = True
        return super().concurrently(aside, here)


@dataclass
class PendingLap:
    """Lap whose end the device has not reported."""

    seconds: float
    known: bool = False


@pytest.mark.parametrize(("two", "concurrent"), [(FASTER, True), (SLOWER, False), (1.2, False)])
def test_two_streams_must_save_two_per_cent(two: float, concurrent: bool) -> None:
    trial = Trial()
    for _ in range(LAPS):
        assert not trial.concurrent and not trial.settled
        trial.add(HostLap(1.0), counts=True)
    for _ in range(LAPS):
        assert trial.concurrent and not trial.settled
        trial.add(HostLap(two), counts=True)
    assert trial.settled and trial.concurrent is concurrent


def test_laps_are_not_waited_for_and_one_slow_lap_decides_nothing() -> None:
    trial, laps = Trial(), [PendingLap(1.0) for _ in range(LAPS)]
    for lap in laps:
        trial.add(lap, counts=True)
    for seconds in (*[FASTER] * (LAPS - 1), 9.0):
        laps.append(PendingLap(seconds))
        trial.add(laps[-1], counts=True)
    for _ in range(3):
        trial.add(PendingLap(5.0), counts=True)
        assert not trial.settled and trial.concurrent
    for lap in laps:
        lap.known = True
    trial.add(HostLap(5.0), counts=True)
    assert trial.settled and trial.concurrent


def test_calls_never_replayed_on_two_streams_stay_on_one() -> None:
    trial = Trial()
    for _ in range(50):
        trial.add(HostLap(1.0), counts=False)
    assert not trial.concurrent and not trial.settled
    for _ in range(LAPS):
        trial.add(HostLap(1.0), counts=True)
    for number in range(ATTEMPTS):
        assert trial.concurrent, number
        trial.add(HostLap(0.1), counts=False)
    assert trial.settled and not trial.concurrent


class LateTapes:
    """Simulates a strict backend of a GPU: replays run when their stream reaches them, and
    overwrite other recordings' outputs, which share memory.
    """

    strict, room = True, float("inf")

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._tapes = gpu, Tapes(strict=True)
        self._recordings: list[Recording] = []

    def record(self, call: Callable[[], Any], given: Iterable[Tensor]) -> LateTape:
        with torch._C.DisableTorchFunction():
            tape = self._tapes.record(call, given)
        self._recordings.append(tape)
        return LateTape(self, tape)

    def replay(self, tape: Recording) -> None:
        for other in self._recordings:
            if other is not tape:
                other.taken()
        tape.replay()

    def enqueue(self, work: Callable[[], None]) -> None:
        self._gpu.current.enqueue(work)

    def drop(self) -> None:
        self._recordings.clear()


class LateTape:
    def __init__(self, backend: LateTapes, tape: Recording) -> None:
        self._backend, self._tape = backend, tape
        self.outputs, self.size = tape.outputs, tape.size

    def replay(self) -> None:
        self._backend.enqueue(lambda: self._backend.replay(self._tape))

    def taken(self) -> None:
        self._backend.enqueue(self._tape.taken)


class Scale(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), by))


def controlled(module: Any, given: Mapping[str, Any]) -> Tensor:
    return given["x"] * module.weight + given["image"]


def encoded(module: Any, given: Mapping[str, Any]) -> Tensor:
    return given["x"] * module.weight + 1


def decoded(module: Any, given: Mapping[str, Any]) -> Tensor:
    return (given["features"] + given["residual"]) * 0.5


CONTROL = Computed(name="control", call=controlled, hoists={"image": "made before"})
ENCODER = Computed(name="encoder", call=encoded)
DECODER = Computed(name="decoder", call=decoded)


@pytest.mark.parametrize("same", [False, True], ids=["ControlNet and encoder", "encoder twice"])
def test_the_order_of_work_gives_the_same_values_however_streams_run(
    same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All evaluations are enqueued before the first begins; two requests alternate."""
    modules = (Scale(0.7), Scale(0.3))
    images = [torch.full((3,), number) for number in (0.1, 0.2)]

    def pair(x: Tensor, other: Tensor, request: int) -> tuple[StageCall, StageCall]:
        encoder = StageCall(ENCODER, modules[1], {"x": x})
        if same:  # as for positive and negative
            return StageCall(ENCODER, modules[1], {"x": other}), encoder
        return StageCall(CONTROL, modules[0], {"x": x, "image": images[request]}), encoder

    def evaluations(
        compute: Any, enqueue: Callable[[Callable[[], object]], object]
    ) -> list[Tensor]:
        latents = [torch.full((3,), number) for number in (1.0, 2.0)]
        for number in range(4 * LAPS):
            request = number % 2
            x, other = latents[request], latents[1 - request]
            (residual,), (features,) = compute(pair(x, other, request))
            ((made,),) = compute(
                [StageCall(DECODER, None, {"features": features, "residual": residual})]
            )
            after = torch.full_like(x, torch.nan)

            def step(after: Tensor = after, x: Tensor = x, made: Tensor = made) -> None:
                after.copy_(x * 0.5 + made * 0.25)

            enqueue(step)
            latents[request] = after
        return latents

    with torch.no_grad():
        expected = evaluations(
            lambda calls: [call.stage.computed(call.module, call.given) for call in calls],
            lambda work: work(),
        )
        for seed in range(30):
            with simulated(monkeypatch) as gpu:
                stream = PacedGpu(FASTER)
                compute = Recorder(LateTapes(gpu), LateTapes(gpu), stream=stream, eager=0)
                with stream.entered():
                    found = evaluations(compute.together, gpu.current.enqueue)
                    crossing = {id(one) for one, to in gpu.held if to is gpu.current}
                gpu.run(random.Random(seed))
            assert all(map(torch.equal, found, expected)), seed
            assert compute.use.concurrent >= 2 * LAPS and len(gpu.streams) == 3
            assert len(crossing) == compute.use.concurrent // 2  # outputs of the second stream


def test_either_stream_may_be_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    with simulated(monkeypatch) as gpu:

        def work(name: str) -> Callable[[], tuple[Tensor, ...]]:
            def enqueue() -> tuple[Tensor, ...]:
                gpu.current.enqueue(lambda: done.append(name))
                return ()

            return enqueue

        stream = CudaStream(DEVICE)
        with stream.entered():
            for _ in range(2):
                stream.concurrently(work("aside"), work("here"))
            gpu.current.run(1)
            assert done == ["here"]
            stream._aside.run(2)
            assert done == ["here", "aside"]
            stream._aside.run(stream._aside.enqueued)
    assert done == ["here", "aside", "aside"]


def test_only_laps_of_replays_count() -> None:
    compute = Recorder(Tapes(), Tapes(), stream=PacedHost(FASTER), eager=2)
    given = {"x": torch.ones(3), "image": torch.ones(3)}
    calls = [StageCall(stage, Scale(1.0), given) for stage in (CONTROL, ENCODER)]
    concurrent = []
    with torch.no_grad():
        for _ in range(2 * (3 + LAPS) + 1):
            compute.together(calls)
            concurrent.append(compute.use.concurrent // 2)
    # two eager calls and a recording, then laps; the same on the second stream
    assert concurrent == [*[0] * (3 + LAPS), *range(1, 3 + LAPS + 2)]
    (trial,) = compute._trials.values()
    assert trial.settled and trial.concurrent
    assert compute.tried == {"control and encoder": (1.0, FASTER)}


def test_a_failure_next_to_work_on_the_second_stream_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def fails() -> tuple[Tensor, ...]:
        raise RuntimeError("out of memory")

    with simulated(monkeypatch) as gpu:
        stream = CudaStream(DEVICE)
        with stream.entered():

            def aside() -> tuple[Tensor, ...]:
                gpu.current.enqueue(lambda: done.append("aside"))
                return ()

            with pytest.raises(RuntimeError, match="memory"):
                stream.concurrently(aside, fails)
            gpu.current.enqueue(lambda: done.append("behind"))
            gpu.current.run(gpu.current.enqueued)
    assert done == ["aside", "behind"]


def asked(models: Models, controls: int, seed: int = 1, **changes: Any) -> Region:
    used = tuple(ControlCase(one, 0.8, 0.0, 1.0) for one in models.controls[:controls])
    return sampler_region(
        Case("test", models.pipeline, "euler", 9, seed=seed, controls=used, **changes)
    )


def two_streams(two: float, room: float = float("inf")) -> Recorder:
    """Records every call at its first use, on both streams."""
    backends = (Tapes(strict=True, room=room) for _ in range(2))
    return Recorder(*backends, stream=PacedHost(two), eager=0)


@pytest.mark.parametrize(
    ("two", "batching"),
    [(FASTER, True), (FASTER, False), (SLOWER, False)],
    ids=["faster-batched", "faster-apart", "slower-apart"],
)
def test_two_requests_in_turn_paint_the_same_bytes(
    two: float, batching: bool, sd1: Models, costs: Path
) -> None:
    """They differ in ControlNets and LoRAs."""
    regions = [asked(sd1, 1), asked(sd1, 2, 2, prompt="other", loras=((sd1.loras[0], 0.5),))]
    with local_engine(batching=batching, cache=costs) as engine:
        expected = [sample(engine, region) for region in regions]
        engine.models.compute = compute = two_streams(two)
        used = []
        for _ in range(3):
            with ThreadPoolExecutor(len(regions)) as pool:
                made = list(pool.map(lambda region: sample(engine, region), regions))
            assert all(map(torch.equal, made, expected))
            used.append(compute.use.concurrent)
        assert compute.use.eager.keys() <= {NOT_DECLARED} and compute.use.drops == 0
        assert used[1] >= 2 * (LAPS + 1)  # tried
        assert (used[2] > used[1]) is (two == FASTER)


def test_unprofitable_second_streams_take_no_memory(sd1: Models, costs: Path) -> None:
    region = asked(sd1, 1)
    with local_engine(batching=True, cache=costs) as engine:
        engine.models.compute = alone = Recorder(Tapes(strict=True), eager=0)
        sample(engine, region)
        sizes = {}
        for two in (FASTER, SLOWER):
            engine.models.compute = compute = two_streams(two)
            for _ in range(2):
                sample(engine, region)
            sizes[two] = compute.use.bytes
    assert sizes[SLOWER] == alone.use.bytes < sizes[FASTER]
    assert alone.use.concurrent == 0


def test_recordings_that_are_dropped_come_back_on_both_streams(sd1: Models, costs: Path) -> None:
    """This holds even during the trial, which then continues."""
    region = asked(sd1, 1)
    with local_engine(batching=True, cache=costs) as engine:
        expected = sample(engine, region)
        engine.models.compute = compute = two_streams(FASTER)
        for turn in range(4):
            before = compute.use.captures
            assert torch.equal(sample(engine, region), expected), turn
            assert compute.use.captures > before
            engine.models.unload() if turn == 2 else compute.drop()
            assert compute.use.bytes == 0 and all(not one.of_modules for one in compute._lanes)
        assert compute.use.concurrent > 2 * LAPS + 2


def test_where_both_do_not_fit_one_stream_is_used(sd1: Models, costs: Path) -> None:
    """All recordings are dropped only once."""
    region = asked(sd1, 1)
    with local_engine(batching=True, cache=costs) as engine:
        engine.models.compute = alone = Recorder(Tapes(strict=True), eager=0)
        expected = sample(engine, region)
        engine.models.compute = compute = two_streams(FASTER, 1.05 * alone.use.bytes)
        for _ in range(3):
            assert torch.equal(sample(engine, region), expected)
    assert compute.use.drops == 1 and compute.use.concurrent == 2
    assert compute.use.bytes == alone.use.bytes


def test_a_module_that_goes_takes_its_trials_along() -> None:
    compute, modules = two_streams(FASTER), [Scale(1.0), Scale(2.0)]
    calls = [
        StageCall(stage, module, {"x": torch.ones(3), "image": torch.ones(3)})
        for stage, module in zip((CONTROL, ENCODER), modules, strict=True)
    ]
    with torch.no_grad():
        for _ in range(3 * LAPS):
            compute.together(calls)
        assert compute.use.concurrent > 2 * LAPS
        compute.forget(Scale(1.0))
        assert len(compute._trials) == 1 and compute.use.drops == 0
        compute.forget(modules[0])
    assert len(compute._trials) == 0 and compute.use.drops == 1


def test_a_measured_run_computes_one_call_after_the_other(sd1: Models, costs: Path) -> None:
    with local_engine(batching=True, cache=costs) as engine:
        compute = engine.models.compute = two_streams(FASTER)
        program = engine.plan(asked(sd1, 1))
        share, context = device_program(program, program.sampler_device), bare_context(engine)
        execution = Execution(share, engine.models, context, measure=True)
        with torch.inference_mode():
            while not execution.step():
                pass
        execution.close()
    assert compute.use.replays > 0 and compute.use.concurrent == 0
    timed = {program.keys[call.operations[0]] for call in program.segments[0][0].calls[:4]}
    assert timed <= {key for key, _ in execution.timing.samples}


def test_a_gpu_gets_two_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = iter(range(9))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    stream = CudaStream(DEVICE)
    compute = computing_of(WorkerConfig("cuda:0", "cuda:0"), stream)
    assert isinstance(compute, Recorder) and compute._stream is stream
    backends = [lane.backend for lane in compute._lanes]
    assert all(isinstance(one, CudaGraphs) for one in backends)
    assert len({one._pool for one in backends if isinstance(one, CudaGraphs)}) == 2
