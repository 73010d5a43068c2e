"""`katz bench stale`: measures how much a picture suffers when its ControlNet is one evaluation
behind (Katz, section 5 and Figure 10, right).

The miniature models generate pictures for the same held-out captions, hints and seeds,
synchronously on one device and pipelined over two workers. The bench compares the judge's verdicts
and the similarity of the pictures. Pictures without the ControlNet show its total effect.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from katz_graph.bench.conditions import quiet
from katz_graph.bench.likeness import psnr, ssim
from katz_graph.bench.result import BenchResult
from katz_graph.core.latent_space import LatentSamples
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.launch.in_process import InProcess
from katz_graph.executor.planning import Choices
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.files.folders import MINI
from katz_graph.ir.device import NetworkLink
from katz_graph.ir.region import Operation, Ref, Region
from katz_graph.ir.values import Residuals
from katz_graph.mini.evaluate import attributes, held_out_scenes, hints_for
from katz_graph.mini.judge import Judge, judge, load_judge, overlap
from katz_graph.mini.world import Scene, caption
from katz_graph.models.stages import NODE
from katz_graph.node.types import Context, NodeType, Output
from katz_graph.planner.report.line_chart import Curve, Panel, line_chart
from katz_graph.testing.miniature import EnginePaint
from katz_graph.testing.placement import NETWORK

PROMPTS = 50  # per kind of ControlNet
STEPS = 20
SCENES = {"silhouette": 5, "edges": 6}  # seeds of the scenes
POINTS = 0.02  # maximum difference of a share from the synchronous one
COLOURS = {"silhouette": "#1f6fb4", "edges": "#e8801a"}
PLACES = {"controlnet": ("cpu:1",)} | dict.fromkeys(NETWORK, ("cpu:0",))
# assumed link, so slow that the planner never waits for residuals
SLOW = NetworkLink(1e9, 1.0)

WAYS = ("without", "synchronous", "stale")

Similarities = Mapping[int, Sequence[float]]
"""By evaluation: cosine similarities of the residuals with those of the previous evaluation, one
per prompt and branch.
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Holds the figures of one kind of ControlNet, by `WAYS`."""

    judged: Mapping[str, Mapping[str, float]]  # shares and overlap, by the judge
    ssim: Mapping[str, float]  # with the synchronous pictures
    psnr: Mapping[str, float]  # with the synchronous pictures, in decibels
    similarities: Similarities


@dataclass(slots=True)
class Ear:
    """Compares one ControlNet's residuals with those of the previous evaluation, and passes them
    on unchanged.
    """

    similarities: dict[int, list[float]]
    before: Residuals | None = None
    evaluation: int = -1

    def __call__(self, _: Context, inputs: Mapping[str, Any]) -> tuple[Residuals]:
        now: Residuals = inputs["residuals"]
        self.evaluation += 1
        if self.before is not None:
            self.similarities[self.evaluation].append(cosine_similarity(self.before, now))
        self.before = now
        return (now,)


class ListeningEngine(DeviceEngine):
    """Records the similarity of ControlNet residuals in adjacent evaluations. The ControlNets must
    run in every evaluation.
    """

    def __init__(self) -> None:
        config = WorkerConfig("cpu", threads=os.cpu_count() or 1)
        super().__init__([config], Choices(batching=True), launchers={config.name: InProcess()})
        self.similarities: dict[int, list[float]] = defaultdict(list)

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        observed, observers = listened(region, self.similarities)
        assert isinstance(context, RunContext)  # the only context of graphs
        return super().sample(observed, replace(context, types={**context.types, **observers}))


def listened(
    region: Region, similarities: dict[int, list[float]]
) -> tuple[Region, dict[str, NodeType]]:
    """Inserts an `Ear` node between every ControlNet of a region and its readers. Returns the new
    region and the types of these nodes.
    """
    observers = {op.id: f"{op.id}.heard" for op in region.operations if op.stage == "controlnet"}

    def record(value: Any) -> Any:
        return (
            Ref(observers[value.operation])
            if isinstance(value, Ref) and value.operation in observers
            else value
        )

    operations: list[Operation] = []
    types: dict[str, NodeType] = {}
    for operation in region.operations:
        operations.append(
            replace(
                operation, inputs={name: record(value) for name, value in operation.inputs.items()}
            )
        )
        if operation.id in observers:
            name = observers[operation.id]
            types[name] = NodeType(
                name, "Ear", "", "", {}, (Output("heard", "RESIDUALS"),), False, Ear(similarities)
            )
            operations.append(Operation(name, NODE, name, {"residuals": Ref(operation.id)}))
    return replace(region, operations=tuple(operations)), types


def run(number: int = PROMPTS) -> BenchResult:
    """Generates `number` pictures per kind of ControlNet, without it, synchronous and stale."""
    torch.set_num_threads(1)
    with quiet():
        model = load_judge(MINI / "judge")
        asked = {kind: Asked.of(kind, number) for kind in COLOURS}
        pictures: dict[str, dict[str, Tensor]] = {}
        similarities: dict[str, Similarities] = {}
        for kind, one in asked.items():
            with ListeningEngine() as engine:
                paint = EnginePaint(engine)
                pictures[kind] = {
                    "without": one.painted(paint, controlled=False),
                    "synchronous": one.painted(paint),
                }
                similarities[kind] = engine.similarities
        choices = Choices(PLACES, frozenset({"stale-controlnet"}), batching=True)
        with DeviceEngine(
            [WorkerConfig("cpu:0"), WorkerConfig("cpu:1")], choices, link=SLOW
        ) as cluster:
            paint = EnginePaint(cluster)
            for kind, one in asked.items():
                pictures[kind]["stale"] = one.painted(paint)
            stale = sum(bool(program.stale) for program in paint.measured.programs)
        found = {
            kind: compared(one, model, pictures[kind], similarities[kind])
            for kind, one in asked.items()
        }
    return _result(found, stale, number)


@dataclass(frozen=True, slots=True)
class Asked:
    """Holds the inputs of one kind of ControlNet."""

    kind: str
    scenes: Sequence[Scene]
    hints: Tensor  # [N, 128, 128, 3]
    wanted: Tensor  # silhouettes [N, 128, 128], the sources of the hints

    @classmethod
    def of(cls, kind: str, number: int) -> Asked:
        scenes = held_out_scenes(number, 1, SCENES[kind])
        wanted, hints = hints_for(scenes, kind, 0)
        return cls(kind, scenes, hints, wanted)

    def painted(self, paint: EnginePaint, controlled: bool = True) -> Tensor:
        """Generates pictures [N, 128, 128, 3] in 0..1."""
        captions, seeds = [caption(scene) for scene in self.scenes], list(range(len(self.scenes)))
        return paint(captions, seeds, (self.kind, self.hints) if controlled else None, steps=STEPS)

    def judged(self, model: Judge, pictures: Tensor) -> dict[str, float]:
        """Returns the shares of correct attributes, their mean, and the mean overlap of
        silhouettes.
        """
        verdicts = judge(model, pictures, 1)
        right = attributes(verdicts, self.scenes)
        overlaps = [
            overlap(verdict.silhouette, mask)
            for verdict, mask in zip(verdicts, self.wanted, strict=True)
        ]
        return {**right, "attributes": fmean(right.values()), "overlap": fmean(overlaps)}


def compared(
    asked: Asked, model: Judge, pictures: Mapping[str, Tensor], similarities: Similarities
) -> Figures:
    """Judges the pictures, and compares them with the synchronous ones."""
    exact = pictures["synchronous"]

    def likeness(measure: Callable[[Tensor, Tensor], float]) -> dict[str, float]:
        return {
            way: fmean(measure(*pair) for pair in zip(exact, others, strict=True))
            for way, others in pictures.items()
            if way != "synchronous"
        }

    return Figures(
        {way: asked.judged(model, pictures[way]) for way in WAYS},
        likeness(ssim),
        likeness(psnr),
        similarities,
    )


def _result(found: Mapping[str, Figures], stale: int, number: int) -> BenchResult:
    bounded = {
        f"{kind}_{name}_change": figures.judged["stale"][name] - figures.judged["synchronous"][name]
        for kind, figures in found.items()
        for name in ("attributes", "overlap")
    }
    metrics: dict[str, Any] = {"delayed": stale, **bounded}
    rows: list[tuple[str, ...]] = []
    for kind, figures in found.items():
        curve = {evaluation: fmean(values) for evaluation, values in figures.similarities.items()}
        metrics[kind] = {
            "judged": figures.judged,
            "ssim": figures.ssim,
            "psnr": figures.psnr,
            "cosine_similarity": curve,
        }
        for name in figures.judged["stale"]:
            rows.append((f"{kind}: {name}", *(f"{figures.judged[way][name]:.3f}" for way in WAYS)))
        rows.append(
            (f"{kind}: SSIM", f"{figures.ssim['without']:.4f}", "", f"{figures.ssim['stale']:.4f}")
        )
        rows.append(
            (
                f"{kind}: PSNR, dB",
                f"{figures.psnr['without']:.1f}",
                "",
                f"{figures.psnr['stale']:.1f}",
            )
        )
        rows.append((f"{kind}: cosine similarity, mean", "", f"{fmean(curve.values()):.4f}", ""))
        rows.append(
            (f"{kind}: cosine similarity, least step", "", f"{min(curve.values()):.4f}", "")
        )
    requests = number * len(found)
    return BenchResult(
        "stale",
        stale == requests and all(abs(change) <= POINTS for change in bounded.values()),
        metrics,
        {"delayed": f"all of {requests} requests"}
        | dict.fromkeys(bounded, f"within {POINTS} of 0"),
        ("figure", *WAYS),
        rows,
        svg=_picture({kind: figures.similarities for kind, figures in found.items()}),
    )


def _picture(similarities: Mapping[str, Similarities]) -> str:
    """Draws the mean similarity per kind of ControlNet, like the paper's figure, and the minimum
    over all prompts and branches.
    """
    curves = []
    for kind, by_evaluation in similarities.items():
        for name, of, dashes in ((kind, fmean, ""), (f"{kind}, least of all", min, "2 3")):
            points = [
                (float(evaluation + 1), of(values))
                for evaluation, values in sorted(by_evaluation.items())
            ]
            curves.append(Curve(name, points, COLOURS[kind], dashes))
    lowest = min(y for curve in curves for _, y in curve.points)
    below = lowest - 0.4 * (1 - lowest)  # room for the names
    title = "ControlNet outputs of adjacent steps"
    return line_chart(
        [
            Panel(
                title,
                "step",
                "cosine similarity with the step before",
                curves,
                logarithmic=False,
                bottom=below,
            )
        ]
    )


def cosine_similarity(one: Residuals, other: Residuals) -> float:
    """Returns the cosine similarity across channels, averaged over batch and positions, then over
    the residuals' tensors (Katz, Figure 10).
    """
    pairs = zip((*one.down, one.mid), (*other.down, other.mid), strict=True)
    return float(
        torch.stack(
            [torch.cosine_similarity(a.double(), b.double(), dim=1).mean() for a, b in pairs]
        ).mean()
    )
