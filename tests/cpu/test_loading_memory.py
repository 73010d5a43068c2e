"""Peak memory of loading is at most the final weights and 1.2 times the largest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from katz_graph.models.families.flux.stand_ins import Widths, flux
from katz_graph.testing.stand_ins.formats import write

FORMS = {"scaled_fp8": "bfloat16", "convrot": "float32"}  # and the dtypes to load them in
# freed large blocks return to the system at once, so that the peak shows the memory in use
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_holds_one_extra_weight(tmp_path: Path) -> None:
    small = tmp_path / "small.safetensors"
    write(small, flux())
    arguments: list[str | Path] = []
    for form, dtype in FORMS.items():
        file = tmp_path / f"{form}.safetensors"
        write(file, flux(widths=Widths(tokens=768)), form)
        arguments += [file, dtype]
    said = subprocess.run(
        [sys.executable, Path(__file__).parent / "loads_within.py", small, *arguments],
        env=os.environ | ALLOCATION,
        capture_output=True,
        text=True,
        check=True,
    )
    for form, line in zip(FORMS, said.stdout.splitlines(), strict=True):
        beyond, largest = map(int, line.split())
        assert beyond <= 1.2 * largest, form
