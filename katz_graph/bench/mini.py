"""`katz bench mini`: judges the pictures that the miniature models paint through planner and
engine, with the judge that the package ships.

Captions are of attribute combinations held out of training; 20 Euler steps. The judge itself is
measured on drawn pictures first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from katz_graph.bench.conditions import quiet
from katz_graph.bench.requests import bare_context, bind, local_engine
from katz_graph.bench.result import BenchResult
from katz_graph.context import Engine
from katz_graph.files.folders import MINI
from katz_graph.mini.evaluate import BOUNDS, HINTS, evaluate, failures
from katz_graph.mini.judge import load_judge
from katz_graph.mini.train_judge import examine
from katz_graph.mini.world import STYLES
from katz_graph.models.configuration import latent_space
from katz_graph.models.family import text_sets
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import (
    clip_recipe,
    controlnet_recipe,
    network_recipe,
    pipeline_recipes,
    vae_recipe,
)
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.recipe import (
    ClipRecipe,
    ConditioningEntry,
    ControlUse,
    Lora,
    ModelRecipe,
    Picture,
    Prompt,
    VaeRecipe,
)
from katz_graph.run_stats import RunStats

SIDE = 128
JUDGE_BOUND = 0.98


@dataclass(frozen=True, slots=True)
class Miniature:
    """The miniature models of one family, and what was trained for them: ControlNets for `hints`,
    LoRAs of `styles`, whose names begin with `prefix` and which change the text encoders too where
    they have `texts`.
    """

    model: ModelRecipe
    clip: ClipRecipe
    vae: VaeRecipe
    scheduler: str
    guidance: float
    hints: Sequence[str]
    styles: Sequence[str]
    prefix: str = ""
    texts: bool = True


def noise_miniature() -> Miniature:
    """Returns those whose network predicts noise."""
    return Miniature(*pipeline_recipes(MINI / "pipeline"), "normal", 4.0, HINTS, STYLES)


def flow_miniature() -> Miniature:
    """Returns the transformer's, with CLIP's encoders of the other's."""
    flow, pipeline = MINI / "flow", MINI / "pipeline"
    encoders = pipeline / "text_encoder", pipeline / "text_encoder_2", flow / "text_encoder_3"
    ((family, texts),) = text_sets(len(encoders)).values()
    return Miniature(
        network_recipe(flow / "transformer"),
        clip_recipe(encoders, texts.kinds, family.text_layout),
        vae_recipe(flow / "vae"),
        "sgm_uniform",
        5.0,
        ("silhouette",),
        ("dusk",),
        "flow-",
        texts=False,
    )


class EnginePaint:
    """Paints captions with the engine: the callable that the evaluation asks for. `measured` counts
    over all pictures.
    """

    def __init__(self, engine: Engine, miniature: Miniature | None = None) -> None:
        self.engine, self.measured = engine, RunStats()
        self.miniature = miniature or noise_miniature()

    def __call__(
        self,
        captions: list[str],
        seeds: list[int],
        control: tuple[str, Tensor] | None = None,
        loras: Sequence[tuple[str, float]] = (),
        steps: int = 20,
    ) -> Tensor:
        """Paints pictures [B, 128, 128, 3] in 0..1."""
        return torch.cat(
            [
                self._one(*pair, control, number, loras, steps)
                for number, pair in enumerate(zip(captions, seeds, strict=True))
            ]
        )

    def _one(
        self,
        caption: str,
        seed: int,
        control: tuple[str, Tensor] | None,
        number: int,
        loras: Sequence[tuple[str, float]],
        steps: int,
    ) -> Tensor:
        mini = self.miniature
        model, clip = mini.model, mini.clip
        for name, strength in loras:
            file = MINI / "loras" / f"{mini.prefix}{name}.safetensors"
            lora = Lora(file_identity(file), strength)
            model, clip = model.with_lora(lora), clip.with_lora(lora) if mini.texts else clip
        uses: tuple[ControlUse, ...] = ()
        if control is not None:
            kind, hints = control
            uses = (
                ControlUse(
                    controlnet_recipe(MINI / "controlnet" / f"{mini.prefix}{kind}"),
                    Picture.of(hints[number : number + 1]),
                    vae=mini.vae,
                ),
            )
        positive, negative = (
            (ConditioningEntry(Prompt(clip, text), uses),) for text in (caption, "")
        )
        space = latent_space(mini.vae)
        side = space.cells(SIDE)
        begin: dict[str, Any] = {
            "model": model,
            "latent_image": {"samples": torch.zeros(1, space.channels, side, side)},
            "seed": seed,
            "steps": steps,
            "sampler_name": "euler",
            "scheduler": mini.scheduler,
        }
        expansion = expand_sampling("StepBegin", begin, model, positive, negative, mini.guidance)
        context = bare_context(self.engine)
        context.measured = self.measured
        latent, _ = self.engine.sample(bind(expansion.graph, expansion.outputs[0].node), context)
        return self.engine.decode_latent(mini.vae, latent["samples"], context)


def run() -> BenchResult:
    """Runs the whole evaluation of both families: about 1,150 pictures."""
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    bounds = {name: f"{sign} {bound}" for name, (sign, bound) in BOUNDS.items()}
    missed: list[str] = []
    with quiet(), local_engine(threads=os.cpu_count()) as engine:
        judge = load_judge(MINI / "judge")
        examined = {f"judge_{name}": value for name, value in examine(judge).items()}
        for mini in noise_miniature(), flow_miniature():
            paint = EnginePaint(engine, mini)
            figures = evaluate(paint, judge, hints=mini.hints, styles=mini.styles)
            missed += failures(figures)
            named = {name: mini.prefix.replace("-", "_") + name for name in figures}
            found |= {named[name]: value for name, value in figures.items()}
            bounds |= {named[name]: bounds[name] for name in figures if name in bounds}
    # that one is an overlap
    judged = [name for name in examined if name != "judge_silhouette"]
    blind = [name for name in judged if examined[name] < JUDGE_BOUND]
    bounds |= dict.fromkeys(judged, f">= {JUDGE_BOUND}")
    figures = examined | found
    rows = [[name, value, bounds.get(name, "")] for name, value in figures.items()]
    return BenchResult(
        "mini",
        not missed and not blind,
        figures,
        {name: bound for name, bound in bounds.items() if name in figures},
        ("figure", "value", "bound"),
        rows,
    )
