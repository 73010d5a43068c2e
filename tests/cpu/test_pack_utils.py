"""Functions of comfy.utils for packs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_packs import forgetting_shims, write
from safetensors.torch import save_file
from torch import Tensor

from katz_graph.comfy.finder import installed
from katz_graph.core.recipe import Area, Given
from katz_graph.packs import load_registry


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    with forgetting_shims():
        yield


def utils(folder: Path) -> Any:
    load_registry([write(folder / "packs", one="NODE_CLASS_MAPPINGS = {}\n")])
    assert installed()
    import comfy.utils

    return comfy.utils


def test_sizes(tmp_path: Path) -> None:
    scale = utils(tmp_path).common_upscale
    picture = torch.rand(2, 3, 16, 32)
    assert scale(picture, 8, 24, "bilinear", "disabled").shape == (2, 3, 24, 8)
    middle = scale(picture, 16, 16, "nearest-exact", "center")
    assert torch.equal(middle, picture[..., 8:24])
    assert scale(torch.rand(1, 4, 5, 16, 16), 8, 8, "area", "disabled").shape == (1, 4, 5, 8, 8)


def test_tiles_of_a_function_that_works_on_pixels_are_the_whole(tmp_path: Path) -> None:
    comfy_utils = utils(tmp_path)
    picture = torch.rand(2, 3, 40, 56)
    calls = []

    def double(tile: Tensor) -> Tensor:
        calls.append(tile.shape)
        return torch.nn.functional.interpolate(tile, scale_factor=2, mode="nearest")

    whole = torch.nn.functional.interpolate(picture, scale_factor=2, mode="nearest")
    made = comfy_utils.tiled_scale(
        picture, double, tile_x=24, tile_y=16, overlap=8, upscale_amount=2, out_channels=3
    )
    assert torch.allclose(made, whole, atol=1e-6)
    assert len(calls) == 2 * comfy_utils.get_tiled_scale_steps(56, 40, 24, 16, 8)
    assert set(calls) == {torch.Size((1, 3, 16, 24))}


def test_weight_files(tmp_path: Path) -> None:
    comfy_utils = utils(tmp_path)
    save_file({"a.weight": torch.ones(2, 3)}, tmp_path / "x.safetensors", metadata={"made": "here"})
    tensors, metadata = comfy_utils.load_torch_file(
        str(tmp_path / "x.safetensors"), return_metadata=True
    )
    assert torch.equal(tensors["a.weight"], torch.ones(2, 3)) and metadata == {"made": "here"}
    assert comfy_utils.calculate_parameters(tensors, "a.") == 6
    assert list(
        comfy_utils.state_dict_prefix_replace({"a.x": 1, "b.x": 2}, {"a.": "c."}, filter_keys=True)
    ) == ["c.x"]
    with pytest.raises(Exception, match="is a pickle, which can run code"):
        comfy_utils.load_torch_file(str(tmp_path / "x.ckpt"))
    assert (
        comfy_utils.set_attr(nested := torch.nn.Sequential(torch.nn.Linear(2, 2)), "0.bias", None)
        is not None
    )
    assert comfy_utils.get_attr(nested, "0.bias") is None


def test_areas_are_in_latent_cells() -> None:
    from katz_graph.comfy.facades.conditioning import options_of
    from katz_graph.core.recipe import ConditioningEntry

    entry = ConditioningEntry(Given("", torch.zeros(1, 1, 1), None), area=Area(1, 2, 3, 4))
    assert options_of(entry, None)["area"] == (3, 4, 1, 2)
