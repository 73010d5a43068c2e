"""`katz bench loading`: compares two kinds of requests: with LoRAs that load from a slow store
during the first K steps, and without LoRAs, plus the time to patch and restore the weights.

The store is an HTTP server with a limited byte rate, so that loading takes 0.3, 0.6 and 1.5 times
as long as K steps. Every request uses a new URL, so no cache has its file. Each round runs a
request without LoRAs, one with LoRAs, and one without that restores the weights. The time to
restore is added to the request with LoRAs.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from katz_graph.adapters.recipes import loras_of
from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import Choices
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.host.environment import environment
from katz_graph.ir.region import Region
from katz_graph.models.fetching.file_cache import remote_identity
from katz_graph.testing.model_files import mini_models
from katz_graph.testing.placement import Scale
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.random_models import make_lora, make_pipeline, usual_kind
from katz_graph.testing.requests import bare_context, sampler_region

SHARES = (0.3, 0.6, 1.5)  # loading time / time of K steps
HIDDEN_BOUND, WAITED_BOUND = 1.05, 1.05
RESAMPLED = 2000  # bootstrap samples
RANK = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """Describes one kind of request: a pipeline with LoRA files, on a number of workers."""

    name: str
    pipeline: Path
    loras: tuple[Path, ...]
    side: int
    workers: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Holds the seconds of one round, and the arrival of its LoRAs."""

    without: float  # request without LoRAs
    with_them: float  # request with LoRAs
    patch: float
    restore: float
    read: float  # slowest file
    arrived: int  # first evaluation with all LoRAs

    @property
    def ratio(self) -> float:
        return (self.with_them + self.restore) / (self.without + self.patch + self.restore)

    def waited(self, hidden: float) -> float:
        """Returns the measured time / the expected time if `hidden` seconds of reading overlap."""
        due = self.without + self.patch + self.restore + max(0.0, self.read - hidden)
        return (self.with_them + self.restore) / due


def run(scale: Scale | None = None, workers: Sequence[int] = (1, 2)) -> BenchResult:
    scale = scale or Scale(side=16, steps=20, runs=15)
    metrics: dict[str, Any] = {}
    rows = []
    with tempfile.TemporaryDirectory() as name, quiet():
        folder = Path(name)
        for setting in _settings(folder, scale, workers):
            for share in SHARES:
                pairs = _pairs(folder, setting, scale, share)
                key = f"{setting.name}_{share}"
                if share < 1:
                    metrics[f"{key}_upper"] = upper = _upper([pair.ratio for pair in pairs])
                else:
                    hidden = scale.steps // 2 * median(pair.without for pair in pairs) / scale.steps
                    metrics[f"{key}_waited"] = upper = median(pair.waited(hidden) for pair in pairs)
                metrics[f"{key}_arrived"] = median(pair.arrived for pair in pairs)
                rows.append(
                    [
                        f"{setting.name.replace('_', ' ')}, {share} of K steps",
                        *(
                            median(getattr(pair, part) for pair in pairs)
                            for part in ("without", "with_them", "patch", "restore", "read")
                        ),
                        metrics[f"{key}_arrived"],
                        median(pair.ratio for pair in pairs),
                        upper,
                    ]
                )
    bounds = {
        name: f"< {HIDDEN_BOUND}" if name.endswith("upper") else f"<= {WAITED_BOUND}"
        for name in metrics
        if not name.endswith("arrived")
    }
    arrived = all(value > 0 for name, value in metrics.items() if name.endswith("arrived"))
    ok = arrived and all(metrics[name] < HIDDEN_BOUND for name in bounds)
    columns = (
        "",
        "without s",
        "with s",
        "patch s",
        "restore s",
        "read s",
        "came at",
        "ratio",
        "upper",
    )
    return BenchResult("loading", ok, metrics, bounds, columns, rows)


def _settings(folder: Path, scale: Scale, workers: Sequence[int]) -> Iterator[Setting]:
    make_pipeline(folder / "pipeline", usual_kind(), seed=1, **scale.sizes)
    own = tuple(folder / f"own-{number}.safetensors" for number in range(2))
    for number, path in enumerate(own):
        make_lora(path, usual_kind(), RANK, RANK, "kohya", 20 + number, False, **scale.sizes)
    mini = mini_models()
    for number, loras in itertools.product(workers, (1, 2)):
        words = f"{number}_worker{'s' * (number > 1)}_{loras}_lora{'s' * (loras > 1)}"
        yield Setting(f"mini_{words}", mini.pipeline, mini.loras[:loras], 16, number)
        yield Setting(f"random_{words}", folder / "pipeline", own[:loras], scale.side, number)


def _pairs(folder: Path, setting: Setting, scale: Scale, share: float) -> list[Pair]:
    configs = [WorkerConfig(f"cpu:{number}") for number in range(setting.workers)]
    bound = scale.steps // 2
    with ExitStack() as opened:
        port = opened.enter_context(slow_store(setting.loras))
        opened.enter_context(_cache(folder / "cache"))
        engine = opened.enter_context(
            DeviceEngine(configs, Choices(allowed=frozenset({f"async-lora={bound}"})), folder)
        )
        plain = _region(setting, scale, ())
        local = _region(setting, scale, setting.loras)
        for region in (plain, local, plain):  # loads the models, and stores the original weights
            _run(engine, region)
        step = median(_run(engine, plain)[0] for _ in range(3)) / scale.steps
        rate = max(path.stat().st_size for path in setting.loras) / (share * bound * step)
        pairs = []
        for number in range(scale.runs):
            without, _, _, _ = _run(engine, plain)
            files = tuple(
                remote_identity(f"http://127.0.0.1:{port}/{rate:.0f}/{share}-{number}/{path.name}")
                for path in setting.loras
            )
            region = _region(setting, scale, files)
            with_them, patch, read, arrived = _run(engine, region)
            _, restore, _, _ = _run(engine, plain)
            pairs.append(Pair(without, with_them, patch, restore, read, arrived))
        return pairs


def _region(setting: Setting, scale: Scale, loras: Sequence[Any]) -> Region:
    return sampler_region(
        Case(
            setting.name,
            setting.pipeline,
            "euler",
            scale.steps,
            latent=torch.zeros(1, 4, setting.side, setting.side),
            loras=tuple((lora, 0.7) for lora in loras),
        )
    )


def _run(engine: DeviceEngine, region: Region) -> tuple[float, float, float, int]:
    """Plans and runs a request. Returns its seconds, the seconds of the slowest worker's weight
    switch, the seconds to read the slowest file, and the first evaluation with all LoRAs.
    """
    before = _switching(engine)
    began = time.perf_counter()
    program = engine.plan(region)
    outcome = engine.cluster.run(program, bare_context(engine))
    seconds = time.perf_counter() - began
    switched = max(after - then for after, then in zip(_switching(engine), before, strict=True))
    timing = outcome.timings[program.sampler_device]
    wanted = loras_of(region.begin.inputs["model"])
    arrived = max(timing.arrivals.values(), default=0) if wanted else 0
    return seconds, switched, max(timing.reads.values(), default=0.0), arrived


def _switching(engine: DeviceEngine) -> list[float]:
    """Returns the total seconds that each worker has spent on switching between LoRAs."""
    return [
        engine.cluster.call(name, "adapter_use").value.merge_seconds
        for name in engine.cluster.assignments
    ]


@contextmanager
def slow_store(files: Sequence[Path]) -> Iterator[int]:
    """Runs the slow store in a separate process; yields its port."""
    command = [sys.executable, "-m", "katz_graph.bench.slow_store", str(files[0].parent)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _cache(folder: Path) -> AbstractContextManager[None]:
    """Sets the download folder of this process and its children to one of the bench."""
    return environment({"KATZ_CACHE": str(folder)})


def _upper(ratios: Sequence[float]) -> float:
    """Returns the upper end of the bootstrap 95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
    return medians[int(0.975 * RESAMPLED)]
