"""Compares the kernels of LoRAs by row in Triton's interpreter with float64, and a prepared UNet
whose rows have LoRAs with one that has them merged.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from test_kernels import TYPES, check, random
from torch import Tensor, nn

from katz_graph.kernels.dispatch import INTERPRETED
from katz_graph.kernels.row_products import FactorBank, RowFactors, add_products
from katz_graph.models.lora_layers import computed
from katz_graph.models.prepare import fuse_projections, prepare
from katz_graph.models.row_loras import LoraFactors, row_loras
from katz_graph.models.stages import ROW_LORAS
from katz_graph.testing.random_models import kinds

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET is not 1"),
    pytest.mark.usefixtures("rounded_casts"),
]


@pytest.mark.parametrize("dtype", TYPES)
def test_add_products(dtype: torch.dtype) -> None:
    """Tokens, columns and inner columns that fill no block; rows of two requests and of none."""
    batch, tokens, width, columns, rank = 3, 35, 70, 66, 16
    x, y = random(batch, tokens, width, dtype=dtype), random(batch, tokens, columns, dtype=dtype)
    down, up = random(3, rank, width, dtype=dtype) / 8, random(3, columns, rank, dtype=dtype) / 4
    down[0] = up[0] = 0.0
    members = torch.tensor([2, 0, 1], dtype=torch.int32)
    exact = y.double()
    for row, member in enumerate(members):
        exact[row] += x[row].double() @ down[member].double().T @ up[member].double().T
    made, reference = y.clone(), y.clone()
    add_products(made, x, FactorBank(down, up, members))
    by_row = [
        RowFactors(slice(row, row + 1), down[member], up[member])
        for row, member in enumerate(members)
    ]
    add_products(reference, x, by_row)
    check(made, reference, exact)
    assert torch.equal(made[1], y[1])


@torch.no_grad()
def test_a_prepared_unet_gives_each_row_the_loras_of_its_request() -> None:
    torch.manual_seed(0)
    sizes = kinds()["sd1"].configuration((8, 16, 16), layers=1) | {"norm_num_groups": 4}
    module: Any = UNet2DConditionModel(**sizes).eval()
    text = random(2, 5, module.config.cross_attention_dim, seed=1)

    def call(module: Any) -> Tensor:
        made: Tensor = module(random(2, 4, 4, 4), torch.full((2,), 300.0), text).sample
        return made

    weights = {
        f"{path}.weight": layer.weight
        for path, layer in module.named_modules()
        if isinstance(layer, (nn.Linear, nn.Conv2d))
    }
    requests, expected = [], []
    for row, rank in enumerate((2, 3)):
        factors = {
            name: (random(rank, *weight.shape[1:]) / 8, random(len(weight), rank, seed=rank) / 8)
            for name, weight in weights.items()
        }
        changed = copy.deepcopy(module)
        for name, (down, up) in factors.items():
            weight = changed.get_parameter(name)
            weight.add_((up @ down.flatten(1)).view(weight.shape))
        expected.append(call(changed)[row])
        requests.append(LoraFactors(factors))
    plain = call(module)
    prepare(module)
    module.to(memory_format=torch.channels_last)
    fuse_projections(module)
    (made,) = computed(
        lambda module, _: (call(module),), module, {ROW_LORAS: row_loras(requests, (1, 1), 2)}
    )
    for found, merged, without in zip(made, expected, plain, strict=True):
        extent = merged.max() - merged.min()
        assert (found - merged).abs().max() <= 1e-5 * extent < 1e-3 * (merged - without).abs().max()
