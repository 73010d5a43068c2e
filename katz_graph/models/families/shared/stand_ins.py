"""Describes stand-ins: small random files in the layouts, names and formats in which models are
published. Names and shapes are those of published files; the loader's tables are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names and shapes of tensors."""
Tensors = dict[str, Tensor]
Naming = Callable[[str, str], str]
"""The name of a LoRA's tensor: from its layer, and `down`, `up` or `alpha`; empty for none."""
WIDTH, HEAD = 64, 32  # of tokens and heads
TEXT_WIDTH, POOLED = 64, 32  # of long texts, and of CLIP-L's pooled text
QWEN25_WIDTH = 128  # of Qwen2.5-VL's text, whose heads all are so wide
PREFIX = "model.diffusion_model."
SPREAD = 0.05
RANK, LORA_SPREAD = 4, 0.3  # so wide that a picture shows a LoRA


@dataclass(frozen=True, slots=True)
class StandIn:
    """Describes the files of a model: the kind of their folder, a pattern of their names, and their
    tensors. `encoders`: prefixes of text encoders in a checkpoint, and names of their own files.
    """

    folder: str
    names: str
    tensors: Callable[[], Tensors]
    encoders: Mapping[str, str] = field(default_factory=dict)


def drawn(shapes: Shapes, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: SPREAD * torch.randn(shape, generator=draw) for name, shape in shapes}


def linear(name: str, out: int, into: int) -> Shapes:
    yield f"{name}.weight", (out, into)
    yield f"{name}.bias", (out,)


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def bare(layer: str, part: str) -> str:
    """Names the tensors of Lightning's files, without a prefix."""
    return f"{layer}.alpha" if part == "alpha" else f"{layer}.lora_{part}.weight"


def peft(prefix: str, adapter: str = "") -> Naming:
    """Returns PEFT's names under a prefix; these have no alpha."""
    ends = {"down": f"lora_A{adapter}.weight", "up": f"lora_B{adapter}.weight"}
    return lambda layer, part: f"{prefix}{layer}.{ends[part]}" if part in ends else ""


def underscored(prefix: str) -> Naming:
    """Returns the names of kohya's and LyCORIS' trainers."""

    def name(layer: str, part: str) -> str:
        path = f"{prefix}{layer.replace('.', '_')}"
        return f"{path}.alpha" if part == "alpha" else f"{path}.lora_{part}.weight"

    return name


def lora(
    network: Mapping[str, Tensor], naming: Naming, chosen: str = "attn", seed: int = 20
) -> Tensors:
    """Returns a LoRA for the layers of a network that contain `chosen` in their names."""
    draw = torch.Generator().manual_seed(seed)
    made: Tensors = {}
    for name, weight in network.items():
        layer = name.removesuffix(".weight")
        if layer == name or weight.ndim != 2 or chosen not in layer:
            continue
        out, into = weight.shape
        parts = {
            "down": LORA_SPREAD * torch.randn(RANK, into, generator=draw),
            "up": LORA_SPREAD * torch.randn(out, RANK, generator=draw),
            "alpha": torch.tensor(float(RANK)),
        }
        made |= {naming(layer, part): tensor for part, tensor in parts.items()}
    made.pop("", None)
    return made
