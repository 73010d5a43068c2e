"""Transformers' ControlNets: each block and residual equals diffusers' `forward`, pictures equal
its pipelines', and two devices equal one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline, QwenImagePipeline
from safetensors.torch import save_file
from torch import Tensor
from transformers_made import GUIDANCE, PROMPTS, STEPS, forward, guidance, inputs

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    Area,
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
from katz_graph.ir.values import Step, TextEncoding, Tokens
from katz_graph.models.family import check_controlnet, family_of
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.stage_registry import stage
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import Kind, draw_controlnet, draw_network, make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.stock_pipelines import Asked, schedule, stock
from katz_graph.testing.worker_threads import WorkerThreads

EACH: tuple[Kind, ...] = ("sd35", "flux", "hunyuan_dit", "qwen_image")
SIZE = 64, 96  # of pictures
BLOCKS = {
    "sd35": 2,
    "flux": 3,
    "hunyuan_dit": 3,
    "qwen_image": 2,
}  # in the ControlNets of the folders

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    made = {kind: tmp_path_factory.mktemp(kind) for kind in EACH}
    for kind, place in made.items():
        make_pipeline(place, kind, 1, blocks=4, with_t5=kind == "sd35")
        blocks = 3 if kind == "hunyuan_dit" else 2  # one per skip of its transformer
        draw_controlnet(kind, 2, blocks).save_pretrained(place / "controlnet")
    return made


def recipe(module: Any) -> Component:
    values = {**module.config, "_class_name": type(module).__name__}
    return Component(type(module).__name__, (), json.dumps(values, default=list))


def run(name: str, module: Any, **given: Any) -> Any:
    return stage(name).computed(module, given)


def controlled(
    base: Any,
    control: Any,
    step: Step,
    text: TextEncoding,
    reference: Tensor,
    strength: float,
    kinds: tuple[int, ...] = (),
    most: int = 1,
) -> Tensor:
    """Runs a ControlNet and a transformer in stages: one call per residual, then one per group of
    at most `most` blocks that read the same residual.
    """
    model = ModelRecipe(recipe(base), recipe(base))
    family = family_of(model.network).controls
    assert family is not None and family.reads is not None
    reads = family.reads(ControlNetRecipe(recipe(control)), model)

    def embedded(name: str, module: Any, kinds: tuple[int, ...], **more: Any) -> Any:
        fixed = run(
            "transformer_fixed",
            module,
            text=text,
            cells=step.x.shape[-2:],
            latents=(),
            placing="",
            before=len(kinds),
        )[0]
        (context,) = run("transformer_context", module, text=text, kinds=kinds)
        (pooled,) = run(
            "transformer_pooled", module, text=text, reads_pooled=text.pooled is not None
        )
        given = {"text": text, "fixed": fixed, "context": context, "pooled": pooled, **more}
        return run(name, module, step=step, **given)[0], fixed

    (hint,) = run("transformer_hint", control, reference=reference)
    tokens, fixed = embedded("transformer_control", control, kinds, hint=hint)
    residuals = []
    rows = torch.full((len(step.x),), strength)
    for number in range(1 + max(one for one in reads if one is not None)):
        tokens, residual = run(
            "transformer_control_block",
            control,
            features=tokens,
            fixed=fixed,
            strength=rows,
            block=number,
        )
        residuals.append(residual)
    tokens, fixed = embedded("transformer_embed", base, ())
    state: Tokens = tokens
    *blocks, last = reads
    for read, alike in groupby(enumerate(blocks), key=lambda pair: pair[1]):
        numbers = [number for number, _ in alike]
        for start in range(0, len(numbers), most):
            group = numbers[start : start + most]
            (state,) = run(
                "transformer_blocks",
                base,
                features=state,
                fixed=fixed,
                first_block=group[0],
                last_block=group[-1],
                residuals_1=None if read is None else residuals[read],
            )
    residual = None if last is None else residuals[last]
    (raw,) = run(
        "transformer_head", base, features=state, residuals_1=residual, parametrisation="raw"
    )
    return raw


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("given", [1, 2, 3, 4])  # 4 of 5: families differ
@pytest.mark.parametrize("kind", EACH)
def test_residuals_for_any_groups_of_blocks_match_forward(
    kind: Kind, given: int, batch: int, dtype: torch.dtype
) -> None:
    base = draw_network(kind, 3, given + 1 if kind == "hunyuan_dit" else 5).to(dtype)
    control = draw_controlnet(kind, 4, blocks=given).to(dtype)
    step, text = inputs(base, batch, dtype)
    reference = torch.randn(step.x.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
    each = [controlled(base, control, step, text, reference, 0.7, most=most) for most in (1, 2, 10)]
    x, time = step.model_input, step.timestep.float()
    if kind == "sd35":
        # diffusers' tokens are strided: bfloat16's product rounds differently
        for layer in control.controlnet_blocks:
            layer.register_forward_pre_hook(lambda _, given: (given[0].contiguous(),))
        zeros = torch.zeros_like(text.pooled)
        (found,) = control(x, reference, 0.7, text.hidden, zeros, time, return_dict=False)
        wanted = base(
            x, text.hidden, text.pooled, time, block_controlnet_hidden_states=found
        ).sample
        plain = base(x, text.hidden, text.pooled, time).sample
    elif kind == "hunyuan_dit":
        found = forward(control, step, text, controlnet_cond=reference, conditioning_scale=0.7)
        wanted = forward(base, step, text, controlnet_block_samples=list(found))
        plain = forward(base, step, text)
    elif kind == "qwen_image":
        hint = QwenImagePipeline._pack_latents(reference, *reference.shape)
        found = forward(control, step, text, controlnet_cond=hint, conditioning_scale=0.7)
        wanted = forward(base, step, text, controlnet_block_samples=found)
        plain = forward(base, step, text)
    else:
        size = (batch, 16, 6, 10)
        packed, hint = (FluxPipeline._pack_latents(one, *size) for one in (x, reference))
        ids = FluxPipeline._prepare_latent_image_ids(batch, 3, 5, "cpu", torch.float32)
        nowhere = torch.zeros(text.hidden.shape[1], 3)
        common = {
            "encoder_hidden_states": text.hidden,
            "pooled_projections": text.pooled,
            "timestep": time,
            "img_ids": ids,
            "txt_ids": nowhere,
            "guidance": text.guidance,
        }
        found = control(packed, hint, conditioning_scale=0.7, return_dict=False, **common)
        double, single = found
        wanted, plain = (
            FluxPipeline._unpack_latents(one.sample, 48, 80, 8)
            for one in (
                base(
                    packed,
                    controlnet_block_samples=double,
                    controlnet_single_block_samples=single,
                    **common,
                ),
                base(packed, **common),
            )
        )
    assert all(torch.equal(ours, wanted) for ours in each)
    assert (wanted - plain).abs().max() > 0.05


def test_a_union_controlnet_gets_the_type_of_its_reference() -> None:
    base = draw_network("flux", 3, blocks=3)
    control = draw_controlnet("flux", 4, blocks=2, num_mode=5)
    step, text = inputs(base, 1, torch.float32)
    reference = torch.randn(step.x.shape, generator=torch.Generator().manual_seed(5))
    made = [
        controlled(base, control, step, text, reference, 1.0, kinds) for kinds in ((), (2,), (4,))
    ]
    packed, hint = (FluxPipeline._pack_latents(one, 1, 16, 6, 10) for one in (step.x, reference))
    common = {
        "encoder_hidden_states": text.hidden,
        "pooled_projections": text.pooled,
        "timestep": step.timestep.float(),
        "img_ids": FluxPipeline._prepare_latent_image_ids(1, 3, 5, "cpu", torch.float32),
        "txt_ids": torch.zeros(text.hidden.shape[1], 3),
        "guidance": text.guidance,
    }
    double, single = control(packed, hint, torch.tensor([[2]]), return_dict=False, **common)
    whole = base(
        packed, controlnet_block_samples=double, controlnet_single_block_samples=single, **common
    ).sample
    assert torch.equal(made[1], FluxPipeline._unpack_latents(whole, 48, 80, 8))
    assert not torch.equal(made[0], made[1]) and not torch.equal(made[1], made[2])


def test_residuals_of_a_controlnet_that_reads_pixels_come_again_and_again() -> None:
    base = draw_network("flux", 3, blocks=5)
    pixels_of = {"conditioning_embedding_channels": 16, "num_single_layers": 0, "patch_size": 2}
    control = draw_controlnet("flux", 4, blocks=2, **pixels_of)
    step, text = inputs(base, 1, torch.float32)
    height, width = step.x.shape[-2:]
    seen = torch.randn(1, 3, height * 8, width * 8, generator=torch.Generator().manual_seed(5))
    ours = controlled(base, control, step, text, seen, 1.0)
    packed = FluxPipeline._pack_latents(step.x, 1, 16, height, width)
    common = {
        "encoder_hidden_states": text.hidden,
        "pooled_projections": text.pooled,
        "timestep": step.timestep.float(),
        "img_ids": FluxPipeline._prepare_latent_image_ids(
            1, height // 2, width // 2, "cpu", torch.float32
        ),
        "txt_ids": torch.zeros(text.hidden.shape[1], 3),
        "guidance": text.guidance,
    }
    double, single = control(packed, seen, return_dict=False, **common)
    assert len(double) == 2 and single is None
    whole = base(
        packed, controlnet_block_samples=double, controlnet_blocks_repeat=True, **common
    ).sample
    assert torch.equal(ours, FluxPipeline._unpack_latents(whole, height * 8, width * 8, 8))


# Pictures


def pixels(seed: int = 9) -> Tensor:
    return torch.rand(1, *SIZE, 3, generator=torch.Generator().manual_seed(seed))


def region(
    folder: Path, kind: Kind, uses: int = 1, window: tuple[float, float] = (0.0, 1.0), **more: Any
) -> Region:
    model, clip, vae = pipeline_recipes(folder)
    control = controlnet_recipe(folder / "controlnet")
    used = tuple(
        ControlUse(control, Picture.of(pixels(9 + number)), 0.7, *window, vae=vae)
        for number in range(uses)
    )
    begin = {
        "sampler_name": "euler",
        "scheduler": schedule(kind),
        "steps": STEPS,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(1, 16, SIZE[0] // 8, SIZE[1] // 8)},
        "model": model,
    }
    sides = (
        (ConditioningEntry(Prompt(clip, text), control=used),)
        for text in more.get("texts", PROMPTS)
    )
    expansion = expand_sampling("StepBegin", begin, model, *sides, more.get("cfg", guidance(kind)))
    return bind(expansion.graph, expansion.outputs[0].node)


@pytest.mark.parametrize("window", [(0.0, 1.0), (0.0, 0.5)])
@pytest.mark.parametrize("kind", EACH)
def test_a_picture_is_the_stock_pipeline_s(
    kind: Kind, window: tuple[float, float], folders: dict[Kind, Path]
) -> None:
    folder = folders[kind]
    with local_engine() as engine:
        ours = sample(engine, region(folder, kind, window=window))
        plain = sample(engine, region(folder, kind, uses=0))
        picture = engine.decode_latent(pipeline_recipes(folder)[2], ours, bare_context(engine))
    noise = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7))
    # diffusers counts steps, ours compares noise levels: two of four levels are above the half
    options = {"control_guidance_end": window[1]}
    if kind == "hunyuan_dit":  # no window in its pipeline
        options = {}
    asked = Asked(folder, kind, noise, STEPS, PROMPTS, GUIDANCE, pixels(), 0.7, options)
    wanted = stock(asked)()
    if window == (0.0, 1.0) or kind == "sd35":
        assert (picture - wanted).abs().max() <= 1e-5
    assert (ours - plain).abs().max() > 1e-2


@pytest.mark.parametrize("uses", [1, 2])
@pytest.mark.parametrize("kind", EACH)
def test_a_controlnet_on_another_device_gives_the_same_bits(
    kind: Kind, uses: int, folders: dict[Kind, Path], costs: Path
) -> None:
    wanted_region = region(folders[kind], kind, uses, cfg=4.0)
    with local_engine(batching=False, cache=costs) as engine:
        wanted = sample(engine, wanted_region)
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    with DeviceEngine(
        workers, cache=costs, link=NetworkLink(1e9, 1e-4), launchers=launchers
    ) as engine:
        pins = {
            operation.id: ("cpu:1" if "_control" in operation.stage else "cpu:0",)
            for operation in wanted_region.operations
            if stage(operation.stage).costed
        }
        target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
        program = plan_region(wanted_region, target)
        sent = {
            instruction.target
            for instruction in program.instructions["cpu:1"]
            if instruction.kind == "send" and "block" in instruction.target
        }
        made = engine.cluster.run(program, bare_context(engine)).samples
    assert torch.equal(made, wanted)
    assert len(sent) == 2 * uses * BLOCKS[kind]  # every residual is sent alone


@pytest.mark.parametrize("kind", EACH)
def test_one_step_behind_only_where_it_is_allowed(
    kind: Kind, folders: dict[Kind, Path], costs: Path
) -> None:
    wanted_region = region(folders[kind], kind, cfg=1.0)
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    slow = NetworkLink(1e4, 1e-3)  # slower than any CPU
    with local_engine(cache=costs) as engine:
        exact = sample(engine, wanted_region)
    with DeviceEngine(workers, cache=costs, link=slow, launchers=launchers) as engine:
        pins = {
            operation.id: ("cpu:1" if "_control" in operation.stage else "cpu:0",)
            for operation in wanted_region.operations
            if stage(operation.stage).costed
        }
        devices, links = engine.cluster.devices, engine.cluster.links
        made = {}
        for allowed in ((), ("stale-controlnet",)):
            target = Target(devices, links, pins, allowed=frozenset(allowed), batching=False)
            program = plan_region(wanted_region, target)
            made[allowed] = engine.cluster.run(program, bare_context(engine)).samples
            assert bool(program.stale) == bool(allowed)
    assert torch.equal(made[()], exact)
    stale = made[("stale-controlnet",)]
    assert not torch.equal(stale, exact) and stale.isfinite().all()


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize("what", ["windows", "one side", "areas", "ranges"])
def test_sides_that_differ_share_calls_as_far_as_they_are_alike(
    what: str, kind: Kind, folders: dict[Kind, Path], costs: Path
) -> None:
    """Planned, full and no batching give one picture, although the predictions differ in parts."""
    model, clip, vae = pipeline_recipes(folders[kind])
    control = controlnet_recipe(folders[kind] / "controlnet")
    use = ControlUse(control, Picture.of(pixels()), 0.7, vae=vae)
    one, two = (ConditioningEntry(Prompt(clip, text)) for text in PROMPTS)
    match what:
        case "windows":
            sides = (
                (one.with_control(use),),
                (two.with_control(replace(use, end_percent=0.5, strength=0.4)),),
            )
        case "one side":
            sides = (one.with_control(use),), (two,)
        case "areas":
            area = Area(2, 4, 4, 6)
            sides = (one, replace(two.with_control(use), area=area)), (two,)
        case _:
            sides = (replace(one, end_percent=0.5), replace(two, start_percent=0.5)), (two,)
    begin = {
        "sampler_name": "euler",
        "scheduler": schedule(kind),
        "steps": STEPS,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(2, 16, SIZE[0] // 8, SIZE[1] // 8)},
        "model": model,
    }
    expansion = expand_sampling("StepBegin", begin, model, *sides, 4.0)
    wanted_region = bind(expansion.graph, expansion.outputs[0].node)
    made = []
    for batching in (False, True, None):
        with local_engine(batching=batching, cache=costs) as engine:
            made.append(sample(engine, wanted_region))
    assert made[0].isfinite().all()
    for other in made[1:]:
        assert (other - made[0]).abs().max() <= 2e-5 * made[0].abs().max()


# Files and bad input


@pytest.mark.parametrize("kind", EACH)
def test_one_that_a_conditioning_carries_into_a_region_is_refused_with_the_way_out(
    kind: Kind, folders: dict[Kind, Path]
) -> None:
    wanted = region(folders[kind], kind, uses=0)
    use = ControlUse(controlnet_recipe(folders[kind] / "controlnet"), Picture.of(pixels()))
    operations = tuple(
        replace(
            one,
            inputs={
                name: tuple(entry.with_control(use) for entry in value)
                if name == "conditioning"
                else value
                for name, value in one.inputs.items()
            },
        )
        for one in wanted.operations
    )
    with local_engine() as engine:
        target = Target(engine.cluster.devices, engine.cluster.links)
        with pytest.raises(InputError, match="link TransformerControlBlock nodes to the Transf"):
            plan_region(replace(wanted, operations=operations), target)


@pytest.mark.parametrize("kind", EACH)
def test_a_single_file_is_the_folder_s_controlnet(
    kind: Kind, folders: dict[Kind, Path], tmp_path: Path
) -> None:
    heads = {"attention_head_dim": 32, "num_attention_heads": 1}
    blocks = 3 if kind == "hunyuan_dit" else 2
    module = draw_controlnet(
        kind,
        2,
        blocks,
        **heads,
        **({"axes_dims_rope": [4, 14, 14]} if kind in ("flux", "qwen_image") else {}),
    )
    save_file(dict(module.state_dict()), tmp_path / "control.safetensors")
    ours = controlnet_recipe(tmp_path / "control.safetensors")
    values = json.loads(ours.control_net.configuration or "")
    assert {name: values[name] for name in values} == {
        name: module.config.get(name, values[name]) for name in values
    }
    model, _, _ = pipeline_recipes(folders[kind])
    check_controlnet(ours, model)
    live = ModelStore().controlnet(ours.control_net, "cpu", torch.float32)
    assert all(
        torch.equal(live.state_dict()[name], one) for name, one in module.state_dict().items()
    )


def test_a_controlnet_of_another_family_or_size_is_refused(folders: dict[Kind, Path]) -> None:
    models = {kind: pipeline_recipes(place)[0] for kind, place in folders.items()}
    controls = {kind: controlnet_recipe(place / "controlnet") for kind, place in folders.items()}
    with pytest.raises(InputError, match="it is made for FLUX"):
        check_controlnet(controls["flux"], models["sd35"])
    wide = draw_controlnet("flux", 1, num_attention_heads=3)
    with pytest.raises(InputError, match="its width is 48, the transformer in"):
        check_controlnet(ControlNetRecipe(recipe(wide)), models["flux"])
    many = draw_controlnet("hunyuan_dit", 1, blocks=4)
    with pytest.raises(InputError, match=r"has 4 blocks, the transformer in .* takes 3$"):
        check_controlnet(ControlNetRecipe(recipe(many)), models["hunyuan_dit"])
    older = draw_controlnet("hunyuan_dit11", 1, blocks=3)
    with pytest.raises(InputError, match=r"reads the picture's sizes, .* does not: use one"):
        check_controlnet(ControlNetRecipe(recipe(older)), models["hunyuan_dit"])
    deep = draw_controlnet("sd35", 1, blocks=6)
    with pytest.raises(InputError, match="has 6 blocks, the transformer in"):
        check_controlnet(ControlNetRecipe(recipe(deep)), models["sd35"])


@pytest.mark.parametrize("kind", EACH)
def test_a_controlnet_that_reads_latents_needs_a_vae(kind: Kind, folders: dict[Kind, Path]) -> None:
    model, clip, _ = pipeline_recipes(folders[kind])
    use = ControlUse(controlnet_recipe(folders[kind] / "controlnet"), Picture.of(pixels()))
    entry = (ConditioningEntry(Prompt(clip, ""), control=(use,)),)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 12)}}
    with pytest.raises(InputError, match="link the model's VAE to ControlNetApplyAdvanced"):
        expand_sampling("StepBegin", begin, model, entry, entry, 1.0)


def test_a_controlnet_takes_the_vae_of_its_model(folders: dict[Kind, Path]) -> None:
    model, clip, _ = pipeline_recipes(folders["sd35"])
    other = pipeline_recipes(folders["hunyuan_dit"])[2]
    use = ControlUse(controlnet_recipe(folders["sd35"] / "controlnet"), Picture.of(pixels()))
    entry = (ConditioningEntry(Prompt(clip, ""), control=(replace(use, vae=other),)),)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 12)}}
    with pytest.raises(InputError, match=r"gives latents of 4 channels, .* reads 16: link the"):
        expand_sampling("StepBegin", begin, model, entry, entry, 1.0)
