"""Rounds casts to bfloat16 as GPUs do. Triton's interpreter truncates them."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture
def rounded_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    convert = interpreter._convert_float

    def rounded(values: Any, given: Any, wanted: Any, mode: Any) -> Any:
        if (given.name, wanted.name) != ("fp32", "bf16"):
            return convert(values, given, wanted, mode)
        return torch.tensor(values).to(torch.bfloat16).view(torch.int16).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
