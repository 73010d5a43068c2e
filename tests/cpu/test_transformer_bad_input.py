"""Transformer workflows that cannot run are refused in one line, which names the file or node, its
kind, and what fits; others run.

Quantisation markers in all forms: `test_quantised.py`. LoRAs in all namings:
`test_transformer_loras.py`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers_made import region_of

import katz_graph as katz
from katz_graph.core.errors import InputError
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.ir.device import Target
from katz_graph.models.families.flux import stand_ins as flux_files
from katz_graph.models.families.flux.family import FAMILY as FLUX
from katz_graph.models.families.shared import stand_ins as shared
from katz_graph.models.families.z_image import stand_ins as z_image_files
from katz_graph.models.loading.sources import clip_recipe, network_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.random_models import Kind, draw_controlnet, make_pipeline
from katz_graph.testing.requests import local_engine
from katz_graph.testing.stand_ins import formats, text_encoders
from katz_graph.testing.stand_ins.formats import marker

FAMILIES: tuple[Kind, ...] = ("flux", "z_image", "sd35", "hunyuan_dit")
SIDE = 64  # of pictures, in pixels
FITS = "use a file of the same model with bf16, fp16, fp8 or int8_tensorwise weights"
RUNS = (
    "Katz Graph runs SD1.5, SD2 and SDXL, SD3 and SD3.5, FLUX.1, Z-Image, HunyuanDiT, Qwen-Image, "
    "Krea 2, FLUX.2, Qwen-Image 2.1 or Anima"
)

torch.set_num_threads(1)


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: one.contiguous() for name, one in tensors.items()}, path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes models and pictures."""
    place = tmp_path_factory.mktemp("people")
    models = place / "models"
    unet, clip = models / "diffusion_models", models / "text_encoders"
    formats.write(unet / "flux.safetensors", flux_files.flux())
    formats.write(unet / "z_image.safetensors", z_image_files.z_image())
    formats.write(clip / "clip_l.safetensors", text_encoders.clip_l())
    formats.write(clip / "clip_g.safetensors", text_encoders.clip_g())
    formats.write(clip / "t5.safetensors", text_encoders.t5())
    formats.write(clip / "qwen.safetensors", text_encoders.qwen3())
    formats.write(models / "vae" / "ae.safetensors", flux_files.vae())
    for kind in FAMILIES:
        make_pipeline(models / "checkpoints" / kind, kind, 1, blocks=3, with_t5=kind == "sd35")
    kinds: tuple[Kind, ...] = ("sd35", "flux", "hunyuan_dit")
    for kind in kinds:
        draw_controlnet(kind, 2).save_pretrained(models / "controlnet" / kind)
    wide = draw_controlnet("flux", 2, num_attention_heads=3)
    wide.save_pretrained(models / "controlnet" / "wide")
    draw_controlnet("flux", 2, blocks=5).save_pretrained(models / "controlnet" / "deep")
    (models / "loras").mkdir()
    (place / "input").mkdir()
    Image.new("RGB", (SIDE, SIDE), (200, 40, 40)).save(place / "input" / "seen.png")
    return place


@pytest.fixture(scope="module")
def engine(place: Path) -> Iterator[katz.Engine]:
    models, pictures = str(place / "models"), str(place / "input")
    with katz.open(models=models, input=pictures, output=str(place / "output")) as engine:
        yield engine


def linked(value: Any) -> Any:
    """Makes `@name:0` a link to a node's output."""
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    name, _, output = value.partition(":")
    return [name, int(output)]


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": {name: linked(one) for name, one in inputs.items()}}


def graph(kind: str = "sd35", **more: Any) -> dict[str, Any]:
    """Returns a workflow of a whole pipeline; `more` adds or replaces nodes."""
    return {
        "@all": node("CheckpointLoaderSimple", ckpt_name=kind),
        "@text": node("CLIPTextEncode", clip="@all:1", text="a red circle"),
        "@other": node("CLIPTextEncode", clip="@all:1", text=""),
        "@latent": node("EmptySD3LatentImage", width=SIDE, height=SIDE, batch_size=1),
        "@sample": sampled(),
        "@picture": node("VAEDecode", samples="@sample:0", vae="@all:2"),
        "@saved": node("SaveImage", images="@picture:0", filename_prefix="x"),
        **{f"@{name}": one for name, one in more.items()},
    }


def sampled(**changed: Any) -> dict[str, Any]:
    usual = {
        "model": "@all:0",
        "positive": "@text:0",
        "negative": "@other:0",
        "latent_image": "@latent:0",
        "seed": 1,
        "steps": 1,
        "cfg": 2.0,
        "sampler_name": "euler",
        "scheduler": "simple",
        "denoise": 1.0,
    }
    return node("KSampler", **usual | changed)


def parts(file: str, **changed: Any) -> dict[str, Any]:
    """Returns a workflow of separate loaders; `changed` replaces nodes."""
    loaders = {
        "network": node("UNETLoader", unet_name=file, weight_dtype="default"),
        "clip": clips("clip_l", "t5", type="flux"),
        "vae": node("VAELoader", vae_name="ae.safetensors"),
        "text": node("CLIPTextEncode", clip="@clip:0", text="a red circle"),
        "other": node("CLIPTextEncode", clip="@clip:0", text=""),
        "sample": sampled(model="@network:0"),
        "picture": node("VAEDecode", samples="@sample:0", vae="@vae:0"),
    }
    whole = graph(**loaders | changed)
    del whole["@all"]
    return whole


def clips(*files: str, type: str = "") -> dict[str, Any]:
    types = {"type": type} if type else {}
    kind = {1: "CLIPLoader", 2: "DualCLIPLoader", 3: "TripleCLIPLoader"}[len(files)]
    called = ["clip_name"] if len(files) == 1 else [f"clip_name{n + 1}" for n in range(len(files))]
    chosen = {one: f"{file}.safetensors" for one, file in zip(called, files, strict=True)}
    return node(kind, **chosen, **types)


def refused(engine: katz.Engine, workflow: dict[str, Any]) -> str:
    """Runs a workflow that must be refused; returns the message, a single line."""
    with pytest.raises(InputError) as caught:
        engine.run(workflow)
    line = str(caught.value)
    assert "\n" not in line and "Traceback" not in line and "Error:" not in line
    return line


# Files

UNSUPPORTED_FAMILIES = {
    "HunyuanVideo": ("txt_in.individual_token_refiner.blocks.0.norm1.weight", "double_blocks.0.img_attn.norm.query_norm.scale"),
    "Wan": ("head.modulation", "blocks.0.cross_attn.norm_k.weight", "patch_embedding.weight"),
    "LTX-Video": ("patchify_proj.weight", "transformer_blocks.0.attn1.to_q.weight"),
    "Stable Video Diffusion": ("input_blocks.1.0.time_stack.in_layers.0.weight", "input_blocks.0.0.weight"),
    "Mochi": ("t5_yproj.weight", "blocks.0.attn.qkv_x.weight"),
    "CogVideoX": ("patch_embed.text_proj.weight", "transformer_blocks.0.norm1.linear.weight"),
    "Cosmos": ("net.x_embedder.proj.1.weight",),
    "Chroma": ("distilled_guidance_layer.0.norms.0.scale", "double_blocks.0.img_attn.norm.query_norm.scale"),
    "HiDream": ("double_stream_blocks.0.block.attn1.to_q.weight",),
    "Kandinsky 5": ("visual_transformer_blocks.0.cross_attention.key_norm.weight",),
}  # fmt: skip


@pytest.mark.parametrize("prefix", ["", shared.PREFIX])
@pytest.mark.parametrize("name", UNSUPPORTED_FAMILIES)
def test_a_model_of_another_family_is_called_by_its_name(
    name: str, prefix: str, engine: katz.Engine, place: Path
) -> None:
    path = place / "models" / "diffusion_models" / "other.safetensors"
    save(path, {prefix + one: torch.zeros(4, 4) for one in UNSUPPORTED_FAMILIES[name]})
    line = refused(engine, parts("other.safetensors"))
    assert f"{path}: this is a {name} checkpoint; {RUNS}" in line


FOLDERS = {
    "diffusion_models": ("network", "UNETLoader", "unet_name"),
    "text_encoders": ("clip", "CLIPLoader", "clip_name"),
    "vae": ("vae", "VAELoader", "vae_name"),
    "controlnet": ("control", "ControlNetLoader", "control_net_name"),
    "model_patches": ("patch", "ModelPatchLoader", "name"),
}


def loads(folder: str, name: str = "bad.safetensors") -> dict[str, Any]:
    """Returns a workflow that loads a folder's file."""
    called, kind, widget = FOLDERS[folder]
    typed = {"type": "lumina2"} if kind == "CLIPLoader" else {}
    typed |= {"weight_dtype": "default"} if kind == "UNETLoader" else {}
    loader = {called: node(kind, **{widget: name}, **typed)}
    seen = node("LoadImage", image="seen.png")
    match folder:
        case "controlnet":
            applied = node(
                "ControlNetApplyAdvanced",
                positive="@text:0",
                negative="@other:0",
                control_net="@control:0",
                image="@seen:0",
                vae="@all:2",
                strength=1.0,
                start_percent=0.0,
                end_percent=1.0,
            )
            both = sampled(positive="@applied:0", negative="@applied:1")
            return graph(**loader, seen=seen, applied=applied, sample=both)
        case "model_patches":
            applied = node(
                "QwenImageDiffsynthControlnet",
                model="@all:0",
                model_patch="@patch:0",
                vae="@all:2",
                image="@seen:0",
                strength=1.0,
            )
            return graph(**loader, seen=seen, applied=applied, sample=sampled(model="@applied:0"))
    return parts("flux.safetensors", **loader)


def whole_of(folder: str) -> dict[str, Tensor]:
    match folder:
        case "diffusion_models":
            return flux_files.flux()
        case "text_encoders":
            return text_encoders.qwen3()
        case "vae":
            return flux_files.vae()
    return z_image_files.z_image_control()


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"GGUF\x03\0\0\0" * 100,
            "a GGUF file, which is not supported: use the .safetensors file of",
        ),
        (b"", "not a safetensors file, or cut off"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS, not the file"),
        (b"<!doctype html><html>" * 9, "a web page, not a model"),
        (0.5, "download it again"),
        (0.999, "truncated: its tensors take"),
    ],
)
def test_incomplete_files_are_refused(
    folder: str, content: bytes | float, words: str, engine: katz.Engine, place: Path
) -> None:
    """A fraction of a file is an interrupted download."""
    path = place / "models" / folder / "bad.safetensors"
    if isinstance(content, float):
        save(path, whole_of(folder))
        whole = path.read_bytes()
        content = whole[: int(content * len(whole))]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    line = refused(engine, loads(folder))
    assert f"{path}: " in line and words in line


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("kind", ["nvfp4", "mxfp8", "w4a8", "convrot_w4a4", "of_tomorrow"])
def test_a_format_that_is_not_read_is_refused_by_its_name(
    folder: str, kind: str, engine: katz.Engine, place: Path
) -> None:
    tensors = whole_of(folder)
    weight = next(name for name in tensors if name.endswith("weight"))
    layer = weight.removesuffix(".weight")
    path = place / "models" / folder / "bad.safetensors"
    save(path, tensors | {f"{layer}.comfy_quant": marker(format=kind)})
    line = refused(engine, loads(folder))
    assert f"{path}: {weight} is stored as {kind}, which is not supported: {FITS}" in line


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_scale_of_another_shape_is_refused(folder: str, engine: katz.Engine, place: Path) -> None:
    tensors = whole_of(folder)
    weight = next(name for name, one in tensors.items() if name.endswith("weight") and one.ndim > 1)
    scale = f"{weight.removesuffix('weight')}weight_scale"
    path = place / "models" / folder / "bad.safetensors"
    save(path, tensors | {scale: torch.ones(3)})
    rows = len(tensors[weight])
    line = refused(engine, loads(folder))
    assert f"{path}: {scale} is F32 [3], expected one scale or one for each of the {rows}" in line


@pytest.mark.parametrize(
    "lost",
    ["img_in.weight", "double_blocks.1.img_mlp.0.weight", "final_layer.linear.bias"],
)
def test_a_file_that_lacks_a_tensor_is_refused(lost: str, engine: katz.Engine, place: Path) -> None:
    path = place / "models" / "diffusion_models" / "bad.safetensors"
    save(path, {name: one for name, one in flux_files.flux().items() if name != lost})
    line = refused(engine, parts("bad.safetensors"))
    assert str(path) in line and "missing" in line


@pytest.mark.parametrize(
    "odd",
    [
        "x_embedder.weight",
        "layers.0.attention.qkv.weight",
        "layers.0.attention.q_norm.weight",
        "cap_pad_token",
    ],
)
def test_a_file_with_a_tensor_of_another_shape_is_refused(
    odd: str, engine: katz.Engine, place: Path
) -> None:
    path = place / "models" / "diffusion_models" / "bad.safetensors"
    save(path, z_image_files.z_image() | {odd: torch.zeros(5, 7)})
    line = refused(engine, parts("bad.safetensors", clip=clips("qwen", type="lumina2")))
    assert str(path) in line and ("of another shape" in line or "the shapes of its tensors" in line)


@pytest.mark.parametrize("how", ["file", "tensor"])
def test_a_missing_shard_is_refused(how: str, engine: katz.Engine, place: Path) -> None:
    folder = place / "models" / "checkpoints" / f"lost-{how}"
    make_pipeline(folder, "sd35", 1, with_t5=True)
    weights = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    weights.unlink()
    shard = weights.with_name("diffusion_pytorch_model-00002-of-00002.safetensors")
    first = weights.with_name("diffusion_pytorch_model-00001-of-00002.safetensors")
    last = "proj_out.bias"
    save(first, {name: one for name, one in tensors.items() if name != last})
    if how == "tensor":
        save(shard, {"other": torch.zeros(1)})
    homes = {name: shard.name if name == last else first.name for name in tensors}
    index = weights.with_name(f"{weights.name}.index.json")
    index.write_text(json.dumps({"weight_map": homes}))
    line = refused(engine, graph(folder.name))
    words = "is missing, one of the 2 files that" if how == "file" else f"lacks {last}, listed in"
    assert str(shard) in line and words in line


# Text encoders


@pytest.mark.parametrize(
    ("network", "clip", "words"),
    [
        ("flux", clips("clip_l", "clip_g", type="flux"), "not the text encoders of one model: expected CLIP and T5, got CLIP and "),
        ("flux", clips("qwen", "t5", type="flux"), "not the text encoders of one model: expected CLIP and T5, got "),
        ("flux", clips("t5", type="lumina2"), "not the text encoders of one model: expected Qwen3, got T5"),
        ("flux", clips("qwen", type="lumina2"), "do not fit the transformer: they give text of width 64 (pooled None)"),
        ("z_image", clips("clip_l", "t5", type="flux"), "do not fit the transformer: they give text of width 64 (pooled 32)"),
        ("flux", clips("clip_l", "t5", type="sd3"), "not the text encoders of one model: expected CLIP and CLIP, got CLIP and T5"),
        ("flux", clips("qwen", type="wan"), "type: wan is not supported; Katz Graph runs"),
        ("flux", clips("clip_l", "t5", type="hunyuan_video"), "type: hunyuan_video is not supported"),
        ("flux", clips("clip_l", "qwen", "t5"), "not the text encoders of one model: expected CLIP and CLIP and T5, got "),
    ],
)  # fmt: skip
def test_text_encoders_of_another_model_are_refused(
    network: str, clip: dict[str, Any], words: str, engine: katz.Engine, place: Path
) -> None:
    line = refused(engine, parts(f"{network}.safetensors", clip=clip))
    assert words in line
    assert "type: " in line or str(place / "models" / "text_encoders") in line


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("words", [0, 5000])
def test_a_text_of_any_length_gives_a_picture(kind: str, words: int, engine: katz.Engine) -> None:
    text = node("CLIPTextEncode", clip="@all:1", text=" ".join(["red"] * words))
    result = engine.run(graph(kind, text=text))
    assert [one.size for one in result.images] == [(SIDE, SIDE)]


# ControlNets, VAEs and LoRAs


def with_control(kind: str, control: str, **changed: Any) -> dict[str, Any]:
    workflow = loads("controlnet", control)
    workflow["@all"] = node("CheckpointLoaderSimple", ckpt_name=kind)
    workflow["@applied"]["inputs"].update(changed)
    return workflow


@pytest.mark.parametrize(
    ("kind", "control", "words"),
    [
        ("sd35", "flux", "it is made for FLUX.1, the transformer in"),
        ("flux", "sd35", "it is made for Stable Diffusion 3 or 3.5, the transformer in"),
        ("z_image", "flux", "it is made for FLUX.1, the transformer in"),
        ("hunyuan_dit", "sd35", "it is made for Stable Diffusion 3 or 3.5, the transformer in"),
        ("flux", "wide", "its width is 48, the transformer in"),
        ("flux", "deep", "the ControlNet has 5 double and 4 single blocks, the transformer in"),
    ],
)
def test_a_controlnet_that_does_not_fit_is_refused(
    kind: str, control: str, words: str, engine: katz.Engine, place: Path
) -> None:
    line = refused(engine, with_control(kind, control))
    assert f"{place / 'models' / 'controlnet' / control}: " in line and words in line
    assert str(place / "models" / "checkpoints" / kind) in line


@pytest.mark.parametrize("kind", ["sd35", "flux", "hunyuan_dit"])
def test_a_controlnet_without_its_vae_is_refused(
    kind: str, engine: katz.Engine, place: Path
) -> None:
    workflow = with_control(kind, kind)
    del workflow["@applied"]["inputs"]["vae"]
    line = refused(engine, workflow)
    assert f"{place / 'models' / 'controlnet' / kind}: the ControlNet reads a picture" in line
    assert "link the model's VAE to ControlNetApplyAdvanced" in line


def test_a_controlnet_with_another_family_s_vae_is_refused(
    engine: katz.Engine, place: Path
) -> None:
    workflow = with_control("sd35", "sd35", vae=["@four", 2])
    workflow["@four"] = node("CheckpointLoaderSimple", ckpt_name="hunyuan_dit")
    line = refused(engine, workflow)
    assert str(place / "models" / "checkpoints" / "hunyuan_dit" / "vae") in line
    assert "gives latents of 4 channels" in line and "link the model's own VAE" in line


@pytest.mark.parametrize("kind", ["flux", "z_image", "sd35"])
def test_another_family_s_vae_is_refused_before_it_decodes(kind: str, engine: katz.Engine) -> None:
    four = node("CheckpointLoaderSimple", ckpt_name="hunyuan_dit")
    picture = node("VAEDecode", samples="@sample:0", vae="@four:2")
    line = refused(engine, graph(kind, four=four, picture=picture))
    assert "the latent has shape [1, 16, 8, 8], expected [batch, 4, height, width]" in line


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_latent_of_other_channels_that_is_not_empty_is_refused(
    kind: str, engine: katz.Engine, place: Path
) -> None:
    other = "sd35" if kind == "hunyuan_dit" else "hunyuan_dit"
    latent = node("VAEEncode", pixels="@seen:0", vae="@theirs:2")
    more = {
        "theirs": node("CheckpointLoaderSimple", ckpt_name=other),
        "seen": node("LoadImage", image="seen.png"),
    }
    line = refused(engine, graph(kind, latent=latent, **more))
    given, wanted = (16, 4) if kind == "hunyuan_dit" else (4, 16)
    assert f"the latent has {given} channels, the model in" in line and str(wanted) in line
    assert str(place / "models" / "checkpoints" / kind) in line


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_empty_latent_of_other_channels_runs(kind: str, engine: katz.Engine) -> None:
    latent = node("EmptyLatentImage", width=SIDE, height=SIDE, batch_size=1)
    assert engine.run(graph(kind, latent=latent)).images[0].size == (SIDE, SIDE)


def lora(*layers: str, width: int = 32) -> dict[str, Tensor]:
    return {
        f"{layer}.lora_{factor}.weight": torch.full(shape, 0.01)
        for layer in layers
        for factor, shape in (("A", (2, width)), ("B", (width, 2)))
    }


def with_lora(kind: str, path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    save(path, tensors)
    patched = node("LoraLoaderModelOnly", model="@all:0", lora_name=path.name, strength_model=1.0)
    return graph(kind, patched=patched, sample=sampled(model="@patched:0"))


@pytest.mark.parametrize(
    ("kind", "tensors", "words"),
    [
        ("sd35", lora("transformer.single_transformer_blocks.0.attn.to_q"), "made for FLUX.1 or FLUX.2, not for Stable Diffusion 3 or 3.5: "),
        ("flux", lora("diffusion_model.layers.0.attention.to_q"), "made for Z-Image, not for FLUX.1: "),
        ("z_image", lora("diffusion_model.joint_blocks.0.x_block.attn.proj"), "made for Stable Diffusion 3 or 3.5, not for Z-Image: "),
        ("flux", lora("transformer.transformer_blocks.0.attn.to_q", width=3072), "has shape [3072, 3072], this model [32, 32]; choose a LoRA made for it"),
        ("flux", lora("transformer.transformer_blocks.90.attn.to_q"), "and all other layers of the LoRA do not exist in this model; choose a LoRA"),
    ],
)  # fmt: skip
def test_a_lora_that_does_not_fit_is_refused(
    kind: str, tensors: dict[str, Tensor], words: str, engine: katz.Engine, place: Path
) -> None:
    path = place / "models" / "loras" / "style.safetensors"
    line = refused(engine, with_lora(kind, path, tensors))
    assert f"{path}: " in line and words in line


def test_partial_fit_of_a_lora_is_reported(
    engine: katz.Engine, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = place / "models" / "loras" / "part.safetensors"
    there, lost = (f"transformer.transformer_blocks.{n}.attn.to_q" for n in (0, 90))
    with caplog.at_level(logging.WARNING):
        engine.run(with_lora("flux", path, lora(there, lost)))
    lines = [one.getMessage() for one in caplog.records if str(path) in one.getMessage()]
    assert lines and "used without 1 of its 2 layers that the model does not have: " in lines[0]


# Model inputs


@pytest.mark.parametrize("kind", ["z_image", "sd35", "hunyuan_dit"])
def test_guidance_and_references_are_refused_where_a_family_has_none(
    kind: str, engine: katz.Engine, place: Path
) -> None:
    file = place / "models" / "checkpoints" / kind / "transformer"
    extra = node("FluxGuidance", conditioning="@text:0", guidance=3.5)
    line = refused(engine, graph(kind, extra=extra, sample=sampled(positive="@extra:0")))
    assert f"{file}: the model has no guidance input" in line
    assert "remove FluxGuidance, and set cfg" in line
    extra = node("ReferenceLatent", conditioning="@text:0", latent="@latent:0")
    line = refused(engine, graph(kind, extra=extra, sample=sampled(positive="@extra:0")))
    assert f"{file}: the model reads no references: remove ReferenceLatent" in line


def test_references_of_other_channels_are_refused(engine: katz.Engine, place: Path) -> None:
    more = {
        "seen": node("LoadImage", image="seen.png"),
        "theirs": node("CheckpointLoaderSimple", ckpt_name="hunyuan_dit"),
        "four": node("VAEEncode", pixels="@seen:0", vae="@theirs:2"),
        "extra": node("ReferenceLatent", conditioning="@text:0", latent="@four:0"),
        "sample": sampled(positive="@extra:0"),
    }
    line = refused(engine, graph("flux", **more))
    assert str(place / "models" / "checkpoints" / "flux" / "transformer") in line
    assert "a reference has 4 channels, the model's latents have 16: encode it" in line


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_guidance_that_is_no_number_is_refused(value: float, engine: katz.Engine) -> None:
    line = refused(engine, graph("flux", sample=sampled(cfg=value)))
    assert 'node @sample: input "cfg" contains NaN or infinity' in line
    extra = node("FluxGuidance", conditioning="@text:0", guidance=value)
    line = refused(engine, graph("flux", extra=extra, sample=sampled(positive="@extra:0")))
    assert 'node @extra: input "guidance" contains NaN or infinity' in line
    with pytest.raises(InputError, match="cfg"):
        engine.run(graph("flux"), set={"KSampler.cfg": value})


@pytest.mark.parametrize("size", [(72, 104), (16, 16), (16, 200)])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_size_that_is_no_multiple_of_a_patch_gives_a_picture_of_it(
    kind: str, size: tuple[int, int], engine: katz.Engine
) -> None:
    """It is padded to whole patches, then cropped; SD3's position table is a limit."""
    width, height = size
    latent = node("EmptySD3LatentImage", width=width, height=height, batch_size=1)
    workflow = graph(kind, latent=latent)
    if kind == "sd35" and max(size) > 192:
        line = refused(engine, workflow)
        assert "the picture is 16x200 pixels, the transformer takes at most 192x192" in line
        return
    (picture,) = engine.run(workflow).images
    assert picture.size == size and len(picture.getcolors(width * height)) > 16


# Number formats and memory


@pytest.mark.parametrize("kind", FAMILIES)
def test_float16_overflows_are_computed_wider(kind: Kind, place: Path) -> None:
    model = pipeline_recipes(place / "models" / "checkpoints" / kind)[0]
    wide = DeviceModels("cpu", torch.float16).dtype_of(model.network) == torch.float32
    assert wide == (kind in ("flux", "z_image"))


def test_float16_is_refused_on_processors(place: Path) -> None:
    with katz.open(models=str(place / "models"), dtype="float16") as engine:
        line = refused(engine, graph("flux"))
    assert line.startswith("--dtype float16 is about")
    assert "use bfloat16 or float32" in line


def write_large(path: Path, shapes: Iterator[tuple[str, tuple[int, ...]]]) -> None:
    """Writes a sparse bfloat16 file of the full size."""
    entries, end = {}, 0
    for name, shape in shapes:
        begin, end = end, end + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


def test_a_model_larger_than_memory_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published FLUX.1 dev: 11.9 billion weights, on a device of 16 GB."""
    widths = flux_files.Widths(tokens=3072, head=128, text=4096, pooled=768)
    files = {name: tmp_path / f"{name}.safetensors" for name in ("flux", "clip", "t5")}
    write_large(files["flux"], flux_files.flux_shapes(19, 38, True, 64, widths))
    write_large(files["clip"], text_encoders.clip_shapes(768, 12))
    write_large(files["t5"], text_encoders.t5_shapes(widths.text))
    model = network_recipe(files["flux"])
    clip = clip_recipe([files["clip"], files["t5"]], ("clip", "t5"), FLUX.text_layout)
    wanted = region_of(model, clip, "flux", torch.zeros(1, 16, 8, 8))
    monkeypatch.setattr(ModelStore, "network", None)
    monkeypatch.setattr(ModelStore, "text_encoder", None)
    with local_engine() as engine:
        (device,) = engine.cluster.devices
        small = replace(device, memory_bytes=16e9, dtype="bfloat16")
        with pytest.raises(InputError) as caught:
            plan_region(wanted, Target((small,), engine.cluster.links))
    line = str(caught.value)
    assert "\n" not in line
    assert "its model needs 23.73 GB, more than any allowed device has: cpu 16.00 GB" in line
    assert line.endswith("use a larger device or a smaller model")
