"""Transformer files as distributed: original layouts equal diffusers' conversion, and official
templates run on small files with the requested names.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from diffusers.loaders.single_file_utils import (
    convert_flux_transformer_checkpoint_to_diffusers,
    convert_z_image_transformer_checkpoint_to_diffusers,
)
from safetensors.torch import save_file
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.models.families.flux import stand_ins as flux_files
from katz_graph.models.families.shared import stand_ins as shared
from katz_graph.models.families.z_image import stand_ins as z_image_files
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.convert import tensors as loaded_tensors
from katz_graph.models.loading.sources import clip_recipe, network_recipe, typed_clip_recipe
from katz_graph.planner.sampling import table_of
from katz_graph.testing.stand_ins import text_encoders

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
