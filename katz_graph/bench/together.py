"""`katz bench together`: jobs that share the calls of their model on one CPU thread, against the
same jobs one after the other.

Part `speed` samples four pictures at once with the miniature models, and with a transformer of 8
blocks of width 256. Sharing has to give most of what bare calls of the same modules give with as
many rows, measured in the same minute, and a lone job may not become slower: since two processes of
the same program differ by up to 5 %, several pairs of workers are measured. Jobs with a LoRA of
rank 16 each have to keep most of what sharing gives to jobs with one LoRA. Seconds are those of the
worker's processor, which other programs disturb least; predictions of calls are compared with the
seconds of the clock. Part `poisson` measures latencies of
jobs that arrive at random times. Both run by default. Part `groups` compares latents
(`random_groups`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file

from katz_graph.bench.conditions import quiet
from katz_graph.bench.poisson import Arrivals, compare
from katz_graph.bench.random_groups import COUNT, run_groups
from katz_graph.bench.result import BenchResult, Figures
from katz_graph.core.errors import InputError
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.calls.batching import merge
from katz_graph.executor.calls.computing import StageCall
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.files.folders import MINI
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.random_models import kinds, make_pipeline
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region
from katz_graph.testing.server_process import processor_seconds
from katz_graph.testing.template_calls import NotedCalls

JOBS, MAX_ROWS = 4, 8
SHARE_OF_BARE, MAX_LONE = 0.85, 1.02
RANK, SHARE_OF_ONE_LORA = 16, 0.75
# relative error of the predicted seconds of the last evaluations: the median, and the error that
# 95 % did not exceed
MAX_ERRORS = {"call_error_median": 0.05, "call_error_p95": 0.15}
BLOCKS, HEADS = 8, 4  # of the transformer; a head is 64 wide
LORA = "sticker.safetensors"
PARTS = ("speed", "poisson", "groups")


@dataclass(frozen=True, slots=True)
class Kind:
    """Describes jobs: name, side of the picture in pixels, guidance, and the least gain."""

    name: str
    side: int
    bound: float
    guidance: float = 4.0
    transformer: bool = False


KINDS = (
    Kind("64", 64, 1.6),
    Kind("128", 128, 1.25),
    Kind("192", 192, 1.08),
    Kind("256", 256, 0.98),
    Kind("unguided_64", 64, 2.0, guidance=1.0),
    Kind("transformer_64", 64, 1.15, transformer=True),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the kinds of jobs, their steps, the pairs of workers with and without sharing, and the
    repetitions of each measurement.
    """

    kinds: Sequence[Kind] = KINDS
    steps: int = 20
    pairs: int = 3
    runs: int = 3
    arrivals: Arrivals = field(default_factory=Arrivals)


def run(
    part: str | None = None, seed: int | None = None, scale: Scale | None = None
) -> BenchResult:
    """Runs a part; by default `speed` and `poisson`. `seed`: only this group of `groups`."""
    if part not in (None, *PARTS):
        raise InputError(f"--part {part}: expected one of {', '.join(PARTS)}")
    if part == "groups" or seed is not None:
        return run_groups(range(COUNT) if seed is None else (seed,))
    torch.set_num_threads(1)
    scale = scale or Scale()
    with quiet(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = BenchResult("together", True, {})
        if part != "poisson":
            result = _speed(folder, scale)
        if part != "speed":
            regions = [_region(KINDS[0], folder, scale.steps, seed) for seed in range(JOBS)]
            with _engines(folder) as (shared, plain):
                random = compare(shared, plain, regions, scale.arrivals)
            result = replace(
                result,
                ok=result.ok and random.ok,
                metrics={**result.metrics, **random.metrics},
                bounds={**result.bounds, **random.bounds},
                notes=random.notes,
            )
    return result


def _speed(folder: Path, scale: Scale) -> BenchResult:
    transformer = folder / "transformer"
    made = kinds()["sd3"]
    changed = {**made.steady, **made.widened(HEADS, max(kind.side for kind in KINDS) // 8)}
    make_pipeline(transformer, "sd3", 1, BLOCKS, **changed)
    jobs = {
        kind: [_region(kind, transformer, scale.steps, seed) for seed in range(JOBS)]
        for kind in scale.kinds
    }
    rounds: dict[Kind, list[tuple[float, float, float]]] = {kind: [] for kind in jobs}
    for pair in range(scale.pairs):
        with _engines(folder) as (shared, plain):
            for kind, regions in jobs.items():
                bare = _bare_gain(folder, regions, scale)
                rounds[kind].append((bare, *_gain(shared, plain, regions, scale.runs)))
            if pair == scale.pairs - 1:
                of_one_lora = [
                    _of_one_lora(folder, shared, kind, scale) for kind in scale.kinds[:2]
                ]
                use = shared.cluster.call(shared.device.name, "compute_use").value
    figures = Figures()
    for kind, found in rounds.items():
        bare, gain, lone = (median(values) for values in zip(*found, strict=True))
        of_bare = median(gain / bare for bare, gain, _ in found)
        figures.add(f"gain_{kind.name}", gain, ">=", kind.bound)
        figures.add(f"of_bare_{kind.name}", of_bare, ">=", SHARE_OF_BARE)
        figures.add(f"lone_{kind.name}", lone, "<=", MAX_LONE)
        figures.rows.append([kind.name, gain, bare, of_bare, lone])
    for kind, value in zip(scale.kinds, of_one_lora, strict=False):
        figures.add(f"other_loras_{kind.name}", value, ">=", SHARE_OF_ONE_LORA)
    for name, value in zip(MAX_ERRORS, (use.median_error, use.p95_error), strict=True):
        if value is not None:
            figures.add(name, value, "<=", MAX_ERRORS[name])
    columns = ("jobs", "gain", "bare calls", "share of it", "lone with sharing")
    return figures.result("together", columns)


@contextmanager
def _engines(folder: Path) -> Iterator[tuple[DeviceEngine, DeviceEngine]]:
    """Yields two engines, whose jobs share calls and do not."""
    with _engine(folder, SharedRows(MAX_ROWS)) as shared, _engine(folder, ALONE) as plain:
        yield shared, plain


def _engine(folder: Path, rows: SharedRows) -> DeviceEngine:
    return DeviceEngine([WorkerConfig("cpu", shared_rows=rows)], cache=folder)


def _region(
    kind: Kind, transformer: Path, steps: int, seed: int, lora: Path | None = None
) -> Region:
    pipeline, channels = (transformer, 16) if kind.transformer else (MINI / "pipeline", 4)
    return sampler_region(
        Case(
            kind.name,
            pipeline,
            "euler",
            steps,
            guidance=kind.guidance,
            seed=seed,
            prompt=f"a red circle, {seed}",
            loras=() if lora is None else ((lora, 0.5),),
            latent=torch.zeros(1, channels, kind.side // 8, kind.side // 8),
        )
    )


def _gain(
    shared: DeviceEngine, plain: DeviceEngine, regions: Sequence[Region], runs: int
) -> tuple[float, float]:
    """Returns the seconds one after the other / all at once, and those of lone jobs with sharing /
    without it. The first two rounds load the models and learn the seconds of calls.
    """
    with_sharing, without = (
        [engine.plan(region) for region in regions] for engine in (shared, plain)
    )
    rounds = [
        (
            _seconds(shared, with_sharing, at_once=True),
            _seconds(plain, without, at_once=False),
            _seconds(shared, with_sharing, at_once=False),
        )
        for _ in range(runs + 2)
    ][2:]
    return (
        median(apart / together for together, apart, _ in rounds),
        median(lone / apart for _, apart, lone in rounds),
    )


def _of_one_lora(folder: Path, engine: DeviceEngine, kind: Kind, scale: Scale) -> float:
    """Returns the seconds of shared jobs with the same LoRA / of those with a LoRA each."""
    files = [_draw_lora(folder / f"{kind.name}-{seed}.safetensors", seed) for seed in range(JOBS)]
    same, others = (
        [
            engine.plan(_region(kind, folder, scale.steps, seed, file))
            for seed, file in enumerate(chosen)
        ]
        for chosen in (files[:1] * JOBS, files)
    )
    rounds = [
        _seconds(engine, same, at_once=True) / _seconds(engine, others, at_once=True)
        for _ in range(scale.runs + 2)
    ][2:]
    return median(rounds)


def _draw_lora(path: Path, seed: int) -> Path:
    """Draws factors for the linear layers that a shipped LoRA changes."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {name: one.shape for name, one in load_file(MINI / "loras" / LORA).items()}
    tensors = {
        name: torch.randn(
            (RANK, shape[1]) if "lora_A" in name else (shape[0], RANK), generator=draw
        )
        / RANK**1.5
        for name, shape in shapes.items()
        if len(shape) == 2
    }
    save_file(tensors, path)
    return path


def _seconds(engine: DeviceEngine, programs: Sequence[Program], at_once: bool) -> float:
    """Returns the worker's processor seconds of jobs at once, or of one after the other."""

    def one(program: Program) -> None:
        engine.cluster.run(program, bare_context(engine))

    pid = engine.cluster.call(engine.device.name, "identity").value["pid"]
    with ThreadPoolExecutor(len(programs) if at_once else 1) as pool:
        before = processor_seconds(pid)
        list(pool.map(one, programs))
        return processor_seconds(pid) - before


def _bare_gain(folder: Path, regions: Sequence[Region], scale: Scale) -> float:
    """Returns the seconds of one evaluation's calls of each job / of the same calls stacked."""
    with local_engine(threads=1, cache=folder) as engine, torch.inference_mode():
        apart = []
        for region in regions:
            engine.models.compute = noting = NotedCalls()
            sample(engine, region)
            each = len(noting.calls) // scale.steps
            apart.append(noting.calls[-each:])
        stacked = [
            calls[0]._replace(given=merge([call.given for call in calls]))
            for calls in zip(*apart, strict=True)
        ]

        def compute(calls: Sequence[StageCall]) -> None:
            for call in calls:
                call.stage.computed(call.module, call.given)

        ways: Mapping[str, Callable[[], object]] = {
            "stacked": lambda: compute(stacked),
            "apart": lambda: compute([call for calls in apart for call in calls]),
        }
        ratios = []
        for _ in range(scale.runs * 5):
            took = {name: _thread_seconds(way) for name, way in ways.items()}
            ratios.append(took["apart"] / took["stacked"])
    return median(ratios[scale.runs :])


def _thread_seconds(action: Callable[[], object]) -> float:
    started = time.thread_time()
    action()
    return time.thread_time() - started
