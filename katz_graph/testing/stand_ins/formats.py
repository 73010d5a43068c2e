"""Makes safetensors files of 8-bit weights with scales, and the weights that they represent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

GROUP = 64  # inputs that are rotated together
FP8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


def turned(size: int) -> Tensor:
    """Returns the regular Hadamard matrix from the base-4 digits of row and column: an entry is
    negative if an odd number of digit pairs add up to 3.
    """
    digits = [[number // 4**place % 4 for place in range(8)] for number in range(size)]
    places = range(round(torch.tensor(float(size)).log2().item()) // 2)
    signs = [
        [(-1.0) ** sum(row[place] + column[place] == 3 for place in places) for column in digits]
        for row in digits
    ]
    return torch.tensor(signs, dtype=torch.float64).div_(size**0.5)


def reference(weight: Tensor, scale: Tensor, rotated: int = 0) -> Tensor:
    """Returns the float32 weight that a stored weight represents."""
    rows = scale.double().reshape(-1, *[1] * (weight.ndim - 1))
    values = weight.double()
    if rotated:
        values = (values.reshape(len(weight), -1, rotated) @ turned(rotated)).reshape(weight.shape)
    return (values * rows).float()


def stored(weight: Tensor, kind: str, rows: bool = True, rotated: int = 0) -> tuple[Tensor, Tensor]:
    """Returns a weight in a scaled format and its scales: [N, 1], or one for the whole weight."""
    values = weight.float().flatten(1)
    if rotated:
        groups = values.reshape(len(weight), -1, rotated).double()
        values = (groups @ turned(rotated).T).reshape(values.shape).float()
    limit = 127 if kind == "int8_tensorwise" else torch.finfo(FP8[kind]).max
    most = values.abs().amax(dim=1, keepdim=True) if rows else values.abs().max()
    scale = most / limit
    values = (values / scale).reshape(weight.shape)
    made = values.round().to(torch.int8) if limit == 127 else values.to(FP8[kind])
    return made, scale


def marker(**said: Any) -> Tensor:
    return torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)


class Files:
    """Makes the tensors of a scaled file, and of a full-precision file of the same values."""

    def __init__(self, tensors: dict[str, Tensor], mark: str, prefix: str = "") -> None:
        self.scaled, self.wide = dict(tensors), dict(tensors)
        self.layers: dict[str, Any] = {}
        self.mark, self.prefix = mark, prefix

    def store(self, layer: str, kind: str, rows: bool = True, rotated: int = 0) -> None:
        name = f"{self.prefix}{layer}"
        made, scale = stored(self.wide[f"{name}.weight"], kind, rows, rotated)
        old = self.mark == "scaled_fp8"
        self.scaled[f"{name}.weight"] = made
        self.scaled[f"{name}.{'scale_weight' if old else 'weight_scale'}"] = scale
        self.scaled[f"{name}.{'scale_input' if old else 'input_scale'}"] = torch.tensor(0.5)
        self.wide[f"{name}.weight"] = reference(made, scale, rotated)
        said: dict[str, Any] = {"format": kind}
        if rotated:
            said |= {"convrot": True, "convrot_groupsize": rotated}
        self.layers[name] = said

    def save(self, place: Path) -> tuple[Path, Path]:
        metadata = None
        match self.mark:
            case "scaled_fp8":
                self.scaled[f"{self.prefix}scaled_fp8"] = torch.zeros(2, dtype=torch.float8_e4m3fn)
            case "comfy_quant":
                for name, said in self.layers.items():
                    self.scaled[f"{name}.comfy_quant"] = marker(**said)
            case "metadata":
                metadata = {"_quantization_metadata": json.dumps({"layers": self.layers})}
        paths = place / "scaled.safetensors", place / "wide.safetensors"
        for path, tensors, said in zip(
            paths, (self.scaled, self.wide), (metadata, None), strict=True
        ):
            save_file({name: one.contiguous() for name, one in tensors.items()}, path, said)
        return paths


def write(path: Path, tensors: dict[str, Tensor], kind: str = "") -> None:
    """Writes a file. `kind`: empty for bfloat16; `fp8` for 8-bit weights without scales; `convrot`
    for rotated 8-bit integers; else a marker of `Files`, for two-dimensional weights
    with scales.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind in ("", "fp8"):
        dtype = torch.float8_e4m3fn if kind else torch.bfloat16
        whole = {
            name: (one.to(dtype) if one.is_floating_point() else one).contiguous()
            for name, one in tensors.items()
        }
        save_file(whole, path)
        return
    files = Files(tensors, "comfy_quant" if kind == "convrot" else kind)
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if (
            name.endswith(".weight")
            and tensor.ndim == 2
            and "embed" not in name
            and tensor.shape[1] % GROUP == 0
        ):
            if kind == "convrot":
                files.store(layer, "int8_tensorwise", rotated=GROUP)
            else:
                files.store(layer, "float8_e4m3fn", rows=False)
    made, _ = files.save(path.parent)
    made.rename(path)
    (path.parent / "wide.safetensors").unlink()
