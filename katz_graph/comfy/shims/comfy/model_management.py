"""Provides `comfy.model_management` to packs: devices and dtypes.

The engine manages memory, so requests to load or unload models do nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import Enum
from typing import Any

import torch

from katz_graph.comfy.missing import missing_names
from katz_graph.comfy.running import compute_device
from katz_graph.core.errors import Cancelled, OutOfMemory
from katz_graph.models.loading.memory import unused_bytes
from katz_graph.node.scope import current

InterruptProcessingException = Cancelled
OOM_EXCEPTION = (torch.OutOfMemoryError, OutOfMemory)  # torch's error, and the engine's
XFORMERS_IS_AVAILABLE = False
__getattr__ = missing_names(
    __name__,
    """
    LoadedModel current_loaded_models load_model_gpu_partially cast_to cast_to_device
    pick_weight_dtype minimum_inference_memory extra_reserved_memory get_model_computation_device
    cleanup_models_gc loaded_models unet_manual_cast unet_inital_load_device
    device_supports_non_blocking force_upcast_attention_dtype
    """,
)


class VRAMState(Enum):
    DISABLED = 0
    NO_VRAM = 1
    LOW_VRAM = 2
    NORMAL_VRAM = 3
    HIGH_VRAM = 4
    SHARED = 5


class CPUState(Enum):
    GPU = 0
    CPU = 1
    MPS = 2


get_torch_device = compute_device


def intermediate_device() -> torch.device:
    """Returns the device that holds pictures and latents between nodes."""
    return torch.device("cpu")


def intermediate_dtype() -> torch.dtype:
    """Returns the dtype of pictures and latents between nodes."""
    return torch.float32


unet_offload_device = vae_offload_device = text_encoder_offload_device = intermediate_device
vae_device = text_encoder_device = get_torch_device
vram_state = VRAMState.NORMAL_VRAM
cpu_state = CPUState.GPU if torch.cuda.is_available() else CPUState.CPU


def get_torch_device_name(device: Any) -> str:
    name = torch.device(device)
    return f"{name} {torch.cuda.get_device_name(name)}" if name.type == "cuda" else name.type


def is_device_type(device: Any, type: str) -> bool:
    return torch.device(device).type == type


def is_device_cpu(device: Any) -> bool:
    return is_device_type(device, "cpu")


def is_device_mps(device: Any) -> bool:
    return is_device_type(device, "mps")


def is_device_cuda(device: Any) -> bool:
    return is_device_type(device, "cuda")


def is_nvidia() -> bool:
    return torch.cuda.is_available() and torch.version.cuda is not None


def is_amd() -> bool:
    return torch.cuda.is_available() and torch.version.hip is not None


def is_intel_xpu() -> bool:
    return False


def mps_mode() -> bool:
    return False


def cpu_mode() -> bool:
    return get_torch_device().type == "cpu"


def get_autocast_device(dev: Any) -> str:
    return torch.device(dev).type


def xformers_enabled() -> bool:
    return False


def xformers_enabled_vae() -> bool:
    return False


def pytorch_attention_enabled() -> bool:
    return True


def should_use_fp16(
    device: Any = None,
    model_params: int = 0,
    prioritize_performance: bool = True,
    manual_cast: bool = False,
) -> bool:
    return torch.device(device or get_torch_device()).type == "cuda"


def should_use_bf16(
    device: Any = None,
    model_params: int = 0,
    prioritize_performance: bool = True,
    manual_cast: bool = False,
) -> bool:
    return (
        torch.device(device or get_torch_device()).type == "cuda" and torch.cuda.is_bf16_supported()
    )


def unet_dtype(device: Any = None, *_: Any, **__: Any) -> torch.dtype:
    return torch.float16 if should_use_fp16(device) else torch.float32


vae_dtype = text_encoder_dtype = unet_dtype


def dtype_size(dtype: torch.dtype) -> int:
    return dtype.itemsize


def module_size(module: torch.nn.Module) -> int:
    """Returns the weights' total bytes."""
    return sum(tensor.nelement() * tensor.element_size() for tensor in module.state_dict().values())


def get_free_memory(dev: Any = None, torch_free_too: bool = False) -> Any:
    """Returns the free bytes, including those that torch reserved but does not use. With
    `torch_free_too`, also returns the latter alone.
    """
    device = torch.device(dev or get_torch_device())
    if device.type != "cuda":
        free, unused = _host_memory("SC_AVPHYS_PAGES"), 0
    else:
        free, _ = torch.cuda.mem_get_info(device)
        unused = unused_bytes(device)
    return (free + unused, unused) if torch_free_too else free + unused


def get_total_memory(dev: Any = None, torch_total_too: bool = False) -> Any:
    """Returns a device's total memory in bytes."""
    device = torch.device(dev or get_torch_device())
    total = (
        torch.cuda.mem_get_info(device)[1]
        if device.type == "cuda"
        else _host_memory("SC_PHYS_PAGES")
    )
    return (total, total) if torch_total_too else total


def _host_memory(pages: str) -> int:
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") if sys.platform != "win32" else 2**33


total_ram = _host_memory("SC_PHYS_PAGES") / 2**20
total_vram = get_total_memory() / 2**20


def soft_empty_cache(force: bool = False) -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def load_models_gpu(models: Iterable[Any], *_: Any, **__: Any) -> None:
    """Does nothing: models are loaded when something runs them."""


def load_model_gpu(model: Any) -> None:
    """Does nothing: models are loaded when something runs them."""


def free_memory(
    memory_required: float, device: Any, keep_loaded: Iterable[Any] = (), *_: Any, **__: Any
) -> list[Any]:
    return []


def unload_all_models() -> None:
    """Does nothing: models leave memory when the engine needs it."""


def cleanup_models(*_: Any, **__: Any) -> None:
    """Does nothing: models leave memory when the engine needs it."""


def interrupt_current_processing(value: bool = True) -> None:
    """Cancels the run of the calling node."""
    if value:
        raise Cancelled("cancelled by a node")


def processing_interrupted() -> bool:
    try:
        throw_exception_if_processing_interrupted()
    except Cancelled:
        return True
    return False


def throw_exception_if_processing_interrupted() -> None:
    now = current()
    if now is not None:
        now.context.check_cancelled()
