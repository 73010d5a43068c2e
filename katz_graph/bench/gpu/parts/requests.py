"""Runs requests with ControlNets and LoRAs through the engine, switches between models, ControlNets
and LoRAs, and runs a long alternating series.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch

from katz_graph.bench.conditions import quiet
from katz_graph.bench.gpu.clock import interleaved, seconds
from katz_graph.bench.gpu.models import Files, write
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.gpu.use import use_of
from katz_graph.bench.result import BenchResult
from katz_graph.executor.calls.computing import Computing, Eagerly
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.recorded.cuda import CudaGraphs
from katz_graph.executor.recorded.recorder import Recorder
from katz_graph.testing.requests import local_engine, sample

# numbers of ControlNets and LoRAs of a request
KINDS = {"0C0L": (0, 0), "1C0L": (1, 0), "3C0L": (3, 0), "0C2L": (0, 2), "2C2L": (2, 2)}
GROWTH_BOUND = 0.01  # of memory, relative
PARTS_BOUND = 0.97  # × the sum of the parts, for three ControlNets
LORA_BOUND = 0.010  # seconds to patch and restore a LoRA, without its copy to the device


def run(setting: Setting, rows: Rows) -> BenchResult:
    took: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        quiet(),
        local_engine(str(setting.device), batching=True, dtype=setting.dtype) as engine,
    ):
        files = write(Path(name), setting, whole=True)
        for kind, (controls, loras) in KINDS.items():
            region = files.request(
                setting, setting.sides[0], setting.steps, tuple(range(controls)), loras
            )
            took |= interleaved({kind: partial(sample, engine, region)}, setting.device, 3)
            rows.add(kind, seconds=took[kind], **use_of(engine))
        rows.add("1C0L, one stream and two", **_streams(setting, engine, files))
        lora = _lora(setting, engine, files)
        rows.add("LoRA patched and restored", **lora)
        switches = _switches(setting, engine, files)
        rows.add("switches", **switches)
        growth = _many(setting, engine, files)
        rows.add(f"{setting.many} requests", **growth, **use_of(engine))
    each = took["1C0L"] - took["0C0L"]
    rows.judge(
        "three_controls_of_parts", took["3C0L"] / (took["0C0L"] + 3 * each), at_most=PARTS_BOUND
    )
    rows.judge("memory_growth", growth["memory_growth"], at_most=GROWTH_BOUND)
    captures = switches["captures"] + growth["captures_late"]
    rows.judge("captures_of_switches", captures, at_most=0)
    rows.judge("beyond_sending_seconds", lora["beyond_sending_seconds"], at_most=LORA_BOUND)
    del lora["beyond_sending_seconds"]
    return rows.result(**lora)


def _captures(engine: DeviceEngine) -> int:
    return int(engine.models.compute.use.captures)


def _streams(setting: Setting, engine: DeviceEngine, files: Files) -> dict[str, float]:
    """Measures a request with a ControlNet: on one stream, and with two streams for the pairs of
    calls that the engine found faster concurrently. Also returns the milliseconds of all pairs that
    it tried.
    """
    region = files.request(setting, setting.sides[0], setting.steps, (0,))
    two, on_gpu = engine.models.compute, setting.device.type == "cuda"
    one = Recorder(CudaGraphs(setting.device)) if on_gpu else Eagerly()

    def act(compute: Computing) -> None:
        engine.models.compute = compute
        sample(engine, region)

    took = interleaved(
        {"one": partial(act, one), "two": partial(act, two)}, setting.device, setting.rounds
    )
    one.drop()
    found = {"seconds": took["two"], "of_one_stream": took["two"] / took["one"]}
    for pair, (apart, concurrent) in (two.tried if isinstance(two, Recorder) else {}).items():
        found |= {f"{pair} one ms": 1e3 * apart, f"{pair} two ms": 1e3 * concurrent}
    return {**found, "concurrent": two.use.concurrent}


def _lora(setting: Setting, engine: DeviceEngine, files: Files) -> dict[str, float]:
    """Measures patching and restoring one LoRA, with its file already read, and separately one copy
    of its bytes from pinned memory to the device.
    """
    models = engine.models
    plain, patched = (
        files.request(setting, setting.sides[-1], 1, loras=loras).begin.inputs["model"]
        for loras in (0, 1)
    )
    models.patch(patched)
    content = torch.empty(files.loras[0].stat().st_size, dtype=torch.uint8)
    content = content.pin_memory() if setting.device.type == "cuda" else content
    there = content.to(setting.device)
    took = interleaved(
        {
            "restore": lambda: models.patch(plain),
            "patch": lambda: models.patch(patched),
            "send": lambda: there.copy_(content, non_blocking=True),
        },
        setting.device,
        setting.rounds,
    )
    models.patch(plain)
    return {
        "megabytes": files.loras[0].stat().st_size / 1e6,
        **{f"{what}_seconds": seconds for what, seconds in took.items()},
        "beyond_sending_seconds": took["patch"] + took["restore"] - took["send"],
    }


def _switches(setting: Setting, engine: DeviceEngine, files: Files) -> dict[str, float]:
    """Measures the first request after a switch, as a multiple of its repetition. Counts the loaded
    modules and the newly recorded calls.
    """
    side = setting.sides[-1]
    steps = setting.steps
    for controls in ((), (1,)):  # records the calls of requests with the same shapes
        sample(engine, files.request(setting, side, steps, controls))
    switched = {
        "other_lora": files.request(setting, side, steps, loras=2, strength=0.5),
        "other_control_net": files.request(setting, side, steps, (2,)),
        "other_checkpoint": files.request(setting, side, steps, other=True),
    }
    found: dict[str, float] = {}
    captured = _captures(engine)
    for name, region in switched.items():
        before = engine.models.residents.use.loads
        first = seconds(partial(sample, engine, region), setting.device)
        found[f"{name}_loads"] = engine.models.residents.use.loads - before
        again = seconds(partial(sample, engine, region), setting.device)
        found |= {f"{name}_seconds": first, f"{name}_of_next": first / again}
    return found | {"captures": _captures(engine) - captured}


def _many(setting: Setting, engine: DeviceEngine, files: Files) -> dict[str, float]:
    """Returns the relative growth of memory between a tenth and the end of many requests, and the
    number of calls recorded in the second half. The first half may still record, because trying two
    streams takes many requests.
    """
    regions = [
        files.request(setting, setting.sides[-1], 2, tuple(range(controls)), loras)
        for controls, loras in KINDS.values()
    ]
    early, captured = 0.0, 0
    for number in range(setting.many):
        sample(engine, regions[number % len(regions)])
        if number == setting.many // 10:
            early = _memory(setting)
        if number == setting.many // 2:
            captured = _captures(engine)
    growth = _memory(setting) / early - 1 if early else 0.0
    return {"memory_growth": growth, "captures_late": _captures(engine) - captured}


def _memory(setting: Setting) -> float:
    on_gpu = setting.device.type == "cuda"
    return float(torch.cuda.memory_reserved(setting.device)) if on_gpu else 0.0
