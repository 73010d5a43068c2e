"""`katz bench mini`: judges the pictures that the miniature models paint through planner and
engine, with the judge that the package ships.

Captions are of attribute combinations held out of training; 20 Euler steps. The judge itself is
measured on drawn pictures first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from katz_graph.bench.conditions import quiet
from katz_graph.bench.requests import bare_context, bind, local_engine
from katz_graph.bench.result import BenchResult
from katz_graph.context import Engine
from katz_graph.files.folders import MINI
from katz_graph.mini.evaluate import BOUNDS, evaluate, failures
from katz_graph.mini.judge import load_judge
from katz_graph.mini.train_judge import examine
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.recipe import ConditioningEntry, ControlUse, Lora, Picture, Prompt
from katz_graph.run_stats import RunStats

GUIDANCE, SIDE = 4.0, 128
JUDGE_BOUND = 0.98


class EnginePaint:
    """Paints captions with the engine: the callable that the evaluation asks for. `measured` counts
    over all pictures.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.measured = engine, RunStats()
        self.model, self.clip, self.vae = pipeline_recipes(MINI / "pipeline")

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
        model, clip = self.model, self.clip
        for name, strength in loras:
            lora = Lora(file_identity(MINI / "loras" / f"{name}.safetensors"), strength)
            model, clip = model.with_lora(lora), clip.with_lora(lora)
        uses: tuple[ControlUse, ...] = ()
        if control is not None:
            kind, hints = control
            uses = (
                ControlUse(
                    controlnet_recipe(MINI / "controlnet" / kind),
                    Picture.of(hints[number : number + 1]),
                ),
            )
        positive, negative = (
            (ConditioningEntry(Prompt(clip, text), uses),) for text in (caption, "")
        )
        begin: dict[str, Any] = {
            "model": model,
            "latent_image": {"samples": torch.zeros(1, 4, SIDE // 8, SIDE // 8)},
            "seed": seed,
            "steps": steps,
            "sampler_name": "euler",
            "scheduler": "normal",
        }
        expansion = expand_sampling("StepBegin", begin, model, positive, negative, GUIDANCE)
        context = bare_context(self.engine)
        context.measured = self.measured
        latent, _ = self.engine.sample(bind(expansion.graph, expansion.outputs[0].node), context)
        return self.engine.decode_latent(self.vae, latent["samples"], context)


def run() -> BenchResult:
    """Runs the whole evaluation: about 750 pictures."""
    torch.set_num_threads(1)
    with quiet(), local_engine(threads=os.cpu_count()) as engine:
        judge = load_judge(MINI / "judge")
        figures = {f"judge_{name}": value for name, value in examine(judge).items()}
        figures |= evaluate(EnginePaint(engine), judge)
    # that one is an overlap
    judged = [name for name in figures if name.startswith("judge_") and name != "judge_silhouette"]
    blind = [name for name in judged if figures[name] < JUDGE_BOUND]
    bounds = {name: f"{sign} {bound}" for name, (sign, bound) in BOUNDS.items()}
    bounds |= dict.fromkeys(judged, f">= {JUDGE_BOUND}")
    rows = [[name, value, bounds.get(name, "")] for name, value in figures.items()]
    return BenchResult(
        "mini",
        not failures(figures) and not blind,
        figures,
        bounds,
        ("figure", "value", "bound"),
        rows,
    )
