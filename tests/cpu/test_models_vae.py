"""Latents and pictures: diffusers' numbers, and float32 when half precision overflows."""

import pytest
import torch
from tiny_models import FAMILIES, random, recipes

from katz_graph.errors import InputError, RunError
from katz_graph.models.load import ModelStore
from katz_graph.models.vae import decode, encode


def vae(family="sd1", dtype=torch.float32):
    return ModelStore().vae(recipes(family)[2].vae, "cpu", dtype)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_diffusers(family):
    model = vae(family)
    samples = random(2, 4, 6, 5) * 3
    picture, redone = decode(model, samples)
    assert not redone
    assert picture.dtype == torch.float32
    assert picture.shape == (2, 48, 40, 3)
    assert torch.equal(picture, (model.decode(samples).sample / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1))
    latent, redone = encode(model, picture)
    assert not redone
    assert torch.equal(latent, model.encode(picture.permute(0, 3, 1, 2) * 2 - 1).latent_dist.mode())
    rgba = torch.cat([picture, torch.zeros(2, 48, 40, 1)], dim=-1)
    assert torch.equal(encode(model, rgba)[0], latent)


@torch.no_grad()
def test_overflow_in_half_precision_is_redone_and_said():
    model = vae(dtype=torch.float16)
    picture, redone = decode(model, random(1, 4, 4, 4))
    assert not redone
    assert picture.dtype == torch.float32
    samples = random(1, 4, 4, 4) * 1e5  # float16 ends at 65504
    picture, redone = decode(model, samples)
    assert redone
    assert torch.equal(picture, decode(model.float(), samples)[0])
    model.half()
    latent, redone = encode(model, torch.full((1, 32, 32, 3), 1e5))
    assert redone
    assert latent.isfinite().all()
    assert model.dtype == torch.float16


def test_what_stays_broken_is_an_error():
    with pytest.raises(RunError, match=r"VAE decode: .*NaN or infinity .*it was given NaN"):
        decode(vae(), torch.full((1, 4, 4, 4), torch.nan))
    broken = vae()
    broken.decoder.conv_in.weight.fill_(torch.inf)
    with pytest.raises(RunError, match="weights may be broken"):
        decode(broken, random(1, 4, 4, 4))


def test_wrong_shapes_are_named():
    with pytest.raises(InputError, match=r"shape \[1, 16, 4, 4\], expected \[batch, 4, height, width\]"):
        decode(vae(), random(1, 16, 4, 4))
    with pytest.raises(InputError, match=r"shape \[32, 32, 3\], expected \[batch, height, width, 3\]"):
        encode(vae(), random(32, 32, 3))
