"""Allocates modules on a device, and copies weights into them tensor by tensor, from files or from
the host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from katz_graph.host.transfer import uploading
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.products import by_onednn
from katz_graph.models.loading.deferred import Deferred, now
from katz_graph.models.prepare import fuse_projections, prepare
from katz_graph.models.processor_layers import use_processor_layers
from katz_graph.models.quantised_weight import Format, QuantisedWeight

Change = Callable[[Tensor, Tensor], Any]
"""Writes a tensor into a weight."""
NO_FORMATS: Mapping[str, Format] = {}


@torch.inference_mode(False)
def with_memory(
    module: nn.Module,
    place: torch.device,
    dtype: torch.dtype,
    formats: Mapping[str, Format] = NO_FORMATS,
    wide: Collection[str] = (),
) -> nn.Module:
    """Allocates uninitialised memory on a device for a module on the meta device. Prepares known
    blocks and the memory layout for computing. The weights are not inference tensors, so torch
    counts writes to them (`_version`). `formats`: of the weights that are stored as 8-bit numbers;
    `wide`: of those in float32, see `is_wide`.
    """
    prepare(module)
    computed = [
        (one, name, buffer.dtype)
        for one in module.modules()
        for name, buffer in one.named_buffers(recurse=False)
        if name in one._non_persistent_buffers_set
    ]
    module.to(dtype)
    for name, weight in module.named_parameters():
        if is_wide(name, wide):
            weight.data = weight.data.float()
    for one, name, own in computed:  # buffers that files lack keep their dtype
        one.register_buffer(name, one.get_buffer(name).to(own), persistent=False)
    layers = {name: module.get_submodule(name.rpartition(".")[0]) for name in formats}
    outlines = {name: layer.weight for name, layer in layers.items()}
    for layer in layers.values():
        layer.register_parameter("weight", None)
    # `to_empty` calls `empty_like`, which is slow for meta tensors and imports sympy
    module._apply(  # type: ignore[no-untyped-call]
        lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=place)
    )
    example = torch.empty(0, dtype=dtype, device=place)
    kernels = uses_kernels(example)
    if kernels:  # fastest layout for convolutions on GPUs, and required by norms
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for name, how in formats.items():
        outline: Any = outlines[name]
        if kernels and outline.ndim == 4:
            outline = outline.to(memory_format=torch.channels_last)
        layers[name].register_parameter("weight", QuantisedWeight.empty(outline, how, place))
    if kernels:
        fuse_projections(module)
    if by_onednn(example):
        use_processor_layers(module)
    return module


def is_wide(name: str, words: Collection[str]) -> bool:
    """Returns whether the path of a weight has one of the words."""
    return not set(name.split(".")).isdisjoint(words)


@torch.no_grad()
def fill(module: nn.Module, given: Mapping[str, Tensor], change: Change = Tensor.copy_) -> None:
    """Copies host tensors into the weights and buffers of the same names, in the module's dtypes or
    as stored. Computes deferred tensors. `change` replaces the copy, for example by a sum.
    """
    there = named_tensors(module)
    upload = uploading(next(module.parameters()).device)
    for name, tensor in given.items():
        weight = there[name]
        if not isinstance(weight, QuantisedWeight):
            change(weight, upload(now(tensor)))
            continue
        stored = tensor.quantised if isinstance(tensor, Deferred) else None
        weight.codes.copy_(upload(now(tensor if stored is None else stored.codes)))
        if weight.scales is not None and stored is not None:
            weight.scales.copy_(stored.scales.flatten())


@torch.no_grad()
def refill(module: nn.Module, copies: Mapping[str, Tensor]) -> None:
    """Copies weights and buffers from copies of `memory_of` into the module, asynchronously."""
    for name, weight in memory_of(module).items():
        weight.copy_(copies[name], non_blocking=True)


def memory_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors that hold a module's weights and buffers, by name. A weight stored as
    8-bit numbers has up to three.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in named_tensors(module).items():
        parts = tensor.memory if isinstance(tensor, QuantisedWeight) else {"": tensor}
        found |= {f"{name}{part}": one for part, one in parts.items()}
    return found


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and the floating-point buffers that files hold, by name."""
    computed = {
        f"{path}.{name}" if path else name
        for path, one in module.named_modules()
        for name in one._non_persistent_buffers_set
    }
    return {
        name: tensor
        for name, tensor in named_tensors(module).items()
        if name not in computed and tensor.is_floating_point()
    }


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
