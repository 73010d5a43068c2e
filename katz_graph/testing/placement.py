"""Runs requests of random models on workers in alternation, with pinned or planner-made plans.
Benches of several devices share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor

from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE
from katz_graph.executor.cluster.requests import Outcome
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.measure.stages import StageTime
from katz_graph.executor.planning import plan_region
from katz_graph.ir.device import Device, Target
from katz_graph.ir.program import Call, Program
from katz_graph.ir.region import Region
from katz_graph.models.stage_registry import stage
from katz_graph.planner.queries import commonest_variant
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import make_controlnet, make_pipeline, usual, usual_kind
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region

NETWORK: tuple[str, ...] = usual().stages
PROFILED = 6  # steps of a profiled request; the first is not measured
COLUMNS = ("seconds", "predicted", "median", "least", "most")

Pins = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the size of a bench."""

    channels: tuple[int, ...] = (64, 128, 256)  # by block: 31 M parameters, 15 M in a ControlNet
    side: int = 32  # latent height and width
    steps: int = 10  # per request
    runs: int = 9
    layers: int = 2  # per block

    @property
    def sizes(self) -> dict[str, Any]:
        """Returns the network sizes as keyword arguments of `random_models`."""
        return {"channels": self.channels, "layers": self.layers}


@dataclass(frozen=True, slots=True)
class Models:
    """Holds the files of a pipeline and its ControlNets."""

    pipeline: Path
    controls: tuple[Path, ...]
    latent_channels: int = 4

    @classmethod
    def make(cls, folder: Path, scale: Scale, controls: int = 1) -> Models:
        make_pipeline(folder / "pipeline", usual_kind(), seed=1, **scale.sizes)
        paths = tuple(folder / f"control{number}" for number in range(controls))
        for number, path in enumerate(paths):
            make_controlnet(path, usual_kind(), seed=2 + number, **scale.sizes)
        return cls(folder / "pipeline", paths)

    def profiled(self, scale: Scale, guidance: float, controls: int = 1) -> Region:
        """Builds the same request, with only the steps that stage profiling needs."""
        return self.request(replace(scale, steps=min(scale.steps, PROFILED)), guidance, controls)

    def request(self, scale: Scale, guidance: float, controls: int = 1, seed: int = 7) -> Region:
        """Builds a KSampler request: Euler, from noise. Guidance 1 leaves one branch."""
        generator = torch.Generator().manual_seed(seed)
        case = Case(
            name=f"seed {seed}",
            pipeline=self.pipeline,
            sampler="euler",
            steps=scale.steps,
            guidance=guidance,
            seed=seed,
            latent=torch.zeros(1, self.latent_channels, scale.side, scale.side),
            image=torch.rand(
                1,
                DEFAULT_LATENT_SPACE.pixels(scale.side),
                DEFAULT_LATENT_SPACE.pixels(scale.side),
                3,
                generator=generator,
            ),
            controls=tuple(ControlCase(path, 0.8, 0.0, 1.0) for path in self.controls[:controls]),
        )
        return sampler_region(case)


def pins(network: str, control_net: str) -> Pins:
    """Pins the whole network to one device, and all ControlNets to another (or the same)."""
    return {**dict.fromkeys(NETWORK, (network,)), "controlnet": (control_net,)}


def plan(
    engine: DeviceEngine,
    region: Region,
    places: Pins | None = None,
    batching: bool | None = None,
    devices: Sequence[Device] = (),
) -> Program:
    """Plans a region for an engine's workers, with the pins `places`. `devices` replaces the
    descriptions of the workers.
    """
    cluster = engine.cluster
    return plan_region(
        region,
        Target(tuple(devices) or cluster.devices, cluster.links, places or {}, batching=batching),
        engine.counts,
    )


def reference(region: Region) -> Tensor:
    """Samples on one device with one thread in this process, without batching the branches."""
    torch.set_num_threads(1)
    with local_engine(batching=False) as engine:
        return sample(engine, region)


@dataclass(slots=True)
class Track:
    """Runs a request in one way, planning it again for every run; stores the programs and their
    outcomes.
    """

    name: str
    engine: DeviceEngine
    plan: Callable[[], Program]
    programs: list[Program] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self) -> Outcome:
        """Runs once, and records the run."""
        self.programs.append(self.plan())
        self.outcomes.append(self.engine.cluster.run(self.program, bare_context(self.engine)))
        return self.outcomes[-1]

    def warm_up(self) -> None:
        self.engine.cluster.run(self.plan(), bare_context(self.engine))

    @property
    def program(self) -> Program:
        """Returns the last program."""
        return self.programs[-1]

    @property
    def sampling(self) -> list[float]:
        """Returns the seconds of the sampling loop by run, on the device that samples."""
        runs = zip(self.programs, self.outcomes, strict=True)
        return [outcome.timings[program.sampler_device].denoise for program, outcome in runs]

    @property
    def whole(self) -> list[float]:
        """Returns the measured seconds of preparation and sampling loop, by run."""
        runs = zip(self.programs, self.outcomes, self.sampling, strict=True)
        return [
            outcome.timings[program.sampler_device].prepare + seconds
            for program, outcome, seconds in runs
        ]

    @property
    def planned(self) -> list[float]:
        """Returns the predicted seconds, by program with a prediction."""
        return [
            program.prediction.planned
            for program in self.programs
            if program.prediction is not None
        ]

    @property
    def error(self) -> float:
        """Returns the relative prediction error: how far the median ratio of measured to predicted
        seconds is from 1.
        """
        runs = zip(self.whole, self.planned, strict=True)
        return abs(median(seconds / planned for seconds, planned in runs) - 1)

    def row(self) -> list[object]:
        return [
            self.name,
            median(self.planned),
            median(self.whole),
            min(self.whole),
            max(self.whole),
        ]


def speedups(one: Track, two: Track) -> list[float]:
    """Returns the speed-ups of `two` over `one`, by round."""
    return [alone / together for alone, together in zip(one.sampling, two.sampling, strict=True)]


def share(gained: Sequence[float], ideals: Sequence[float]) -> float:
    """Returns the reached share of the ideal speed-up, median over rounds."""
    return median(speedup / ideal for speedup, ideal in zip(gained, ideals, strict=True))


First = TypeVar("First")
Last = TypeVar("Last")


def take_turns(
    tracks: Sequence[Track], runs: int, first: Callable[[], First], last: Callable[[], Last]
) -> tuple[list[First], list[Last]]:
    """Warms up, then runs all tracks once per round, between the measurements `first` and `last`.
    Returns both measurements by round.

    All compared times lie within seconds of each other, because the speed of a shared machine
    varies by a third over time.
    """
    for track in tracks:
        track.warm_up()
    before, after = [], []
    for _ in range(runs):
        before.append(first())
        for track in tracks:
            track.run()
        after.append(last())
    return before, after


def middle(stages: Sequence[Stages]) -> Stages:
    """Returns the median of each stage time over several measurements."""
    by_call: dict[tuple[str, int], list[StageTime]] = {}
    for measured in stages:
        for call, time in measured.times.items():
            by_call.setdefault(call, []).append(time)
    return Stages([_middle(times) for times in by_call.values()])


def _middle(times: Sequence[StageTime]) -> StageTime:
    alone, busy = (
        [seconds for time in times if (seconds := getattr(time, how)) is not None]
        for how in ("alone", "busy")
    )
    return replace(
        times[0], alone=median(alone) if alone else None, busy=median(busy) if busy else None
    )


class Stages:
    """Holds the measured seconds of the loop's stages, by stage and number of rows of a call."""

    def __init__(self, times: Sequence[StageTime]) -> None:
        self.times = {(time.stage, time.rows): time for time in times if stage(time.stage).costed}

    def alone(self, call: Call) -> float:
        return self._known(self.times[call.stage, len(call.operations)].alone, call)

    def busy(self, call: Call) -> float:
        """Returns a call's seconds while the other workers do the same work concurrently."""
        return self._known(self.times[call.stage, len(call.operations)].busy, call)

    def single_calls(self) -> tuple[float, float]:
        """Sums the seconds of all stages, one call for one branch each: alone, and busy."""
        single = [time for (_, rows), time in self.times.items() if rows == 1]
        return sum(self._known(time.alone, time) for time in single), sum(
            self._known(time.busy, time) for time in single
        )

    def _known(self, seconds: float | None, what: Call | StageTime) -> float:
        assert seconds is not None, what  # this request was profiled on these devices
        return seconds

    @property
    def metrics(self) -> dict[str, dict[str, float | None]]:
        return {
            _title(time): {"alone": time.alone, "busy": time.busy} for time in self.times.values()
        }

    def rows(self) -> list[list[object]]:
        """Returns the table rows of each stage, alone and busy."""
        alone = [
            [f"{_title(time)} alone", time.roofline, time.alone or 0.0, "", ""]
            for time in self.times.values()
        ]
        return alone + [
            [f"{_title(time)} busy", "", time.busy or 0.0, "", ""] for time in self.times.values()
        ]


def _title(time: StageTime) -> str:
    return time.stage + (f" of {time.rows}" if time.rows > 1 else "")


def seconds_of(
    program: Program,
    cost: Callable[[Call], float],
    device: str | None = None,
    stages: Sequence[str] = (),
) -> float:
    """Sums the seconds of calls in the most frequent evaluation variant: calls of `stages`, or of
    all stages with costs; on one device, or on all.
    """
    number = commonest_variant(program)
    calls = program.calls[number] if number is not None else ()
    wanted = [
        call for call in calls if (call.stage in stages if stages else stage(call.stage).costed)
    ]
    return sum(cost(call) for call in wanted if device in (None, call.device))
