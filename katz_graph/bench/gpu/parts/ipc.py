"""Measures transfers between two processes on the GPU, and kills one of them meanwhile."""

from __future__ import annotations

import time
from statistics import median

import torch

from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult
from katz_graph.executor.measure.links import measure_link
from katz_graph.testing.device_pair import RESIDUAL_BYTES, device_pair, seconds_until_noticed

TRANSFERS = 50
MAX_SECONDS = 0.3e-3  # of RESIDUAL_BYTES
NOTICED = 5.0  # seconds, maximum until a killed process is noticed
SETTLING = 10.0  # seconds in which a killed process's memory is freed
LEFT = 64e6  # bytes, maximum that remain in use


def run(setting: Setting, rows: Rows) -> BenchResult:
    before = _free_bytes(setting.device)
    with device_pair(str(setting.device)) as pair:
        link = measure_link(pair.probe)
        seconds = median(pair.probe(RESIDUAL_BYTES) for _ in range(TRANSFERS))
        rows.add(
            "link",
            transport=pair.transport,
            gb_per_second=link.bytes_per_second / 1e9,
            latency_seconds=link.latency,
        )
        rows.judge("seconds of 108 MB", seconds, at_most=MAX_SECONDS)
        noticed = seconds_until_noticed(pair, seed=0)
    rows.judge("seconds until a killed process is noticed", noticed, at_most=NOTICED)
    deadline = time.monotonic() + SETTLING
    while (left := before - _free_bytes(setting.device)) > LEFT and time.monotonic() < deadline:
        time.sleep(0.1)
    rows.judge("bytes in use after a killed process", float(left), at_most=LEFT)
    return rows.result()


def _free_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free: int = torch.cuda.mem_get_info(device)[0]
    return free
