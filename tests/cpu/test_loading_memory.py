"""A network takes the memory of its file, in which most weights are 8-bit numbers. Loading takes at
most 1.2 times the largest weight more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from katz_graph.models.families.flux.stand_ins import Widths, flux
from katz_graph.testing.stand_ins.formats import write

# and the dtypes to load them in
FORMS = {"fp8": "bfloat16", "scaled_fp8": "bfloat16", "convrot": "float32"}
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
    for (form, dtype), line in zip(FORMS.items(), said.stdout.splitlines(), strict=True):
        loaded, peak, largest = map(int, line.split())
        stored = sum(
            one.nbytes if one.itemsize == 1 else one.numel() * getattr(torch, dtype).itemsize
            for one in load_file(tmp_path / f"{form}.safetensors").values()
        )
        assert 0.95 * stored <= loaded <= 1.05 * stored, form
        assert peak <= 1.05 * stored + 1.2 * largest, form
