"""Describes stored templates, and writes and checks their files.

A template is a folder: one safetensors file per evaluation, with one tensor [branches, N, D] per
layer, and a manifest. A file's metadata names template, fill and evaluation, and the manifest has
the digest of each file's header, so a file of another template, fill or evaluation is recognised.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.files.weights import USUAL_ENDING
from katz_graph.models.loading.identity import read_header

VERSION = 1  # of the files; increase it when their content changes
MANIFEST = "template.json"
PADDING_BYTES = 64  # upper bound of the length field and of the padding of a header
MAX_OFFSET = 10**15  # bytes; upper bound of offsets in a file


@dataclass(frozen=True, slots=True)
class Form:
    """Describes one tensor."""

    dtype: str  # as `torch.float16` without "torch."
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    @property
    def torch_dtype(self) -> torch.dtype:
        """Raises ValueError for an unknown name."""
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"unknown dtype {self.dtype}")
        return found

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.torch_dtype.itemsize


@dataclass(frozen=True)
class StoredEvaluation:
    """Describes the activations of one evaluation."""

    size: int  # bytes of the file
    header: str  # SHA-256 of the file's header
    layers: Mapping[str, Form]

    @cached_property
    def nbytes(self) -> int:
        """Returns the bytes of the tensors."""
        return sum(form.nbytes for form in self.layers.values())


@dataclass(frozen=True)
class Manifest:
    """Describes a complete template. `fill`: identifies the computation that filled it."""

    name: str
    fill: str
    details: Mapping[str, str]
    evaluations: tuple[StoredEvaluation, ...]

    @cached_property
    def nbytes(self) -> int:
        """Returns the bytes of the tensors."""
        return sum(one.nbytes for one in self.evaluations)

    def to_json(self) -> bytes:
        layers = [one.layers for one in self.evaluations]
        forms = [one for number, one in enumerate(layers) if one not in layers[:number]]
        document = {
            "version": VERSION,
            "name": self.name,
            "fill": self.fill,
            "details": dict(self.details),
            "forms": [
                {name: [form.dtype, form.shape] for name, form in one.items()} for one in forms
            ],
            "evaluations": [
                [one.size, one.header, forms.index(one.layers)] for one in self.evaluations
            ],
        }
        return json.dumps(document).encode()

    @classmethod
    def parse(cls, text: bytes) -> Manifest:
        """Raises ValueError with the reason if this is no manifest of this version."""
        try:
            document = json.loads(text)
            version = document["version"]
            if version != VERSION:
                raise ValueError(f"its version is {version}, expected {VERSION}")
            forms = [
                {layer: Form(dtype, tuple(shape)) for layer, (dtype, shape) in one.items()}
                for one in document["forms"]
            ]
            found = cls(
                document["name"],
                document["fill"],
                document["details"],
                tuple(
                    StoredEvaluation(size, header, forms[form])
                    for size, header, form in document["evaluations"]
                ),
            )
            _ = found.nbytes  # reads every form
            return found
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"its manifest is damaged ({error})") from None
        except json.JSONDecodeError:
            raise ValueError("its manifest is damaged") from None


def file_name(evaluation: int) -> str:
    return f"{evaluation:04}{USUAL_ENDING}"


def forms_of(tensors: Mapping[str, Tensor]) -> dict[str, Form]:
    return {layer: Form.of(tensor) for layer, tensor in tensors.items()}


def max_file_bytes(layers: Mapping[str, Form], metadata: Mapping[str, str]) -> int:
    """Returns an upper bound of a file's bytes, before it is written."""
    header: dict[str, Any] = {
        layer: {"dtype": form.dtype, "shape": form.shape, "data_offsets": [MAX_OFFSET, MAX_OFFSET]}
        for layer, form in layers.items()
    }
    text = json.dumps({**header, "__metadata__": metadata})
    return PADDING_BYTES + len(text) + sum(form.nbytes for form in layers.values())


def write_evaluation(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> StoredEvaluation:
    """Writes contiguous host tensors to a new file, and waits until they are on the disk. Raises
    OSError or SafetensorError if the disk fails.
    """
    safetensors.torch.save_file(dict(tensors), path, dict(metadata))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    return StoredEvaluation(size, header_digest(path), forms_of(tensors))


def header_digest(path: Path) -> str:
    """Returns the SHA-256 of a file's header. Raises InputError if header and size disagree."""
    return hashlib.sha256(read_header(path)[0]).hexdigest()


def size_damage(folder: Path, manifest: Manifest) -> str:
    """Describes a missing file or one of another size; empty if there is none."""
    for number, one in enumerate(manifest.evaluations):
        path = folder / file_name(number)
        try:
            size = path.stat().st_size
        except OSError as error:
            return f"{path.name}: {error.strerror}"
        if size != one.size:
            return f"{path.name} has {size:,} bytes, expected {one.size:,}"
    return ""


def header_damage(folder: Path, manifest: Manifest) -> str:
    """Describes a file whose header is not the manifest's; empty if there is none."""
    for number, one in enumerate(manifest.evaluations):
        path = folder / file_name(number)
        try:
            if header_digest(path) != one.header:
                return f"{path.name} belongs to another template, evaluation or version"
        except InputError as error:
            return str(error).removeprefix(f"{path}: ")
    return ""
