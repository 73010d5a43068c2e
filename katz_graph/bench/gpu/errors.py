"""Compares the errors of kernels and of the references that they replace, against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from katz_graph.kernels import (
    bias_residual,
    gated_activation,
    geglu,
    group_norm_silu,
    head_norm,
    joined_gelu,
    layer_norm,
    linear_geglu,
    lora_patch,
    modulated_norm,
    norm_rotary,
    rms_norm,
    upsampled_convolution,
)
from katz_graph.kernels.patches import Delta, Patch

FORMATS = (torch.float32, torch.float16, torch.bfloat16)
Call = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def of_kernels(device: torch.device) -> dict[str, float]:
    """Returns the RMS error of each kernel and dtype, as a multiple of its reference's error. Equal
    errors, zero included, give 1.
    """
    return {
        f"{name}, {str(dtype).removeprefix('torch.')}": _relative(*call)
        for dtype in FORMATS
        for name, call in _calls(device, dtype).items()
    }


def _calls(device: torch.device, dtype: torch.dtype) -> dict[str, Call]:
    """Returns kernel, reference and arguments, by name. No tile divides the sizes evenly."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype, generator=generator)

    x = random(2, 320, 33, 31).to(memory_format=torch.channels_last)
    weight, bias, rows = random(320), random(320), x.permute(0, 2, 3, 1)
    tokens = rows.flatten(1, 2)
    convolution = random(50, 320, 3, 3).to(memory_format=torch.channels_last) / 10
    gated = (tokens, random(2, 1023, 320), *random(2, 3 * 320).chunk(3, dim=1))
    angles = torch.randn(1023, 40, device=device, generator=generator).repeat_interleave(2, dim=1)
    heads = (random(2, 1023, 3 * 320), random(80), random(80), angles.cos(), angles.sin())
    return {
        "group norm": (
            group_norm_silu.group_norm_silu,
            group_norm_silu.reference,
            (x, 32, weight, bias, 1e-5, random(2, 320), True),
        ),
        "layer norm": (
            layer_norm.residual_layer_norm,
            layer_norm.residual_reference,
            (rows, rows, weight, bias, 1e-5),
        ),
        "GELU gate": (geglu.geglu, geglu.reference, (rows,)),
        "bias and residual": (
            bias_residual.bias_residual,
            bias_residual.reference,
            (x, bias, random(*x.shape)),
        ),
        "upsampled convolution": (
            upsampled_convolution.upsampled_convolution,
            upsampled_convolution.reference,
            (x, convolution, bias[:50]),
        ),
        "gated norm": (_gated(modulated_norm.computed), _gated(modulated_norm.reference), gated),
        "head norm": (_by_head(head_norm.head_norm), _by_head(head_norm.reference), heads),
        "joined GELU": (joined_gelu.joined_gelu, joined_gelu.reference, (tokens, 3 * tokens)),
        "gated product": (
            linear_geglu.linear_geglu,
            linear_geglu.reference,
            (rows, random(2 * 1300, 320) / 18, random(2 * 1300)),
        ),
        "RMS norm": (
            rms_norm.residual_rms_norm,
            rms_norm.residual_norm_reference,
            (tokens, tokens, weight, 1e-6, random(2, 1, 320), bias, random(2, 1, 320)),
        ),
        "shifted layer norm": (
            layer_norm.shifted_layer_norm,
            layer_norm.shifted_reference,
            (tokens, random(2, 320), weight, bias, 1e-6),
        ),
        "joined layer norm": (
            layer_norm.joined_layer_norm,
            layer_norm.joined_reference,
            (tokens, tokens, random(640), random(640), 1e-6),
        ),
        "SiLU gate": (
            gated_activation.silu_gated,
            gated_activation.silu_reference,
            rows.chunk(2, dim=-1),
        ),
        "GELU gate by tanh": (
            gated_activation.gelu_gated,
            gated_activation.gelu_reference,
            rows.chunk(2, dim=-1),
        ),
        "head norm, rotated": (
            _copied(norm_rotary.norm_rotary),
            norm_rotary.reference,
            (
                random(2, 33, 5, 80),
                random(80),
                random(80),
                1e-6,
                random(1, 33, 40),
                random(1, 33, 40),
                True,
            ),
        ),
        "LoRA patch": (
            _patched(lora_patch.lora_patch),
            _patched(lora_patch.reference),
            (convolution, random(50, 5) / 5, random(5, 320, 3, 3) / 5),
        ),
    }


def _copied(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Protects the first argument, which the kernel overwrites."""
    return lambda x, *others: function(x.clone(), *others)


def _gated(norm: Callable[..., list[Tensor]]) -> Callable[..., Tensor]:
    def computed(x: Tensor, other: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return norm(x, [(gate, other)], [(scale, shift)], 1e-6)[-1]

    return computed


def _by_head(norm: Callable[..., None]) -> Callable[..., Tensor]:
    def computed(x: Tensor, query: Tensor, key: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        made, weights = x.clone(), head_norm.HeadNorm((query, key), 1e-6, rounds=False)
        norm(made, 4, weights, weights, 500, (cosines, sines))
        return made

    return computed


def _patched(patch: Callable[[Sequence[Patch]], None]) -> Callable[..., Tensor]:
    def patched(weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        made = torch.empty_like(weight)
        patch([Patch(made, weight, [Delta(up, down, 0.7)])])
        return made

    return patched


def _relative(
    kernel: Callable[..., Any], reference: Callable[..., Any], given: tuple[Any, ...]
) -> float:
    exact = _last(reference(*(one.double() if isinstance(one, Tensor) else one for one in given)))
    ours, theirs = (
        float((_last(made(*given)).double() - exact).square().mean().sqrt())
        for made in (kernel, reference)
    )
    return 1.0 if ours == theirs else ours / max(theirs, torch.finfo(torch.float64).tiny)


def _last(made: Any) -> Tensor:
    """Returns the last result, which depends on all computation."""
    result: Tensor = made[-1] if isinstance(made, tuple) else made
    return result
