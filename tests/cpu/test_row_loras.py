"""LoRAs that apply to the rows of their requests give what merged ones give."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_prepared import unet, unet_call
from tiny_models import FAMILIES
from torch import Tensor, nn
from transformers_made import EACH, in_stages
from transformers_made import inputs as step_and_text

from katz_graph.core.recipe import Lora
from katz_graph.core.shared_rows import SharedRows
from katz_graph.executor.recorded.recorder import Recorder
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.models.family import family_of_class
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.lora_layers import computed
from katz_graph.models.prepare import fuse_projections, prepare
from katz_graph.models.row_loras import LoraFactors, row_loras
from katz_graph.models.stages import ROW_LORAS
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.random_models import draw_network
from katz_graph.testing.requests import local_engine, sample, sampler_region
from katz_graph.testing.tapes import Tapes

BOUND = 1e-5  # of the range, as for requests that share calls


def drawn(module: nn.Module, rank: int, seed: int) -> LoraFactors:
    """Draws factors for all linear layers and convolutions to whose output they can be added."""
    family = family_of_class(type(module).__name__)
    assert family is not None
    always_merged = family.lora.merged
    draw = torch.Generator().manual_seed(seed)
    return LoraFactors(
        {
            f"{path}.weight": (
                torch.randn(rank, *layer.weight.shape[1:], generator=draw) / 8,
                torch.randn(len(layer.weight), rank, generator=draw) / 8,
            )
            for path, layer in module.named_modules()
            if isinstance(layer, (nn.Linear, nn.Conv2d)) and not path.startswith(always_merged)
        }
    )


def merged(module: nn.Module, factors: LoraFactors | None) -> nn.Module:
    module = copy.deepcopy(module)
    for name, (down, up) in factors.layers.items() if factors else ():
        weight = module.get_parameter(name)
        weight.copy_(weight + (up @ down.flatten(1)).view(weight.shape))
    return module


@torch.no_grad()
@pytest.mark.parametrize("kind", [*FAMILIES, *EACH])
def test_each_row_has_the_loras_of_its_request(kind: Any) -> None:
    call: Callable[[Any], Tensor]
    if kind in EACH:
        module = draw_network(kind, 1)
        step, text = step_and_text(module, 2, torch.float32)

        def call(module: Any) -> Tensor:
            return in_stages(module, step, text, [1])
    else:
        module, call = unet(kind), unet_call
    prepare(module)
    one, other = drawn(module, 3, 5), drawn(module, 2, 6)
    together = copy.deepcopy(module)
    fuse_projections(together)
    for requests in ((one, other), (None, one)):
        alone = [call(merged(module, factors))[row] for row, factors in enumerate(requests)]
        for live in (module, together):
            given = {ROW_LORAS: row_loras(requests, (1, 1), 2)}
            (found,) = computed(lambda module, _: (call(module),), live, given)
            assert max(map(difference, found, alone)) <= BOUND
            assert torch.equal(call(live), call(copy.deepcopy(live)))  # nothing stays
    plain = call(module)
    assert all(1e-2 < difference(plain[row], alone[1]) < torch.inf for row in range(2))


def painted(engine: Any, regions: Sequence[Any]) -> list[Tensor]:
    """Paints at the same time."""
    with ThreadPoolExecutor(len(regions)) as pool:
        return list(pool.map(lambda region: sample(engine, region), regions))


def test_requests_with_other_loras_share_calls(sd1: Models, costs: Path) -> None:
    one, other = sd1.loras
    plain = Case("loras", sd1.pipeline, "euler", 6, latent=torch.zeros(1, 4, 8, 8))
    regions = [
        sampler_region(case)
        for case in (
            replace(plain, loras=((one, 0.7),)),
            replace(plain, seed=5, loras=((other, -0.4),), guidance=1.0),
            replace(plain, seed=6, loras=((one, 0.3), (other, 0.6))),
            plain,
        )
    ]
    with local_engine(cache=costs) as engine:
        alone = [sample(engine, region) for region in regions]
    with local_engine(cache=costs, shared_rows=SharedRows(16)) as engine:
        assert torch.equal(sample(engine, regions[0]), alone[0])  # merged
        use = engine.models.compute.use
        assert not use.lora_rows
        found = painted(engine, regions)
        assert use.lora_rows and use.shared
        again = [sample(engine, region) for region in regions]
    assert max(map(difference, [*found, *again], [*alone, *alone])) <= BOUND
    with local_engine(cache=costs, shared_rows=SharedRows(4, fixed=True)) as engine:
        lone = [sample(engine, region) for region in regions]
        fixed = painted(engine, regions)
        assert engine.models.compute.use.shared > 0 and not engine.models.network_seconds
    assert all(map(torch.equal, lone, fixed))
    assert max(map(difference, fixed, alone)) <= BOUND


def test_a_recorded_call_computes_with_the_loras_of_each_request(sd1: Models, costs: Path) -> None:
    plain = Case("loras", sd1.pipeline, "euler", 3, latent=torch.zeros(1, 4, 8, 8))
    regions = [
        sampler_region(replace(plain, loras=((sd1.loras[0], strength),)))
        for strength in (0.7, -0.4)
    ]
    with local_engine(cache=costs) as engine:
        alone = [sample(engine, region) for region in regions]
    with local_engine(cache=costs, shared_rows=SharedRows(4, fixed=True)) as engine:
        compute = engine.models.compute = Recorder(Tapes(strict=True), eager=0)
        found = [sample(engine, regions[0])]
        captures = compute.use.captures
        found += [sample(engine, region) for region in (regions[1], regions[0])]
        assert compute.use.captures == captures > 0
    assert max(map(difference, found, [*alone, alone[0]])) <= BOUND


def test_only_plain_products_of_layers_apply_by_row(sd1: Models, tmp_path: Path) -> None:
    recipe, _, _ = pipeline_recipes(sd1.pipeline)
    tensors = load_file(sd1.loras[0])
    up = next(name for name in tensors if name.endswith("attn1_to_out_0.lora_up.weight"))
    layer = up.removesuffix("lora_up.weight")
    width = tensors[up].shape[0]
    changes = {
        "bias": {f"{layer}diff_b": torch.ones(width)},
        "dora": {f"{layer}dora_scale": torch.ones(width, 1)},
    }
    models = DeviceModels()
    path = tmp_path / "text.safetensors"
    both = load_file(sd1.loras[1])
    save_file({name: one for name, one in both.items() if name.startswith("text_encoder")}, path)
    text_only = recipe.with_lora(Lora(file_identity(path), 0.5))
    assert models.applies_by_row(text_only) and models.lora_factors(text_only) is None
    for name, change in {"plain": {}, **changes}.items():
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors | change, path)
        changed = recipe.with_lora(Lora(file_identity(path), 0.5))
        assert models.applies_by_row(changed) == (name == "plain"), name
