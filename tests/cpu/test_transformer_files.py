"""Transformer files as distributed: original layouts equal diffusers' conversion, and official
templates run on small files with the requested names.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders.single_file_utils import (
    convert_flux_transformer_checkpoint_to_diffusers,
    convert_z_image_transformer_checkpoint_to_diffusers,
)
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

import katz_graph as katz
from katz_graph.core.errors import InputError
from katz_graph.models.families.flux import stand_ins as flux_files
from katz_graph.models.families.sd3.stand_ins import transformer as original
from katz_graph.models.families.shared import stand_ins as shared
from katz_graph.models.families.z_image import stand_ins as z_image_files
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.convert import tensors as loaded_tensors
from katz_graph.models.loading.sources import clip_recipe, network_recipe, typed_clip_recipe
from katz_graph.planner.sampling import table_of
from katz_graph.testing.stand_ins import formats, text_encoders

TEMPLATES = find_spec("comfyui_workflow_templates_json")
SIZE, STEPS = 64, 2


@pytest.mark.parametrize("prefix", ["", shared.PREFIX])
@pytest.mark.parametrize("name", ["flux", "schnell", "z_image"])
def test_a_file_in_the_original_layout_matches_diffusers(
    name: str, prefix: str, tmp_path: Path
) -> None:
    tensors = (
        z_image_files.z_image() if name == "z_image" else flux_files.flux(3, 2, name == "flux")
    )
    save_file(shared.under(prefix, tensors), tmp_path / "model.safetensors")
    convert = (
        convert_z_image_transformer_checkpoint_to_diffusers
        if name == "z_image"
        else convert_flux_transformer_checkpoint_to_diffusers
    )
    # the converter hard-codes the published width
    code = convert.__code__
    ours_wide = tuple(shared.WIDTH if one == 3072 else one for one in code.co_consts)
    convert.__code__ = code.replace(co_consts=ours_wide)
    try:
        wanted: dict[str, Tensor] = convert(dict(tensors))
    finally:
        convert.__code__ = code
    network = network_recipe(tmp_path / "model.safetensors").network
    module = blank(network)
    ours = loaded_tensors(network, module)
    assert ours.keys() == wanted.keys() == module.state_dict().keys()
    assert all(torch.equal(ours[one], tensor) for one, tensor in wanted.items())


def test_levels_and_model_times_follow_the_kind_of_file(tmp_path: Path) -> None:
    files = {
        "dev": flux_files.flux(),
        "schnell": flux_files.flux(guided=False),
        "z": z_image_files.z_image(),
    }
    tables = {}
    for name, tensors in files.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
        tables[name] = table_of(network_recipe(tmp_path / f"{name}.safetensors"))
    half = {name: float(table.sigma_at(torch.tensor(0.5))) for name, table in tables.items()}
    shift = torch.tensor(1.15).exp()
    assert half["dev"] == pytest.approx(float(shift * 0.5 / (1 + (shift - 1) * 0.5)))
    assert half["schnell"] == pytest.approx(0.5)
    assert half["z"] == pytest.approx(0.75)
    assert [len(tables[name].sigmas) for name in files] == [10_000, 1000, 1000]
    assert all(table.timestep_at(0.25) == 0.25 for table in tables.values())


# Text encoders


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("flux", ("clip_l", "t5")),
        ("sd3", ("clip_l", "clip_g")),
        ("sd3", ("clip_l", "clip_g", "t5")),
        ("lumina2", ("qwen3",)),
    ],
)
def test_text_encoders_are_put_in_order(kind: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.safetensors" for name in parts}
    for name, path in paths.items():
        save_file(g_of_its_width() if name == "clip_g" else getattr(text_encoders, name)(), path)
    for order in (list(paths.values()), list(paths.values())[::-1]):
        clip = typed_clip_recipe(order, kind)
        assert [one.encoder.folder for one in clip.encoders] == [
            str(path) for path in paths.values()
        ]


def g_of_its_width() -> dict[str, Tensor]:
    """Returns OpenCLIP's bigG, which is detected by its width."""
    return shared.drawn(text_encoders.clip_shapes(1280, 1), 6) | {
        "text_projection.weight": torch.zeros(1280, 1280)
    }


@pytest.mark.parametrize(
    ("kind", "parts", "words"),
    [
        ("flux", ("clip_l", "clip_l"), "expected CLIP and T5, got CLIP and CLIP"),
        ("sdxl", ("clip_l", "t5"), "expected CLIP and CLIP, got CLIP and T5"),
        ("lumina2", ("t5",), "expected Qwen3, got T5"),
        ("sd3", ("clip_l", "t5", "t5"), "expected CLIP and CLIP and T5, got CLIP and T5 and T5"),
    ],
)
def test_text_encoders_of_another_model_are_refused(
    kind: str, parts: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(len(parts))]
    for name, path in zip(parts, paths, strict=True):
        save_file(getattr(text_encoders, name)(), path)
    with pytest.raises(InputError, match=f"not the text encoders of one model: {words}"):
        typed_clip_recipe(paths, kind)


def test_a_t5_of_other_words_is_refused(tmp_path: Path) -> None:
    tensors = text_encoders.t5() | {"shared.weight": torch.zeros(256384, 4)}
    save_file(tensors, tmp_path / "umt5.safetensors")
    with pytest.raises(InputError, match="vocabulary of 256,384 tokens"):
        clip_recipe([tmp_path / "umt5.safetensors"])


# Templates


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a models folder for the templates."""
    place = tmp_path_factory.mktemp("models")
    unet, clip = place / "diffusion_models", place / "text_encoders"
    formats.write(unet / "flux1-fill-dev.safetensors", flux_files.flux(channels=384))
    formats.write(unet / "z_image_turbo_bf16.safetensors", z_image_files.z_image())
    formats.write(
        unet / "z_image_turbo_int8_convrot.safetensors", z_image_files.z_image(), "convrot"
    )
    patch = place / "model_patches" / "Z-Image-Turbo-Fun-Controlnet-Union.safetensors"
    formats.write(patch, z_image_files.z_image_control())
    formats.write(clip / "clip_l.safetensors", text_encoders.clip_l())
    formats.write(clip / "t5xxl_fp16.safetensors", text_encoders.t5())
    formats.write(clip / "qwen_3_4b.safetensors", text_encoders.qwen3())
    formats.write(clip / "qwen_3_4b_fp8_mixed.safetensors", text_encoders.qwen3(), "comfy_quant")
    formats.write(place / "vae" / "ae.safetensors", flux_files.vae())
    encoders = shared.under(
        "text_encoders.clip_l.transformer.", text_encoders.clip_l()
    ) | shared.under("text_encoders.t5xxl.transformer.", text_encoders.t5())
    vae = shared.under("first_stage_model.", flux_files.vae())
    checkpoints = place / "checkpoints"
    sd3 = shared.under(shared.PREFIX, {name: 0.05 * one for name, one in original(3, 1).items()})
    encoders |= shared.under("text_encoders.clip_g.transformer.", text_encoders.clip_g())
    formats.write(
        checkpoints / "sd3.5_large_fp8_scaled.safetensors", sd3 | encoders | vae, "scaled_fp8"
    )
    return place


def template(name: str) -> dict[str, Any]:
    assert TEMPLATES is not None and TEMPLATES.submodule_search_locations
    (file,) = Path(TEMPLATES.submodule_search_locations[0]).rglob(f"{name}.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.skipif(TEMPLATES is None, reason="comfyui-workflow-templates-json is in the dev extra")
@pytest.mark.parametrize(
    "name",
    [
        "sd3.5_simple_example",
        "flux_fill_inpaint_example",
        "image_z_image_turbo_int8",
        "image_z_image_turbo_fun_union_controlnet",
    ],
)
def test_an_official_template_runs_to_a_picture(name: str, models: Path, tmp_path: Path) -> None:
    """A few of those that `katz bench templates` runs."""
    workflow = template(name)
    pictures = tmp_path / "input"
    pictures.mkdir()
    for node in workflow["nodes"]:
        if node["type"] == "LoadImage":
            file = pictures / node["widgets_values"][0]
            mode = "RGB" if file.suffix == ".jpg" else "RGBA"
            Image.new(mode, (SIZE, SIZE), (200, 40, 40, 128)[: len(mode)]).save(file)
    with katz.open(models=str(models), input=str(pictures), output=str(tmp_path)) as engine:
        changed = {"KSampler.steps": STEPS}
        if '"EmptySD3LatentImage"' in json.dumps(workflow):
            changed |= {"EmptySD3LatentImage.width": SIZE, "EmptySD3LatentImage.height": SIZE}
        result = engine.run(workflow, set=changed, seed=1)
    # an edge preview has at most two colours
    assert max(len(one.getcolors(SIZE**2 * 400)) for one in result.images) > 16
