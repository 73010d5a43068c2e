"""Each kind of VAE encodes and decodes as its class in diffusers does, from folders and from single
files in the original layouts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from katz_graph.core.recipe import Component, Tile
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.vae_parts import Parts, needed, surely_enough
from katz_graph.models.families.shared.stages import VAE_DECODE, VAE_ENCODE
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.sources import vae_recipe
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.stages import Stage
from katz_graph.models.vae.coding import decode, encode
from katz_graph.models.vae.kinds import FLUX2, QWEN_IMAGE, QWEN_IMAGE_21, VaeKind, latent_space

Run = Callable[[Any, Tensor], Tensor]
FRAMES = {"attn_scales": [], "num_res_blocks": 2}
BLOCKS = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [32, 32, 64, 64],
    "layers_per_block": 1,
}
SETTINGS = {
    "AutoencoderKLQwenImage": {**FRAMES, "base_dim": 8},
    "layers": {**FRAMES, "base_dim": 8, "input_channels": 4},
    "AutoencoderKLQwenImage21": {**FRAMES, "base_dim": 8, "decoder_base_dim": 16},
    "AutoencoderKLFlux2": {**BLOCKS},
    "small decoder": {**BLOCKS, "decoder_block_out_channels": [32, 32, 32, 64]},
}
SAMPLES = {"AutoencoderKLQwenImage": (16, 8, 3), "layers": (16, 8, 4)} | {
    "AutoencoderKLQwenImage21": (64, 16, 4),
    "AutoencoderKLFlux2": (128, 16, 3),
    "small decoder": (128, 16, 3),
}
"""Channels of latents, pixels per cell, channels of pictures."""
CLASSES = {"layers": "AutoencoderKLQwenImage", "small decoder": "AutoencoderKLFlux2"}
KINDS = list(SETTINGS)


@cache
def stock(kind: str) -> Any:
    """Builds diffusers' module with random weights, and statistics of a batch norm."""
    generator = torch.Generator().manual_seed(7)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        module = getattr(diffusers, CLASSES.get(kind, kind))(**SETTINGS[kind]).eval()
    if hasattr(module, "bn"):
        module.bn.running_mean.copy_(torch.randn(128, generator=generator))
        module.bn.running_var.copy_(torch.rand(128, generator=generator) + 0.1)
    return module.requires_grad_(False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def saved(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("vae") / kind
        stock(kind).save_pretrained(folder)
        return folder

    return saved


def loaded(place: Path) -> Any:
    return ModelStore().vae(vae_recipe(place).vae, "cpu", torch.float32)


def stock_decode(kind: str, latents: Tensor) -> Tensor:
    vae = stock(kind)
    if hasattr(vae, "bn"):
        deviation = torch.sqrt(vae.bn.running_var + vae.config.batch_norm_eps).view(1, -1, 1, 1)
        whole = pixel_shuffle(latents * deviation + vae.bn.running_mean.view(1, -1, 1, 1), 2)
        made = vae.decode(whole).sample
    else:
        made = vae.decode(latents.unsqueeze(2)).sample.squeeze(2)
    picture: Tensor = (made / 2 + 0.5).clamp(0, 1).movedim(1, -1)
    return picture


def stock_encode(kind: str, pictures: Tensor) -> Tensor:
    vae, x = stock(kind), pictures.movedim(-1, 1) * 2 - 1
    if hasattr(vae, "bn"):
        packed = pixel_unshuffle(vae.encode(x).latent_dist.mode(), 2)
        normed: Tensor = vae.bn(packed)  # in eval mode: by running statistics
        return normed
    latents: Tensor = vae.encode(x.unsqueeze(2)).latent_dist.mode().squeeze(2)
    return latents


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_and_latents_are_those_of_the_stock_class(
    folders: Callable[[str], Path], kind: str
) -> None:
    channels, factor, colours = SAMPLES[kind]
    vae, samples = loaded(folders(kind)), drawn(2, channels, 3, 2)
    picture = decode(vae, samples)
    assert picture.shape == (2, 3 * factor, 2 * factor, colours)
    torch.testing.assert_close(picture, stock_decode(kind, samples), rtol=0, atol=4e-6)
    pixels = torch.rand(2, 2 * factor, 3 * factor, colours)
    latent = encode(vae, pixels)
    assert latent.shape == (2, channels, 2, 3)
    expected = stock_encode(kind, pixels)
    torch.testing.assert_close(latent, expected, rtol=0, atol=4e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_are_those_of_configurations(folders: Callable[[str], Path], kind: str) -> None:
    published = {"AutoencoderKLQwenImage": QWEN_IMAGE, "AutoencoderKLQwenImage21": QWEN_IMAGE_21}
    name = CLASSES.get(kind, kind)
    assert latent_space(vae_recipe(folders(kind))) == published.get(name, FLUX2).latent


def test_model_range_is_that_of_the_published_statistics() -> None:
    """As the pipelines compute it: (latent - mean) * (1 / deviation), also with a frame axis."""
    config = stock("AutoencoderKLQwenImage").config
    mean, inverse = (
        one.view(1, 16, 1, 1, 1)
        for one in (torch.tensor(config.latents_mean), 1.0 / torch.tensor(config.latents_std))
    )
    latent = drawn(1, 16, 1, 2, 3)
    expected = (latent - mean) * inverse
    space = QWEN_IMAGE.latent
    for given, wanted in ((latent, expected), (latent[:, :, 0], expected[:, :, 0])):
        normal = space.normalised(given)
        torch.testing.assert_close(normal, wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(space.restored(normal), given, rtol=1e-6, atol=1e-6)
        scaled = space.unshifted().normalised(given)
        torch.testing.assert_close(
            scaled - normal,
            (mean * inverse).view(1, 16, *[1] * (given.ndim - 2)).expand_as(given),
            rtol=1e-5,
            atol=1e-5,
        )


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", ["AutoencoderKLQwenImage", "AutoencoderKLQwenImage21", "small decoder"]
)
def test_tiles_blend_to_the_picture(folders: Callable[[str], Path], kind: str) -> None:
    channels, factor, _ = SAMPLES[kind]
    vae, samples = loaded(folders(kind)), drawn(1, channels, 4, 10)
    tile = Tile(6 * factor, 2 * factor)
    tiled, whole = decode(vae, samples, tile), decode(vae, samples)
    assert tiled.shape == whole.shape
    alone = decode(vae, samples[..., :6])  # outside of overlaps, a tile is its window alone
    torch.testing.assert_close(
        tiled[:, :, : 4 * factor], alone[:, :, : 4 * factor], rtol=0, atol=1e-6
    )
    latent = encode(vae, whole, tile)
    alone = encode(vae, whole[:, :, : 6 * factor])
    torch.testing.assert_close(latent[..., :4], alone[..., :4], rtol=0, atol=2e-5)


def test_pictures_without_alpha_are_opaque(folders: Callable[[str], Path]) -> None:
    vae = loaded(folders("AutoencoderKLQwenImage21"))
    pixels = torch.rand(1, 32, 32, 3)
    opaque = torch.cat([pixels, torch.ones(1, 32, 32, 1)], dim=-1)
    assert torch.equal(encode(vae, pixels), encode(vae, opaque))
    plain = loaded(folders("AutoencoderKLQwenImage"))
    assert torch.equal(encode(plain, opaque), encode(plain, pixels))


def test_layers_along_time_take_no_memory(folders: Callable[[str], Path]) -> None:
    """One frame uses the last time slice of each kernel."""
    recipe, models = vae_recipe(folders("AutoencoderKLQwenImage")), DeviceModels()
    models.decode_latent(recipe, drawn(1, 16, 2, 2))
    own = sum(weight.numel() for weight in loaded(folders("AutoencoderKLQwenImage")).parameters())
    assert models.residents.use.resident_bytes == 4 * own
    assert own < 0.4 * count_values(recipe.vae)


@pytest.mark.parametrize(
    "kind", [QWEN_IMAGE, QWEN_IMAGE_21, FLUX2], ids=lambda kind: kind.class_name
)
@pytest.mark.parametrize("stage", [VAE_DECODE, VAE_ENCODE], ids=lambda stage: stage.name)
def test_the_quick_bound_of_memory_holds_at_full_size(kind: VaeKind, stage: Stage) -> None:
    part, sizes = Component("", (), json.dumps({"_class_name": kind.class_name})), (1, 512, 768, 4)
    parts = Parts(1, None)
    assert surely_enough(part, parts, *sizes) >= needed(part, stage, parts, *sizes)
