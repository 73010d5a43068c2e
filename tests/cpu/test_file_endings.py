"""Weights are found and loaded with any file ending: `.SAFETENSORS`, `.sft`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from loaded import load
from node_calls import call, context_in, registry
from safetensors.torch import load_file, save_file
from single_files import checkpoint, controlnet, save
from tiny_models import lora_file

from katz_graph.core.recipe import Rrdb
from katz_graph.models.families.unet.random_models.original import (
    original_unet,
    original_vae,
    transformers_text,
)
from katz_graph.models.families.unet.stand_ins import parts
from katz_graph.models.loading.component import component
from katz_graph.models.loading.identity import count_values
from katz_graph.upscale.networks import RrdbNet

LOADERS = {
    "checkpoints": ("CheckpointLoaderSimple", "ckpt_name"),
    "vae": ("VAELoader", "vae_name"),
    "text_encoders": ("CLIPLoader", "clip_name"),
    "diffusion_models": ("UNETLoader", "unet_name"),
    "controlnet": ("ControlNetLoader", "control_net_name"),
    "upscale_models": ("UpscaleModelLoader", "model_name"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder, made = tmp_path_factory.mktemp("files"), parts("sd1")
    tensors = {
        "vae": original_vae(made["vae"]),
        "text_encoders": transformers_text(made["text_encoder"]),
        "diffusion_models": original_unet(made["unet"]),
        "controlnet": original_unet(controlnet("sd1")),
        "embeddings": {"emb_params": torch.zeros(2, 64)},
        "upscale_models": RrdbNet(
            Rrdb(features=8, growth=4, blocks=1, doublings=2, unshuffle=1)
        ).state_dict(),
    }
    for kind, named in tensors.items():
        save(folder / f"{kind}.safetensors", named)
    found = {kind: folder / f"{kind}.safetensors" for kind in tensors}
    return found | {"checkpoints": checkpoint("sd1"), "loras": lora_file("sd1")}


@pytest.mark.defect(13)
@pytest.mark.parametrize("ending", [".SAFETENSORS", ".sft"])
def test_every_loader_takes_every_ending(
    tmp_path: Path, files: Mapping[str, Path], ending: str
) -> None:
    for kind, file in files.items():
        folder = tmp_path / "models" / kind
        folder.mkdir(parents=True)
        (folder / f"mine{ending}").hardlink_to(file)
    context = context_in(tmp_path)
    recipes: dict[str, Any] = {}
    for kind, (loader, knob) in LOADERS.items():
        assert f"mine{ending}" in context.folders.choices(kind)
        recipes[kind] = call(loader, context, **{knob: f"mine{ending}"})
        fingerprint = registry()[loader].fingerprint
        assert fingerprint is not None
        assert fingerprint(context, {**call_defaults(loader), knob: f"mine{ending}"})
    model, clip, _ = recipes["checkpoints"]
    patched, _ = call("LoraLoader", context, model=model, clip=clip, lora_name=f"mine{ending}")
    (entry,) = call("CLIPTextEncode", context, clip=clip, text="sand embedding:mine")
    assert not context.warnings
    found = (*recipes["checkpoints"], *recipes.values(), entry.encoding.clip, patched.loras[0].file)
    for recipe in found:
        if not isinstance(recipe, tuple):
            load(recipe)
    assert count_values(model.network) == sum(
        one.numel() for one in parts("sd1")["unet"].parameters()
    )


def call_defaults(loader: str) -> dict[str, Any]:
    return {name: port.default for name, port in registry()[loader].inputs.items()}


@pytest.mark.defect(13)
def test_folders_of_diffusers_too(tmp_path: Path) -> None:
    module = parts("sd1")["vae"]
    module.save_pretrained(tmp_path / "vae")
    plain = tmp_path / "vae/diffusion_pytorch_model.safetensors"
    half = {name: one.half() for name, one in load_file(plain).items()}
    save_file(half, tmp_path / "vae/diffusion_pytorch_model.fp16.SFT")
    # files without a variant come first
    assert component(tmp_path / "vae", "vae").weight_files[0].path == str(plain)
    plain.rename(plain.with_suffix(".SAFETENSORS"))
    chosen = component(tmp_path / "vae", "vae").weight_files[0].path
    assert chosen == str(plain.with_suffix(".SAFETENSORS"))
    plain.with_suffix(".SAFETENSORS").unlink()
    assert component(tmp_path / "vae", "vae").weight_files[0].path.endswith(".fp16.SFT")
