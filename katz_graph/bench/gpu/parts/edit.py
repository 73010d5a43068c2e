"""Measures edits on cached activations: one evaluation of a network that computes the tokens under
a mask and reads the others from a template, as one CUDA graph, against a full one.

The template is on the device, in pinned memory, or on a disk. From pinned memory, the activations
of the next evaluation are copied on another stream while an evaluation runs. From the disk the
time of reading a file that was just written is given, which the page cache may hold.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from katz_graph.bench.gpu.clock import interleaved, repeated
from katz_graph.bench.gpu.evaluations import (
    ROUNDS,
    STAGES,
    TRANSFORMERS,
    evaluation,
    in_memory,
    recorded_seconds,
    transformer,
)
from katz_graph.bench.gpu.models import network
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult
from katz_graph.executor.worker.stream import stream_of
from katz_graph.ir.values import CachedActivations
from katz_graph.kernels.attention import attention_order
from katz_graph.models.active import MARGIN, Layers, active_positions
from katz_graph.models.stages import Sized
from katz_graph.testing.random_models import Kind, usual, usual_kind

JOINT = next(iter(TRANSFORMERS))  # the kind of transformer that is measured
MASKS = (0.1, 0.2)  # shares of the picture
EDITS = (1, 4)  # in a call
LEVELS = 5  # of resolutions
LEAST_GAIN = 1.0  # of a full evaluation's seconds, from the device
MAX_SECONDS = 240.0


def run(setting: Setting, rows: Rows) -> BenchResult:
    began, side = time.perf_counter(), setting.sides[0]
    gains = []
    with attention_order(setting.device), tempfile.TemporaryDirectory() as folder:
        usual_network = in_memory(setting, lambda: network(setting), setting.dtype)
        sizes = Sized(2, side, side, 77)  # both branches of guidance
        gains += _edits(
            setting, rows, usual_kind(), usual_network, usual().stages, sizes, Path(folder)
        )
        del usual_network
        if JOINT in setting.transformers:
            sizes = Sized(1, side, side, TRANSFORMERS[JOINT])
            module = transformer(setting, JOINT)
            gains += _edits(setting, rows, JOINT, module, STAGES, sizes, Path(folder))
    rows.judge("least gain from the device", min(gains), at_least=LEAST_GAIN)
    rows.judge("seconds of this part", time.perf_counter() - began, at_most=MAX_SECONDS)
    return rows.result()


def _edits(
    setting: Setting,
    rows: Rows,
    kind: Kind,
    module: nn.Module,
    stages: Sequence[str],
    sizes: Sized,
    folder: Path,
) -> list[float]:
    """Adds a row for each mask and number of edits; returns the gains from the device."""
    outputs = _filled(module, stages, sizes)
    size = sum(output.nbytes for output in outputs.values())
    pinned = {
        name: torch.empty_like(one, device="cpu", pin_memory=one.is_cuda).copy_(one)
        for name, one in outputs.items()
    }
    load = _load_seconds(setting, pinned)
    disk = _disk_seconds(folder / f"{kind}.safetensors", pinned)
    what = f"{kind} at {8 * sizes.height} pixels"
    rows.add(f"{what}, loads", bytes=size, pinned_seconds=load, disk_seconds=disk)
    gains = []
    for edits in EDITS:
        some = Sized(edits * sizes.batch, sizes.height, sizes.width, sizes.tokens)
        full = recorded_seconds(setting, evaluation(module, stages, some))
        for share in MASKS:
            positions = _positions(setting, some, share)
            here = {name: one.repeat(edits, 1, 1) for name, one in outputs.items()}
            layers = Layers(CachedActivations(positions, here))
            call = evaluation(module, stages, Sized(*_numbers(some), layers=layers))
            device = recorded_seconds(setting, call)
            while_loading = _loading_seconds(setting, call, pinned)
            gains.append(full / device)
            rows.add(
                f"{what}, mask {share:g}, {edits} edits",
                full_seconds=full,
                seconds=device,
                gain=full / device,
                pinned_seconds=while_loading,
                pinned_gain=full / while_loading,
                disk_gain=full / max(device, disk),
            )
    return gains


def _numbers(sizes: Sized) -> tuple[int, int, int, int]:
    return sizes.batch, sizes.height, sizes.width, sizes.tokens


def _filled(module: nn.Module, stages: Sequence[str], sizes: Sized) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    evaluation(module, stages, Sized(*_numbers(sizes), layers=Layers(collected=found)))()
    return {name: output.clone() for name, output in found.items()}


def _positions(setting: Setting, sizes: Sized, share: float) -> Mapping[int, Tensor]:
    mask = torch.zeros(sizes.batch, 1, sizes.height, sizes.width)
    edge = max(1, round(share**0.5 * sizes.height))
    mask[..., :edge, :edge] = 1
    found = active_positions(mask, 1, LEVELS, MARGIN)
    return {tokens: one.to(setting.device) for tokens, one in found.items()}


def _load_seconds(setting: Setting, pinned: Mapping[str, Tensor]) -> float:
    def load() -> None:
        for one in pinned.values():
            one.to(setting.device, non_blocking=True)

    return interleaved({"it": load}, setting.device, min(ROUNDS, setting.rounds))["it"]


def _loading_seconds(
    setting: Setting, call: Callable[[], object], pinned: Mapping[str, Tensor]
) -> float:
    """Returns the seconds of an evaluation next to the loads for the following one."""
    recorded, stream = repeated(call, setting.device, 1), stream_of(setting.device)

    def both() -> None:
        loaded = [stream.upload([one]) for one in pinned.values()]
        recorded()
        for wait in loaded:
            wait()

    return interleaved({"it": both}, setting.device, min(ROUNDS, setting.rounds))["it"]


def _disk_seconds(file: Path, tensors: Mapping[str, Tensor]) -> float:
    save_file(dict(tensors), file)
    began = time.perf_counter()
    with safe_open(file, "pt") as opened:
        for name in tensors:
            opened.get_tensor(name).clone()
    file.unlink()
    return time.perf_counter() - began
