"""`katz bench recorded`: compares recorded stages with eager ones. While LoRAs, ControlNets,
strengths, prompts and guidance change from request to request, results must stay bit-equal and
these changes must cause no new recordings. Also measures the cost of recording and replaying on a
CPU.

Switching uses strict tapes (`executor.recorded`), which overwrite static memory between calls.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from katz_graph.bench.conditions import library_products, quiet
from katz_graph.bench.result import BenchResult, medians
from katz_graph.executor.recorded.recorder import NOT_DECLARED, Recorder
from katz_graph.ir.region import Region
from katz_graph.testing.model_files import Models, mini_models
from katz_graph.testing.placement import Scale
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import make_pipeline, usual_kind
from katz_graph.testing.requests import local_engine, sample, sampler_region
from katz_graph.testing.tapes import Tapes

SWITCHES = 100
SETTLED = 6  # requests until all combinations of shapes have occurred
STEPS = 2  # of a switching request


def run(scale: Scale | None = None, switches: int = SWITCHES) -> BenchResult:
    """Switches between requests on the miniature models; times these and a larger network."""
    scale = scale or Scale(steps=10, runs=9)
    torch.set_num_threads(1)
    mini = mini_models()
    with tempfile.TemporaryDirectory() as name, quiet(), library_products():
        larger = Path(name) / "pipeline"
        make_pipeline(larger, usual_kind(), seed=1, **scale.sizes)
        metrics = _switched(mini, switches)
        latent = torch.zeros(1, 4, scale.side, scale.side)
        control = ControlCase(mini.controls[0], 0.8, 0.0, 1.0)
        timed = {
            "miniature": replace(_case(mini), steps=scale.steps, controls=(control,)),
            "larger": replace(_case(mini), pipeline=larger, steps=scale.steps, latent=latent),
        }
        rows = []
        for words, case in timed.items():
            figures = _timed(sampler_region(case), scale.runs)
            metrics |= {f"{words}_{key}": value for key, value in figures.items()}
            rows.append([words, *figures.values()])
    expected = {"different": 0, "captures_of_switches": 0, "refused": 0}
    expected |= {f"{words}_different": 0 for words in timed}
    bounds = dict.fromkeys(expected, "0") | {"replays": "> 0"}
    ok = all(metrics[name] == value for name, value in expected.items()) and metrics["replays"] > 0
    columns = ("", "eager s", "replayed s", "ratio", "recording s", "MB", "calls", "different")
    return BenchResult("recorded", ok, metrics, bounds, columns, rows)


def _case(models: Models) -> Case:
    return Case("recorded", models.pipeline, "euler", STEPS)


def _switched(models: Models, switches: int) -> dict[str, Any]:
    """Runs random requests, eagerly and with strict recordings; compares the latents."""
    chance = random.Random(0)
    different, settled = 0, 0
    with local_engine() as plain, local_engine() as recorded:
        compute = recorded.models.compute = Recorder(Tapes(strict=True), eager=0)
        for number, region in enumerate(_drawn(models, SETTLED + switches, chance)):
            if number == SETTLED:
                settled = compute.use.captures
            different += not torch.equal(sample(recorded, region), sample(plain, region))
    return {
        "different": different,
        "captures": settled,
        "captures_of_switches": compute.use.captures - settled,
        "replays": compute.use.replays,
        "refused": sum(
            count for reason, count in compute.use.eager.items() if reason != NOT_DECLARED
        ),
    }


def _drawn(models: Models, number: int, chance: random.Random) -> Sequence[Region]:
    """Draws requests, with 0, 1 and 2 ControlNets in rotation, so that all shapes occur early."""
    kinds = sorted(set(models.controls))
    return [
        sampler_region(
            replace(
                _case(models),
                prompt=f"prompt {chance.random()}",
                seed=chance.randrange(10**6),
                guidance=chance.uniform(2, 9),
                controls=tuple(
                    ControlCase(kind, chance.random(), 0.0, 1.0)
                    for kind in chance.sample(kinds, min(place % 3, len(kinds)))
                ),
                loras=tuple(
                    (path, chance.uniform(-1, 1))
                    for path in chance.sample(models.loras, chance.randint(0, 2))
                ),
            )
        )
        for place in range(number)
    ]


def _timed(region: Region, runs: int) -> dict[str, Any]:
    """Measures a request eagerly and replayed. The cost of recording is the difference of the first
    recorded run from a replayed one.
    """
    with local_engine() as plain, local_engine() as recorded:
        expected = sample(plain, region)
        sample(recorded, region)  # loads
        compute = recorded.models.compute = Recorder(Tapes(), eager=0)
        started = time.perf_counter()
        made = sample(recorded, region)
        first = time.perf_counter() - started
        seconds = medians(
            {
                "eager": lambda: sample(plain, region),
                "replayed": lambda: sample(recorded, region),
            },
            runs,
        )
    return {
        "eager_seconds": seconds["eager"],
        "replayed_seconds": seconds["replayed"],
        "ratio": seconds["replayed"] / seconds["eager"],
        "recording_seconds": first - seconds["replayed"],
        "megabytes": compute.use.bytes / 1e6,
        "recordings": compute.use.captures,
        "different": int(not torch.equal(made, expected)),
    }
