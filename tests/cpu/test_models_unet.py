"""The UNet in stages gives the bits of diffusers' forward, and any range of blocks can be skipped,
cached or hooked.
"""

from dataclasses import replace

import pytest
import torch
from tiny_models import (
    FAMILIES,
    controlnet,
    diffusers_arguments,
    random,
    random_step,
    random_text,
    rows,
    unet,
)

from katz_graph.core.errors import InputError
from katz_graph.models.families.unet import blocks as stages
from katz_graph.models.families.unet import control_blocks as control_stage
from katz_graph.models.families.unet.attention import cross_attention_keys_values
from katz_graph.models.families.unet.embedding import added_embedding

SIZES = [(8, 8), (9, 7), (6, 10), (5, 13)]
TYPES = [torch.float32, torch.bfloat16]


def run(model, step, text, cached=None, residuals=(), added=None):
    features = stages.mid(
        model, stages.encode(model, step, text, cached, added=added), text, cached
    )
    return stages.decode(model, features, text, cached, residuals=residuals)[1]


def all_residuals(family, step, text, dtype, strengths):
    residuals = []
    for number, strength in enumerate(strengths):
        model = controlnet(family, dtype, seed=10 + number)
        height, width = (8 * side for side in step.model_input.shape[2:])
        image = random(
            step.model_input.shape[0], 3, height, width, seed=number, dtype=dtype
        ).sigmoid()
        residuals.append(
            control_stage.control(
                model, step, text, control_stage.embed_reference(model, image), rows(step, strength)
            )
        )
    return residuals


@torch.no_grad()
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_stages_equal_forward(family, size, batch, dtype):
    model = unet(family, dtype)
    step, text = random_step(batch, *size, dtype), random_text(model, batch, dtype=dtype)
    expected = model(**diffusers_arguments(step, text), return_dict=False)[0]
    cached = cross_attention_keys_values(model, text.hidden)
    assert torch.equal(run(model, step, text), expected)
    assert torch.equal(run(model, step, text, cached, added=added_embedding(model, text)), expected)


@torch.no_grad()
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", SIZES[:2])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_residuals_are_added_as_diffusers_adds_them(family, count, size, dtype):
    model = unet(family, dtype)
    step, text = random_step(1, *size, dtype), random_text(model, 1, dtype=dtype)
    residuals = all_residuals(family, step, text, dtype, (0.3, 1.0, 0.7)[:count])
    down, mid = list(residuals[0].down), residuals[0].mid
    for one in residuals[1:]:  # as MultiControlNetModel
        down = [before + after for before, after in zip(down, one.down, strict=True)]
        mid = mid + one.mid
    expected = model(
        **diffusers_arguments(step, text),
        down_block_additional_residuals=down,
        mid_block_additional_residual=mid,
        return_dict=False,
    )[0]
    assert torch.equal(run(model, step, text, residuals=residuals), expected)
    assert not torch.equal(run(model, step, text), expected)


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_block_by_block_equals_whole(family, size):
    """Each block is a separate stage; each decoder block gets the residuals."""
    model = unet(family)
    step, text = random_step(1, *size), random_text(model, 1)
    residuals = all_residuals(family, step, text, torch.float32, (0.5, 0.9))
    expected = run(model, step, text, residuals=residuals)
    features = step
    for block in range(len(model.down_blocks)):
        features = stages.encode(model, features, text, None, block, block)
    features = stages.mid(model, features, text)
    for block in range(len(model.up_blocks)):
        features, prediction = stages.decode(
            model, features, text, residuals=residuals, first_block=block, last_block=block
        )
        assert (prediction is None) == (block < len(model.up_blocks) - 1)
    assert torch.equal(prediction, expected)


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES[:2])
@pytest.mark.parametrize("family", FAMILIES)
def test_shallow_evaluation_with_fresh_deep_features_is_the_full_one(family, size):
    """Deep features, the shallow skips and the last up block give the full prediction; an older
    deep state gives another one.
    """
    model = unet(family)
    text, last = random_text(model, 1), len(model.up_blocks) - 1
    step, older = random_step(1, *size), random_step(1, *size, seed=5, timestep=700.0)

    def deep(at):
        features = stages.mid(model, stages.encode(model, at, text), text)
        return stages.decode(model, features, text, last_block=last - 1)[0]

    shallow = stages.encode(model, step, text, last_block=0)
    assert shallow.step is step
    expected = run(model, step, text)
    after, prediction = stages.decode(model, deep(step), text, skips=shallow, first_block=last)
    assert torch.equal(prediction, expected)
    assert after.step is step
    after, prediction = stages.decode(model, deep(older), text, skips=shallow, first_block=last)
    # only the deep state is old
    assert after.step is step
    assert prediction.isfinite().all() and not torch.equal(prediction, expected)


@torch.no_grad()
def test_hook_sees_hidden_and_skip_of_every_layer():
    model = unet("sdxl")
    step, text = random_step(1, 8, 8), random_text(model, 1)
    features = stages.mid(model, stages.encode(model, step, text), text)
    seen = []

    def look(block, hidden, skip):
        seen.append((block, hidden.shape[1], skip.shape[1]))
        return hidden, skip

    _, watched = stages.decode(model, features, text, on_skip=look)
    assert torch.equal(watched, stages.decode(model, features, text)[1])
    assert seen == [
        (0, 32, 32),
        (0, 32, 32),
        (0, 32, 24),
        (1, 32, 24),
        (1, 24, 24),
        (1, 24, 16),
        (2, 24, 16),
        (2, 16, 16),
        (2, 16, 16),
    ]
    halved = stages.decode(
        model, features, text, on_skip=lambda block, hidden, skip: (hidden, 0.5 * skip)
    )[1]
    scaled = replace(features, skips=tuple(0.5 * skip for skip in features.skips))
    assert torch.equal(halved, stages.decode(model, scaled, text)[1])


@torch.no_grad()
def test_ranges_that_do_not_fit_are_refused():
    model = unet("sdxl")
    step, text = random_step(1, 8, 8), random_text(model, 1)
    shallow = stages.encode(model, step, text, last_block=0)
    with pytest.raises(InputError, match="blocks 0 to 7 do not exist"):
        stages.encode(model, step, text, last_block=7)
    with pytest.raises(InputError, match="steps enter at block 0"):
        stages.encode(model, step, text, first_block=1)
    with pytest.raises(InputError, match="they have 4 skips, expected 7"):
        stages.encode(model, shallow, text, first_block=2)
    with pytest.raises(
        InputError, match="block 0 reads skips up to position 8, the features have 4"
    ):
        stages.decode(model, shallow, text)
    with pytest.raises(InputError, match="directly before this block"):
        stages.decode(model, stages.encode(model, step, text), text, first_block=2)


@torch.no_grad()
def test_sdxl_without_pooled_text_is_refused():
    model = unet("sdxl")
    text = replace(random_text(model, 1), pooled=None)
    with pytest.raises(InputError, match="pooled text"):
        stages.encode(model, random_step(1, 8, 8), text)
