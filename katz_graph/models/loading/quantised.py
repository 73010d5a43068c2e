"""Recognises weights stored in a safetensors file as 8-bit numbers with scales, in
ComfyUI's format.

Recognition reads the header and the JSON tensors that mark layers. It never imports torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from katz_graph.core.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Entries = Mapping[str, Any]
"""The header of a safetensors file, by tensor name."""


@dataclass(frozen=True, slots=True)
class Header:
    """Holds the header of a safetensors file. `begin`: the byte offset of its tensors."""

    path: Path
    begin: int
    entries: Entries


EXTRA_TENSORS = re.compile(
    r"(^|\.)(scaled_fp8|comfy_quant|scale_weight|weight_scale|scale_input|input_scale)$"
)
SCALE = re.compile(r"(|.*\.)(scale_weight|weight_scale)")
MARKER, METADATA, OF_FILE = "comfy_quant", "_quantization_metadata", "scaled_fp8"
FORMATS = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "int8_tensorwise": "I8"}
"""Maps the supported formats, by name in markers, to the weight's dtype."""
SCALED = (*FORMATS.values(), "F16", "BF16", "F32")  # some files have scales for all layers
STORED_TYPES = ("F8_E4M3", "F8_E5M2", "I8")
WIDE_TYPES = SCALES = ("F16", "BF16", "F32")
OF_FILE_TYPES = ("F8_E4M3", "F8_E5M2", "F32")
MARKER_REQUIRED_DTYPES = ("I8", "U8")  # dtypes that need a marker to be understood
ROTATED_TOGETHER = 256  # inputs per rotation, unless the marker sets it
IRRELEVANT = ("full_precision_matrix_mult", "orig_dtype", "per_row")  # without effect on values
UNDERSTOOD = ("format", "convrot", "convrot_groupsize", "orig_shape", "params", *IRRELEVANT)
LONGEST_MARKER = 4096  # bytes
FITS = "use a file of the same model with bf16, fp16, fp8 or int8_tensorwise weights"


@dataclass(frozen=True, slots=True)
class Stored:
    """Describes a stored weight: the name of its scale (one number, or one per row), and how many
    inputs are rotated together (0: none).
    """

    scale: str
    rotated: int = 0


@dataclass(frozen=True, slots=True)
class Marker:
    """Describes the storage of a marked layer."""

    format: str
    rotated: int = 0


def is_scale_or_marker(name: str) -> bool:
    """Returns whether a name is that of a scale or a marker."""
    return EXTRA_TENSORS.search(name) is not None


def stored_weights(*headers: Header) -> dict[str, Stored]:
    """Returns the storage of the weights with scales, by weight name. `headers`: of the file, or of
    all its shards, because a weight and its scale may be in different shards.

    Raises InputError for unsupported formats, unknown markers, and weights and scales that do not
    fit.
    """
    entries = {name: entry for one in headers for name, entry in tensor_entries(one.entries)}
    homes = {name: one.path for one in headers for name, _ in tensor_entries(one.entries)}
    markers = _markers(headers, entries)
    scales = {f"{layer}weight": name for layer, name in _scales(homes)}
    found = {}
    for weight, scale in scales.items():
        if weight not in entries:
            _refuse(homes[scale], f"{scale} is a scale without its weight, {weight}")
        path = homes[weight]
        _check_scale(path, weight, scale, entries)
        marker = markers.get(weight)
        if marker is None and entries[weight]["dtype"] in MARKER_REQUIRED_DTYPES:
            _refuse(path, f"{weight} is 8-bit integers without a format")
        found[weight] = Stored(scale, 0 if marker is None else marker.rotated)
    for weight in sorted(markers.keys() - scales.keys()):
        _refuse(homes[weight], f"{weight} has a marker and no scale")
    for name, entry in entries.items():
        if (
            name.endswith("weight")
            and entry["dtype"] in MARKER_REQUIRED_DTYPES
            and name not in scales
        ):
            _refuse(homes[name], f"{name} is 8-bit integers without a scale")
    return found


def rounded(weight: Tensor, kind: torch.dtype) -> Tensor:
    """Returns a weight in a narrower dtype, clamped to its range."""
    import torch

    limit = torch.finfo(kind).max
    return weight.float().clamp(-limit, limit).to(kind)


def tensor_entries(entries: Entries) -> Iterator[tuple[str, Any]]:
    """Yields the names and entries of the tensors of a header."""
    return ((name, entry) for name, entry in entries.items() if name != "__metadata__")


def _scales(homes: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yields the name prefix of each layer with a scale, and the name of the scale."""
    found: dict[str, str] = {}
    for name, path in homes.items():
        if (match := SCALE.fullmatch(name)) is not None:
            if match[1] in found:
                _refuse(path, f"{match[1]}weight has two scales, {found[match[1]]} and {name}")
            found[match[1]] = name
    yield from found.items()


def _check_scale(path: Path, weight: str, scale: str, entries: Entries) -> None:
    shape, given = (list(entries[name]["shape"]) for name in (weight, scale))
    stored, kind = (entries[name]["dtype"] for name in (weight, scale))
    if stored not in SCALED:
        _refuse(path, f"{weight} is {stored} with a scale, which is not supported")
    one_a_row = given[:1] == shape[:1] and math.prod(given) == shape[0]
    if kind not in SCALES or not shape or not (math.prod(given) == 1 or one_a_row):
        _refuse(
            path,
            f"{scale} is {kind} {given}, expected one scale or one for each of the "
            f"{shape[0] if shape else 0} rows of {weight}",
        )


def _markers(headers: Sequence[Header], entries: Entries) -> dict[str, Marker]:
    """Returns the markers by weight name."""
    found: dict[str, Marker] = {}
    for one in headers:
        for name, said in (*_in_metadata(one.path, one.entries), *_in_tensors(one)):
            weight = _weight(one.path, name, entries)
            marker = _understood(one.path, weight, said, entries[weight])
            if found.setdefault(weight, marker) != marker:
                _refuse(one.path, f"{weight} has two markers, which differ")
    return found


def _in_metadata(path: Path, entries: Entries) -> Iterator[tuple[str, Any]]:
    text = entries.get("__metadata__", {}).get(METADATA)
    if text is None:
        return
    try:
        yield from dict(json.loads(text)["layers"]).items()
    except (ValueError, TypeError, KeyError, RecursionError):
        _refuse(path, f"its metadata {METADATA} is not understood")


def _in_tensors(header: Header) -> Iterator[tuple[str, Any]]:
    path = header.path
    with path.open("rb") as file:
        for name, entry in tensor_entries(header.entries):
            kind = name.rpartition(".")[2]
            if kind == OF_FILE and entry["dtype"] not in OF_FILE_TYPES:
                _refuse(path, f"its marker {name} is {entry['dtype']}, which is not understood")
            if kind != MARKER:
                continue
            first, end = entry["data_offsets"]
            try:
                if entry["dtype"] != "U8" or end - first > LONGEST_MARKER:
                    raise ValueError
                file.seek(header.begin + first)
                said = json.loads(file.read(end - first))
            except (ValueError, RecursionError):
                _refuse(path, f"its marker {name} is not understood")
            yield name.removesuffix(MARKER).removesuffix("."), said


def _weight(path: Path, layer: str, entries: Entries) -> str:
    """Returns the weight name of a marked layer. Some files' markers lack the tensors' prefix."""
    name = f"{layer}.weight" if layer else "weight"
    if name in entries:
        return name
    ending = [one for one in entries if one.endswith(f".{name}")]
    if len(ending) != 1:
        _refuse(path, f"a marker says how {name} is stored, but it is missing")
    return ending[0]


def _understood(path: Path, weight: str, said: Any, entry: Any) -> Marker:
    """Parses and checks the marker of a weight."""
    try:
        settings = {**said, **said.get("params", {})}
    except (TypeError, AttributeError):
        _refuse(path, f"the marker of {weight} is not understood")
    name = settings.get("format")
    if not isinstance(name, str):
        _refuse(path, f"the marker of {weight} names no format")
    if name not in FORMATS:
        _refuse(path, f"{weight} is stored as {name}, which is not supported")
    strange = sorted(settings.keys() - set(UNDERSTOOD))
    turns, group = (
        settings.get("convrot", False),
        settings.get("convrot_groupsize", ROTATED_TOGETHER),
    )
    shape = entry["shape"]
    if strange or settings.get("orig_shape", shape) != shape or type(turns) is not bool:
        _refuse(path, f"the marker of {weight} is not understood: {json.dumps(settings)}")
    if entry["dtype"] != FORMATS[name]:
        _refuse(path, f"{weight} is {entry['dtype']}, its marker says {name}")
    if not turns:
        return Marker(name)
    whole = type(group) is int and group >= 4 and math.log2(group) % 2 == 0
    if name != "int8_tensorwise" or not whole or len(shape) != 2 or shape[1] % group:
        _refuse(
            path,
            f"{weight} is {name} {shape}, its marker says that its inputs are rotated in groups "
            f"of {group}",
        )
    return Marker(name, group)


def _refuse(path: Path, problem: str) -> NoReturn:
    raise InputError(f"{path}: {problem}: {FITS}")
