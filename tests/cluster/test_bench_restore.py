"""Runs a small version of `katz bench restore`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copy

import pytest
import torch

from katz_graph.bench import restore
from katz_graph.testing.model_files import Models


@pytest.mark.parametrize(("kind", "number"), [(torch.float32, 10), (torch.bfloat16, 6)])
def test_whatever_happens_weights_are_those_of_the_files(
    sd1: Models, tmp_path: Path, costs: Path, kind: torch.dtype, number: int
) -> None:
    """Runs few requests in bfloat16, which is slow on CPUs."""
    # new LoRA files that no engine has read
    models = replace(sd1, loras=tuple(Path(copy(path, tmp_path)) for path in sd1.loras))
    ended, merges, different = restore.carried_out(models, number, kind, costs)
    assert all(ended[ending] for ending in restore.ENDINGS), ended
    assert merges
    assert different == 0
