"""Work of stages by transformer layer, for all tokens and for the active tokens of an edit."""

from __future__ import annotations

import pytest
from tiny_models import recipes

from katz_graph.models.configuration import config
from katz_graph.models.costs.counts import Counts
from katz_graph.models.costs.layer_cost import layered_work
from katz_graph.models.costs.layers import LayerWork
from katz_graph.models.costs.stage_cost import stage_work
from katz_graph.models.stages import Sized


class Formulas:
    """Stores formulas in memory."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def formula(self, key: str) -> str | None:
        return self.texts.get(key)

    def keep_formula(self, key: str, text: str) -> None:
        self.texts[key] = text


@pytest.mark.parametrize("family", ["sd2", "sdxl"])
def test_layers_and_the_rest_sum_up_to_the_stage(family: str) -> None:
    stage, settings = "unet_encoder", config(recipes(family)[0].network)
    sizes, active, store = Sized(2, 18, 24), {18 * 24: 100, 9 * 12: 30, 5 * 6: 7}, Formulas()
    work = Counts(store).layers(settings, stage, sizes, active)
    assert work == layered_work(settings, stage, sizes, active)
    assert Counts(store).layers(settings, stage, sizes, active) == work
    assert len(store.texts) == 1
    whole = stage_work(settings, stage, sizes)
    found = sum(layer.before.flops + layer.full.flops for layer in work.layers)
    assert work.layers and found + work.after.flops == whole.flops
    for layer in work.layers:
        assert layer.full.flops == 2 * _flops(layer, layer.tokens)
        assert layer.cached.flops == 2 * _flops(layer, active[layer.tokens])
        # keys and values of the text are computed once per request
        assert layer.full.weight_bytes == pytest.approx(18 * layer.width**2 * 4, rel=0.1)
    first, second, third = (
        Counts(store).layers(settings, stage, sizes, dict.fromkeys(active, number)).layers
        for number in (5, 10, 15)
    )
    for one, two, three in zip(first, second, third, strict=True):
        for name in ("flops", "weight_bytes", "activation_bytes", "kernels"):
            values = [getattr(layer.cached, name) for layer in (one, two, three)]
            assert values[2] - values[1] == values[1] - values[0]  # affine


def _flops(layer: LayerWork, queries: int, text: int = 77) -> int:
    """Counts a layer of one row: self-attention, cross-attention and feed-forward."""
    tokens, width = layer.tokens, layer.width
    first = 4 * (queries + tokens) * width**2 + 4 * queries * tokens * width
    second = 4 * queries * width**2 + 4 * queries * text * width
    return first + second + 24 * queries * width**2
