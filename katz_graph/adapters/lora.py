"""Reads LoRA files, computes what they add to a module's weights, and checks that they fit.

A LoRA adds to each weight W that it names: strength · (alpha / rank) · B A (Hu et al. 2021, section
4.1).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from katz_graph.adapters.naming import module_names, unified
from katz_graph.errors import InputError
from katz_graph.files.locks import never
from katz_graph.files.urls import shown
from katz_graph.models.family import families
from katz_graph.models.loading.file_cache import FileCache
from katz_graph.models.loading.identity import read_json
from katz_graph.recipe import (
    ClipRecipe,
    Component,
    FileIdentity,
    Lora,
    MergedComponent,
    ModelRecipe,
)

SHOWN = 3  # tensors that a note names
FILES_KNOWN = 256  # whose extras are told without reading their headers again
METADATA = "lora_adapter_metadata"  # where diffusers keeps PEFT's configuration in a file


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """Holds one module's LoRA factors."""

    down: Tensor  # A: [r, in] or [r, in, kh, kw]
    up: Tensor  # B: [out, r] or [out, r, 1, 1]
    alpha: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def shape(self) -> list[int]:
        """Returns the shape of the weight that it was made for."""
        return [self.up.shape[0], *self.down.shape[1:]]

    by_rows = True  # rows of the weight can be computed alone

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.down, self.up

    def add_to(self, total: Tensor, strength: float, rows: slice = slice(None)) -> None:
        """Adds strength · (alpha / rank) · B A, in float32 on the device of `total`, which is those
        `rows` of a weight.
        """
        up, down = (
            factor.to(total.device).to(torch.float32).flatten(1)
            for factor in (self.up[rows], self.down)
        )
        total.flatten(1).addmm_(up, down, alpha=strength * self.alpha / self.rank)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoraFile:
    """Holds the factors of a LoRA file by part of a pipeline, and module as the file names it."""

    path: str
    parts: Mapping[str, Mapping[str, Factors]]

    @property
    def bytes(self) -> int:
        """Returns what it takes in memory."""
        return sum(
            tensor.nbytes
            for modules in self.parts.values()
            for factors in modules.values()
            for tensor in factors.tensors
        )


def read_lora(file: FileIdentity, cancelled: Callable[[], bool] = never) -> LoraFile:
    """Reads a LoRA file, which is fetched first if a URL names it, until `cancelled` says that
    nobody wants it. InputError when it is no LoRA, or another file than when it was named.
    """
    name = shown(file.path)
    try:
        with (
            FileCache.of_this_machine().using(file, cancelled) as path,
            safe_open(path, framework="pt") as content,
        ):
            tensors = {key: content.get_tensor(key).clone() for key in content.keys()}  # noqa: SIM118 (not a mapping); not mapped
            metadata = content.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise InputError(f"{name}: cannot be read: {error}") from None
    if not tensors:
        raise InputError(f"{name}: holds no tensors, expected a LoRA")
    named, _ = unified(name, tensors)
    config = _adapter_config(name, metadata)
    parts = {
        part: {
            module: _factors(name, part, module, entry, config) for module, entry in modules.items()
        }
        for part, modules in named.items()
    }
    return LoraFile(name, parts)


def left_out(recipe: ModelRecipe | ClipRecipe) -> Iterator[str]:
    """Yields warnings about tensors in a recipe's LoRA files that are no LoRA, and so are
    not used.
    """
    for lora in dict.fromkeys(_loras(recipe)):
        extras = _extras(lora.file)
        if extras and lora.strength:
            more = f" and {len(extras) - SHOWN} more" if len(extras) > SHOWN else ""
            yield (
                f"{shown(lora.file.path)}: used without what is no LoRA in it: "
                f"{', '.join(extras[:SHOWN])}{more}"
            )


def _loras(recipe: ModelRecipe | ClipRecipe) -> Iterator[Lora]:
    parts = (
        [recipe.network]
        if isinstance(recipe, ModelRecipe)
        else [one.encoder for one in recipe.encoders]
    )
    yield from recipe.loras
    for part in parts:
        yield from _merged_loras(part)


def _merged_loras(part: Component) -> Iterator[Lora]:
    for source, loras in part.sources if isinstance(part, MergedComponent) else ():
        yield from (*loras, *_merged_loras(source))


@lru_cache(maxsize=FILES_KNOWN)
def _extras(file: FileIdentity) -> tuple[str, ...]:
    entries = FileCache.of_this_machine().entries(file)
    return unified(shown(file.path), {key: None for key in entries if key != "__metadata__"})[1]


def fit(lora: LoraFile, part: str, weights: Mapping[str, Tensor]) -> dict[str, Factors]:
    """Returns the part's factors by the names of a module's weights, all of them. Works on weights
    without memory (torch's meta device) too.

    InputError naming the first that does not fit, and both shapes, or that stands for the same
    weight as another.
    """
    names = module_names(weights, part)
    fitted: dict[str, Factors] = {}
    for module, factors in lora.parts[part].items():
        if module not in names:
            raise InputError(
                f"{lora.path}: made for another architecture: {part}.{module} (shape "
                f"{factors.shape}) does not exist in this model; "
                "choose a LoRA made for it"
            )
        name = names[module]
        if _without_ones(factors.shape) != _without_ones(list(weights[name].shape)):
            raise InputError(
                f"{lora.path}: made for another architecture: {part}.{module} has shape "
                f"{factors.shape}, "
                f"this model {list(weights[name].shape)}; choose a LoRA made for it"
            )
        if name in fitted:
            raise InputError(
                f"{lora.path}: says {name.removesuffix('.weight')} twice ({part}.{module}), "
                "expected one LoRA in a file"
            )
        fitted[name] = factors
    return fitted


def _without_ones(shape: list[int]) -> list[int]:
    """Drops trailing ones: in one family a layer may be linear or a 1x1 convolution."""
    return shape[:2] if all(side == 1 for side in shape[2:]) else shape


def _factors(
    path: str, part: str, module: str, entry: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Factors:
    down, up = entry["A"], entry["B"]
    if (
        down.ndim != up.ndim
        or down.ndim not in (2, 4)
        or up.shape[1] != down.shape[0]
        or any(side != 1 for side in up.shape[2:])
        or not down.shape[0]
    ):
        raise InputError(
            f"{path}: {part}.{module}: factors of shape {list(up.shape)} and {list(down.shape)} do "
            "not make a weight"
        )
    alpha = (
        entry["alpha"].item() if "alpha" in entry else _alpha(config, part, module, down.shape[0])
    )
    return Factors(down, up, float(alpha))


def _alpha(config: Mapping[str, Any], part: str, module: str, rank: int) -> float:
    """Applies PEFT's rules: a pattern for the module, else the file's one alpha, else the rank.
    Rank-stabilised LoRA divides by √rank instead.
    """
    patterns = config.get(f"{part}.alpha_pattern") or {}
    pattern = next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), None)
    alpha = config.get(f"{part}.lora_alpha", rank) if pattern is None else patterns[pattern]
    return float(alpha) * math.sqrt(rank) if config.get(f"{part}.use_rslora") else float(alpha)


def _adapter_config(path: str, metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """Reads PEFT's configuration, from the file's metadata (diffusers) or from adapter_config.json
    beside it (PEFT), by `part.name`.
    """
    beside = Path(path).with_name("adapter_config.json")
    if METADATA in metadata:
        try:
            config = json.loads(metadata[METADATA])
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise InputError(f"{path}: its {METADATA} is not a JSON object")
    elif Path(path).name == "adapter_model.safetensors" and beside.exists():
        values = read_json(beside)
        config = {
            f"{family.network.part}.{name}": value
            for family in families()
            for name, value in values.items()
        }
    else:
        config = {}
    dora = next(
        (name for name, value in config.items() if name.endswith("use_dora") and value), None
    )
    if dora:
        raise InputError(f"{path}: DoRA is not supported ({dora}), expected LoRA")
    return config
