"""Reads the methods of LoRA files by weight and bias, from the whole file or from its header
alone.

Must not know modules.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from io import RawIOBase
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from katz_graph.adapters.methods import MAGNITUDES, Method, Scaling, methods
from katz_graph.adapters.naming import NETWORK, layer_of, unified
from katz_graph.core.errors import Cancelled, InputError
from katz_graph.core.recipe import FileIdentity
from katz_graph.files.locks import never
from katz_graph.files.urls import is_url, shown
from katz_graph.models.family import families
from katz_graph.models.fetching.file_cache import FileCache
from katz_graph.models.loading.identity import LENGTH_BYTES, read_configuration, read_header_of

PIECE = 2**24  # bytes per read
METADATA = "lora_adapter_metadata"  # diffusers' metadata key for PEFT's configuration
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # supported dtypes of adapter tensors
OF_ALPHAS = {
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoraFile:
    """Holds the methods of a LoRA file by part (a network or a kind of text encoder), and in a part
    by the module's name in the file with `.weight` or `.bias`.
    """

    path: str
    parts: Mapping[str, Mapping[str, Method]]
    layers: Mapping[str, Mapping[str, str]]
    """Maps part -> name in `parts` -> the layer's name in the file, with prefix."""
    extras: tuple[str, ...] = ()
    """Lists the tensors of unknown names."""
    original: bool = False
    """True if a network tensor has a prefix that trainers use for the original code."""

    @property
    def count(self) -> int:
        """Counts the layers of all parts."""
        return sum(map(len, self.parts.values()))

    @property
    def bytes(self) -> int:
        """Returns the bytes of all tensors, counting shared storage once."""
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for methods in self.parts.values()
            for method in methods.values()
            for tensor in method.tensors
        }
        return sum(storages.values())


Load = Callable[[str], Tensor]
"""Returns a tensor by its name in the file."""


def read_lora(file: FileIdentity, cancelled: Callable[[], bool] = never) -> LoraFile:
    """Reads a LoRA file, and fetches it first if its path is a URL. Raises Cancelled when
    `cancelled` returns true. Raises InputError if the file is not a LoRA, is incomplete, or has
    changed since it was identified.
    """
    name = shown(file.path)
    try:
        with (
            FileCache.of_this_machine().using(file, cancelled) as path,
            path.open("rb", buffering=0) as opened,
        ):
            header, entries = read_header_of(name, opened.read, file.size)
            content = _content(name, opened, file.size - (LENGTH_BYTES + len(header)), cancelled)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
    return _parsed(
        file,
        entries,
        lambda key: _tensor(content[slice(*entries[key]["data_offsets"])], entries[key]),
    )


def describe(file: FileIdentity) -> LoraFile:
    """Reads the header and the alphas (scales) of a LoRA file. Puts the other tensors on torch's
    meta device. Raises the errors of `read_lora`.

    Does not fetch a file at a URL: alphas are NaN until it is cached.
    """
    name, cache = shown(file.path), FileCache.of_this_machine()
    entries = dict(cache.entries(file))
    try:
        with ExitStack() as using:
            here = not is_url(file.path) or cache.holds(file)
            opened = (
                using.enter_context(using.enter_context(cache.using(file)).open("rb"))
                if here
                else None
            )

            def load(key: str) -> Tensor:
                entry = entries[key]
                if key.rpartition(".")[2] != "alpha":
                    return torch.empty(entry["shape"], dtype=TYPES[entry["dtype"]], device="meta")
                return (
                    torch.full(entry["shape"], math.nan) if opened is None else _at(opened, entry)
                )

            return _parsed(file, entries, load)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None


def _at(opened: BinaryIO, entry: Mapping[str, Any]) -> Tensor:
    """Reads one tensor of a file."""
    start, end = entry["data_offsets"]
    opened.seek(0)
    header = int.from_bytes(opened.read(LENGTH_BYTES), "little")
    opened.seek(LENGTH_BYTES + header + start)
    return _tensor(torch.frombuffer(bytearray(opened.read(end - start)), dtype=torch.uint8), entry)


def _content(name: str, opened: RawIOBase, size: int, cancelled: Callable[[], bool]) -> Tensor:
    """Reads the rest of a file into one byte tensor, avoiding work per tensor."""
    array = np.empty(size, dtype=np.uint8)  # numpy asks for large pages, so a read is faster
    room, there = memoryview(cast(Any, array)), 0
    while there < size:
        if cancelled():
            raise Cancelled(f"{name}: no longer needed")
        got = opened.readinto(room[there : there + PIECE])
        if not got:
            raise InputError(f"{name}: cut off: it has {size - there:,} bytes less than before")
        there += got
    return torch.from_numpy(array)


def _tensor(part: Tensor, entry: Mapping[str, Any]) -> Tensor:
    """Returns a tensor from its bytes: a view if they are aligned, else a copy."""
    kind = TYPES.get(entry["dtype"]) or OF_ALPHAS[entry["dtype"]]
    if part.storage_offset() % kind.itemsize:
        part = part.clone()
    return part.view(kind).view(entry["shape"])


def _parsed(file: FileIdentity, entries: dict[str, Any], load: Load) -> LoraFile:
    """Builds a file's methods from its header entries; `load` reads the tensors."""
    name, metadata = shown(file.path), entries.pop("__metadata__", {})
    if not entries:
        raise InputError(f"{name}: has no tensors, expected a LoRA")
    named = unified(name, tuple(entries))
    config = _adapter_config(file, metadata)
    parts: dict[str, dict[str, Method]] = {part: {} for part in named.parts}
    layers: dict[str, dict[str, str]] = {part: {} for part in named.parts}
    for part, modules in named.parts.items():
        for module, tensors in modules.items():
            _check_types(name, tensors.keys, entries)
            entry = {what: load(key) for what, key in tensors.keys.items()}
            layer = layer_of(next(iter(tensors.keys.values())))
            made = _methods(f"{name}: {layer}", tensors.scope, module, entry, config)
            for parameter, method in made.items():
                parts[part][f"{module}.{parameter}"] = method
                layers[part][f"{module}.{parameter}"] = layer
    return LoraFile(name, parts, layers, named.extras, named.original)


def _check_types(
    path: str, keys: Mapping[str, str], entries: Mapping[str, Mapping[str, Any]]
) -> None:
    for name, key in keys.items():
        kind = entries[key]["dtype"]
        known = (*TYPES, *OF_ALPHAS) if name == "alpha" else (*TYPES,)
        if kind not in known:
            raise InputError(f"{path}: {key} has dtype {kind}, expected {', '.join(known)}")


def _methods(
    where: str, scope: str, module: str, entry: Mapping[str, Tensor], config: Mapping[str, Any]
) -> dict[str, Method]:
    if config.get(f"{scope}.use_dora") and not any(name in entry for name in MAGNITUDES):
        raise InputError(f"{where} has no lora_magnitude_vector: the file is incomplete")
    try:
        return methods(entry, _scaling(where, scope, module, entry, config))
    except ValueError as error:
        raise InputError(f"{where} {error}") from None


def _scaling(
    where: str, scope: str, module: str, entry: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Scaling:
    """Divides the file's alpha by the rank. Without an alpha in the file, applies PEFT's rules: a
    pattern for the module, else the configuration's alpha, else the rank. Rank-stabilised LoRA
    divides by √rank.

    For whole factors, which have no rank, ignores the file's alpha and divides PEFT's by the
    configured rank.
    """

    def configured(*names: str) -> float | None:
        """Returns PEFT's number for the module: by pattern, else of the first name set."""
        patterns = config.get(f"{scope}.{names[0]}_pattern") or {}
        if not isinstance(patterns, dict):
            raise InputError(f"{where}: its {names[0]}_pattern is {patterns!r}, not an object")
        values = [patterns[key] for key in patterns if _matches(key, module)]
        values += [config.get(f"{scope}.{name}") for name in names]
        value = next((value for value in values if value is not None), None)
        if value is not None and not isinstance(value, (int, float)):
            raise InputError(f"{where}: its {names[0]} is configured as {value!r}, not a number")
        return value

    def scaling(rank: int) -> float:
        if "alpha" in entry:
            if entry["alpha"].numel() != 1:
                raise InputError(
                    f"{where}: alpha has shape {list(entry['alpha'].shape)}, expected one number"
                )
            return float(entry["alpha"].item()) / rank if rank else 1.0
        alpha = configured("alpha", "lora_alpha")
        divisor = float(rank or configured("rank", "r") or 0)
        if alpha is None or not divisor:
            return 1.0
        return alpha / (math.sqrt(divisor) if config.get(f"{scope}.use_rslora") else divisor)

    return scaling


def _matches(pattern: str, module: str) -> bool:
    try:
        return re.match(rf"(.*\.)?({pattern})$", module) is not None
    except re.error:
        return False  # the name is not a valid pattern


def _adapter_config(file: FileIdentity, metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """Reads PEFT's configuration, by `part.name`, from the file's metadata (diffusers) or from its
    companion file (PEFT).
    """
    if METADATA in metadata:
        try:
            config = json.loads(metadata[METADATA])
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise InputError(f"{shown(file.path)}: its {METADATA} is not a JSON object")
        return {_of_part(name): value for name, value in config.items()}
    return {
        f"{NETWORK}.{name}": value
        for companion in file.companions
        for name, value in read_configuration(companion).items()
    }


def _of_part(name: str) -> str:
    """Replaces the part in a setting's name, `part.name`, by NETWORK if it is a network."""
    part, _, rest = name.partition(".")
    is_network = any(part == family.network.part for family in families())
    return f"{NETWORK}.{rest}" if is_network else name
