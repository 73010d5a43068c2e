"""Two requests' stages share a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from katz_graph.executor.calls.batching import merge, split, tensors_of
from katz_graph.executor.calls.computing import Eagerly
from katz_graph.executor.recorded.inputs import form_of
from katz_graph.models.stage_registry import stages
from katz_graph.models.stages import Outputs, Stage
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import draw_controlnet, make_pipeline
from katz_graph.testing.requests import local_engine, sample, sampler_region

BOUND = 1e-5  # of the range: float rounding, the bound of the fidelity rules
Called = tuple[Stage, Any, Mapping[str, Any], Outputs]


def request(models: Models) -> Case:
    return Case("test", models.pipeline, "euler", 3)


def test_rows_of_two_requests_share_a_call(
    sd1: Models, sdxl: Models, costs: Path, tmp_path: Path
) -> None:
    """Each of two requests gets its own result if their stages are merged, although noise level,
    timestep, prompt, strength, guidance, sampler and seed differ.
    """
    make_pipeline(tmp_path, "sd35", 1)
    draw_controlnet("sd35", 2).save_pretrained(tmp_path / "controlnet")
    alone = {"joint_attention_dim": None, "pos_embed_type": None, "use_pos_embed": False}
    draw_controlnet("sd35", 3, **alone).save_pretrained(tmp_path / "without_text")
    transformer = replace(request(sd1), pipeline=tmp_path, latent=torch.zeros(1, 16, 8, 8))
    pipelines = (
        *((request(models), models.controls[:1]) for models in (sd1, sdxl)),
        *((transformer, (tmp_path / control,)) for control in ("controlnet", "without_text")),
    )
    shared = set()
    for plain, files in pipelines:
        one, other = (
            tuple(ControlCase(file, strength, 0.0, 1.0) for file in files)
            for strength in (0.9, 0.4)
        )
        first = calls_of(replace(plain, controls=one), costs)
        second = calls_of(
            replace(
                plain,
                controls=other,
                seed=9,
                prompt="something else",
                sampler="dpmpp_2m",
                steps=5,
                guidance=2.0,
            ),
            costs,
        )
        for stage, module, given, outputs in first:
            alike_call = next(
                (one for one in reversed(second) if alike(one, (stage, module, given, outputs))),
                None,
            )
            if alike_call is None or not stage.recorded:
                continue
            together = split(stage.computed(module, merge([given, alike_call[2]])), [1, 1])
            for alone, part in zip((outputs, alike_call[3]), together, strict=True):
                for expected, found in zip(tensors_of(alone), tensors_of(part), strict=True):
                    scale = float(expected.max() - expected.min()) or 1.0
                    assert float((expected - found).abs().max()) <= BOUND * scale, stage.name
            shared.add(stage.name)
    assert shared == {name for name, stage in stages().items() if stage.recorded and stage.module}


def alike(one: Called, other: Called) -> bool:
    """Returns whether two calls can be merged, on the module of either."""
    return (
        one[0] is other[0]
        and type(one[1]) is type(other[1])
        and form_of(one[2]) == form_of(other[2])
    )


def calls_of(wanted: Case, costs: Path) -> list[Called]:
    """Returns inputs and outputs of a request's stages."""
    found: list[Called] = []

    class Noted(Eagerly):
        def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
            outputs = super().__call__(stage, module, given)
            found.append((stage, module, given, outputs))
            return outputs

    with local_engine(batching=False, cache=costs) as engine, torch.no_grad():
        engine.models.compute = Noted()
        sample(engine, sampler_region(wanted))
    return found
