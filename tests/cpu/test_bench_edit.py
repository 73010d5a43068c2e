"""A small `katz bench edit`: seconds are replaced by floating-point operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from katz_graph.bench import edit_speed
from katz_graph.bench.command import run_bench
from katz_graph.bench.conditions import quiet
from katz_graph.bench.edit_speed import Network, Scale, make_usual
from katz_graph.core.errors import InputError

CONVOLUTIONAL = Network(
    "convolutional",
    lambda folder: make_usual(folder, (16, 32, 64), (1, 1, 2)),
    4,
    (16,),
    1,
    3,
    {(16, 0.2): 1.2},
)


def test_speed_compares_the_gain_with_that_of_the_active_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edit_speed, "thread_seconds", edit_speed.flop)
    scale = Scale((CONVOLUTIONAL,), (0.2,), rounds=1)
    with quiet():
        result = edit_speed.run(scale)
        assert result.ok, result.metrics
        assert (
            result.metrics["fill_convolutional_16"]
            == result.metrics["without_convolutional_16"]
            == 1
        )
        assert result.table[0][3] == "64 + 16 + 9"

        def all_tokens(mask: Any, *sizes: int, bucket: int = 0) -> Any:
            return positions(mask if bucket else torch.ones_like(mask), *sizes, bucket=bucket or 64)

        positions = edit_speed.active_positions
        monkeypatch.setattr(edit_speed, "active_positions", all_tokens)
        slow = edit_speed.run(scale)
    assert not slow.ok and slow.metrics["gain_convolutional_16_at_0.2"] < 1.1
    with pytest.raises(InputError, match="--part memory: expected one of"):
        run_bench("edit", as_json=False, part="memory")
