"""Implements the driver's calls except sampling. A call runs as one unit on the device; a generator
runs one unit up to each `yield`, which passes on how much is done.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from katz_graph.core.devices import format_name
from katz_graph.core.recipe import (
    ClipRecipe,
    ControlNetRecipe,
    Encoding,
    TextRequest,
    Tile,
    UpscaleModelRecipe,
    VaeRecipe,
)
from katz_graph.executor.calls.batching import mapped
from katz_graph.executor.calls.computing import ComputeUse
from katz_graph.executor.measure.device import assumed, device_key, measure
from katz_graph.executor.templates.store import TemplateCounts
from katz_graph.executor.worker.first_calls import first_calls
from katz_graph.executor.worker.models import DeviceModels, Notes
from katz_graph.host import memory as host_memory
from katz_graph.ir.values import TextEncoding
from katz_graph.models.loading.memory import unused_bytes
from katz_graph.models.loading.residency import AdapterUse, ControlNetUse, ModelUse


class ServingWorker(Protocol):
    """Provides the models of a device."""

    @property
    def models(self) -> DeviceModels: ...


def encode_text(worker: ServingWorker, encoding: Encoding) -> TextEncoding:
    """Encodes text to [1, T, D], and pooled [1, P] if the family has pooled output; float32 on the
    CPU.
    """
    made = worker.models.encode_text(encoding)
    on_host: TextEncoding = mapped(made, Tensor.cpu)
    pooled = None if on_host.pooled is None else on_host.pooled.float()
    return replace(on_host, hidden=on_host.hidden.float(), pooled=pooled)


def generate_text(
    worker: ServingWorker, clip: ClipRecipe, request: TextRequest
) -> Generator[int, None, str]:
    """Generates text with a language model; yields the number of tokens after each."""
    return worker.models.generate_text(clip, request)


def encode_image(
    worker: ServingWorker, vae: VaeRecipe, pixels: Tensor, tile: Tile | None
) -> tuple[Tensor, Notes]:
    return worker.models.encode_image(vae, pixels, tile)


def decode_latent(
    worker: ServingWorker, vae: VaeRecipe, samples: Tensor, tile: Tile | None
) -> tuple[Tensor, Notes]:
    return worker.models.decode_latent(vae, samples, tile)


def upscale(worker: ServingWorker, model: UpscaleModelRecipe, picture: Tensor) -> Tensor:
    return worker.models.upscale(model, picture)


def rates(worker: ServingWorker, stretch: float = 0.0) -> tuple[float, float, float, float, bool]:
    """Measures the device with `measure.device.measure`."""
    return measure(worker.models.device, worker.models.dtype, stretch)


def assumed_rates(worker: ServingWorker) -> tuple[float, float, float, float, bool]:
    """Estimates the device's rates with `measure.device.assumed`."""
    return astuple(assumed(worker.models.device, worker.models.dtype, torch.get_num_threads()))


def initialise_libraries(worker: ServingWorker) -> None:
    """Makes the first calls of a GPU's libraries. A device that fails here fails its first request,
    which reports why.
    """
    device, dtype = worker.models.device, worker.models.dtype
    if device.type == "cuda":
        with suppress(RuntimeError):
            first_calls(device, dtype)


def identity(worker: ServingWorker) -> Mapping[str, Any]:
    """Returns the device's cost key, torch's name for it, its host, process and dtype, and its
    memory budget for models in bytes.
    """
    device, dtype = worker.models.device, worker.models.dtype
    key, room = device_key(device, dtype, torch.get_num_threads()), worker.models.residents.capacity
    place = {"device": str(device), "host": socket.gethostname(), "pid": os.getpid()}
    return {"key": key, **place, "dtype": format_name(dtype), "memory_bytes": room}


def load_control_net(worker: ServingWorker, recipe: ControlNetRecipe) -> None:
    """Loads a ControlNet before a request needs it."""
    worker.models.module(recipe)


def drop_control_net(worker: ServingWorker, recipe: ControlNetRecipe) -> None:
    worker.models.drop_control_net(recipe)


def control_net_use(worker: ServingWorker) -> ControlNetUse:
    """Returns the hit and miss counts of ControlNets."""
    return worker.models.residents.control_net_use


def model_use(worker: ServingWorker) -> ModelUse:
    """Returns the models in the device's memory, and counts of loads and evictions."""
    return worker.models.residents.use


def memory(worker: ServingWorker) -> Mapping[str, int]:
    """Returns memory in bytes, of the device or of the host for a CPU: total, free, reserved by
    torch, and the unused part of the reserved memory.
    """
    device = worker.models.device
    if device.type != "cuda":
        total, free = host_memory.total_bytes(), host_memory.free_bytes()
        return {"total": int(total), "free": int(free), "reserved": 0, "unused": 0}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "total": total,
        "free": free,
        "reserved": torch.cuda.memory_reserved(device),
        "unused": unused_bytes(device),
    }


def adapter_use(worker: ServingWorker) -> AdapterUse:
    """Returns the LoRA files in the worker's memory, and counts of reads, evictions and merges."""
    models = worker.models
    return models.adapters.use(models.lora_merges, models.lora_seconds)


def compute_use(worker: ServingWorker) -> ComputeUse:
    """Returns the counts of the worker's stage calls."""
    return worker.models.compute.use


def template_use(worker: ServingWorker) -> TemplateCounts | None:
    """Returns the counts of the worker's store of templates; None without one."""
    store = worker.models.template_store
    return None if store is None else store.counts


def unload(worker: ServingWorker) -> None:
    """Unloads all models that are not in use, and frees their memory."""
    worker.models.unload()


SERVICES: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        encode_text,
        generate_text,
        encode_image,
        decode_latent,
        upscale,
        rates,
        assumed_rates,
        initialise_libraries,
        identity,
        load_control_net,
        drop_control_net,
        control_net_use,
        model_use,
        memory,
        adapter_use,
        compute_use,
        template_use,
        unload,
    )
}
