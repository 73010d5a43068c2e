"""Layers for CPUs with a slow BLAS library, forced on any CPU."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_prepared import MODULES
from torch import Tensor, nn

from katz_graph.bench.processor import ERROR, run
from katz_graph.kernels import products
from katz_graph.models import processor_layers
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.prepare import prepare
from katz_graph.models.processor_layers import (
    MAX_LAYOUTS,
    PACK,
    Packed,
    ProcessorConvolution,
    use_processor_layers,
)
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import local_engine, sample, sampler_region

CALL = 2e-6  # relative to the whole network's range
LAYER = 1e-6


def said(vendor: str = "AuthenticAMD", family: str = "26", flags: str = "fpu avx2 avx512f") -> str:
    lines = {"processor": "0", "vendor_id": vendor, "cpu family": family, "flags": flags}
    return "\n".join(f"{name}\t: {value}" for name, value in lines.items()) + "\n\nprocessor\t: 1\n"


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "BY_ONEDNN", True)
    monkeypatch.setattr(products, "MIN_ROWS", 1)
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 1)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (said(), True),
        (said(family="27"), True),
        (said(family="25"), False),  # Zen 4, with units half as wide
        (said(vendor="GenuineIntel", family="6"), False),
        (said(flags="fpu avx2"), False),
        ("", False),
        ("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd", False),  # ARM
    ],
)
def test_the_hardware_decides(cpuinfo: str, expected: bool) -> None:
    assert products.lags(cpuinfo) is expected


def test_a_variable_has_torch_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(said())
    monkeypatch.setenv(products.LIBRARY_ONLY, "1")
    assert not products._here()
    monkeypatch.delenv(products.LIBRARY_ONLY)
    assert products._here() is torch.backends.mkl.is_available()
    (tmp_path / "cpuinfo").unlink()
    assert not products._here()


def compared(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / (expected.max() - expected.min()))


@pytest.mark.usefixtures("forced")
@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 77, 1024])
def test_a_product_is_torch_s_but_for_rounding(rows: int, bias: bool) -> None:
    layer = nn.Linear(96, 160, bias)
    for x in (
        torch.randn(2, rows, 96),
        torch.randn(rows, 2, 96).transpose(0, 1),
        torch.randn(2, rows, 200)[..., 3:99],
    ):
        found = products.linear(x, layer.weight, layer.bias)
        assert compared(found, layer(x)) <= LAYER
    assert products.linear(x[:0], layer.weight, layer.bias).shape == (0, rows, 160)


def test_small_products_are_torch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "BY_ONEDNN", True)
    called = []
    monkeypatch.setattr(F, "linear", lambda x, weight, bias: called.append(x.shape))
    weight = torch.zeros(256, 256)
    for rows in (1, products.MIN_ROWS - 1, products.MIN_ROWS):
        products.linear(torch.zeros(rows, 256), weight, None)
    assert called == [(1, 256), (products.MIN_ROWS - 1, 256)]
    products.linear(torch.zeros(64, 64), torch.zeros(64, 64), None)
    assert called[-1] == (64, 64)


@pytest.mark.usefixtures("forced")
@torch.no_grad()
@pytest.mark.parametrize("name", MODULES)
def test_a_network_gives_the_same_within_rounding(name: str) -> None:
    make, call = MODULES[name]
    stock = make()
    ours = copy.deepcopy(stock)
    prepare(ours)
    use_processor_layers(ours)
    kinds = {type(one) for one in ours.modules()}
    assert ProcessorConvolution in kinds and not kinds & {nn.Conv2d, nn.Linear}
    calls = 2 if name == "vae" else 1  # encoding and decoding
    for size in ((9, 7), (8, 8), (9, 7)):
        assert compared(call(ours, size), call(stock, size)) <= CALL * calls
    assert sum(hasattr(one, PACK) for one in ours.modules()) > 10


@pytest.mark.usefixtures("forced")
@torch.no_grad()
def test_calls_with_other_rows_use_the_weights_packed_before() -> None:
    """Requests that share calls come and go; packing takes longer than a small convolution."""
    stock = nn.Conv2d(16, 32, 3, padding=1)
    layer = copy.deepcopy(stock)
    use_processor_layers(layer)
    packed = []
    for rows in (2, 8, 1):
        x, fresh = torch.randn(rows, 16, 9, 7), copy.deepcopy(stock)
        use_processor_layers(fresh)
        assert torch.equal(layer(x), fresh(x))
        packed.append(getattr(layer, PACK).weight(layer, x))
    assert packed[0] is packed[1] is packed[2]


@pytest.mark.usefixtures("forced")
@torch.no_grad()
def test_sizes_that_take_turns_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of several sizes take turns at each evaluation. Sizes of one layout share a copy of
    the weights, and there are never more copies than allowed.
    """
    stock = nn.Conv2d(96, 96, 3, padding=1)
    layer = copy.deepcopy(stock)
    use_processor_layers(layer)
    inputs = [torch.randn(2, 96, side, side) for side in (8, 16, 24, 32) * 2]
    for x in inputs:
        assert compared(layer(x), stock(x)) <= LAYER
    packed: Packed = getattr(layer, PACK)
    first = [packed.sizes[x.shape[1:]] for x in inputs[:4]]
    assert len({id(one) for one in first}) == len(packed.layouts) <= 4
    for x in inputs:
        layer(x)
    assert all(packed.sizes[x.shape[1:]] is one for x, one in zip(inputs, first, strict=False))
    # without shared layouts a fifth size drops the others
    numbers = itertools.count()
    monkeypatch.setattr(processor_layers, "_layout", lambda packed: b"%d" % next(numbers))
    for side in range(8, 8 + 2 * MAX_LAYOUTS + 1):
        x = torch.randn(1, 96, side, 9)
        assert compared(layer(x), stock(x)) <= LAYER
        assert len(packed.layouts) <= MAX_LAYOUTS


@pytest.mark.usefixtures("forced")
@torch.no_grad()
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_formats_are_torch_s_own(kind: torch.dtype) -> None:
    layers = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(2), nn.Linear(36, 16)).to(kind)
    x = torch.randn(1, 8, 8, 8).to(kind)
    expected = layers(x)
    use_processor_layers(layers)
    assert torch.equal(layers(x), expected)


@pytest.mark.usefixtures("forced")
def test_features_without_memory_have_their_shape() -> None:
    layers = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(2), nn.Linear(36, 16)).to("meta")
    use_processor_layers(layers)
    assert layers(torch.empty(2, 8, 8, 8, device="meta")).shape == (2, 8, 16)


@pytest.mark.parametrize(
    "options", [{"padding": "same"}, {"padding_mode": "circular", "padding": 1}, {"groups": 2}]
)
@pytest.mark.usefixtures("forced")
@torch.no_grad()
def test_convolutions_of_other_kinds(options: dict[str, Any]) -> None:
    layer = nn.Conv2d(8, 8, 3, **options)
    x = torch.randn(2, 8, 9, 11)
    expected = layer(x)
    use_processor_layers(layer)
    assert compared(layer(x), expected) <= LAYER


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("written", ["copy", "together", "view", "memory"])
def test_a_changed_weight_is_packed_again(written: str) -> None:
    layer, x = nn.Conv2d(8, 8, 3), torch.randn(1, 8, 8, 8)
    use_processor_layers(layer)
    other = torch.randn_like(layer.weight)
    with torch.inference_mode():
        layer(x)
        before = getattr(layer, PACK)
        layer(x)
        assert getattr(layer, PACK) is before
        match written:
            case "copy":
                layer.weight.copy_(other)
            case "together":
                torch._foreach_copy_([layer.weight], [other])
            case "view":
                layer.weight.view(8, -1).copy_(other.view(8, -1))
            case _:
                layer.weight.data = other
        assert compared(layer(x), F.conv2d(x, other, layer.bias)) <= LAYER


@pytest.mark.usefixtures("forced")
def test_weights_that_count_no_writing_are_not_packed() -> None:
    with torch.inference_mode():
        layer, x = nn.Conv2d(8, 8, 3), torch.randn(1, 8, 8, 8)
        use_processor_layers(layer)
        layer(x)
        layer.weight.copy_(torch.randn_like(layer.weight))
        assert torch.equal(layer(x), F.conv2d(x, layer.weight, layer.bias))


@pytest.mark.usefixtures("forced")
def test_requests_with_and_without_loras_in_turn(sd1: Models, costs: Path) -> None:
    """Each equals the same request on a separate engine."""
    plain = Case("test", sd1.pipeline, "euler", 3)
    patched = replace(plain, loras=((sd1.loras[0], 0.8),))

    def alone(case: Case) -> Tensor:
        with local_engine(cache=costs) as engine:
            return sample(engine, sampler_region(case))

    expected = [alone(case) for case in (plain, patched)]
    with local_engine(cache=costs) as engine:
        for turn in (0, 1, 0, 1, 1, 0):
            found = sample(engine, sampler_region((plain, patched)[turn]))
            assert torch.equal(found, expected[turn])
        network = engine.models.patch(pipeline_recipes(sd1.pipeline)[0])
        packs = [one for one in network.modules() if hasattr(one, PACK)]
    assert not torch.equal(*expected) and len(packs) > 10


def test_the_bench_compares_with_diffusers_module() -> None:
    result = run({"miniature": 2})
    assert result.metrics["miniature_error"] <= ERROR
    assert result.metrics["miniature_times"] > 0
    assert result.bounds.keys() == {"miniature_times", "miniature_error"}
