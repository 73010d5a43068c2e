"""Latents and pictures equal diffusers'; overflowing half precision becomes float32."""

import pytest
import torch
from diffusers import AutoencoderKL
from tiny_models import FAMILIES, random, recipes

from katz_graph.core.errors import InputError, OutOfMemory, RunError
from katz_graph.core.recipe import Tile
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.vae.coding import decode, encode


def vae(family="sd1", dtype=torch.float32):
    return ModelStore().vae(recipes(family)[2].vae, "cpu", dtype)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_diffusers(family):
    model = vae(family)
    samples = random(2, 4, 6, 5) * 3
    picture = decode(model, samples)
    assert picture.dtype == torch.float32
    assert picture.shape == (2, 48, 40, 3)
    assert torch.equal(
        picture, (model.decode(samples).sample / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
    )
    latent = encode(model, picture)
    assert torch.equal(latent, model.encode(picture.permute(0, 3, 1, 2) * 2 - 1).latent_dist.mode())
    rgba = torch.cat([picture, torch.zeros(2, 48, 40, 1)], dim=-1)
    assert torch.equal(encode(model, rgba), latent)


def decoded_in(monkeypatch):
    """Records the dtypes of VAEs that decode, in order."""
    seen = []
    decode = AutoencoderKL.decode
    monkeypatch.setattr(
        AutoencoderKL, "decode", lambda self, z: [seen.append(self.dtype), decode(self, z)][1]
    )
    return seen


def test_overflow_in_half_precision_is_redone_reported_and_remembered(monkeypatch):
    seen = decoded_in(monkeypatch)
    recipe, models = recipes("sd1")[2], DeviceModels("cpu", torch.float16)
    assert models.decode_latent(recipe, random(1, 4, 4, 4))[1] == ()
    samples = random(1, 4, 4, 4) * 1e5  # float16 max is 65504
    picture, notes = models.decode_latent(recipe, samples)
    assert notes == ("half precision overflowed, so it was repeated in float32",)
    assert torch.equal(picture, decode(vae(), samples))
    again, notes = models.decode_latent(recipe, samples)
    assert torch.equal(again, picture) and notes == ()
    # the fourth is the reference
    assert seen == [torch.float16, torch.float16, torch.float32, torch.float32, torch.float32]
    latent, notes = models.encode_image(recipe, torch.full((1, 32, 32, 3), 1e5))
    assert latent.isfinite().all() and notes == ()
    # the half-precision one is evicted
    assert models.residents.use.resident_bytes == 4 * count_values(recipe.vae)


def test_lasting_infinities_are_errors():
    with pytest.raises(RunError, match=r"VAE decode: .*NaN or infinity .*its input contains NaN"):
        decode(vae(), torch.full((1, 4, 4, 4), torch.nan))
    broken = vae()
    broken.decoder.conv_in.weight.fill_(torch.inf)
    with pytest.raises(RunError, match="weights may be broken"):
        decode(broken, random(1, 4, 4, 4))


def test_wrong_shapes_are_named():
    with pytest.raises(
        InputError, match=r"shape \[1, 16, 4, 4\], expected \[batch, 4, height, width\]"
    ):
        decode(vae(), random(1, 16, 4, 4))
    with pytest.raises(
        InputError, match=r"shape \[32, 32, 3\], expected \[batch, height, width, 3\]"
    ):
        encode(vae(), random(32, 32, 3))


@torch.no_grad()
def test_tiles():
    model, samples = vae(), random(2, 4, 20, 12, seed=3)
    whole = decode(model, samples)
    assert torch.equal(decode(model, samples, Tile(256, 64)), whole)  # one tile is the whole
    tiled = decode(model, samples, Tile(96, 32))
    assert tiled.shape == whole.shape
    assert not torch.equal(tiled, whole)
    assert (tiled - whole).abs().mean() < 0.5 * (whole - whole.flip(0)).abs().mean()
    latent = encode(model, whole)
    tiled_latent = encode(model, whole, Tile(96, 32))
    assert tiled_latent.shape == latent.shape
    assert (tiled_latent - latent).abs().mean() < 0.5 * (latent - latent.flip(0)).abs().mean()


@torch.no_grad()
def test_areas_of_one_tile_equal_that_tile():
    """Outside of overlaps, a tile is decoded from its window alone."""
    model, samples = vae(), random(1, 4, 8, 20, seed=4)
    tiled = decode(model, samples, Tile(96, 32))  # windows of 12 cells: 0 to 12, 8 to 20
    alone = decode(model, samples[..., :12])
    torch.testing.assert_close(tiled[:, :, : 8 * 8], alone[:, :, : 8 * 8], rtol=0, atol=1e-6)


def test_short_memory_is_met_with_tiles(monkeypatch):
    """The memory estimate need not predict the shortage."""
    recipe, samples = recipes("sd1")[2], random(1, 4, 80, 8, seed=5)
    expected, notes = DeviceModels().decode_latent(recipe, samples, Tile())
    assert notes == ()
    whole_decode = AutoencoderKL.decode

    def short(self, latent):
        if latent.shape[2] > 64:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return whole_decode(self, latent)

    monkeypatch.setattr(AutoencoderKL, "decode", short)
    picture, notes = DeviceModels().decode_latent(recipe, samples)
    assert torch.equal(picture, expected)
    assert notes == ("the whole picture does not fit into memory, so it was processed in tiles",)
    with pytest.raises(
        OutOfMemory,
        match=r"VAE decode of 1 x 640 x 64 pixels: out of memory: 2.15 GB more could not be "
        r"allocated; .* are free",
    ):
        DeviceModels().decode_latent(recipe, samples, Tile(1024, 64))
