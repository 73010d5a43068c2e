"""Published ControlNets load as diffusers' modules and give diffusers' pictures. Tables here write
the file layouts, independently of the loader's tables.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers_made import GUIDANCE, PROMPTS, STEPS, guidance, inputs

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    Component,
    ConditioningEntry,
    ControlNetRecipe,
    ControlUse,
    ModelRecipe,
    Picture,
    Prompt,
)
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.region import Region
from katz_graph.ir.values import Step, TextEncoding
from katz_graph.models.families.shared.transformer_stack import stack_of
from katz_graph.models.family import check_controlnet
from katz_graph.models.loading.sources import controlnet_recipe, network_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.stage_registry import stage
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import Kind, draw_controlnet, draw_network, make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.stock_pipelines import Asked, schedule, stock
from katz_graph.testing.worker_threads import WorkerThreads

SIZE = 64, 96  # of pictures
STRENGTH = 0.7
HEADS = {"attention_head_dim": 32, "num_attention_heads": 1}  # a width that its positions can have

torch.set_num_threads(1)


def pixels() -> Tensor:
    return torch.rand(1, *SIZE, 3, generator=torch.Generator().manual_seed(9))


def same(module: Any, wanted: Any) -> bool:
    mine, theirs = module.state_dict(), wanted.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(one, theirs[name]) for name, one in mine.items()
    )


def region(
    folder: Path,
    kind: Kind,
    control: ControlNetRecipe | None,
    image: Picture | None = None,
    model: ModelRecipe | None = None,
    size: tuple[int, int] = SIZE,
) -> Region:
    own, clip, vae = pipeline_recipes(folder)
    model = model or own
    image = image or Picture.of(pixels())
    used = () if control is None else (ControlUse(control, image, STRENGTH, vae=vae),)
    begin = {
        "sampler_name": "euler",
        "scheduler": schedule(kind),
        "steps": STEPS,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(1, 16, size[0] // 8, size[1] // 8)},
        "model": model,
    }
    sides = ((ConditioningEntry(Prompt(clip, text), control=used),) for text in PROMPTS)
    expansion = expand_sampling("StepBegin", begin, model, *sides, guidance(kind))
    return bind(expansion.graph, expansion.outputs[0].node)


def pictures(folder: Path, kind: Kind, control: ControlNetRecipe) -> tuple[Tensor, Tensor, Tensor]:
    """Returns our picture, the stock pipeline's, and ours without the ControlNet."""
    with local_engine() as engine:
        ours, plain = (
            engine.decode_latent(
                pipeline_recipes(folder)[2],
                sample(engine, region(folder, kind, one)),
                bare_context(engine),
            )
            for one in (control, None)
        )
    noise = torch.randn(1, 16, *(side // 8 for side in SIZE), generator=torch.manual_seed(7))
    asked = Asked(folder, kind, noise, STEPS, PROMPTS, GUIDANCE, pixels(), STRENGTH)
    return ours, stock(asked)(), plain


# XLabs' FLUX.1


def xlabs(module: Any) -> dict[str, Tensor]:
    """Names a ControlNet's tensors as XLabs' repository does."""
    mine = dict(module.state_dict())
    made: dict[str, Tensor] = {}

    def move(original: str, *names: str) -> None:
        for end in ("weight", "bias"):
            if f"{names[0]}.{end}" in mine:
                made[f"{original}.{end}"] = torch.cat([mine.pop(f"{one}.{end}") for one in names])

    for number in range(module.config.num_layers):
        ours, theirs = f"transformer_blocks.{number}", f"double_blocks.{number}"
        for side, norm, ff, names, out, norms in (
            ("img", "norm1", "ff", ("to_q", "to_k", "to_v"), "to_out.0", ("norm_q", "norm_k")),
            (
                "txt",
                "norm1_context",
                "ff_context",
                ("add_q_proj", "add_k_proj", "add_v_proj"),
                "to_add_out",
                ("norm_added_q", "norm_added_k"),
            ),
        ):
            move(f"{theirs}.{side}_mod.lin", f"{ours}.{norm}.linear")
            move(f"{theirs}.{side}_attn.qkv", *(f"{ours}.attn.{one}" for one in names))
            move(f"{theirs}.{side}_attn.proj", f"{ours}.attn.{out}")
            move(f"{theirs}.{side}_mlp.0", f"{ours}.{ff}.net.0.proj")
            move(f"{theirs}.{side}_mlp.2", f"{ours}.{ff}.net.2")
            for norm_of, name in zip(("query", "key"), norms, strict=True):
                weight = mine.pop(f"{ours}.attn.{name}.weight")
                made[f"{theirs}.{side}_attn.norm.{norm_of}_norm.scale"] = weight
        move(f"controlnet_blocks.{number}", f"controlnet_blocks.{number}")
    for original, name in (
        ("time_in", "timestep"),
        ("vector_in", "text"),
        ("guidance_in", "guidance"),
    ):
        for layer, number in (("in_layer", 1), ("out_layer", 2)):
            move(f"{original}.{layer}", f"time_text_embed.{name}_embedder.linear_{number}")
    move("img_in", "x_embedder")
    move("txt_in", "context_embedder")
    move("pos_embed_input", "controlnet_x_embedder")
    move("input_hint_block.0", "input_hint_block.conv_in")
    for number in range(6):
        move(f"input_hint_block.{2 + 2 * number}", f"input_hint_block.blocks.{number}")
    move("input_hint_block.14", "input_hint_block.conv_out")
    assert not mine
    return made


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """Returns the pipeline folder, the ControlNet's file, and its diffusers module."""
    place = tmp_path_factory.mktemp("flux")
    positions = {"axes_dims_rope": [4, 14, 14]}
    make_pipeline(place, "flux", 1, blocks=5, **HEADS, **positions)
    reads = {"conditioning_embedding_channels": 16, "num_single_layers": 0, "patch_size": 2}
    module = draw_controlnet("flux", 2, blocks=2, **reads, **HEADS, **positions)
    module.save_pretrained(place / "controlnet")
    save_file(xlabs(module), place / "flux-canny-controlnet-v3.safetensors")
    return place, place / "flux-canny-controlnet-v3.safetensors", module


def test_a_controlnet_in_xlabs_layout_is_diffusers_module(flux: tuple[Path, Path, Any]) -> None:
    _, file, module = flux
    part = controlnet_recipe(file).control_net
    values = json.loads(part.configuration or "")
    assert values == {name: module.config[name] for name in values}
    assert same(ModelStore().controlnet(part, "cpu", torch.float32), module)


def test_a_picture_with_a_controlnet_in_xlabs_layout_is_the_stock_pipeline_s(
    flux: tuple[Path, Path, Any],
) -> None:
    folder, file, _ = flux
    ours, wanted, plain = pictures(folder, "flux", controlnet_recipe(file))
    assert (ours - wanted).abs().max() <= 1e-5
    assert (ours - plain).abs().max() > 1e-2


@pytest.mark.defect(17)
def test_a_controlnet_in_xlabs_layout_acts_at_an_odd_size(flux: tuple[Path, Path, Any]) -> None:
    folder, file, _ = flux
    with local_engine() as engine:
        ours, plain = (
            sample(engine, region(folder, "flux", one, size=(56, 72)))
            for one in (controlnet_recipe(file), None)
        )
    assert ours.isfinite().all()
    assert (ours - plain).abs().max() > 1e-2


def test_a_controlnet_in_xlabs_layout_is_no_model(flux: tuple[Path, Path, Any]) -> None:
    _, file, _ = flux
    with pytest.raises(InputError, match=r"this is a ControlNet, expected .* ControlNetLoader$"):
        network_recipe(file)


@pytest.mark.parametrize("lost", ["img_in.weight", "double_blocks.1.img_attn.qkv.weight"])
def test_a_file_in_xlabs_layout_that_lost_a_tensor_is_incomplete(
    lost: str, flux: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    tensors = xlabs(flux[2])
    del tensors[lost]
    save_file(tensors, tmp_path / "control.safetensors")
    with pytest.raises(InputError, match=r"control\.safetensors: .*(missing)"):
        part = controlnet_recipe(tmp_path / "control.safetensors").control_net
        ModelStore().controlnet(part, "cpu", torch.float32)


# Stability's SD3.5 large


def stability(module: Any, control_type: float | None = None) -> dict[str, Tensor]:
    """Names a ControlNet's tensors as Stability's files do."""
    made = dict(module.state_dict())
    for number in range(module.config.num_layers):
        block = f"transformer_blocks.{number}"
        for end in ("weight", "bias"):
            qkv = [made.pop(f"{block}.attn.to_{one}.{end}") for one in "qkv"]
            made[f"{block}.attn.qkv.{end}"] = torch.cat(qkv)
            for theirs, ours in (
                ("attn.proj", "attn.to_out.0"),
                ("adaLN_modulation.1", "norm1.linear"),
                ("mlp.fc1", "ff.net.0.proj"),
                ("mlp.fc2", "ff.net.2"),
            ):
                made[f"{block}.{theirs}.{end}"] = made.pop(f"{block}.{ours}.{end}")
    if control_type is not None:
        made["control_type"] = torch.tensor(control_type)
    return made


ALONE = {  # as published
    "joint_attention_dim": None,
    "pos_embed_max_size": None,
    "pos_embed_type": None,
    "use_pos_embed": False,
    "force_zeros_for_pooled_projection": False,
    "qk_norm": None,
}
LARGE_HEAD = {"attention_head_dim": 64, "num_attention_heads": 1, "caption_projection_dim": 64}


@pytest.fixture(scope="module")
def sd35(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    place = tmp_path_factory.mktemp("sd35")
    make_pipeline(place, "sd35", 1, blocks=4, with_t5=True, **LARGE_HEAD)
    module = draw_controlnet("sd35", 2, blocks=2, **{**LARGE_HEAD, **ALONE})
    module.save_pretrained(place / "controlnet")
    save_file(stability(module), place / "sd3.5_large_controlnet_blur.safetensors")
    return place, place / "sd3.5_large_controlnet_blur.safetensors", module


def test_a_controlnet_in_stability_s_layout_is_diffusers_module(
    sd35: tuple[Path, Path, Any],
) -> None:
    _, file, module = sd35
    part = controlnet_recipe(file).control_net
    values = json.loads(part.configuration or "")
    assert values == {name: module.config[name] for name in values}
    assert same(ModelStore().controlnet(part, "cpu", torch.float32), module)


@pytest.mark.parametrize("source", ["file", "folder"])
def test_a_picture_with_a_controlnet_that_begins_with_the_model_s_tokens_is_the_stock_pipeline_s(
    source: str, sd35: tuple[Path, Path, Any]
) -> None:
    folder, file, _ = sd35
    control = controlnet_recipe(file if source == "file" else folder / "controlnet")
    ours, wanted, plain = pictures(folder, "sd35", control)
    assert (ours - wanted).abs().max() <= 1e-5
    assert (ours - plain).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
def test_residuals_of_one_that_begins_with_the_model_s_tokens_are_those_of_forward(
    batch: int, dtype: torch.dtype
) -> None:
    base = draw_network("sd35", 3, blocks=5, **LARGE_HEAD).to(dtype)
    control = draw_controlnet("sd35", 4, blocks=2, **{**LARGE_HEAD, **ALONE}).to(dtype)
    step, text = inputs(base, batch, dtype)
    reference = torch.randn(step.x.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
    ours = residuals(base, control, step, text, reference)
    # diffusers' pipeline copies the model's positions
    control.pos_embed = control._get_pos_embed_from_transformer(base).to(dtype)
    # diffusers' tokens are strided: bfloat16's product rounds differently
    control.pos_embed.register_forward_hook(lambda *given: given[-1].contiguous())
    (wanted,) = control(
        step.model_input,
        reference,
        STRENGTH,
        None,
        text.pooled,
        step.timestep.float(),
        return_dict=False,
    )
    assert len(ours) == len(wanted) == 2
    for one, other in zip(ours, wanted, strict=True):
        assert torch.equal(one, other) and one.abs().max() > 0.05


def residuals(
    base: Any, control: Any, step: Step, text: TextEncoding, reference: Tensor
) -> list[Tensor]:
    """Runs a ControlNet on the model's tokens, in stages."""

    def run(name: str, module: Any, **given: Any) -> Any:
        return stage(f"transformer_{name}").computed(module, given)

    def fixed(module: Any) -> Any:
        cells = {"cells": step.x.shape[-2:], "latents": (), "placing": "", "before": 0}
        return run("fixed", module, text=text, **cells)[0]

    (context,) = run("context", base, text=text, kinds=())
    texts = {"text": text, "reads_pooled": text.pooled is not None}
    given = {"step": step, "context": context, "pooled": run("pooled", base, **texts)[0]}
    (tokens,) = run("embed", base, text=text, fixed=fixed(base), **given)
    (tokens,) = run(
        "control_tokens",
        control,
        features=tokens,
        hint=run("hint", control, reference=reference)[0],
        pooled=run("pooled", control, **texts)[0],
        fill=run("fill", base)[0],
        fixed=fixed(control),
    )
    found = []
    count = len(stack_of(control).blocks(control))
    strength = torch.full((len(step.x),), STRENGTH)
    for number in range(count):
        tokens, residual = run(
            "control_block",
            control,
            features=tokens,
            fixed=fixed(control),
            strength=strength,
            block=number,
        )
        found.append(residual)
    return found


def on_two_devices(folder: Path, kind: Kind, control: ControlNetRecipe, costs: Path) -> set[str]:
    """Asserts that a ControlNet on another device gives the same bits; returns the sent values."""
    wanted = region(folder, kind, control)
    with local_engine(batching=False, cache=costs) as engine:
        alone = sample(engine, wanted)
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        pins = {
            operation.id: ("cpu:1" if "_control" in operation.stage else "cpu:0",)
            for operation in wanted.operations
            if stage(operation.stage).costed
        }
        target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
        program = plan_region(wanted, target)
        made = engine.cluster.run(program, bare_context(engine)).samples
    assert torch.equal(made, alone)
    return {
        instruction.target
        for device in ("cpu:0", "cpu:1")
        for instruction in program.instructions[device]
        if instruction.kind == "send"
    }


def test_on_another_device_it_is_sent_tokens_and_sends_each_residual_alone(
    sd35: tuple[Path, Path, Any], costs: Path
) -> None:
    folder, file, _ = sd35
    sent = on_two_devices(folder, "sd35", controlnet_recipe(file), costs)
    assert len({one for one in sent if "block" in one}) == 2 * 2
    assert len({one for one in sent if one.endswith("-embed")}) == 2


def test_batched_or_not_it_gives_one_picture(sd35: tuple[Path, Path, Any], costs: Path) -> None:
    folder, file, _ = sd35
    wanted = region(folder, "sd35", controlnet_recipe(file))
    made = []
    for batching in (False, True, None):
        with local_engine(batching=batching, cache=costs) as engine:
            made.append(sample(engine, wanted))
    for other in made[1:]:
        assert (other - made[0]).abs().max() <= 2e-5 * made[0].abs().max()


@pytest.mark.parametrize(
    ("kind", "seen"),
    [(0.0, lambda x: x), (1.0, lambda x: x * 127.5 + 0.5), (2.0, lambda x: 1 - x)],
)
def test_control_input_follows_the_file_metadata(
    kind: float, seen: Any, sd35: tuple[Path, Path, Any], tmp_path: Path, costs: Path
) -> None:
    folder, plain, module = sd35
    save_file(stability(module, kind), tmp_path / "control.safetensors")
    from_metadata = region(folder, "sd35", controlnet_recipe(tmp_path / "control.safetensors"))
    made = region(folder, "sd35", controlnet_recipe(plain), Picture.of(seen(pixels())))
    with local_engine(cache=costs) as engine:
        assert torch.equal(sample(engine, from_metadata), sample(engine, made))


@pytest.mark.parametrize("number", [torch.zeros(2), torch.zeros(1, dtype=torch.bool)])
def test_a_control_type_that_is_no_number_is_refused(
    number: Tensor, sd35: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    tensors = {**stability(sd35[2]), "control_type": number}
    save_file(tensors, tmp_path / "control.safetensors")
    with pytest.raises(InputError, match=r"control_type is .*, expected one number"):
        controlnet_recipe(tmp_path / "control.safetensors")


def test_a_large_picture_is_no_matter_to_a_controlnet_without_positions(
    sd35: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    """The model's position table is the limit."""
    place = tmp_path / "large"
    make_pipeline(
        place, "sd35", 1, blocks=4, with_t5=True, **LARGE_HEAD, **{"pos_embed_max_size": 100}
    )
    model, clip, vae = pipeline_recipes(place)
    use = ControlUse(controlnet_recipe(sd35[1]), Picture.of(pixels()), vae=vae)
    entry = (ConditioningEntry(Prompt(clip, ""), control=(use,)),)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 200)}, "model": model}
    expand_sampling("StepBegin", begin, model, entry, entry, 1.0)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 202)}, "model": model}
    with pytest.raises(InputError, match="the transformer takes at most 1600x1600"):
        expand_sampling("StepBegin", begin, model, entry, entry, 1.0)


# Z-Image's control patch


@pytest.fixture(scope="module")
def z_image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    place = tmp_path_factory.mktemp("z_image")
    make_pipeline(place, "z_image", 1, blocks=7)
    module = draw_controlnet("z_image", 2, blocks=2, control_layers_places=[0, 5])
    module.save_pretrained(place / "controlnet")
    file = place / "Z-Image-Turbo-Fun-Controlnet-Union.safetensors"
    save_file(module.state_dict(), file)
    return place, file, module


def test_a_control_patch_is_diffusers_module(z_image: tuple[Path, Path, Any]) -> None:
    _, file, module = z_image
    part = controlnet_recipe(file).control_net
    values = json.loads(part.configuration or "")
    assert values == {name: module.config[name] for name in values}
    assert same(ModelStore().controlnet(part, "cpu", torch.float32), module)


@pytest.mark.parametrize("source", ["file", "folder"])
def test_a_picture_with_a_control_patch_is_the_stock_pipeline_s(
    source: str, z_image: tuple[Path, Path, Any]
) -> None:
    folder, file, _ = z_image
    control = controlnet_recipe(file if source == "file" else folder / "controlnet")
    ours, wanted, plain = pictures(folder, "z_image", control)
    assert (ours - wanted).abs().max() <= 1e-5
    assert (ours - plain).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
def test_residuals_of_a_control_patch_are_those_of_forward(batch: int, dtype: torch.dtype) -> None:
    """The 15 patches of the picture are padded to 32 tokens."""
    base = draw_network("z_image", 3, blocks=5).to(dtype)
    control = draw_controlnet("z_image", 4, blocks=2).to(dtype)
    step, text = inputs(base, batch, dtype)
    reference = torch.randn(step.x.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
    ours = residuals(base, control, step, text, reference)
    whole = type(control).from_transformer(control, base)
    x, seen = ([*one.unsqueeze(2)] for one in (step.model_input, reference))
    time = 1 - step.timestep.float()
    with torch.no_grad():
        wanted = whole(x, time, [*text.hidden], seen, STRENGTH)
    assert list(wanted) == [0, 2] and len(ours) == 2
    for one, other in zip(ours, wanted.values(), strict=True):
        assert torch.equal(one, other) and one.abs().max() > 0.05


def test_a_control_patch_on_another_device_sends_each_residual_alone(
    z_image: tuple[Path, Path, Any], costs: Path
) -> None:
    folder, file, _ = z_image
    sent = on_two_devices(folder, "z_image", controlnet_recipe(file), costs)
    assert len({one for one in sent if "block" in one}) == 2 * 2
    assert len({one for one in sent if one.endswith("-embed")}) == 2


def test_a_patched_model_acts_on_every_conditioning(
    z_image: tuple[Path, Path, Any], costs: Path
) -> None:
    """It acts like a ControlNet on both conditionings; the KSampler's model keeps no patch."""
    folder, file, _ = z_image
    control = controlnet_recipe(file)
    wanted = region(folder, "z_image", control)
    model, _, vae = pipeline_recipes(folder)
    use = ControlUse(control, Picture.of(pixels()), STRENGTH, vae=vae)
    made = region(folder, "z_image", None, model=model.with_control(use))
    assert not made.begin.inputs["model"].controls
    with local_engine(cache=costs) as engine:
        assert torch.equal(sample(engine, made), sample(engine, wanted))


def test_a_loop_that_is_drawn_is_refused_a_patched_model(z_image: tuple[Path, Path, Any]) -> None:
    folder, file, _ = z_image
    plain = region(folder, "z_image", None)
    use = ControlUse(controlnet_recipe(file), Picture.of(pixels()))
    model = plain.begin.inputs["model"].with_control(use)
    begin = replace(plain.begin, inputs={**plain.begin.inputs, "model": model})
    with local_engine() as engine:
        target = Target(engine.cluster.devices, engine.cluster.links)
        with pytest.raises(InputError, match="use TransformerControlTokens and"):
            plan_region(replace(plain, begin=begin), target)


def test_a_control_patch_of_version_2_is_refused(
    z_image: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    later = draw_controlnet(
        "z_image", 2, control_in_dim=33, add_control_noise_refiner="control_layers"
    )
    save_file(later.state_dict(), tmp_path / "control.safetensors")
    later.save_pretrained(tmp_path / "controlnet")
    for source in ("control.safetensors", "controlnet"):
        with pytest.raises(InputError, match=r"version 2.*: use version 1"):
            controlnet_recipe(tmp_path / source)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dim": 64}, "its width is 64, the transformer in"),
        ({"n_heads": 1, "n_kv_heads": 1}, "its number of heads is 1, the transformer in"),
        ({"control_layers_places": [0, 9]}, r"acts after block 9, .* has 0 to 6"),
    ],
)
def test_a_control_patch_of_other_sizes_is_refused(
    changed: dict[str, Any], words: str, z_image: tuple[Path, Path, Any]
) -> None:
    model, _, _ = pipeline_recipes(z_image[0])
    values = {**z_image[2].config, "_class_name": "ZImageControlNetModel", **changed}
    part = Component("control", (), json.dumps(values))
    with pytest.raises(InputError, match=words):
        check_controlnet(ControlNetRecipe(part), model)


def test_a_control_patch_refuses_a_model_with_unknown_positions(
    z_image: tuple[Path, Path, Any],
) -> None:
    model, _, _ = pipeline_recipes(z_image[0])
    network = model.network
    values = {**json.loads((z_image[0] / "transformer" / "config.json").read_text())}
    other = replace(network, configuration=json.dumps(values | {"axes_dims": [8, 4, 4]}))
    with pytest.raises(InputError, match=r"have the axes \[8, 4, 4\]"):
        check_controlnet(controlnet_recipe(z_image[1]), replace(model, network=other))
