"""LoRAs on a GPU are merged, and removed bit for bit. Skipped without a GPU."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from katz_graph.core.recipe import Lora
from katz_graph.executor.weights.originals import nowhere
from katz_graph.executor.weights.weight_set import WeightSets
from katz_graph.host.transfer import uploading
from katz_graph.kernels.lora_patch import lora_patch, reference
from katz_graph.kernels.patches import Delta, Patch
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.model_files import Models, random_models

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

TYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return random_models(tmp_path_factory.mktemp("sdxl"), "sdxl")


@pytest.mark.parametrize("ranks", [(16,), (5, 130)])
@pytest.mark.parametrize("factors", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_patch_errs_no_more_than_twice_its_reference(
    dtype: torch.dtype, factors: torch.dtype, ranks: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    last = torch.channels_last
    originals = [
        random(1280, 640).to("cuda:0", dtype),
        random(320, 4, 3, 3).to("cuda:0", dtype).contiguous(memory_format=last),
        random(70, 320, 3, 3).to("cuda:0", dtype).contiguous(memory_format=last),
    ]
    deltas = [
        [
            Delta(
                random(len(one), rank).to(factors),
                (random(rank, *one.shape[1:]) / rank).to(factors),
                scale,
            )
            for rank, scale in zip(ranks, (0.7, -0.4), strict=False)
        ]
        for one in originals
    ]
    made, expected = ([torch.empty_like(one) for one in originals] for _ in range(2))
    for patch, weights in ((lora_patch, made), (reference, expected)):
        patch([Patch(*one) for one in zip(weights, originals, deltas, strict=True)])
    exact = [one.double() for one in originals]
    reference([Patch(one, one, more) for one, more in zip(exact, deltas, strict=True)])
    for weight, other, one in zip(made, expected, exact, strict=True):
        error, allowed = ((some.double() - one).abs().max() for some in (weight, other))
        assert error <= 2 * allowed


@pytest.mark.parametrize("spare_memory", [nowhere, lambda: nullcontext(math.inf)])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_weight_set_is_taken_out_bit_for_bit(
    models: Models, dtype: torch.dtype, spare_memory: object
) -> None:
    module = ModelStore().network(
        pipeline_recipes(Path(models.pipeline))[0].network, "cuda:0", dtype
    )
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    send = uploading(torch.device("cuda:0"))
    sets = WeightSets(module, spare_memory=spare_memory, send=send)  # type: ignore[arg-type]
    chosen = tuple(Lora(file_identity(path), 0.7) for path in models.loras)
    for wanted in (chosen, chosen[:1], chosen[1:], ()):
        sets.use(wanted)
    assert sets.originals.tensors
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
