"""FLUX.2 transformers in stages equal diffusers' `forward` with references, their pictures equal the
pipelines', their files are read as diffusers converts them, and each text encoder has its layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import Flux2KleinKVPipeline, Flux2Pipeline
from diffusers.loaders.single_file_utils import convert_flux2_transformer_checkpoint_to_diffusers
from diffusers.models.transformers.transformer_flux2 import (
    Flux2KVAttnProcessor,
    Flux2KVParallelSelfAttnProcessor,
)
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers_made import COSTED, in_stages, inputs

from katz_graph.core.errors import InputError
from katz_graph.core.patches import ReferencesApart
from katz_graph.core.recipe import ConditioningEntry, Picture, Prompt, References
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.models.configuration import config
from katz_graph.models.costs.counts import Counts
from katz_graph.models.family import family_of
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.convert import tensors as loaded_tensors
from katz_graph.models.loading.sources import (
    network_recipe,
    pipeline_recipes,
    typed_clip_recipe,
)
from katz_graph.models.stages import Sized
from katz_graph.models.text.kinds import kind_of, text_width
from katz_graph.models.text.tokens import load_tokenizer, sequence
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.sampling import table_of
from katz_graph.sampling.names import SamplerChoice
from katz_graph.sampling.schedules import levels_for_size
from katz_graph.testing.random_models import Kind, draw_network, make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.stand_ins.catalogue import write_stand_in
from katz_graph.testing.stock_pipelines import TEXTS, Asked, loaded, stock
from katz_graph.testing.worker_threads import WorkerThreads

SIZES = (6, 10), (3, 8)  # cells of references

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def pipelines(
    folders: dict[Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[Kind, Path]:
    dev = tmp_path_factory.mktemp("dev")
    make_pipeline(dev, "flux2", 5)
    return {"flux2": dev, "klein": folders["klein"]}


def references(batch: int, dtype: torch.dtype, sizes: Sequence[Sequence[int]]) -> Any:
    draw = torch.Generator().manual_seed(5)
    return tuple(torch.randn(batch, 128, *size, generator=draw).to(dtype) for size in sizes)


def forward_apart(module: Any, step: Any, text: Any, seen: Sequence[Tensor]) -> Tensor:
    """Returns diffusers' prediction with references that attend to references only, called as its
    pipeline calls the module at the first step.
    """
    for one in (*module.transformer_blocks, *module.single_transformer_blocks):
        double = hasattr(one, "ff")
        one.attn.set_processor(
            Flux2KVAttnProcessor() if double else Flux2KVParallelSelfAttnProcessor()
        )
    x = step.model_input
    read = torch.cat([Flux2Pipeline._pack_latents(one) for one in seen], dim=1)
    tokens = torch.cat([read, Flux2Pipeline._pack_latents(x)], dim=1)
    places = Flux2Pipeline._prepare_image_ids([one[:1] for one in seen])
    ids = torch.cat([places, Flux2Pipeline._prepare_latent_ids(x[:1])], dim=1)
    words = Flux2Pipeline._prepare_text_ids(text.hidden)
    how = {"kv_cache_mode": "extract", "num_ref_tokens": read.shape[1]}
    whole = module(tokens, text.hidden, step.timestep.float(), ids, words, **how).sample
    return whole.mT.reshape(x.shape)


def forward(module: Any, step: Any, text: Any, seen: Sequence[Tensor]) -> Tensor:
    """Returns diffusers' prediction, called as its pipelines call the module."""
    x = step.model_input
    tokens = torch.cat([Flux2Pipeline._pack_latents(one) for one in (x, *seen)], dim=1)
    ids = Flux2Pipeline._prepare_latent_ids(x)
    if seen:
        places = Flux2Pipeline._prepare_image_ids([one[:1] for one in seen])
        ids = torch.cat([ids, places.expand(len(x), -1, -1)], dim=1)
    words = Flux2Pipeline._prepare_text_ids(text.hidden)
    time = step.timestep.float()
    whole = module(tokens, text.hidden, time, ids, words, text.guidance).sample
    return whole[:, : x[0, 0].numel()].mT.reshape(x.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["flux2", "klein"])
def test_references_are_tokens_behind_the_picture_s(
    kind: Kind, batch: int, dtype: torch.dtype
) -> None:
    module = draw_network(kind, 3).to(dtype)
    step, text = inputs(module, batch, dtype)
    for count in (1, 2):
        seen = references(batch, dtype, SIZES[:count])
        wanted = forward(module, step, text, seen)
        for cuts in ([], [0, 2]):
            assert torch.equal(in_stages(module, step, text, cuts, seen), wanted)
    without = forward(module, step, text, seen[1:])
    assert (without - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
def test_references_may_attend_to_references_only(batch: int, dtype: torch.dtype) -> None:
    module = draw_network("klein", 3).to(dtype)
    step, text = inputs(module, batch, dtype)
    seen = references(batch, dtype, SIZES)
    usual = in_stages(module, step, text, [], seen)
    found = [in_stages(module, step, text, cuts, seen, "apart") for cuts in ([], [0, 2])]
    wanted = forward_apart(module, step, text, seen)
    assert all(torch.equal(one, wanted) for one in found)
    assert (usual - wanted).abs().max() > 1e-3
    assert torch.equal(in_stages(module, step, text, [], seen), usual)


def test_guidance_is_an_input_of_dev_alone() -> None:
    for kind, reads in (("flux2", True), ("klein", False)):
        module = draw_network(kind, 3)
        step, text = inputs(module, 1, torch.float32)
        made = [
            in_stages(module, step, replace(text, guidance=given), [])
            for given in (None, torch.full((1,), 3.5), torch.full((1,), 4.0))
        ]
        changes = [(one - made[0]).abs().max() > 1e-3 for one in made[1:]]
        assert changes == [reads, reads]


@pytest.mark.parametrize(("kind", "wanted"), [("flux2", 3.5), ("klein", "off")])
def test_dev_has_a_default_guidance(kind: Kind, wanted: Any, pipelines: dict[Kind, Path]) -> None:
    model, clip, _ = pipeline_recipes(pipelines[kind])
    complete = family_of(model.network).network.complete
    for given in (None, 4.0):
        entry = ConditioningEntry(Prompt(clip, "sand"), guidance=given)
        found = complete(entry, model, {}, True).guidance
        assert found == (given if given and kind == "flux2" else wanted)


@pytest.mark.parametrize(
    ("method", "problem"), [("uxo", "no reference method uxo"), (None, "4 channels")]
)
def test_references_of_other_models_are_refused(
    method: Any, problem: str, pipelines: dict[Kind, Path]
) -> None:
    model, clip, _ = pipeline_recipes(pipelines["klein"])
    latent = Picture.of(torch.ones(1, 128 if method else 4, 4, 4))
    seen = References((latent,), method or "offset")
    entry = ConditioningEntry(Prompt(clip, "sand"), references=seen)
    with pytest.raises(InputError, match=problem):
        family_of(model.network).network.complete(entry, model, {}, True)


def test_models_of_other_families_take_no_references_apart(folders: dict[Kind, Path]) -> None:
    model, clip, _ = pipeline_recipes(folders["flux"])
    text = (ConditioningEntry(Prompt(clip, "sand")),)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 8)}}
    patched = model.with_patch(ReferencesApart())
    with pytest.raises(InputError, match="remove FluxKVCache"):
        expand_sampling("StepBegin", begin, patched, text, text, 1.0)


# Pictures


@pytest.mark.parametrize("kind", ["flux2", "klein"])
def test_a_picture_with_references_is_the_stock_pipeline_s(
    kind: Kind, pipelines: dict[Kind, Path]
) -> None:
    """Klein with references that attend to references only, whose keys and values its pipeline
    keeps.
    """
    model, clip, vae = pipeline_recipes(pipelines[kind])
    if kind == "klein":
        model = model.with_patch(ReferencesApart())
    draw = np.random.default_rng(3)
    pictures = [
        Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8))
        for size in ((96, 64), (64, 128))
    ]
    noise = torch.randn(1, 128, 4, 6, generator=torch.Generator().manual_seed(7))
    with local_engine() as engine:
        context, latents = bare_context(engine), []
        for one in pictures:
            pixels = torch.from_numpy(np.asarray(one) / np.float32(255))[None]
            latents.append(Picture.of(engine.encode_image(vae, pixels, context)))
        seen = References(tuple(latents))
        sides = [(ConditioningEntry(Prompt(clip, text), references=seen),) for text in TEXTS]
        begin = {
            "model": model,
            "latent_image": {"samples": torch.zeros_like(noise)},
            "sampler": SamplerChoice("euler"),
            "sigmas": levels_for_size(3, 96, 64),
            "seed": 7,
        }
        expansion = expand_sampling("SigmasStepBegin", begin, model, *sides, 1.0)
        ours = sample(engine, bind(expansion.graph, expansion.outputs[0].node))
        picture = engine.decode_latent(vae, ours, context)
    asked = Asked(pipelines[kind], kind, noise, 3)
    if kind == "klein":
        pipeline = Flux2KleinKVPipeline.from_pretrained(pipelines[kind])
        size = {"height": 64, "width": 96, "num_inference_steps": 3, "output_type": "pt"}
        wanted, fewer = (
            pipeline(pictures[:count], TEXTS[0], latents=noise, **size).images.movedim(1, -1)
            for count in (2, 1)
        )
    else:
        pipeline = loaded(asked, None, torch.float32)
        wanted, fewer = (
            stock(replace(asked, arguments={"image": pictures[:count]}), pipeline=pipeline)()
            for count in (2, 1)
        )
    assert (picture - wanted).abs().max() <= 1e-5
    assert (fewer - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("apart", [False, True])
def test_references_give_the_same_bits_on_two_devices(
    apart: bool, folders: dict[Kind, Path], costs: Path
) -> None:
    model, clip, _ = pipeline_recipes(folders["klein"])
    if apart:
        model = model.with_patch(ReferencesApart())
    seen = References(tuple(map(Picture.of, references(1, torch.float32, SIZES))))
    entry = (ConditioningEntry(Prompt(clip, "sand"), references=seen),)
    begin = {
        "sampler_name": "euler",
        "scheduler": "simple",
        "steps": 2,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(1, 128, 4, 4)},
        "model": model,
    }
    expansion = expand_sampling("StepBegin", begin, model, entry, entry, 1.0)
    region = bind(expansion.graph, expansion.outputs[0].node)
    with local_engine(batching=False, cache=costs) as engine:
        wanted = sample(engine, region)
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        costed = [one.id for one in region.operations if one.stage in COSTED]
        pins = {name: (f"cpu:{place % 2}",) for place, name in enumerate(costed)}
        target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
        program = plan_region(region, target)
        assert torch.equal(engine.cluster.run(program, bare_context(engine)).samples, wanted)


def test_levels_are_comfyui_s_for_files_and_folders(
    pipelines: dict[Kind, Path], tmp_path: Path
) -> None:
    """A folder's scheduler shifts by picture size."""
    module = draw_network("klein", 1, blocks=2)
    save_file(original(module), tmp_path / "file.safetensors")
    shift = torch.tensor(2.02).exp()
    for model in (
        pipeline_recipes(pipelines["klein"])[0],
        network_recipe(tmp_path / "file.safetensors"),
    ):
        table = table_of(model)
        assert len(table.sigmas) == 10_000 and table.timestep_at(0.25) == 0.25
        assert float(table.sigma_at(torch.tensor(0.5))) == pytest.approx(
            float(shift * 0.5 / (1 + (shift - 1) * 0.5)), abs=1e-6
        )


# Texts


@pytest.mark.parametrize(
    ("name", "title", "left"),
    [
        ("mistral_3_small_flux2_bf16.safetensors", "Mistral 3", True),
        ("mistral_3_small_flux2_fp8.safetensors", "Mistral 3", True),
        ("qwen_3_8b_fp8mixed.safetensors", "Qwen3", False),
    ],
)
def test_the_file_decides_how_a_text_is_read(
    name: str, title: str, left: bool, tmp_path: Path
) -> None:
    assert write_stand_in(tmp_path, "clip", name)
    (path,) = tmp_path.rglob(name)
    clip = typed_clip_recipe([path], "flux2")
    (one,) = clip.encoders
    assert kind_of(one.encoder).title == title and text_width(clip) == 3 * 64
    words = load_tokenizer(one)
    tokens = [token for token, _ in sequence(words, "a cube", clip.layout)]
    pads = [place for place, token in enumerate(tokens) if token == words.pad_token_id]
    assert len(tokens) == 512 > len(pads) > 256
    assert pads == [*range(len(pads))] if left else [*range(512 - len(pads), 512)]
    work = Counts().work(config(one.encoder), "text_encoder", Sized(1, 8, 8, 512))
    assert work.flops > 0


# Files

LAYERS = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_guidance_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_guidance_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "double_stream_modulation_img.linear": "double_stream_modulation_img.lin",
    "double_stream_modulation_txt.linear": "double_stream_modulation_txt.lin",
    "single_stream_modulation.linear": "single_stream_modulation.lin",
    "proj_out": "final_layer.linear",
}


def original(module: Any) -> dict[str, Tensor]:
    """Returns a transformer's tensors in the original layout."""
    own = dict(module.state_dict())
    made = {
        f"{LAYERS[name]}.weight": own.pop(f"{name}.weight")
        for name in LAYERS
        if f"{name}.weight" in own
    }
    scale, shift = own.pop("norm_out.linear.weight").chunk(2)
    made["final_layer.adaLN_modulation.1.weight"] = torch.cat([shift, scale])
    for number in range(len(module.transformer_blocks)):
        before, after = f"transformer_blocks.{number}", f"double_blocks.{number}"
        for side, more, feed, layers in (
            ("img", "", "ff", ("to_q", "to_k", "to_v", "to_out.0")),
            (
                "txt",
                "added_",
                "ff_context",
                ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
            ),
        ):
            query, key, value, out = (own.pop(f"{before}.attn.{one}.weight") for one in layers)
            made[f"{after}.{side}_attn.qkv.weight"] = torch.cat([query, key, value])
            made[f"{after}.{side}_attn.proj.weight"] = out
            for one in ("query", "key"):
                norm = own.pop(f"{before}.attn.norm_{more}{one[0]}.weight")
                made[f"{after}.{side}_attn.norm.{one}_norm.scale"] = norm
            for place, one in ((0, "in"), (2, "out")):
                made[f"{after}.{side}_mlp.{place}.weight"] = own.pop(
                    f"{before}.{feed}.linear_{one}.weight"
                )
    for number in range(len(module.single_transformer_blocks)):
        before, after = f"single_transformer_blocks.{number}.attn", f"single_blocks.{number}"
        made[f"{after}.linear1.weight"] = own.pop(f"{before}.to_qkv_mlp_proj.weight")
        made[f"{after}.linear2.weight"] = own.pop(f"{before}.to_out.weight")
        for one in ("query", "key"):
            made[f"{after}.norm.{one}_norm.scale"] = own.pop(f"{before}.norm_{one[0]}.weight")
    assert not own
    return {name: one.contiguous() for name, one in made.items()}


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("kind", ["flux2", "klein"])
def test_files_of_the_original_layout_are_read_as_diffusers_converts_them(
    kind: Kind, prefix: str, tmp_path: Path
) -> None:
    module = draw_network(kind, 2, blocks=2, out_channels=128)
    tensors = original(module)
    save_file({prefix + name: one for name, one in tensors.items()}, tmp_path / "one.safetensors")
    network = network_recipe(tmp_path / "one.safetensors").network
    values = {name: value for name, value in config(network).items() if name != "_class_name"}
    assert values == {name: module.config[name] for name in values}
    ours = loaded_tensors(network, blank(network))
    wanted = convert_flux2_transformer_checkpoint_to_diffusers(dict(tensors))
    assert ours.keys() == wanted.keys() == module.state_dict().keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in ours.items())
