"""Provides `comfy.utils` to packs: sizes of pictures and latents, weight files, tiles, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from katz_graph.comfy.facades.tiles import tiled_scale, tiled_scale_multidim, tiled_scale_steps
from katz_graph.comfy.missing import missing_names
from katz_graph.comfy.running import ProgressBar
from katz_graph.comfy.weight_file import WeightFile
from katz_graph.core.errors import InputError
from katz_graph.files.weights import is_pickle
from katz_graph.picture.batch import repeated
from katz_graph.picture.latents import bislerp, resample

PROGRESS_BAR_ENABLED = True
__all__ = ["ProgressBar", "bislerp", "tiled_scale", "tiled_scale_multidim"]
get_tiled_scale_steps = tiled_scale_steps
__getattr__ = missing_names(
    __name__,
    """
    unet_to_diffusers transformers_convert clip_text_transformers_convert mmdit_to_diffusers
    flux_to_diffusers convert_sd_to PROGRESS_BAR_HOOK model_trange deepcopy_list_dict
    """,
)


def set_progress_bar_enabled(enabled: bool) -> None:
    """Does nothing: clients decide whether to show progress."""


def common_upscale(
    samples: Tensor, width: int, height: int, upscale_method: str, crop: str
) -> Tensor:
    """Resizes [B, C, H, W] or [B, C, T, H, W] to [height, width]."""
    return resample(samples, width, height, upscale_method, crop)


def lanczos(samples: Tensor, width: int, height: int) -> Tensor:
    """Resizes [B, C, H, W] in 0..1 to [B, C, height, width]."""
    return resample(samples, width, height, "lanczos")


def load_torch_file(
    ckpt: str, safe_load: bool = False, device: Any = None, return_metadata: bool = False
) -> Any:
    """Loads the tensors of a safetensors file, and its metadata. InputError for pickles, which can
    run code when opened.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file

    if is_pickle(ckpt):
        raise InputError(
            f"{ckpt} is a pickle, which can run code when it is opened; use the .safetensors file "
            "of the same model"
        )
    tensors = WeightFile(Path(ckpt), load_file(ckpt, device=str(device or "cpu")))
    if not return_metadata:
        return tensors
    with safe_open(ckpt, framework="pt") as opened:
        return tensors, opened.metadata()


def save_torch_file(
    sd: Mapping[str, Tensor], ckpt: str, metadata: Mapping[str, str] | None = None
) -> None:
    from safetensors.torch import save_file

    save_file(dict(sd), ckpt, metadata=None if metadata is None else dict(metadata))


def safetensors_header(safetensors_path: str, max_size: int = 100 * 2**20) -> bytes | None:
    """Reads the header of a safetensors file; None if it is longer than `max_size` bytes."""
    with Path(safetensors_path).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(length) if length <= max_size else None


def calculate_parameters(sd: Mapping[str, Tensor], prefix: str = "") -> int:
    return sum(tensor.nelement() for name, tensor in sd.items() if name.startswith(prefix))


def weight_dtype(sd: Mapping[str, Tensor], prefix: str = "") -> torch.dtype | None:
    """Returns the dtype of most weight values."""
    sizes: dict[torch.dtype, int] = {}
    for name, tensor in sd.items():
        if name.startswith(prefix):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    return max(sizes, key=sizes.__getitem__, default=None)


def state_dict_key_replace(
    state_dict: dict[str, Any], keys_to_replace: Mapping[str, str]
) -> dict[str, Any]:
    """Renames keys in place."""
    for old, new in keys_to_replace.items():
        if old in state_dict:
            state_dict[new] = state_dict.pop(old)
    return state_dict


def state_dict_prefix_replace(
    state_dict: dict[str, Any], replace_prefix: Mapping[str, str], filter_keys: bool = False
) -> dict[str, Any]:
    """Replaces key prefixes in place. `filter_keys`: moves the renamed keys to a new dictionary."""
    result = {} if filter_keys else state_dict
    for old, new in replace_prefix.items():
        for name in [name for name in state_dict if name.startswith(old)]:
            result[new + name.removeprefix(old)] = state_dict.pop(name)
    return result


def get_attr(obj: Any, attr: str) -> Any:
    """Returns `obj.a.b.c` for "a.b.c"."""
    for name in attr.split("."):
        obj = getattr(obj, name)
    return obj


def set_attr(obj: Any, attr: str, value: Any) -> Any:
    """Sets `obj.a.b.c`; returns the previous value."""
    owner, _, name = attr.rpartition(".")
    holder = get_attr(obj, owner) if owner else obj
    before = getattr(holder, name)
    setattr(holder, name, value)
    return before


def set_attr_param(obj: Any, attr: str, value: Tensor) -> Any:
    return set_attr(obj, attr, torch.nn.Parameter(value, requires_grad=False))


def copy_to_param(obj: Any, attr: str, value: Tensor) -> None:
    get_attr(obj, attr).data.copy_(value)


def repeat_to_batch_size(tensor: Tensor, batch_size: int, dim: int = 0) -> Tensor:
    """Repeats a short batch along `dim`, and truncates a long one."""
    return repeated(tensor.movedim(dim, 0), batch_size).movedim(0, dim)


def resize_to_batch_size(tensor: Tensor, batch_size: int) -> Tensor:
    """Picks samples, evenly spread over the batch: [B, ...] -> [batch_size, ...]."""
    length = len(tensor)
    if length == batch_size or batch_size <= 0:
        return tensor
    if batch_size == 1:
        return tensor[:1]
    positions = torch.linspace(0, length - 1, batch_size).round().long()
    return tensor[positions.to(tensor.device)]


def reshape_mask(input_mask: Tensor, output_shape: Iterable[int]) -> Tensor:
    """Resizes a mask [..., h, w] to [B, C, H, W] of `output_shape`."""
    batch, channels, height, width = output_shape
    planes = input_mask.reshape(-1, 1, *input_mask.shape[-2:])
    resized = torch.nn.functional.interpolate(planes, size=(height, width), mode="bilinear")
    return repeated(resized.repeat(1, channels, 1, 1), batch)


def string_to_seed(data: str | bytes) -> int:
    """Returns a text's CRC-32 without the final inversion."""
    import zlib

    return zlib.crc32(data.encode() if isinstance(data, str) else data) ^ 0xFFFFFFFF


def set_progress_bar_global_hook(function: Callable[..., None]) -> None:
    """Does nothing: packs cannot intercept progress, which the run reports as events."""
