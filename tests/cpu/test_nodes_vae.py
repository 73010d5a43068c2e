"""VAE nodes: pictures, masks and tiles."""

import pytest
import torch
from node_calls import call, context_in
from tiny_models import random, recipes

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ConditioningEntry, Prompt
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.testing.requests import local_engine


@pytest.fixture
def context(tmp_path, costs):
    with local_engine(cache=costs) as engine:
        yield context_in(tmp_path, engine=engine)


VAE = recipes("sd1")[2]
PROMPT = (ConditioningEntry(Prompt(recipes("sd1")[1], "a")),)


def encoded(pixels):
    return DeviceModels().encode_image(VAE, pixels)[0]


def test_encode_crops_around_the_centre_and_warns(context):
    pixels = random(1, 38, 45, 3).sigmoid()
    latent = call("VAEEncode", context, pixels=pixels, vae=VAE)["samples"]
    assert torch.equal(latent, encoded(pixels[:, 3:35, 2:42]))
    assert context.warnings == ["VAEEncode: 45x38 is not a multiple of 8; cropping to 40x32"]
    with pytest.raises(InputError, match="VAEEncode: the picture is 4x38, expected at least 8x8"):
        call("VAEEncode", context, pixels=pixels[:, :, :4], vae=VAE)


def test_tiled_nodes_give_the_whole_where_one_tile_suffices(context):
    pixels = random(1, 64, 64, 3).sigmoid()
    latent = call("VAEEncodeTiled", context, pixels=pixels, vae=VAE)["samples"]
    assert torch.equal(latent, encoded(pixels))
    whole = call("VAEDecode", context, samples={"samples": latent}, vae=VAE)
    assert torch.equal(call("VAEDecodeTiled", context, samples={"samples": latent}, vae=VAE), whole)
    large = {"samples": random(1, 4, 12, 12)}
    # cut to a quarter of the tile
    tiled = call("VAEDecodeTiled", context, samples=large, vae=VAE, tile_size=64, overlap=4096)
    assert tiled.shape == (1, 96, 96, 3)
    assert not torch.equal(tiled, call("VAEDecode", context, samples=large, vae=VAE))


def test_encode_for_inpainting(context):
    pixels = random(1, 64, 64, 3).sigmoid()
    mask = torch.zeros(1, 64, 64)
    mask[:, 20:30, 20:30] = 1
    latent = call("VAEEncodeForInpaint", context, pixels=pixels, vae=VAE, mask=mask, grow_mask_by=0)
    grey = pixels.clone()
    grey[:, 20:30, 20:30] = 0.5
    torch.testing.assert_close(latent["samples"], encoded(grey), rtol=0, atol=1e-5)
    assert torch.equal(latent["noise_mask"][:, 0], mask)
    grown = call("VAEEncodeForInpaint", context, pixels=pixels, vae=VAE, mask=mask, grow_mask_by=5)
    assert torch.equal(grown["samples"], latent["samples"])  # grey only under the mask itself
    expected = torch.zeros(1, 64, 64)
    expected[:, 18:32, 18:32] = 1
    assert torch.equal(grown["noise_mask"][:, 0], expected)
    half = call(
        "VAEEncodeForInpaint",
        context,
        pixels=pixels,
        vae=VAE,
        mask=mask[:, ::2, ::2] * 0.9,
        grow_mask_by=0,
    )
    # resized to the picture, and rounded
    assert set(half["noise_mask"].unique().tolist()) == {0.0, 1.0}
    assert half["noise_mask"].shape == (1, 1, 64, 64)


def test_inputs_of_an_inpainting_model(context):
    """Both conditionings get the mask and the picture with grey under it; the latent is the
    unchanged picture.
    """
    pixels, mask = random(1, 66, 64, 3).sigmoid(), torch.zeros(1, 66, 64)
    mask[:, 21:31, 20:30] = 1
    inputs = {
        "positive": PROMPT,
        "negative": PROMPT * 2,
        "vae": VAE,
        "pixels": pixels,
        "mask": mask,
    }
    positive, negative, latent = call(
        "InpaintModelConditioning", context, noise_mask=True, **inputs
    )
    shown = pixels[:, 1:65].clone()
    shown[:, 20:30, 20:30] = 0.5
    assert [len(positive), len(negative)] == [1, 2]
    for entry in (*positive, *negative):
        torch.testing.assert_close(
            entry.concatenated.latent.pixels, encoded(shown), rtol=0, atol=1e-5
        )
        assert torch.equal(entry.concatenated.mask.pixels, mask[:, 1:65])
    assert torch.equal(latent["samples"], encoded(pixels[:, 1:65]))
    assert torch.equal(latent["noise_mask"][:, 0], mask[:, 1:65])
    assert context.warnings == [
        "InpaintModelConditioning: 64x66 is not a multiple of 8; cropping to 64x64"
    ]
    assert (
        "noise_mask" not in call("InpaintModelConditioning", context, noise_mask=False, **inputs)[2]
    )


def test_inputs_of_a_model_that_edits_by_instruction(context):
    pixels = random(1, 64, 64, 3).sigmoid()
    positive, negative, latent = call(
        "InstructPixToPixConditioning",
        context,
        positive=PROMPT,
        negative=PROMPT,
        vae=VAE,
        pixels=pixels,
    )
    for (entry,) in (positive, negative):
        assert (
            torch.equal(entry.concatenated.latent.pixels, encoded(pixels))
            and entry.concatenated.mask is None
        )
    assert latent["samples"].shape == (1, 4, 8, 8) and not latent["samples"].any()
