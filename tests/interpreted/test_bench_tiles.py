"""In Triton's interpreter, all listed tiles give equal results, and the fastest enter the tile
table. See `test_kernels`.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from katz_graph.bench.gpu import tiles
from katz_graph.bench.gpu.layers import Layer
from katz_graph.bench.gpu.setting import Setting, full_size
from katz_graph.bench.gpu.tiles import LIBRARY, fastest, trials, write
from katz_graph.core.errors import RunError
from katz_graph.kernels import configurations
from katz_graph.kernels.configurations import FILE, read
from katz_graph.kernels.dispatch import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET is not 1")

CPU = torch.device("cpu")
LISTED = Counter(
    {
        Layer("product", ((2, 5, 32), (40, 32))): 3,
        Layer("gate", ((2, 5, 20),)): 3,
        Layer("product", ((2, 5, 20), (32, 20))): 3,
        Layer("convolution", ((1, 8, 4, 4), (6, 8, 3, 3))): 1,
    }
)


@pytest.fixture
def small() -> Setting:
    return replace(full_size(CPU), rank=5)


def test_all_tiles_match_the_library(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    patches: list[Any] = []
    make = tiles._patched
    monkeypatch.setattr(
        tiles, "_patched", lambda *given: patches.append(make(*given)) or patches[-1]
    )
    gated, patched = trials(small, LISTED)
    assert (gated.calls, gated.sizes, patched.sizes) == (3, (10, 20, 32), (5,))
    assert len(gated.ways) > 4 and len(patches) == 3 + 3 + 1 and len(patched.ways) > 2
    expected = gated.ways[LIBRARY]()
    for way in gated.ways.values():
        assert (way() - expected).abs().max() <= 2e-3 * expected.abs().max()
    patched.ways[LIBRARY]()
    right = [one.weight.clone() for one in patches]
    for name in patched.tiles:
        for one in patches:
            one.weight.fill_(torch.nan)
        patched.ways[name]()
        for one, weight in zip(patches, right, strict=True):
            assert (one.weight - weight).abs().max() <= 2e-3 * weight.abs().max()
    assert gated.chosen in gated.tiles and patched.chosen in patched.tiles


def test_fastest_tiles_enter_the_table(small: Setting, tmp_path: Path) -> None:
    gated, patched = trials(small, LISTED)
    slow = dict.fromkeys((*gated.ways, *patched.ways, "copy"), 2.0)
    assert fastest(gated, slow | {"copy": 1.0, LIBRARY: 1.5}) == LIBRARY
    # the library is no candidate for patches
    assert fastest(patched, slow | {LIBRARY: 1.5}) != LIBRARY
    way = fastest(patched, slow | {list(patched.tiles)[-1]: 1.0})
    assert way == list(patched.tiles)[-1]
    file = tmp_path / "table.json"
    write(file, CPU, {gated: LIBRARY, patched: way})
    made, before = json.loads(file.read_text()), json.loads(FILE.read_text())
    assert made["linear_geglu"]["sm80"].pop("10x20x32") == {}
    assert made["lora_patch"]["sm80"].pop("5") == patched.tiles[way]
    assert made == before
    write(file, CPU, {})
    assert file.read_text() == FILE.read_text()  # as committed
    with pytest.raises(RunError, match=r"--write .*: cannot write \(Is a directory\)"):
        write(tmp_path, CPU, {})


def test_an_architecture_that_is_not_listed_keeps_what_counted_for_it(
    small: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, patched = trials(small, LISTED)
    monkeypatch.setattr(tiles, "capability", lambda device: 100)
    write(tmp_path / "table.json", CPU, {patched: next(iter(patched.tiles))})
    made = json.loads((tmp_path / "table.json").read_text())["lora_patch"]
    assert made["sm100"].keys() == {*configurations.listed_for("lora_patch", 100), "5"}
    assert made["sm80"] == read()["lora_patch"]["sm80"]
