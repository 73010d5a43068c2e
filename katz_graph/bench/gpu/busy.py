"""Measures the share of time in which a GPU computes."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from statistics import fmean
from typing import Self

import torch

PERIOD_MS = 100


class Busy:
    """Samples NVML's utilisation of a device inside the `with` statement: the share of the last
    period, at most a sixth of a second, in which a kernel ran. It runs in another process, so that
    the measured server is not profiled.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process: subprocess.Popen[str] | None = None
        self.share: float | None = None
        """Mean of the samples, 0 to 1; None without a GPU, or if its driver does not report it."""

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            uuid = torch.cuda.get_device_properties(self._device).uuid
            command = ["nvidia-smi", f"--id=GPU-{uuid}", "--query-gpu=utilization.gpu"]
            command += ["--format=csv,noheader,nounits", "-lms", str(PERIOD_MS)]
            with suppress(OSError):  # without nvidia-smi `share` is None
                self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self.share = mean_share(self._process.communicate()[0])


def mean_share(text: str) -> float | None:
    """Returns the mean of nvidia-smi's lines, 0 to 1, or None if one is no number."""
    lines = text.split("\n")[:-1]  # the last line may be incomplete
    if not lines or not all(line.strip().isdigit() for line in lines):
        return None
    return fmean(int(line) for line in lines) / 100
