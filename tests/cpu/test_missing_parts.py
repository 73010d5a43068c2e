"""Parts missing from a checkpoint are reported only when something uses them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from node_calls import call, context_in
from single_files import pipeline_folder, save
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import Lora, VaeRecipe
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.models.families.unet.random_models.original import original_vae
from katz_graph.models.families.unet.stand_ins import checkpoint_tensors, parts
from katz_graph.models.loading.sources import network_recipe, pipeline_recipes, vae_recipe
from katz_graph.models.text.vocabularies import text_encoder
from katz_graph.testing.random_models import Kind, make_pipeline
from katz_graph.testing.requests import bare_context, local_engine

NETWORK, VAE, TEXT = "model.diffusion_model.", "first_stage_model.", "cond_stage_model."
NO_VAE = "has no VAE: use VAELoader"
NO_TEXT = "has no text encoders: use CLIPLoader"


def without(*prefixes: str) -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in checkpoint_tensors("sd1").items()
        if not name.startswith(prefixes)
    }


def saved(folder: Path, tensors: dict[str, Tensor]) -> Path:
    path = folder / "models/checkpoints/mine.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, tensors)
    return path


def loaded(folder: Path) -> tuple[Any, list[str]]:
    context = context_in(folder)
    found = call("CheckpointLoaderSimple", context, ckpt_name="mine.safetensors")
    return found, list(context.warnings)


@pytest.mark.defect(14)
def test_a_checkpoint_without_a_vae_paints_with_another(tmp_path: Path, costs: Path) -> None:
    path = saved(tmp_path, without(VAE))
    (model, clip, vae), warnings = loaded(tmp_path)
    assert warnings == [f"{path}: {NO_VAE}"]
    with local_engine(batching=False, cache=costs) as engine:
        sampler = {
            "model": model,
            "latent_image": {"samples": torch.zeros(1, 4, 8, 8)},
            "seed": 1,
            "steps": 1,
            "cfg": 1.0,
            "sampler_name": "euler",
            "scheduler": "normal",
        }
        nodes = {
            "text": NodeCall("CLIPTextEncode", {"clip": clip, "text": "sand"}),
            "sampler": NodeCall(
                "KSampler",
                {**sampler, "positive": Link("text", 0), "negative": Link("text", 0)},
            ),
        }

        def decoded(one: VaeRecipe) -> Any:
            decode = NodeCall("VAEDecode", {"samples": Link("sampler", 0), "vae": one})
            graph = Graph({**nodes, "out": decode})
            return run_graph(graph, bare_context(engine), ResultCache("none"), targets=["out"])

        own = pipeline_recipes(pipeline_folder("sd1"))[2]
        result = decoded(own)
        result.raise_failures()
        assert result.outputs["out"][0].shape == (1, 64, 64, 3)
        with pytest.raises(InputError, match=rf"node out \(VAEDecode\): .*{NO_VAE}"):
            decoded(vae).raise_failures()


@pytest.mark.defect(14)
def test_a_checkpoint_without_text_encoders_is_refused_where_a_text_is_written(
    tmp_path: Path,
) -> None:
    saved(tmp_path, without(TEXT))
    (model, clip, vae), warnings = loaded(tmp_path)
    assert len(warnings) == 1
    assert NO_TEXT in warnings[0]
    context = context_in(tmp_path)
    with pytest.raises(InputError, match=NO_TEXT):
        call("CLIPTextEncode", context, clip=clip, text="sand")
    # nodes that pass it on do not fail
    assert call("CLIPSetLastLayer", context, clip=clip, stop_at_clip_layer=-2).missing
    assert clip.with_lora(Lora(model.network.files[0], 1.0)).missing
    assert DeviceModels().decode_latent(vae, torch.zeros(1, 4, 4, 4))[0].shape == (1, 32, 32, 3)


@pytest.mark.defect(14)
@pytest.mark.parametrize("prefix", ["", NETWORK])
def test_a_bare_network_comes_through_the_checkpoint_loader(tmp_path: Path, prefix: str) -> None:
    network = {
        prefix + name.removeprefix(NETWORK): tensor
        for name, tensor in checkpoint_tensors("sd1").items()
        if name.startswith(NETWORK)
    }
    path = saved(tmp_path, network)
    (model, clip, vae), warnings = loaded(tmp_path)
    assert [NO_TEXT in warnings[0], NO_VAE in warnings[1]] == [True, True]
    assert clip.missing
    assert vae.missing
    assert model == network_recipe(path)


@pytest.mark.defect(14)
@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        ((NETWORK,), "without a UNet or a transformer: load its parts with CLIPLoader and VAE"),
        ((NETWORK, TEXT), "without a UNet or a transformer: load its parts with VAELoader, and"),
    ],
)
def test_a_checkpoint_needs_a_network(
    tmp_path: Path, left_out: tuple[str, ...], words: str
) -> None:
    saved(tmp_path, without(*left_out))
    with pytest.raises(InputError, match=words):
        loaded(tmp_path)


@pytest.mark.defect(14)
def test_a_folder_without_parts_too(tmp_path: Path) -> None:
    place = tmp_path / "model"
    shutil.copytree(pipeline_folder("sd1"), place)
    shutil.rmtree(place / "vae")
    index = json.loads((place / "model_index.json").read_text())
    index |= {"text_encoder": [None, None], "tokenizer": [None, None]}
    (place / "model_index.json").write_text(json.dumps(index))
    model, clip, vae = pipeline_recipes(place)
    assert clip.missing
    assert vae.missing
    assert (model.latent.scale, model.latent.channels) == (0.18215, 4)


@pytest.mark.defect(14)
@pytest.mark.parametrize("kind", ["sd1", "sd35", "z_image"])
def test_a_folder_without_scheduler_or_tokenizer_has_the_usual_ones(
    tmp_path: Path, kind: Kind
) -> None:
    place = tmp_path / "model"
    make_pipeline(place, kind, 1)
    for part in ("scheduler", *(one.name for one in place.glob("tokenizer*"))):
        shutil.rmtree(place / part)
    model, clip, _ = pipeline_recipes(place)
    assert model == replace(network_recipe(model.network.folder), latent=model.latent)
    for one in clip.encoders:
        assert one == text_encoder(one.encoder)


# Partial VAEs


def half(kind: str, names: str) -> dict[str, Tensor]:
    module = parts("sd1")["vae"]
    tensors = original_vae(module) if names == "original" else module.state_dict()
    other = ("encoder.", "quant_conv.") if kind == "decoder" else ("decoder.", "post_quant_conv.")
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(other)}


@pytest.mark.defect(14)
@pytest.mark.parametrize("layout", ["original", "diffusers", "folder"])
def test_a_half_of_a_vae_does_its_half(tmp_path: Path, layout: str) -> None:
    models, whole = DeviceModels(), vae_recipe(pipeline_folder("sd1") / "vae")
    latent = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(1))
    picture = torch.rand(1, 32, 32, 3, generator=torch.Generator().manual_seed(2))

    def only(kind: str) -> VaeRecipe:
        place = tmp_path / kind
        if layout != "folder":
            save(place.with_suffix(".safetensors"), half(kind, layout))
            return vae_recipe(place.with_suffix(".safetensors"))
        shutil.copytree(pipeline_folder("sd1") / "vae", place)
        save(place / "diffusion_pytorch_model.safetensors", half(kind, "diffusers"))
        return vae_recipe(place)

    decoder, encoder = only("decoder"), only("encoder")
    assert torch.equal(
        models.decode_latent(decoder, latent)[0], models.decode_latent(whole, latent)[0]
    )
    assert torch.equal(
        models.encode_image(encoder, picture)[0], models.encode_image(whole, picture)[0]
    )
    with pytest.raises(InputError, match=r"has only its decoder, so it cannot encode pictures"):
        models.encode_image(decoder, picture)
    with pytest.raises(InputError, match=r"has only its encoder, so it cannot decode latents"):
        models.decode_latent(encoder, latent)
