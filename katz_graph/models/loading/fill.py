"""Allocates modules on a device, and copies weights into them tensor by tensor, from files or from
the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from katz_graph.host.transfer import uploading
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.products import by_onednn
from katz_graph.models.loading.deferred import now
from katz_graph.models.prepare import fuse_projections, prepare
from katz_graph.models.processor_layers import use_processor_layers

Change = Callable[[Tensor, Tensor], Any]
"""Writes a tensor into a weight."""


@torch.inference_mode(False)
def with_memory(module: nn.Module, place: torch.device, dtype: torch.dtype) -> nn.Module:
    """Allocates uninitialised memory on a device for a module on the meta device. Prepares known
    blocks and the memory layout for computing. The weights are not inference tensors, so torch
    counts writes to them (`_version`).
    """
    prepare(module)
    computed = [
        (one, name, buffer.dtype)
        for one in module.modules()
        for name, buffer in one.named_buffers(recurse=False)
        if name in one._non_persistent_buffers_set
    ]
    module.to(dtype)
    for one, name, own in computed:  # buffers that files lack keep their dtype
        one.register_buffer(name, one.get_buffer(name).to(own), persistent=False)
    # `to_empty` calls `empty_like`, which is slow for meta tensors and imports sympy
    module._apply(  # type: ignore[no-untyped-call]
        lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=place)
    )
    # fastest layout for convolutions on GPUs, and required by norms
    if uses_kernels(next(module.parameters())):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        fuse_projections(module)
    if by_onednn(next(module.parameters())):
        use_processor_layers(module)
    return module


@torch.no_grad()
def fill(module: nn.Module, given: Mapping[str, Tensor], change: Change = Tensor.copy_) -> None:
    """Copies host tensors into the weights and buffers of the same names, in the module's dtypes.
    Computes deferred tensors. `change` replaces the copy, for example by a sum.
    """
    there = named_tensors(module)
    upload = uploading(next(module.parameters()).device)
    for name, tensor in given.items():
        change(there[name], upload(now(tensor)))


@torch.no_grad()
def refill(module: nn.Module, copies: Mapping[str, Tensor]) -> None:
    """Copies weights and buffers from host copies into the module, asynchronously."""
    for name, weight in named_tensors(module).items():
        weight.copy_(copies[name], non_blocking=True)


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
