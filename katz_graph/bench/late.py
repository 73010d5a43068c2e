"""`katz bench late`: measures how much a picture suffers when its LoRA arrives after some steps
(Katz, section 6 and Figure 13).

For each style, the miniature models generate pictures for the same held-out captions and seeds:
with the LoRA from the start, after K steps, after its profile's number of steps, and without the
LoRA. The bench compares the judge's verdicts and the similarity of the pictures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from katz_graph.adapters.lora import LoraFile, read_lora
from katz_graph.bench.conditions import quiet
from katz_graph.bench.contact_sheet import contact_sheet
from katz_graph.bench.likeness import psnr, ssim
from katz_graph.bench.result import BenchResult
from katz_graph.core.events import Event, Progress
from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import FileIdentity
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.launch.in_process import InProcess
from katz_graph.executor.measure.loras import LoraProfiler
from katz_graph.executor.planning import Choices
from katz_graph.executor.weights.adapters import AdapterStore
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.files.folders import MINI
from katz_graph.ir.region import Region
from katz_graph.mini.evaluate import attributes, held_out_scenes
from katz_graph.mini.judge import Judge, judge, load_judge
from katz_graph.mini.world import STYLES, Scene, caption
from katz_graph.node.types import Context
from katz_graph.testing.miniature import EnginePaint
from katz_graph.testing.requests import local_engine

PROMPTS = 100  # per style
STEPS = 20
BOUNDS = (0, 2, 5, 10)  # K
PROFILED, SEEDS = 4, 4  # captions for profiling, different from the judged ones; seeds per caption
JUDGED_SCENES, PROFILED_SCENES = 7, 8  # seeds of the scenes
POINTS = 0.02  # maximum loss of recognised styles, as a share, with a profile's K
SHOWN = 2  # prompts per style in the contact sheet
NEVER = "never"


class PunctualEngine(DeviceEngine):
    """Delays the arrival of every LoRA until just before the evaluation `arrival`."""

    def __init__(self) -> None:
        config = WorkerConfig("cpu", threads=os.cpu_count() or 1)
        super().__init__([config], launchers={config.name: InProcess()})
        self._arrived = threading.Event()
        # capacity 0, so that each picture reads its LoRA again
        self.models.adapters = AdapterStore(0, self._read)
        self.arrive_before(0)

    def arrive_before(self, evaluation: int) -> None:
        self.arrival = evaluation
        self.choices = Choices(allowed=frozenset({f"async-lora={evaluation}"}), batching=True)

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        assert isinstance(context, RunContext)  # the only context of benches
        self._arrived.clear()
        if not self.arrival:
            self._arrived.set()

        def listen(event: Event) -> None:
            if isinstance(event, Progress) and event.value == self.arrival:
                self._arrived.set()
            context.listener(event)

        return super().sample(region, replace(context, listener=listen))

    def _read(self, file: FileIdentity, unwanted: Callable[[], bool]) -> LoraFile:
        self._arrived.wait()
        return read_lora(file, unwanted)


@dataclass(frozen=True, slots=True)
class Painted:
    """Holds the pictures [N, 128, 128, 3] of one style, by K, or `NEVER` without the LoRA."""

    style: str
    steps: int  # K of its profile
    scenes: Sequence[Scene]
    pictures: Mapping[int | str, Tensor]

    def figures(self, model: Judge) -> dict[str, dict[str, float]]:
        """Judges the pictures, and compares them with those that had the LoRA from the start."""
        exact = self.pictures[0]
        found: dict[str, dict[str, float]] = {}
        for way, pictures in self.pictures.items():
            verdicts = judge(model, pictures, 1)
            pairs = [*zip(exact, pictures, strict=True)]
            found[str(way)] = {
                "style": fmean(self.style in verdict.styles for verdict in verdicts),
                "attributes": fmean(attributes(verdicts, self.scenes).values()),
                **({} if way == 0 else {"ssim": fmean(ssim(*pair) for pair in pairs)}),
                **({} if way == 0 else {"psnr": fmean(psnr(*pair) for pair in pairs)}),
            }
        return found


def run(
    number: int = PROMPTS,
    styles: Sequence[str] = STYLES,
    bounds: Sequence[int] = BOUNDS,
    profiled: int = PROFILED,
    seeds: int = SEEDS,
) -> BenchResult:
    """Generates `number` pictures per style and K. A profile's K is measured with `profiled`
    captions, `seeds` seeds each.
    """
    torch.set_num_threads(1)
    scenes = held_out_scenes(number, 1, JUDGED_SCENES)
    captions, numbers = [caption(scene) for scene in scenes], list(range(number))
    with quiet():
        with local_engine(threads=os.cpu_count()) as engine:
            found = {style: steps_without(engine, style, profiled, seeds) for style in styles}
        with PunctualEngine() as engine:
            paint = EnginePaint(engine)
            never = paint(captions, numbers, steps=STEPS)
            painted, punctual = [], True
            for style in styles:
                pictures: dict[int | str, Tensor] = {}
                for steps in sorted({0, *bounds, found[style]}):
                    engine.arrive_before(steps)
                    pictures[steps] = paint(captions, numbers, None, [(style, 1.0)], STEPS)
                    wanted = [steps] if steps else []
                    punctual &= all(
                        [*sampler.arrivals.values()] == wanted
                        for sampler in paint.measured.samplers[-number:]
                    )
                painted.append(Painted(style, found[style], scenes, pictures | {NEVER: never}))
        return _result(painted, load_judge(MINI / "judge"), bounds, punctual)


def steps_without(engine: DeviceEngine, style: str, captions: int, seeds: int) -> int:
    """Returns K of a style's profile: the mean over captions other than the judged ones."""
    profiler = LoraProfiler(engine, seeds)
    texts = [caption(scene) for scene in held_out_scenes(captions, 1, PROFILED_SCENES)]
    EnginePaint(profiler)(texts, list(range(captions)), None, [(style, 1.0)], STEPS)
    (profile,) = profiler.profiles
    return profile.steps


def _result(
    painted: Sequence[Painted], model: Judge, bounds: Sequence[int], punctual: bool
) -> BenchResult:
    """Builds the result: a table with a row per style and K, and a contact sheet."""
    metrics: dict[str, Any] = {"punctual": punctual}
    changes: dict[str, float] = {}
    rows: list[tuple[str, ...]] = []
    for one in painted:
        figures = one.figures(model)
        changes[f"{one.style}_change"] = figures[str(one.steps)]["style"] - figures["0"]["style"]
        metrics[one.style] = {"profile": one.steps, "by_steps": figures}
        for way, values in figures.items():
            name = f"{way} (profile)" if way == str(one.steps) else way
            likeness = [f"{values[key]:.3f}" if key in values else "" for key in ("ssim", "psnr")]
            shares = [f"{values[key]:.3f}" for key in ("style", "attributes")]
            rows.append((one.style, name, *shares, *likeness))
    return BenchResult(
        "late",
        punctual and all(change >= -POINTS for change in changes.values()),
        metrics | changes,
        {"punctual": "True"} | dict.fromkeys(changes, f">= -{POINTS}"),
        ("style", "K", "style recognised", "attributes", "SSIM", "PSNR, dB"),
        rows,
        svg=_picture(painted, bounds),
    )


def _picture(painted: Sequence[Painted], bounds: Sequence[int]) -> str:
    """Draws a contact sheet with a row per K and a column per prompt, like the paper's figure."""
    rows: dict[str, list[Tensor]] = {}
    for one in painted:
        shown = {f"K = {steps}": one.pictures[steps] for steps in bounds}
        shown |= {"its profile's": one.pictures[one.steps], NEVER: one.pictures[NEVER]}
        for name, pictures in shown.items():
            rows.setdefault(name, []).extend(pictures[:SHOWN])
    columns = [f"{one.style} (profile: {one.steps})" for one in painted for _ in one.scenes[:SHOWN]]
    return contact_sheet(rows, columns)
