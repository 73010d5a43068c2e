"""`katz bench switching`: runs two concurrent requests with different LoRAs on one worker. Measures
the share of time spent switching between their weights, and the delay of each request compared with
running alone.

A worker serves the run that arrived first (`executor.turns.device_order`), and the other waits for
it. `first_of_alone` has no bound, because both are planned in the process that samples; `katz bench
overlap` has one for a server.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from katz_graph.bench.conditions import quiet
from katz_graph.bench.parity import BOUND
from katz_graph.bench.result import BenchResult
from katz_graph.executor.engine import DeviceEngine
from katz_graph.ir.region import Region
from katz_graph.testing.model_files import difference
from katz_graph.testing.placement import Scale
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.random_models import make_lora, make_pipeline, usual_kind
from katz_graph.testing.requests import local_engine, sample, sampler_region

SHARE_BOUND = 0.15  # of the work
SECOND_BOUND = 1.05  # seconds of the other / those of both alone and of all switches
RANK = 8


@dataclass(frozen=True, slots=True)
class Round:
    """Holds the seconds of one round."""

    alone: Sequence[float]  # of each job, with its LoRAs already resident
    together: Sequence[float]  # of each job, while the other runs
    switching: float  # total
    switches: int  # number

    @property
    def share(self) -> float:
        """Returns the time of switching / the time of both jobs alone."""
        return self.switching / sum(self.alone)

    @property
    def first(self) -> float:
        """Returns the seconds of the faster job / its seconds alone and of its switch."""
        number = min(range(len(self.together)), key=self.together.__getitem__)
        switch = self.switching / max(self.switches, 1)
        return self.together[number] / (self.alone[number] + switch)

    @property
    def second(self) -> float:
        """Returns the seconds of the slower job / those of both alone and of all switches."""
        return max(self.together) / (sum(self.alone) + self.switching)

    @property
    def delays(self) -> list[float]:
        return [together - alone for together, alone in zip(self.together, self.alone, strict=True)]


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale(steps=20, runs=5)
    with tempfile.TemporaryDirectory() as name, quiet(), local_engine() as engine:
        regions = _regions(Path(name), scale)
        expected = [sample(engine, region) for region in regions]  # loads
        rounds = [_round(engine, regions) for _ in range(scale.runs)]
        with ThreadPoolExecutor(len(regions)) as pool:
            latents = list(pool.map(lambda region: sample(engine, region), regions))
    differences = [difference(*pair) for pair in zip(latents, expected, strict=True)]
    metrics = {
        "switching_share": median(one.share for one in rounds),
        "first_of_alone": median(one.first for one in rounds),
        "second_of_both": median(one.second for one in rounds),
        "difference": max(differences),
        "switches": median(one.switches for one in rounds),
        "switch_seconds": median(one.switching / max(one.switches, 1) for one in rounds),
    }
    bounds = {
        "switching_share": f"<= {SHARE_BOUND}",
        "second_of_both": f"<= {SECOND_BOUND}",
        "difference": f"<= {BOUND}",
    }
    ok = (
        metrics["switching_share"] <= SHARE_BOUND
        and metrics["second_of_both"] <= SECOND_BOUND
        and metrics["difference"] <= BOUND
    )
    rows = [
        [
            f"round {number}, job {job}",
            one.alone[job],
            one.together[job],
            one.delays[job],
            one.share,
        ]
        for number, one in enumerate(rounds)
        for job in range(len(regions))
    ]
    columns = ("", "alone s", "together s", "later s", "switching of work")
    return BenchResult("switching", ok, metrics, bounds, columns, rows)


def _regions(folder: Path, scale: Scale) -> list[Region]:
    make_pipeline(folder / "pipeline", usual_kind(), seed=1, **scale.sizes)
    regions = []
    for number in range(2):
        path = folder / f"{number}.safetensors"
        make_lora(path, usual_kind(), RANK, RANK, "kohya", 20 + number, False, **scale.sizes)
        case = Case("", folder / "pipeline", "euler", scale.steps, loras=((path, 0.8),))
        regions.append(
            sampler_region(
                replace(case, latent=case.latent.new_zeros(1, 4, scale.side, scale.side))
            )
        )
    return regions


def _round(engine: DeviceEngine, regions: Sequence[Region]) -> Round:
    alone = []
    for region in regions:
        sample(engine, region)  # leaves its LoRAs resident
        alone.append(_seconds(engine, region))
    before, merges = engine.models.network_seconds, engine.models.lora_merges
    with ThreadPoolExecutor(len(regions)) as pool:
        together = list(pool.map(lambda region: _seconds(engine, region), regions))
    return Round(
        alone,
        together,
        engine.models.network_seconds - before,
        engine.models.lora_merges - merges,
    )


def _seconds(engine: DeviceEngine, region: Region) -> float:
    began = time.perf_counter()
    sample(engine, region)
    return time.perf_counter() - began
