"""Prepared modules equal diffusers' forwards: on a CPU bit for bit; with a GPU's fused biases and
residuals within float rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers import ControlNetModel, UNet2DConditionModel
from test_models_shapes import SDXL
from tiny_models import FAMILIES, random
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from katz_graph.executor.weights.weight_set import WeightSets
from katz_graph.models.families.shared import random_parts
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.prepare import (
    ATTENTION,
    FUSED,
    PREPARED,
    fuse_projections,
    prepare,
    unprepared,
)
from katz_graph.models.prepared import unet as unet_blocks
from katz_graph.models.prepared.unet import PreparedResnetBlock, PreparedTransformerBlock
from katz_graph.models.vae.coding import decode as vae_decode
from katz_graph.testing.model_files import mini_models
from katz_graph.testing.random_models import kinds

SIZES = [(8, 8), (9, 7), (5, 13)]
MORE_SIZES = [*SIZES, (6, 10), (12, 4), (7, 11)]
HALF = [torch.float16, torch.bfloat16]


def text_of(config: Any, batch: int) -> dict[str, Any]:
    given: dict[str, Any] = {
        "encoder_hidden_states": random(batch, 9, config.cross_attention_dim, seed=1)
    }
    if config.addition_embed_type is not None:
        numbers = 6
        pooled = config.projection_class_embeddings_input_dim
        given["added_cond_kwargs"] = {
            "text_embeds": random(batch, pooled - numbers * config.addition_time_embed_dim, seed=2),
            "time_ids": torch.full((batch, numbers), 64.0),
        }
    return given


def unet(family: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    return UNet2DConditionModel(**kinds()[family].configuration() | changes).eval()


def unet_call(module: Any, size: tuple[int, int] = (9, 7)) -> Tensor:
    parameter = next(module.parameters())
    given = _in(parameter.dtype, text_of(module.config, 2))
    sample = random(2, module.config.in_channels, *size).to(parameter.dtype)
    made: Tensor = module(sample, torch.full((2,), 300.0), **given, return_dict=False)[0]
    return made


def control_call(module: Any, size: tuple[int, int] = (9, 7)) -> Tensor:
    kind = next(module.parameters()).dtype
    given = _in(kind, text_of(module.config, 2))
    picture = random(2, 3, *(8 * side for side in size), seed=3).to(kind)
    sample = random(2, 4, *size).to(kind)
    down, mid = module(
        sample, torch.full((2,), 300.0), controlnet_cond=picture, **given, return_dict=False
    )
    return torch.cat([one.flatten() for one in (*down, mid)])


def vae_call(module: Any, size: tuple[int, int] = (9, 7)) -> Tensor:
    kind = next(module.parameters()).dtype
    latent = module.encode(random(1, 3, *(8 * side for side in size)).to(kind)).latent_dist.mean
    decoded: Tensor = module.decode(latent, return_dict=False)[0]
    return decoded


def control(family: Any) -> Any:
    torch.manual_seed(0)
    taken = {
        name: value
        for name, value in kinds()[family].configuration().items()
        if name not in ("sample_size", "up_block_types")
    }
    module = ControlNetModel(**taken, conditioning_embedding_out_channels=(4, 8, 8, 12)).eval()
    for layer in (*module.controlnet_down_blocks, module.controlnet_mid_block):
        nn.init.normal_(layer.weight, std=0.1)
    return module


def vae(family: Any) -> Any:
    torch.manual_seed(0)
    return random_parts.vae(kinds()[family].latent).eval()


Made = tuple[Callable[[], Any], Callable[..., Tensor]]
MODULES: dict[str, Made] = {
    **{family: (lambda family=family: unet(family), unet_call) for family in FAMILIES},
    "inpainting": (lambda: unet("sd1", in_channels=9), unet_call),
    "refiner": (
        lambda: unet(
            "sdxl", cross_attention_dim=40, projection_class_embeddings_input_dim=6 * 8 + 40
        ),
        unet_call,
    ),
    "controlnet sd1": (lambda: control("sd1"), control_call),
    "controlnet sdxl": (lambda: control("sdxl"), control_call),
    "vae": (lambda: vae("sdxl"), vae_call),
}


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unet_blocks, "uses_kernels", lambda tensor: True)


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MODULES)
def test_on_a_processor_it_is_diffusers_bit_for_bit(name: str, size: tuple[int, int]) -> None:
    make, call = MODULES[name]
    module = make()
    expected = call(module, size)
    assert not unprepared(module)
    prepare(module)
    assert any(isinstance(one, PreparedResnetBlock) for one in module.modules())
    assert torch.equal(call(module, size), expected)


@torch.no_grad()
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", MODULES)
def test_as_on_a_gpu_it_is_diffusers_within_rounding(name: str) -> None:
    make, call = MODULES[name]
    module = make()
    expected = call(module)
    prepare(module)
    module.to(memory_format=torch.channels_last)
    fuse_projections(module)
    made = call(module)
    assert not torch.equal(made, expected)  # otherwise nothing is tested
    assert (made - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


@torch.no_grad()
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODULES)
def test_in_half_precision_it_errs_no_more_than_diffusers(name: str, dtype: torch.dtype) -> None:
    """Compares root mean square errors against float64 with the same rounded weights, over several
    inputs, as single ones vary by a quarter.
    """
    make, call = MODULES[name]
    eager = make().to(dtype)
    exact = copy.deepcopy(eager).double()
    made = copy.deepcopy(eager)
    prepare(made)

    def error(module: nn.Module) -> float:
        apart = [call(module, size).double() - call(exact, size) for size in MORE_SIZES]
        return float(torch.cat([one.flatten() for one in apart]).square().mean().sqrt())

    assert error(made) <= 1.2 * error(eager)


@torch.no_grad()
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_picture_in_bfloat16_keeps_45_decibels() -> None:
    """GPUs use bfloat16 where float16 overflows; the miniature VAE is trained."""
    recipe = pipeline_recipes(mini_models().pipeline)[2]
    picture = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    picture = F.interpolate(picture, scale_factor=16, mode="bicubic").clamp(0, 1)
    exact = ModelStore().vae(recipe.vae, "cpu", torch.float32)
    latent = exact.encode(picture * 2 - 1).latent_dist.mean
    expected = vae_decode(exact, latent)
    made = vae_decode(ModelStore().vae(recipe.vae, "cpu", torch.bfloat16), latent)
    assert 45 <= -10 * torch.log10((made - expected).square().mean()) < 90


@torch.no_grad()
def test_unknown_blocks_keep_their_forward_and_are_reported() -> None:
    module = unet("sd1", resnet_time_scale_shift="scale_shift")
    expected = unet_call(module)
    found = unprepared(module)
    prepare(module)
    blocks = sum(type(one).__name__ == "ResnetBlock2D" for one in module.modules())
    assert found == {"ResnetBlock2D, time embedding norm scale_shift": blocks}
    assert torch.equal(unet_call(module), expected)
    assert any(isinstance(one, PreparedTransformerBlock) for one in module.modules())


def test_the_installed_libraries_have_every_known_block() -> None:
    """Otherwise a renamed block would silently keep its forward."""
    assert resolve_name(ATTENTION)
    for path, becomes in PREPARED.items():
        block = resolve_name(path)
        assert (block.__module__, block.__qualname__) == tuple(path.split(":"))
        assert issubclass(resolve_name(becomes), block)


def test_full_size_sdxl_has_the_same_shapes_and_operations() -> None:
    with torch.device("meta"):
        module = UNet2DConditionModel.from_config(SDXL).eval()
    counts = []
    for _ in range(2):
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            made = module(
                torch.empty(2, 4, 128, 128),
                torch.empty(2),
                torch.empty(2, 77, 2048),
                added_cond_kwargs={
                    "text_embeds": torch.empty(2, 1280),
                    "time_ids": torch.empty(2, 6),
                },
                return_dict=False,
            )[0]
        counts.append((made.shape, counter.get_total_flops()))
        assert not unprepared(module)
        prepare(module)
    assert counts[0] == counts[1] and counts[0][1] > 13e12


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_projections_side_by_side_are_computed_as_one_and_patched_apart(family: Any) -> None:
    from test_adapters_weight_set import loras, recipes

    def made(fused: bool) -> tuple[Tensor, Tensor]:
        module = ModelStore().network(recipes(family)[0].network, "cpu", torch.float32)
        if fused:
            fuse_projections(module)
            assert sum(hasattr(one, FUSED) for one in module.modules()) > 4
        sets = WeightSets(module)
        sets.use(loras(family, 0.7, -0.4))
        return module.mid_block.attentions[0].transformer_blocks[0].attn1.to_q.weight, unet_call(
            module
        )

    (weight, expected), (other, together) = made(False), made(True)
    assert torch.equal(weight, other)
    assert (together - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_loras_are_added_and_taken_out_of_channels_last_weights(dtype: torch.dtype) -> None:
    """On a GPU, convolutions are channels-last; the patch computes on rows of a matrix."""
    from test_adapters_weight_set import loras, recipes, snapshot

    def patched(layout: torch.memory_format) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        module = ModelStore().network(recipes("sd1")[0].network, "cpu", dtype)
        module.to(memory_format=layout)
        before, sets = snapshot(module), WeightSets(module)
        sets.use(loras("sd1", 0.7, -0.4, 1.3))
        with_loras = snapshot(module)
        sets.use(())
        assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
        return before, with_loras

    (before, expected), (_, made) = map(patched, (torch.contiguous_format, torch.channels_last))
    assert any(not torch.equal(before[name], expected[name]) for name in before)
    assert all(torch.equal(made[name], expected[name]) for name in expected)


def _in(kind: torch.dtype, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in(kind, one) for name, one in value.items()}
    return value.to(kind)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_that_lie_channels_last_stay_so(family: Any) -> None:
    """No block changes the layout, unlike diffusers' after every attention."""
    module = unet(family)
    prepare(module)
    module.to(memory_format=torch.channels_last)
    otherwise: list[str] = []

    def look(name: str, made: Any) -> None:
        made = made if isinstance(made, Tensor) else made[0]
        if made.ndim == 4 and not made.is_contiguous(memory_format=torch.channels_last):
            otherwise.append(name)

    for name, part in module.named_modules():
        part.register_forward_hook(lambda _, given, made, name=name: look(name, made))
    with torch.inference_mode():
        unet_call(module)
    assert not otherwise
