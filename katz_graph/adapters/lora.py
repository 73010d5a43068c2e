"""Reads LoRA files: what they add to which weights and biases, from the whole file or from its
header alone.

Must not know modules.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from katz_graph.adapters.methods import MAGNITUDES, Method, Scaling, methods
from katz_graph.adapters.naming import unified
from katz_graph.errors import InputError
from katz_graph.models.family import families
from katz_graph.models.loading.identity import check_unchanged, read_header, read_json
from katz_graph.recipe import FileIdentity

METADATA = "lora_adapter_metadata"  # where diffusers keeps PEFT's configuration in a file
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # of tensors that may be in an adapter


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoraFile:
    """Holds what a LoRA file adds, by part of a pipeline, and weight or bias as the file names its
    module. `extras` are the tensors of unknown names.
    """

    path: str
    parts: Mapping[str, Mapping[str, Method]]
    extras: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Returns what it takes in memory."""
        return sum(
            tensor.nbytes
            for methods in self.parts.values()
            for method in methods.values()
            for tensor in method.tensors
        )


Load = Callable[[str], Tensor]
"""Returns a tensor of a file by its name there."""


def read_lora(file: FileIdentity) -> LoraFile:
    """Reads a LoRA file. InputError when it is no LoRA, incomplete, or another file than when it
    was named.
    """
    return _read(file, lambda load, entries: load)


def describe(file: FileIdentity) -> LoraFile:
    """Reads the header of a LoRA file, and its alphas, which scale the rest: the other tensors are
    on torch's meta device, without values. Refuses what `read_lora` refuses.
    """
    return _read(file, lambda load, entries: lambda key: _empty(entries[key]))


def _empty(entry: Mapping[str, Any]) -> Tensor:
    return torch.empty(entry["shape"], dtype=TYPES[entry["dtype"]], device="meta")


def _read(
    file: FileIdentity, loader: Callable[[Load, Mapping[str, Mapping[str, Any]]], Load]
) -> LoraFile:
    """Reads a file with what the loader makes of the file's own load and the entries of its
    header.
    """
    path = file.path
    check_unchanged(file)
    _, entries = read_header(Path(path))
    metadata = entries.pop("__metadata__", {})
    if not entries:
        raise InputError(f"{path}: holds no tensors, expected a LoRA")
    named, extras = unified(path, {key: key for key in entries})
    config = _adapter_config(path, metadata)
    parts: dict[str, dict[str, Method]] = {part: {} for part in named}
    try:
        with safe_open(path, framework="pt") as content:

            def load(key: str) -> Tensor:
                value: Tensor = content.get_tensor(key)
                return value.clone()  # not mapped

            chosen = loader(load, entries)
            for part, modules in named.items():
                for module, keys in modules.items():
                    where = f"{path}: {part}.{module}"
                    _check_types(path, keys, entries)
                    entry = {
                        name: (load if name == "alpha" else chosen)(key)
                        for name, key in keys.items()
                    }
                    for parameter, method in _methods(where, part, module, entry, config).items():
                        parts[part][f"{module}.{parameter}"] = method
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    return LoraFile(path, parts, extras)


def _check_types(
    path: str, keys: Mapping[str, str], entries: Mapping[str, Mapping[str, Any]]
) -> None:
    for name, key in keys.items():
        kind = entries[key]["dtype"]
        if name != "alpha" and kind not in TYPES:
            raise InputError(f"{path}: {key} holds {kind} numbers, expected {', '.join(TYPES)}")


def _methods(
    where: str, part: str, module: str, entry: Mapping[str, Tensor], config: Mapping[str, Any]
) -> dict[str, Method]:
    if config.get(f"{part}.use_dora") and not any(name in entry for name in MAGNITUDES):
        raise InputError(f"{where} has no lora_magnitude_vector: the file is incomplete")
    try:
        return methods(entry, _scaling(where, part, module, entry, config))
    except ValueError as error:
        raise InputError(f"{where} {error}") from None


def _scaling(
    where: str, part: str, module: str, entry: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Scaling:
    """Divides the file's alpha by the rank. Without one PEFT's rules apply: a pattern for the
    module, else the configuration's one alpha, else the rank; rank-stabilised LoRA divides by √rank
    instead.

    A product of whole factors has no rank: a file's alpha does not count for it then, and PEFT's is
    divided by the configured rank.
    """

    def configured(*names: str) -> float | None:
        """Returns PEFT's number for the module: of a pattern, or of the first of the names."""
        patterns = config.get(f"{part}.{names[0]}_pattern") or {}
        if not isinstance(patterns, dict):
            raise InputError(f"{where}: its {names[0]}_pattern is {patterns!r}, not an object")
        values = [patterns[key] for key in patterns if _matches(key, module)]
        values += [config.get(f"{part}.{name}") for name in names]
        value = next((value for value in values if value is not None), None)
        if value is not None and not isinstance(value, (int, float)):
            raise InputError(f"{where}: its {names[0]} is configured as {value!r}, not a number")
        return value

    def scaling(rank: int) -> float:
        if "alpha" in entry:
            if entry["alpha"].numel() != 1:
                raise InputError(f"{where}: alpha has shape {list(entry['alpha'].shape)}, not one")
            return float(entry["alpha"].item()) / rank if rank else 1.0
        alpha = configured("alpha", "lora_alpha")
        divisor = float(rank or configured("rank", "r") or 0)
        if alpha is None or not divisor:
            return 1.0
        return alpha / (math.sqrt(divisor) if config.get(f"{part}.use_rslora") else divisor)

    return scaling


def _matches(pattern: str, module: str) -> bool:
    try:
        return re.match(rf"(.*\.)?({pattern})$", module) is not None
    except re.error:
        return False  # a name that is no pattern


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
        return config
    if Path(path).name != "adapter_model.safetensors" or not beside.exists():
        return {}
    return {
        f"{family.network.part}.{name}": value
        for family in families()
        for name, value in read_json(beside).items()
    }
