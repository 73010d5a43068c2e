"""A ControlNet in two stages gives the bits of diffusers' forward."""

from dataclasses import replace

import pytest
import torch
from single_files import union_controlnet
from tiny_models import (
    FAMILIES,
    control_recipe,
    controlnet,
    diffusers_arguments,
    random,
    random_step,
    random_text,
    recipes,
    rows,
)

from katz_graph.core.errors import InputError
from katz_graph.models.families.unet.attention import cross_attention_keys_values
from katz_graph.models.families.unet.control_blocks import control, embed_reference
from katz_graph.models.families.unet.embedding import added_embedding
from katz_graph.models.family import check_controlnet


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("strength", [1.0, 0.35, 0.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_forward(family, strength, batch, dtype):
    model = controlnet(family, dtype)
    step, text = random_step(batch, 9, 6, dtype), random_text(model, batch, dtype=dtype)
    image = random(batch, 3, 72, 48, dtype=dtype).sigmoid()
    down, mid = model(
        **diffusers_arguments(step, text),
        controlnet_cond=image,
        conditioning_scale=strength,
        return_dict=False,
    )
    cached, added = cross_attention_keys_values(model, text.hidden), added_embedding(model, text)
    for residuals in (
        control(model, step, text, embed_reference(model, image), rows(step, strength)),
        control(
            model, step, text, embed_reference(model, image), rows(step, strength), cached, added
        ),
    ):
        assert len(residuals.down) == len(down)
        assert all(
            torch.equal(got, expected) for got, expected in zip(residuals.down, down, strict=True)
        )
        assert torch.equal(residuals.mid, mid)


@torch.no_grad()
def test_blue_first_and_pooled_conditions():
    model = controlnet("sd1")
    step, text, image = random_step(1, 8, 8), random_text(model, 1), random(1, 3, 64, 64).sigmoid()
    model = type(model).from_config(
        {
            **model.config,
            "controlnet_conditioning_channel_order": "bgr",
            "global_pool_conditions": True,
        }
    )
    model.load_state_dict(controlnet("sd1").state_dict())
    down, mid = model(
        **diffusers_arguments(step, text),
        controlnet_cond=image,
        conditioning_scale=0.5,
        return_dict=False,
    )
    residuals = control(model, step, text, embed_reference(model, image), rows(step, 0.5))
    assert all(
        torch.equal(got, expected)
        for got, expected in zip((*residuals.down, residuals.mid), (*down, mid), strict=True)
    )


@torch.no_grad()
def test_one_reference_serves_a_batch():
    model = controlnet("sd1")
    step, text, image = random_step(2, 8, 8), random_text(model, 2), random(1, 3, 64, 64).sigmoid()
    one = control(model, step, text, embed_reference(model, image), rows(step, 1.0))
    both = control(
        model, step, text, embed_reference(model, image.expand(2, -1, -1, -1)), rows(step, 1.0)
    )
    assert torch.allclose(one.mid, both.mid, atol=1e-6)


def test_wrong_family_is_named_before_anything_is_loaded():
    model, _, _ = recipes("sdxl")
    check_controlnet(control_recipe("sdxl"), model)
    with pytest.raises(
        InputError,
        match=r"text width is 32, the UNet in .* has 80: choose a ControlNet made for SDXL",
    ):
        check_controlnet(control_recipe("sd1"), model)
    swapped = replace(control_recipe("sd2"), control_net=control_recipe("sd1").control_net)
    with pytest.raises(InputError, match="text width is 32"):
        check_controlnet(swapped, recipes("sd2")[0])


@torch.no_grad()
@pytest.mark.parametrize("kind", [0, 6])
def test_several_kinds_of_reference_equal_forward(kind):
    """They are equal up to rounding, as batch sizes differ, and for one picture, as references in a
    batch interact in diffusers.
    """
    model = union_controlnet()
    step, text, image = random_step(1, 8, 8), random_text(model, 1), random(1, 3, 64, 64).sigmoid()
    kinds = torch.zeros(1, 8)
    kinds[0, kind] = 1
    arguments = {
        "controlnet_cond": [image],
        "control_type": kinds,
        "control_type_idx": [kind],
        "conditioning_scale": 0.6,
    }
    down, mid = model(**diffusers_arguments(step, text), **arguments, return_dict=False)
    added = added_embedding(model, text)
    for given in (None, added):
        residuals = control(
            model,
            step,
            text,
            embed_reference(model, image, (kind,)),
            rows(step, 0.6),
            added=given,
            types=(kind,),
        )
        for got, expected in zip((*residuals.down, residuals.mid), (*down, mid), strict=True):
            torch.testing.assert_close(
                got, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item()
            )


@torch.no_grad()
def test_kinds_of_reference_differ_and_pictures_do_not_meet():
    model = union_controlnet()
    step, text, images = random_step(2, 8, 8), random_text(model, 2), random(2, 3, 64, 64).sigmoid()
    embedded = embed_reference(model, images, (1,))
    torch.testing.assert_close(
        embedded[:1], embed_reference(model, images[:1], (1,)), rtol=0, atol=1e-4
    )
    mids = [
        control(
            model, step, text, embed_reference(model, images, types), rows(step, 1.0), types=types
        ).mid
        for types in ((), (1,), (2,))
    ]
    assert not any(
        torch.equal(one, other) for one, other in ((mids[0], mids[1]), (mids[1], mids[2]))
    )
