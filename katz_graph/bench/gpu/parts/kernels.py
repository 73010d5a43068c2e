"""Compares our kernels, at the sizes of a network's step, with a copy of as many bytes. Measures
matrix products also with all their tiles, and the libraries' products, convolutions and attention
at the same sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from katz_graph.bench.gpu import tiles
from katz_graph.bench.gpu.clock import Action, interleaved, repeated
from katz_graph.bench.gpu.layers import Layer, Shape, layers_of_step
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult
from katz_graph.kernels.bias_residual import bias_residual
from katz_graph.kernels.geglu import geglu
from katz_graph.kernels.group_norm_silu import group_norm_silu
from katz_graph.kernels.layer_norm import residual_layer_norm
from katz_graph.kernels.upsampled_convolution import upsampled_convolution

TIMES = 20  # calls per CUDA graph
COPY = "copy"
LARGE_BOUND, SMALL_BOUND = 1.25, 1.3
"""Maximum ratio of a kernel's time to the copy's: for arrays larger than the cache (80 % of the
copy's bandwidth), and for smaller ones.
"""
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True, slots=True)
class Moved:
    """Pairs a kernel's call with the number of bytes read and written."""

    call: Action
    bytes: int


def run(setting: Setting, rows: Rows, write: Path | None = None) -> BenchResult:
    """Measures all kernels. `write`: file for the tile table, updated with the fastest tiles."""
    listed = layers_of_step(setting, setting.sides[0])
    worst = {"large": 0.0, "small": 0.0}
    for layer, count in listed.items():
        for name, moved in _ours(setting, layer).items():
            copied = _copy(setting, moved.bytes)
            took = _compared({"kernel": moved.call, "copy": copied}, setting)
            ratio = took["kernel"] / took["copy"]
            size = "large" if moved.bytes >= setting.large else "small"
            worst[size] = max(worst[size], ratio)
            rows.add(
                f"{name} {layer}",
                calls=count,
                bytes=moved.bytes,
                microseconds=1e6 * took["kernel"],
                gb_per_second=moved.bytes / took["kernel"] / 1e9,
                of_copy=ratio,
            )
    found = dict(_tried(setting, listed, rows))
    for trial, took in found.items():
        if trial.kernel == "lora_patch":  # limited by memory bandwidth, unlike the other trials
            worst["large"] = max(worst["large"], took[trial.chosen] / took[COPY])
    if write is not None:
        best = {trial: tiles.fastest(trial, took) for trial, took in found.items()}
        tiles.write(write, setting.device, best)
    for layer, count in listed.items():
        ways = dict(_libraries(setting, layer))
        if ways:
            took = _compared(ways, setting)
            rows.add(
                f"{layer.kind} {layer}",
                calls=count,
                **{f"{name}_microseconds": 1e6 * one for name, one in took.items()},
                **{f"{name}_tflops": layer.operations / one / 1e12 for name, one in took.items()},
            )
    for size, bound in (("large", LARGE_BOUND), ("small", SMALL_BOUND)):
        rows.judge(f"{size}_of_copy", worst[size], at_most=bound)
    return rows.result()


def _tried(
    setting: Setting, listed: Counter[Layer], rows: Rows
) -> Iterator[tuple[tiles.Trial, dict[str, float]]]:
    """Measures kernels with all their tiles; yields each trial with the seconds of its ways and of
    a copy.
    """
    for trial in tiles.trials(setting, listed):
        ways = {name: way for name, way in trial.ways.items() if _can(way)}
        took = _compared({**ways, COPY: _copy(setting, trial.bytes)}, setting)
        chosen = took[trial.chosen]
        rows.add(
            f"{trial.kernel} {trial.what}",
            calls=trial.calls,
            bytes=trial.bytes,
            microseconds=1e6 * chosen,
            gb_per_second=trial.bytes / chosen / 1e9,
            of_copy=chosen / took[COPY],
            tflops=trial.operations / chosen / 1e12,
            chosen=trial.chosen,
            fastest=tiles.fastest(trial, took),
            **{f"{name}_microseconds": 1e6 * took[name] for name in ways},
        )
        yield trial, took


def _compared(actions: dict[str, Action], setting: Setting) -> dict[str, float]:
    """Returns the seconds per call of each action, without launch overhead."""
    many = {name: repeated(one, setting.device, TIMES) for name, one in actions.items()}
    took = interleaved(many, setting.device, setting.rounds)
    return {name: one / TIMES for name, one in took.items()}


def _copy(setting: Setting, moved: int) -> Action:
    source = torch.zeros(max(1, moved // 2), dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _ours(setting: Setting, layer: Layer) -> dict[str, Moved]:
    """Returns our kernels for a layer, including those fused with its neighbours."""
    x = _random(setting, layer.shapes[0])
    rows = x.nbytes
    match layer.kind:
        case "group norm":
            x = x.to(memory_format=torch.channels_last)
            weight, shift = _random(setting, x.shape[1:2]), _random(setting, x.shape[:2])
            other = torch.empty_like(x)
            return {
                "group_norm_silu": Moved(
                    lambda: group_norm_silu(x, 32, weight, weight, 1e-5, shift), 3 * rows
                ),
                "bias_residual": Moved(lambda: bias_residual(x, weight, other), 3 * rows),
            }
        case "layer norm":
            weight, other = _random(setting, x.shape[-1:]), torch.empty_like(x)
            return {
                "residual_layer_norm": Moved(
                    lambda: residual_layer_norm(x, other, weight, weight, 1e-5), 4 * rows
                )
            }
        case "gate":
            both = torch.cat([x, x], dim=-1)
            return {"geglu": Moved(lambda: geglu(both), 3 * rows)}
    return {}


def _libraries(setting: Setting, layer: Layer) -> Iterator[tuple[str, Action]]:
    """Yields the libraries' ways to compute a layer, by name."""
    if layer.kind not in ("product", "convolution", "attention"):
        return
    x, other = (_random(setting, shape) for shape in (layer.shapes[0], layer.shapes[-1]))
    match layer.kind:
        case "product":
            yield "library", lambda: F.linear(x, other)
        case "convolution":
            yield "nchw", _convolution(x, other, layer)
            x, other = (one.contiguous(memory_format=torch.channels_last) for one in (x, other))
            yield "channels_last", _convolution(x, other, layer)
            if _may_follow_upsampling(layer):
                halved = x[..., ::2, ::2].contiguous(memory_format=torch.channels_last)
                bias = other[:, 0, 0, 0].contiguous()
                yield "after_upsampling", lambda: upsampled_convolution(halved, other, bias)
        case "attention":
            for name, backend in BACKENDS.items():
                if _can(attention := _attention(x, other, backend)):
                    yield name, attention


def _may_follow_upsampling(layer: Layer) -> bool:
    (_, channels, height, width), weight = layer.shapes[0], layer.shapes[-1]
    even = height % 2 == width % 2 == 0
    return even and layer.stride == 1 and weight == (channels, channels, 3, 3)


def _convolution(x: Tensor, weight: Tensor, layer: Layer) -> Action:
    padding = weight.shape[-1] // 2
    return lambda: F.conv2d(x, weight, None, layer.stride, padding)


def _attention(queries: Tensor, keys: Tensor, backend: SDPBackend) -> Callable[[], Tensor]:
    def attention() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(queries, keys, keys)

    return attention


def _can(action: Action) -> bool:
    """Returns whether a backend supports the sizes of an action."""
    try:
        action()
    except RuntimeError:
        return False
    return True


def _random(setting: Setting, shape: Shape | torch.Size) -> Tensor:
    return torch.randn(shape, device=setting.device, dtype=setting.dtype)
