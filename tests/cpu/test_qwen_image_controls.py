"""ControlNets of Qwen-Image that read more than a picture, through their nodes and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers_made import GUIDANCE, PROMPTS, STEPS

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ConditioningEntry, ControlNetRecipe, Prompt
from katz_graph.ir.region import Region
from katz_graph.models.family import check_controlnet
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.nodes.conditioning import (
    ControlNetApplyAdvanced,
    ControlNetInpaintingAliMamaApply,
)
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import draw_controlnet, make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.stock_pipelines import Asked, hole_of_cells, stock

SIZE = 64, 96  # of pictures
MASKED = {"extra_condition_channels": 4}

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("qwen_image")
    make_pipeline(place, "qwen_image", 1, blocks=3)
    draw_controlnet("qwen_image", 2, 2).save_pretrained(place / "plain")
    draw_controlnet("qwen_image", 2, 2, **MASKED).save_pretrained(place / "controlnet")
    return place


def pixels(seed: int = 9) -> Tensor:
    return torch.rand(1, *SIZE, 3, generator=torch.Generator().manual_seed(seed))


def inpainting(folder: Path, mask: Tensor, image: Tensor) -> Region:
    """Returns the region of a sampler behind ControlNetInpaintingAliMamaApply."""
    model, clip, vae = pipeline_recipes(folder)
    control = controlnet_recipe(folder / "controlnet")
    sides = ((ConditioningEntry(Prompt(clip, text)),) for text in PROMPTS)
    with local_engine() as engine:
        node, context = ControlNetInpaintingAliMamaApply(strength=0.7), bare_context(engine)
        made = node.run(*sides, control, vae, image, mask, context)
    begin = {
        "sampler_name": "euler",
        "scheduler": "simple",
        "steps": STEPS,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(1, 16, SIZE[0] // 8, SIZE[1] // 8)},
        "model": model,
    }
    expansion = expand_sampling("StepBegin", begin, model, *made, 1.0)
    return bind(expansion.graph, expansion.outputs[0].node)


def test_an_inpainted_picture_is_the_stock_pipeline_s(folder: Path) -> None:
    image, vae = pixels(), pipeline_recipes(folder)[2]
    mask = hole_of_cells(image)
    with local_engine() as engine:
        ours = sample(engine, inpainting(folder, mask, image))
        other = sample(engine, inpainting(folder, torch.zeros_like(mask), image))
        picture = engine.decode_latent(vae, ours, bare_context(engine))
    noise = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7))
    asked = Asked(folder, "qwen_image", noise, STEPS, PROMPTS, GUIDANCE, image, 0.7)
    wanted = stock(replace(asked, shown="inpaint"))()
    assert (picture - wanted).abs().max() <= 1e-5
    assert (ours - other).abs().max() > 1e-2


def test_what_is_masked_is_not_seen_and_masks_of_other_sizes_fit(folder: Path) -> None:
    image, mask = pixels(), hole_of_cells(pixels())
    elsewhere = torch.where(mask[..., None] > 0.5, pixels(8), image)
    with local_engine() as engine:
        one, two = (
            sample(engine, inpainting(folder, half, seen))
            for half, seen in ((mask, image), (mask[:, ::2, ::2], elsewhere))
        )
    # a mask of half the size is blurred at its edges, but its cells are the same
    assert torch.allclose(one, two, atol=0.3) and (one - two).abs().mean() < 0.01


def test_a_controlnet_without_a_mask_ignores_it_and_says_so(folder: Path) -> None:
    _, clip, vae = pipeline_recipes(folder)
    control = controlnet_recipe(folder / "plain")
    side = (ConditioningEntry(Prompt(clip, "")),)
    with local_engine() as engine:
        context = bare_context(engine)
        given = side, side, control, vae, pixels()
        made = ControlNetInpaintingAliMamaApply().run(*given, torch.ones(1, *SIZE), context)
    assert made == ControlNetApplyAdvanced().run(side, side, control, pixels(), vae)
    (line,) = context.warnings
    assert line.endswith("plain reads no mask, so the mask is not used")


def test_controlnets_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    model, clip, vae = pipeline_recipes(folder)

    def refused(words: str, control: ControlNetRecipe, model: object = model) -> None:
        with pytest.raises(InputError, match=words):
            check_controlnet(control, model)  # type: ignore[arg-type]

    def drawn(name: str, blocks: int, **changed: int) -> ControlNetRecipe:
        draw_controlnet("qwen_image", 3, blocks, **changed).save_pretrained(tmp_path / name)
        return controlnet_recipe(tmp_path / name)

    refused("has 4 blocks, the transformer in .* has 3$", drawn("deep", 4))
    refused("its width is 48, the transformer in", drawn("wide", 1, num_attention_heads=3))
    make_pipeline(tmp_path / "layered", "qwen_image", 1, 1, use_layer3d_rope=True)
    layered = pipeline_recipes(tmp_path / "layered")[0]
    refused("makes layers: use a model without layers", drawn("one", 1), layered)
    masked = controlnet_recipe(folder / "controlnet")
    side = (ConditioningEntry(Prompt(clip, "")),)
    entries = ControlNetApplyAdvanced().run(side, side, masked, pixels(), vae)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 12)}}
    with pytest.raises(InputError, match="apply it with ControlNetInpaintingAliMamaApply"):
        expand_sampling("StepBegin", begin, model, *entries, 1.0)
    tensors = dict(draw_controlnet("qwen_image", 2, 1, extra_condition_channels=8).state_dict())
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="reads 72 channels, expected 64, or 68 with a mask"):
        controlnet_recipe(tmp_path / "other.safetensors")


@pytest.mark.parametrize("changed", [{}, MASKED])
def test_a_file_says_whether_its_controlnet_reads_a_mask(
    changed: dict[str, int], tmp_path: Path
) -> None:
    sizes = {"attention_head_dim": 32, "num_attention_heads": 1, "axes_dims_rope": [4, 14, 14]}
    module = draw_controlnet("qwen_image", 2, 1, **sizes, **changed)
    save_file(dict(module.state_dict()), tmp_path / "control.safetensors")
    made = controlnet_recipe(tmp_path / "control.safetensors").control_net
    assert f'"extra_condition_channels": {changed.get("extra_condition_channels", 0)}' in str(
        made.configuration
    )
