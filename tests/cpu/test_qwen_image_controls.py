"""ControlNets of Qwen-Image that read more than a picture, through their nodes and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import QwenImagePipeline
from safetensors.torch import save_file
from torch import Tensor
from transformers_made import GUIDANCE, PROMPTS, STEPS, inputs

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    Conditioning,
    ConditioningEntry,
    ControlNetRecipe,
    ModelRecipe,
    Prompt,
)
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.region import Region
from katz_graph.models.families.qwen_image.fun_control import QwenImageFunControlNetModel
from katz_graph.models.families.shared.random_parts import seeded
from katz_graph.models.family import check_controlnet
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.stage_registry import stage
from katz_graph.nodes.conditioning import (
    ControlNetApplyAdvanced,
    ControlNetInpaintingAliMamaApply,
)
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import draw_controlnet, draw_network, make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.stock_pipelines import Asked, hole_of_cells, stock
from katz_graph.testing.worker_threads import WorkerThreads

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


def fun_control(**changed: Any) -> Any:
    """Draws a Fun ControlNet of two blocks, which act after blocks 0 and 2."""
    values = {
        "num_layers": 2,
        "control_layers_places": [0, 2],
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "axes_dims_rope": [4, 6, 6],
    }
    with seeded(5):
        module = QwenImageFunControlNetModel(**{**values, **changed}).eval()
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.1)
    return module.requires_grad_(False)


def pixels(seed: int = 9) -> Tensor:
    return torch.rand(1, *SIZE, 3, generator=torch.Generator().manual_seed(seed))


def inpainting(folder: Path, mask: Tensor, image: Tensor) -> Region:
    """Returns the region of a sampler behind ControlNetInpaintingAliMamaApply."""
    model, clip, vae = pipeline_recipes(folder)
    control = controlnet_recipe(folder / "controlnet")
    sides = ((ConditioningEntry(Prompt(clip, text)),) for text in PROMPTS)
    with local_engine() as engine:
        node, context = ControlNetInpaintingAliMamaApply(strength=0.7), bare_context(engine)
        return sampled(model, *node.run(*sides, control, vae, image, mask, context))


def sampled(
    model: ModelRecipe, positive: Conditioning, negative: Conditioning, cfg: float = 1.0
) -> Region:
    begin = {
        "sampler_name": "euler",
        "scheduler": "simple",
        "steps": STEPS,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(1, 16, SIZE[0] // 8, SIZE[1] // 8)},
        "model": model,
    }
    expansion = expand_sampling("StepBegin", begin, model, positive, negative, cfg)
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


# Fun


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_fun_controlnet_begins_with_the_model_s_tokens_and_text(
    batch: int, dtype: torch.dtype
) -> None:
    base, control = draw_network("qwen_image", 3, 4).to(dtype), fun_control().to(dtype)
    step, text = inputs(base, batch, dtype)
    draw = torch.Generator().manual_seed(5)
    reference = torch.randn(step.x.shape, generator=draw).to(dtype)
    # the published computation, on diffusers' modules
    height, width = step.x.shape[-2:]
    pack = QwenImagePipeline._pack_latents
    tokens = base.img_in(pack(step.model_input, *step.x.shape))
    words = base.txt_in(base.txt_norm(text.hidden))
    time = base.time_text_embed(step.timestep.float().to(dtype), tokens)
    places = base.pos_embed([(1, height // 2, width // 2)], max_txt_seq_len=9, device="cpu")
    more = {"encoder_hidden_states_mask": None, "temb": time, "image_rotary_emb": places}
    seen = torch.cat([reference, torch.zeros_like(reference[:, [0]]), 0 * reference], dim=1)
    hint = control.control_img_in(pack(seen, *seen.shape))
    state, residuals, said = control.control_blocks[0].before_proj(hint) + tokens, [], words
    for block in control.control_blocks:
        said, state = block(state, said, **more)
        residuals.append((block.after_proj(state).float() * torch.tensor(0.7)).to(dtype))
    plain = tokens
    for number, block in enumerate(base.transformer_blocks):
        words, tokens = block(tokens, words, **more)
        if number in (0, 2):
            tokens = tokens + residuals[number // 2]
    wanted = base.proj_out(base.norm_out(tokens, time))
    assert not torch.equal(plain, tokens)

    def run(name: str, module: Any, **given: Any) -> Any:
        return stage(name).computed(module, given)

    def fixed(module: Any) -> Any:
        given = {"text": text, "cells": (height, width), "latents": (), "placing": "", "before": 0}
        return run("transformer_fixed", module, **given)[0]

    (context,) = run("transformer_context", base, text=text, kinds=())
    (embedded,) = run(
        "transformer_embed",
        base,
        **{"step": step, "text": text, "fixed": fixed(base), "context": context, "pooled": ()},
    )
    (fill,) = run("transformer_fill", base)
    (first,) = run("transformer_hint", control, reference=reference)
    given = {"features": embedded, "hint": first, "pooled": (), "fill": fill}
    (state,) = run("transformer_control_tokens", control, **given, fixed=fixed(control))
    rows, ours = torch.full((batch,), 0.7), []
    for number in range(2):
        given = {"features": state, "fixed": fixed(control), "strength": rows, "block": number}
        state, residual = run("transformer_control_block", control, **given)
        ours.append(residual)
    assert all(map(torch.equal, ours, residuals))
    for start, end, residual in ((0, 0, None), (1, 2, ours[0]), (3, 3, ours[1])):
        for cut in range(start, end + 1):
            given = {"features": embedded, "fixed": fixed(base), "residuals_1": residual}
            span = {"first_block": cut, "last_block": cut}
            (embedded,) = run("transformer_blocks", base, **given, **span)
            residual = None
    (raw,) = run("transformer_head", base, features=embedded, parametrisation="raw")
    assert torch.equal(pack(raw, *raw.shape), wanted)


def test_a_fun_controlnet_streams_and_its_strength_is_a_root(
    folder: Path, tmp_path: Path, costs: Path
) -> None:
    fun_control().save_pretrained(tmp_path)
    model, clip, vae = pipeline_recipes(folder)
    control = controlnet_recipe(tmp_path)
    texts = ((ConditioningEntry(Prompt(clip, text)),) for text in PROMPTS)
    one, two = texts

    def region(strength: float) -> Region:
        node = ControlNetApplyAdvanced(strength=strength)
        return sampled(model, *node.run(one, two, control, pixels(), vae), 4.0)

    wanted_region = region(0.25)
    factors = {
        operation.inputs["strength"]
        for operation in wanted_region.operations
        if operation.stage == "transformer_control_block"
    }
    assert factors == {0.5}
    with local_engine(batching=False, cache=costs) as engine:
        wanted, plain = sample(engine, wanted_region), sample(engine, sampled(model, one, two, 4.0))
    assert (wanted - plain).abs().max() > 1e-2
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        pins = {
            operation.id: ("cpu:1" if "_control" in operation.stage else "cpu:0",)
            for operation in wanted_region.operations
            if stage(operation.stage).costed
        }
        target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
        program = plan_region(wanted_region, target)
        assert {"cpu:0", "cpu:1"} == set(program.instructions)
        assert torch.equal(engine.cluster.run(program, bare_context(engine)).samples, wanted)


def test_a_fun_file_is_read_and_other_ones_are_refused(folder: Path, tmp_path: Path) -> None:
    sizes = {"attention_head_dim": 32, "num_attention_heads": 1, "axes_dims_rope": [4, 14, 14]}
    module = fun_control(**sizes)
    tensors = dict(module.state_dict())
    save_file(tensors, tmp_path / "fun.safetensors")
    recipe = controlnet_recipe(tmp_path / "fun.safetensors")
    live = ModelStore().controlnet(recipe.control_net, "cpu", torch.float32)
    assert all(torch.equal(live.state_dict()[name], one) for name, one in tensors.items())
    with pytest.raises(InputError, match=r"acts after block 12, the transformer in .* 0 to 2"):
        check_controlnet(recipe, pipeline_recipes(folder)[0])  # the published places
    single = {name: one for name, one in tensors.items() if "add_q_proj" not in name}
    save_file(single, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"2\.1 are not supported"):
        controlnet_recipe(tmp_path / "other.safetensors")
    save_file({"controlnet_blocks.0.x_rms.weight": torch.zeros(32)}, tmp_path / "patch.safetensors")
    with pytest.raises(InputError, match="a DiffSynth patch for Qwen-Image, which is not"):
        controlnet_recipe(tmp_path / "patch.safetensors")
    _, clip, _ = pipeline_recipes(folder)
    side = (ConditioningEntry(Prompt(clip, "")),)
    with pytest.raises(InputError, match="link the model's VAE to ControlNetApplyAdvanced"):
        fun_control().save_pretrained(tmp_path / "folder")
        control = controlnet_recipe(tmp_path / "folder")
        made = ControlNetApplyAdvanced().run(side, side, control, pixels())
        sampled(pipeline_recipes(folder)[0], *made)
