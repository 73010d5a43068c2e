"""Compares multiplying kernels in Triton's interpreter with float64, and tests weight sets that use
them. See `test_kernels`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_kernels import TYPES, check, random
from torch import Tensor

from katz_graph.core.recipe import Lora
from katz_graph.executor.weights.adapters import AdapterStore
from katz_graph.executor.weights.weight_set import WeightSets
from katz_graph.kernels import geglu as gate
from katz_graph.kernels import linear_geglu as gated
from katz_graph.kernels.dispatch import INTERPRETED
from katz_graph.kernels.lora_patch import lora_patch, reference
from katz_graph.kernels.patches import Delta, Patch
from katz_graph.kernels.triton import lora_patch as triton_lora_patch
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.prepare import FUSED
from katz_graph.testing.model_files import Models

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET is not 1")

HALF = [torch.float16, torch.bfloat16]
RANKS = [1, 3, 16, 17, 64, 130]


def exact_geglu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    value, gate = F.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    ).chunk(2, -1)
    return value * F.gelu(gate)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(2, 5, 70, 33), (3, 47, 64, 64), (1, 1, 5, 130)])
def test_linear_geglu(
    shape: Sequence[int], dtype: torch.dtype, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, rows, inner, width = shape
    # columns with gaps
    x = random(batch, rows, 2 * inner, dtype=dtype)[..., ::2]
    weight = random(2 * width, inner, seed=1, dtype=dtype) / inner**0.5
    bias = random(2 * width, seed=2, dtype=dtype) if biased else None
    expected = gated.reference(x, weight, bias)
    monkeypatch.setattr(gate, "geglu", None)  # only the fused kernel may run
    made = gated.linear_geglu(x, weight, bias)
    assert made.shape == expected.shape and made.dtype == dtype
    check(made, expected, exact_geglu(x, weight, bias))


def test_linear_geglu_of_floats_is_the_library_product_and_the_gate() -> None:
    x, weight, bias = random(3, 7, 24), random(20, 24, seed=1), random(20, seed=2)
    made = gated.linear_geglu(x, weight, bias)
    assert torch.equal(made, gate.geglu(F.linear(x, weight, bias)))
    check(made, gated.reference(x, weight, bias), exact_geglu(x, weight, bias))


def test_nothing_in_gives_nothing_and_nan_stays_in_its_row() -> None:
    weight = random(40, 24, seed=1, dtype=torch.float16)
    assert gated.linear_geglu(torch.empty(0, 24).half(), weight, None).shape == (0, 20)
    x = random(9, 24, dtype=torch.float16)
    x[4, 3] = torch.nan
    made = gated.linear_geglu(x, weight, None)
    assert made[4].isnan().all() and not made[[0, 1, 2, 3, 5, 6, 7, 8]].isnan().any()


def deltas(weight: Tensor, ranks: Sequence[int], *dtypes: torch.dtype) -> list[Delta]:
    return [
        Delta(
            random(len(weight), rank, seed=rank, dtype=dtype),
            (random(rank, *weight.shape[1:], seed=rank + 1) / rank).to(dtype),
            0.7 - number,
        )
        for number, (rank, dtype) in enumerate(zip(ranks, dtypes, strict=True))
    ]


def exact_sum(original: Tensor, updates: Sequence[Delta]) -> Tensor:
    total = original.double()
    for one in updates:
        product = one.up.double() @ one.down.double().flatten(1)
        total = total + one.scale * product.view(total.shape)
    return total


def layers(dtype: torch.dtype) -> list[Tensor]:
    """Returns weights of a linear layer, of convolutions, and of one of three fused projections."""
    projections = random(3 * 24, 32, seed=3, dtype=dtype)
    last = torch.channels_last
    return [
        random(70, 100, dtype=dtype),
        random(33, 20, 3, 3, seed=1, dtype=dtype).contiguous(memory_format=last),
        random(8, 16, 1, 1, seed=2, dtype=dtype).contiguous(memory_format=last),
        random(16, 4, 3, 3, seed=4, dtype=dtype),
        projections[24:48],
    ]


@pytest.mark.parametrize("ranks", [(3,), (16,), (64,), *((rank, 5) for rank in RANKS)])
@pytest.mark.parametrize("dtype", TYPES)
def test_lora_patch(dtype: torch.dtype, ranks: Sequence[int]) -> None:
    """One call adds one or two LoRAs, of different ranks, to all layers."""
    originals, made, expected = layers(dtype), layers(dtype), layers(dtype)
    before = [one.clone() for one in originals]
    updates = [deltas(one, ranks, *[torch.float16] * len(ranks)) for one in originals]
    for patch, weights in ((lora_patch, made), (reference, expected)):
        patch([Patch(*one) for one in zip(weights, originals, updates, strict=True)])
    for weight, other, original, more in zip(made, expected, before, updates, strict=True):
        check(weight, other, exact_sum(original, more))
        assert weight.stride() == original.stride()
    assert all(map(torch.equal, originals, before))
    neighbours = made[-1]._base
    assert neighbours is not None
    untouched = torch.cat([neighbours[:24], neighbours[48:]])
    unchanged = random(72, 32, seed=3, dtype=dtype)
    assert torch.equal(untouched, torch.cat([unchanged[:24], unchanged[48:]]))


@pytest.mark.parametrize(
    "formats",
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.bfloat16),
        (torch.float8_e4m3fn, torch.float64),
    ],
)
def test_factors_may_have_any_format_and_originals_be_the_weights(
    formats: Sequence[torch.dtype],
) -> None:
    weight, other = random(40, 48, dtype=torch.float16), random(40, 48, dtype=torch.float16)
    updates = deltas(weight, (4, 9), *formats)
    exact = exact_sum(weight, updates)
    lora_patch([Patch(weight, weight, updates)])
    reference([Patch(other, other, updates)])
    check(weight, other, exact)


def test_layers_of_different_heights_are_found() -> None:
    originals = [random(65 * (number % 3) + 1, 16, seed=number) for number in range(11)]
    made = [torch.zeros_like(one) for one in originals]
    updates = [deltas(one, (2,), torch.float32) for one in originals]
    lora_patch([Patch(*one) for one in zip(made, originals, updates, strict=True)])
    for weight, original, more in zip(made, originals, updates, strict=True):
        assert torch.allclose(weight.double(), exact_sum(original, more), atol=1e-5)


def test_nan_stays_where_it_was_made() -> None:
    original = random(20, 32)
    original[2, 3] = torch.nan
    (update,) = deltas(original, (3,), torch.float32)
    update.up[7] = torch.nan
    made = torch.empty_like(original)
    lora_patch([Patch(made, original, [update])])
    bad = torch.zeros(20, 32, dtype=torch.bool)
    bad[2, 3] = bad[7] = True
    assert torch.equal(made.isnan(), bad)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_weight_set_is_written_at_once_and_taken_out_again(
    dtype: torch.dtype, sd1: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is laid out as on a GPU: convolutions channels-last, projections in one storage."""
    module = ModelStore().network(pipeline_recipes(sd1.pipeline)[0].network, "cpu", dtype)
    assert any(hasattr(one, FUSED) for one in module.modules())
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    sets = WeightSets(module)
    chosen = tuple(Lora(file_identity(path), 0.7) for path in sd1.loras)
    launches: list[Any] = []
    plan = triton_lora_patch.Plan
    monkeypatch.setattr(WeightSets, "_write", None)  # no layer may be written singly
    monkeypatch.setattr(
        triton_lora_patch,
        "Plan",
        lambda patches, *given: launches.append(patches) or plan(patches, *given),  # type: ignore[func-returns-value]
    )
    sets.use(chosen)
    (patches,) = launches
    assert len(patches) == len(sets.touched) > 50
    for patch in patches:
        expected = torch.empty_like(patch.weight)
        reference([Patch(expected, patch.original, patch.deltas)])
        check(patch.weight, expected, exact_sum(patch.original, patch.deltas))
    sets.use(())
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())


@pytest.mark.parametrize("dtype", TYPES)
def test_factors_of_a_file_are_sent_in_one_copy_each_time(
    dtype: torch.dtype, sd1: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set that recurs with another strength only sends its factors again."""
    module = ModelStore().network(pipeline_recipes(sd1.pipeline)[0].network, "cpu", dtype)
    file = file_identity(sd1.loras[0])
    store = AdapterStore()
    sent: list[list[int]] = []
    send = triton_lora_patch._Factors.sent
    monkeypatch.setattr(
        triton_lora_patch._Factors,
        "sent",
        lambda factors, *given: (
            sent.append([piece.nbytes for piece in factors._pieces])  # type: ignore[func-returns-value]
            or send(factors, *given)
        ),
    )
    sets = WeightSets(module, store.get)
    reads = WeightSets(copy.deepcopy(module), store.get)
    sets.use((Lora(file, 0.4),))
    with monkeypatch.context() as again:
        again.setattr(triton_lora_patch, "Plan", None)
        sets.use(())
        sets.use((Lora(file, 0.7),))
    reads.use((Lora(file, 0.7),))
    assert [len(pieces) for pieces in sent] == [1, 1, 1]
    assert sent[0] == sent[1] and sent[0][0] <= sd1.loras[0].stat().st_size
    for name, weight in sets._weights.items():
        assert torch.equal(weight, reads._weights[name])


def test_unaligned_rows_are_written_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs fault on wide loads at unaligned addresses; the interpreter does not."""
    launches: list[tuple[int, bool]] = []
    launch = triton_lora_patch._Launch
    monkeypatch.setattr(
        triton_lora_patch,
        "_Launch",
        lambda patches, wide, *given: (
            launches.append((len(patches), wide))  # type: ignore[func-returns-value]
            or launch(patches, wide, *given)
        ),
    )
    originals = [random(8, 32), random(8, 36), random(257)[1:].view(8, 32), random(16, 16)]
    made = [torch.empty_like(one) for one in originals]
    updates = [deltas(one, (2,), torch.float32) for one in originals]
    lora_patch([Patch(*one) for one in zip(made, originals, updates, strict=True)])
    assert sorted(launches) == [(2, False), (2, True)]
    for weight, original, more in zip(made, originals, updates, strict=True):
        assert torch.allclose(weight.double(), exact_sum(original, more), atol=1e-5)
