"""Profiles LoRAs: samples with and without each LoRA, and compares the latents after every step
(Katz, section 6 and Figure 12).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from katz_graph.adapters.recipes import LoraUse, without
from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import (
    FileIdentity,
    ModelRecipe,
)
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.engine_on_top import EngineOnTop
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.measure.lora_levels import LoraProfile
from katz_graph.executor.planning import plan_region
from katz_graph.ir.device import Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Operation, Ref, Region
from katz_graph.ir.values import Step
from katz_graph.models.stages import NODE
from katz_graph.node.types import Context, NodeType, Output
from katz_graph.planner.passes.deferred_loras import step_ends
from katz_graph.planner.queries import lora_strengths
from katz_graph.planner.sampling import sampling_of
from katz_graph.sampling.spec import SamplingSpec

SEEDS = 2**64
LISTENER = "latents:heard"
"""Id and type of the operation that records the latents."""

Sampled = tuple[str, ModelRecipe, LoraUse, float, tuple[float, ...]]
"""Identifies a profile: sampler, model, LoRA, the initial noise level and the levels after each
step.
"""


@dataclass(slots=True)
class Listener:
    """Records the latent of each evaluation and returns the prediction unchanged."""

    latents: list[Tensor] = field(default_factory=list)

    def __call__(self, _: Context, inputs: Mapping[str, Any]) -> tuple[Any]:
        step: Step = inputs["step"]
        self.latents.append(step.x.float().cpu())
        return (inputs["prediction"],)


class LoraProfiler(EngineOnTop):
    """Runs on an engine with its device in this process. Before sampling, profiles the sampler's
    LoRAs with `seeds` seeds. Skips samplers with one step or added noise, which need all LoRAs in
    every step.
    """

    def __init__(
        self, engine: DeviceEngine, seeds: int, say: Callable[[str], None] = lambda line: None
    ) -> None:
        super().__init__(engine)
        self._seeds, self._say = seeds, say
        self._curves: dict[Sampled, list[list[float]]] = {}

    @property
    def profiles(self) -> list[LoraProfile]:
        """Returns the profiles: means over all seeds, images and runs of a sampler."""
        return [
            LoraProfile(*key, tuple(fmean(values) for values in zip(*curves, strict=True)))
            for key, curves in self._curves.items()
        ]

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        assert isinstance(context, RunContext)  # profiles run in graph runs only
        program = self._planned(region, "hoist")
        uses, ends = lora_strengths(program), step_ends(program.schedule)
        if not uses or not ends:
            return self._engine.sample(region, context)
        begins, levels = program.schedule[0].sigma, (*ends.values(), _last_level(region))
        if [begins, *levels] == sorted((begins, *levels), reverse=True):
            self._say(f"sampler {region.name}: LoRAs: {len(uses)}, seeds: {self._seeds}")
            bare = self._runs(region, uses, context)
            for file, use in uses.items():
                alone = self._runs(region, uses.keys() - {file}, context)
                key = (region.name, region.begin.inputs["model"], use, begins, levels)
                self._curves.setdefault(key, []).extend(map(similarities, bare, alone))
        return self._engine.sample(region, context)

    def _planned(self, region: Region, after: str = "emit") -> Program:
        """Compiles a region without approximations, even if they are allowed."""
        target = Target((self._engine.device,), batching=self._engine.choices.batching)
        return plan_region(region, target, self._engine.counts, after)

    def _runs(
        self, region: Region, absent: Collection[FileIdentity], context: RunContext
    ) -> list[list[Tensor]]:
        """Samples without some LoRAs. Returns the latents after each step, by seed."""
        return [
            self._latents(_changed(region, absent, number), context)
            for number in range(self._seeds)
        ]

    def _latents(self, region: Region, context: RunContext) -> list[Tensor]:
        listener = Listener()
        kind = NodeType(
            LISTENER, LISTENER, "", "", {}, (Output("heard", "PREDICTION"),), False, listener
        )
        program = self._planned(_observed(region))
        outcome = self._engine.cluster.run(
            program, replace(context, types={**context.types, LISTENER: kind})
        )
        begins: dict[int, Tensor] = {}  # by step
        for point, latent in zip(program.schedule, listener.latents, strict=True):
            begins.setdefault(point.step, latent)
        model: ModelRecipe = region.begin.inputs["model"]
        return [*list(begins.values())[1:], model.latent.normalised(outcome.samples)]


def similarities(one: list[Tensor], other: list[Tensor]) -> list[float]:
    """Computes the cosine similarity of latents [B, C, h, w] per whole image, averaged over B."""
    return [
        float(torch.cosine_similarity(a.double().flatten(1), b.double().flatten(1)).mean())
        for a, b in zip(one, other, strict=True)
    ]


def _changed(region: Region, absent: Collection[FileIdentity], number: int) -> Region:
    """Returns a region without some LoRAs and with its seed increased by `number`."""

    def bare(operation: Operation) -> Operation:
        inputs = {name: without(absent, value) for name, value in operation.inputs.items()}
        return replace(operation, inputs=inputs)

    begin = bare(region.begin)
    seed = (begin.inputs["seed"] + number) % SEEDS
    return replace(
        region,
        begin=replace(begin, inputs={**begin.inputs, "seed": seed}),
        operations=tuple(map(bare, region.operations)),
    )


def _observed(region: Region) -> Region:
    """Inserts a listener before the end of a region."""
    inputs = {"step": Ref(region.begin.id), "prediction": region.end.inputs["prediction"]}
    end = {**region.end.inputs, "prediction": Ref(LISTENER)}
    return replace(
        region,
        operations=(*region.operations, Operation(LISTENER, NODE, LISTENER, inputs)),
        end=replace(region.end, inputs=end),
    )


def _last_level(region: Region) -> float:
    """Returns the final noise level of sampling; 0 for diffusers schedulers."""
    spec, _ = sampling_of(region.begin)
    return spec.sigmas[-1] if isinstance(spec, SamplingSpec) else 0.0
