"""Peak memory of loading: the weights as kept and 1.2 times the largest of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import stand_ins as made

# large blocks go back to the system as soon as they are free, so that what is held is seen
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("form", "dtype"), [("scaled_fp8", "bfloat16"), ("convrot", "float32")])
def test_loading_holds_one_weight_beside_those_that_are_kept(
    form: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    made.write(small, made.flux())
    monkeypatch.setattr(made, "WIDTH", 768)
    made.write(large, made.flux(), form)
    said = subprocess.run(
        [sys.executable, Path(__file__).parent / "loads_within.py", small, large, dtype],
        env=os.environ | ALLOCATION,
        capture_output=True,
        text=True,
        check=True,
    )
    beyond, largest = map(int, said.stdout.split())
    assert beyond <= 1.2 * largest
