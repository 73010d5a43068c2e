"""Prepared blocks of Z-Image and HunyuanDiT and their ControlNets equal diffusers' forwards: on a
CPU bit for bit, with a GPU's fused products within float rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import diffusers
import pytest
import torch
from diffusers.models.controlnets.controlnet_z_image import RopeEmbedder
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from katz_graph.ir.values import Tokens
from katz_graph.models.families.hunyuan_dit import random_models as hunyuan_dit
from katz_graph.models.families.hunyuan_dit import stack as hunyuan_dit_stack
from katz_graph.models.families.shared.transformer_stack import stack_of
from katz_graph.models.families.z_image import random_models as z_image
from katz_graph.models.prepare import fuse_projections, prepare, unprepared
from katz_graph.models.projections import FusedProjections
from katz_graph.models.stage_registry import stage
from katz_graph.testing.random_models import Kind, draw_network
from katz_graph.testing.tapes import Tapes

BLOCKS = 3
SIZES = [(4, 4), (6, 10)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_random_weights(module: nn.Module) -> nn.Module:
    """New norms and zero layers hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "norm" in name and weight.ndim == 1:
                weight.uniform_(0.5, 1.5, generator=generator)
            else:
                weight.normal_(std=0.2, generator=generator)
    return module.eval()


def z_image_network() -> nn.Module:
    taken = z_image.configuration(BLOCKS)
    return with_random_weights(diffusers.ZImageTransformer2DModel(**taken))


def z_image_call(module: Any, size: tuple[int, int]) -> Tensor:
    """Two pictures with texts of different lengths, so that attention is masked."""
    kind = next(module.parameters()).dtype
    pictures = [random(16, 1, *size, seed=seed).to(kind) for seed in (1, 2)]
    texts = [random(count, module.config.cap_feat_dim, seed=3).to(kind) for count in (5, 40)]
    made = module(pictures, torch.tensor([0.3, 0.6]), texts, return_dict=False)[0]
    return torch.cat([one.flatten() for one in made])


def z_image_control() -> nn.Module:
    taken = z_image.control_configuration(z_image.configuration(BLOCKS), 2)
    return with_random_weights(diffusers.ZImageControlNetModel(**taken))


def z_image_control_call(module: Any, size: tuple[int, int]) -> Tensor:
    kind, width = next(module.parameters()).dtype, module.config.dim
    tokens, embedding = (
        random(*shape, seed=seed).to(kind)
        for shape, seed in (((2, size[0] * size[1], width), 1), ((2, width), 2))
    )
    ids = torch.stack([torch.arange(tokens.shape[1])] * 3, dim=-1)
    frequencies = RopeEmbedder(axes_dims=[4, 6, 6], axes_lens=[64, 64, 64])(ids)[None]
    hidden = tokens
    for layer in module.control_noise_refiner:
        hidden = layer(hidden, None, frequencies, embedding)
    for layer in module.control_layers:
        hidden = layer(hidden, tokens, None, frequencies, embedding)
    return hidden.flatten()


def hunyuan_dit_network() -> nn.Module:
    taken = hunyuan_dit.configuration(BLOCKS)
    return with_random_weights(diffusers.HunyuanDiT2DModel(**taken))


def hunyuan_dit_control() -> nn.Module:
    taken = hunyuan_dit.control_configuration(hunyuan_dit.configuration(BLOCKS), BLOCKS)
    return with_random_weights(diffusers.HunyuanDiT2DControlNetModel(**taken))


def hunyuan_dit_call(module: Any, size: tuple[int, int]) -> Tensor:
    kind, values = next(module.parameters()).dtype, module.config
    long, short, latent = (
        random(2, *shape, seed=seed).to(kind)
        for seed, shape in enumerate(
            ((256, values.cross_attention_dim_t5), (77, values.cross_attention_dim), (4, *size))
        )
    )
    given = {
        "encoder_hidden_states": short,
        "text_embedding_mask": torch.arange(77)[None] < torch.tensor([[10], [20]]),
        "encoder_hidden_states_t5": long,
        "text_embedding_mask_t5": torch.arange(256)[None] < torch.tensor([[30], [99]]),
        "image_rotary_emb": tuple(
            one[0] for one in hunyuan_dit_stack.fixed(module, size[0] // 2, size[1] // 2, 0)
        ),
        "return_dict": False,
    }
    if "ControlNet" in type(module).__name__:
        picture = random(2, 4, *size, seed=5).to(kind)
        found = module(latent, torch.tensor([300.0, 600.0]).to(kind), picture, **given)[0]
        return torch.cat([one.flatten() for one in found])
    made: Tensor = module(latent, torch.tensor([300.0, 600.0]).to(kind), **given)[0]
    return made.flatten()


Made = tuple[Callable[[], nn.Module], Callable[[Any, tuple[int, int]], Tensor], int]
MODULES: dict[str, Made] = {
    "z_image": (z_image_network, z_image_call, 2 * (BLOCKS + 2)),
    "hunyuan_dit": (hunyuan_dit_network, hunyuan_dit_call, 4 * BLOCKS),
    "controlnet hunyuan_dit": (hunyuan_dit_control, hunyuan_dit_call, 2 * BLOCKS),
    "controlnet z_image": (z_image_control, z_image_control_call, 2 * (2 + 1)),
}
"""Maps a network to its factory, a call, and its number of fused products."""


@torch.no_grad()
@pytest.mark.parametrize("name", MODULES)
def test_on_a_processor_it_is_diffusers_bit_for_bit(name: str) -> None:
    make, call, products = MODULES[name]
    module = make()
    expected, kinds = [call(module, size) for size in SIZES], [*map(type, module.modules())]
    assert not unprepared(module)
    prepare(module)
    changed = [
        kind for kind, one in zip(kinds, module.modules(), strict=True) if type(one) is not kind
    ]
    assert len(changed) >= products // 2
    for size, one in zip(SIZES, expected, strict=True):
        assert torch.equal(call(module, size), one)


@torch.no_grad()
@pytest.mark.parametrize("name", MODULES)
def test_fused_products_are_diffusers_within_rounding_and_follow_their_weights(name: str) -> None:
    make, call, products = MODULES[name]
    ours, theirs = make(), make()
    prepare(ours)
    fuse_projections(ours)
    attributes = [one for part in ours.modules() for one in vars(part).values()]
    assert sum(isinstance(one, FusedProjections) for one in attributes) == products
    found = []
    for _ in range(2):
        made, expected = (call(module, SIZES[0]) for module in (ours, theirs))
        assert (made - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
        found.append(made)
        for module in (ours, theirs):
            for called, weight in module.named_parameters():
                if any(part in called for part in ("to_v", "w3")):
                    weight.add_(0.01)
    assert (found[1] - found[0]).abs().max() > 0.01


@torch.no_grad()
@pytest.mark.parametrize("name", MODULES)
def test_in_bfloat16_it_errs_no_more_than_diffusers(name: str) -> None:
    """Compares root mean square errors against float64 with the same rounded weights."""
    make, call, _ = MODULES[name]
    eager = make().to(torch.bfloat16)
    exact, made = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    prepare(made)
    fuse_projections(made)

    def error(module: nn.Module) -> float:
        apart = [call(module, size).double() - call(exact, size) for size in SIZES]
        return float(torch.cat(apart).square().mean().sqrt())

    assert 0 < error(made) <= 1.2 * error(eager)


def run(module: Any, given: Mapping[str, Any], *ranges: tuple[int, int]) -> Tensor:
    """Runs ranges of blocks, each as one stage."""
    tokens = given["features"]
    for first, last in ranges:
        part = {"features": tokens, "first_block": first, "last_block": last}
        (tokens,) = stage("transformer_blocks").computed(module, {**given, **part})
    hidden: Tensor = tokens.hidden
    return hidden


@torch.no_grad()
@pytest.mark.parametrize("kind", ["z_image", "hunyuan_dit"])
def test_ranges_of_fused_blocks_compute_alike_and_are_recorded(kind: Kind) -> None:
    """Replays with other tokens, between which all intermediate tensors are overwritten."""
    module = draw_network(kind, BLOCKS)
    picture, text = 12, 40 if kind == "z_image" else 333
    fixed = stack_of(module).fixed(module, 3, 4, text)
    hidden, embedding = random(2, 96 if kind == "z_image" else picture, 32), random(2, 32, seed=1)
    context = None if kind == "z_image" else random(2, text, module.config.cross_attention_dim)
    tokens = Tokens(hidden, context, embedding, None)  # type: ignore[arg-type]
    given = {"features": tokens, "fixed": fixed}
    expected = run(module, given, (0, -1))
    prepare(module)
    fuse_projections(module)
    for ranges in ([(0, -1)], [(0, 0), (1, 1), (2, -1)]):
        made = run(module, given, *ranges)
        assert (made - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
    inputs = [one for one in (hidden, context, embedding, *fixed) if one is not None]
    weights = [*module.parameters(), *module.buffers()]
    recording = Tapes(strict=True).record(lambda: run(module, given, (0, -1)), [*inputs, *weights])
    for _ in range(2):
        hidden.normal_()
        embedding.normal_()
        recording.replay()
        assert torch.equal(recording.outputs.clone(), run(module, given, (0, -1)))


@torch.no_grad()
@pytest.mark.parametrize("name", ["Z-Image", "HunyuanDiT"])
def test_full_size_blocks_have_the_same_shapes_and_operations(name: str) -> None:
    with torch.device("meta"):
        tokens, embedding = torch.empty(1, 4096, 3840), torch.empty(1, 256)
        if name == "Z-Image":
            module: Any = diffusers.ZImageTransformer2DModel(n_layers=1)
            block, positions = module.layers[0], torch.empty(1, 4096, 64, dtype=torch.complex64)
            given: tuple[Any, ...] = None, positions, embedding
        else:
            module = diffusers.HunyuanDiT2DModel(
                num_layers=2, in_channels=4, patch_size=2, hidden_size=1408, mlp_ratio=4.3637
            )
            block, tokens = module.blocks[0], torch.empty(1, 4096, 1408)
            rotary = torch.empty(4096, 88), torch.empty(4096, 88)
            given = torch.empty(1, 333, 1024), torch.empty(1, 1408), rotary
    counts = []
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            made = block(tokens, *given)
        counts.append((made.shape, counter.get_total_flops()))
        prepare(module)
        fuse_projections(module)
    assert counts[0] == counts[1] and counts[0][1] > 1e11
