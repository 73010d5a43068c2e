"""Identifies templates by everything that decides their activations."""

from __future__ import annotations

from dataclasses import dataclass, fields

from katz_graph.core.messages import shorten
from katz_graph.core.patches import Patch
from katz_graph.core.recipe import (
    Averaged,
    Component,
    Conditioning,
    Encoding,
    FileIdentity,
    Given,
    Joined,
    Lora,
    Prompt,
    Zeroed,
    digest,
)
from katz_graph.executor.templates.manifest import VERSION
from katz_graph.files.urls import shown
from katz_graph.sampling.path import Path

DIGITS = 24  # hexadecimal digits of each half of a name
MAX_TEXT = 200  # characters of a text in the details


@dataclass(frozen=True, slots=True)
class TemplateKey:
    """Holds everything that decides a template's activations. Seed, mask and the prompt of an edit
    do not belong to it.
    """

    network: Component
    loras: tuple[Lora, ...]  # of the network, in order
    patches: tuple[Patch, ...]
    path: Path
    latent: str  # digest of the latent [1, C, h, w] as the VAE encodes it
    cells: tuple[int, int]  # height and width of the latent
    sigmas: tuple[float, ...]  # noise level of each evaluation
    dtype: str
    # positive, and negative if the model evaluates it: texts as cached, ControlNets with their
    # pictures blanked under the mask, channels next to the latent with an empty mask, references
    branches: tuple[Conditioning, ...]

    @property
    def prefix(self) -> str:
        """Returns the first half of the name, which the texts do not change."""
        return digest((VERSION, self._values("branches"), [_without_texts(self.branches)]))[:DIGITS]

    @property
    def name(self) -> str:
        """Returns the digest that names the template."""
        texts = [[entry.encoding for entry in branch] for branch in self.branches]
        return f"{self.prefix}-{digest(texts)[:DIGITS]}"

    @property
    def details(self) -> dict[str, str]:
        """Returns the readable parts, for lists of templates."""
        height, width = self.cells
        controls = [
            use.control_net.control_net
            for branch in self.branches
            for entry in branch
            for use in entry.control
        ]
        said = {
            "model": _file_name(self.network.folder),
            "loras": ", ".join(f"{_name(one.file)} {one.strength:g}" for one in self.loras),
            "patches": ", ".join(type(patch).__name__ for patch in self.patches),
            "cells": f"{width} x {height}",
            "evaluations": str(len(self.sigmas)),
            "dtype": self.dtype,
            "controlnets": ", ".join(dict.fromkeys(_file_name(one.folder) for one in controls)),
            **{
                name: shorten(", ".join(_text(entry.encoding) for entry in branch), MAX_TEXT)
                for name, branch in zip(("positive", "negative"), self.branches, strict=False)
            },
        }
        return {name: value for name, value in said.items() if value}

    def _values(self, omitted: str) -> list[tuple[str, object]]:
        return [
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if field.name != omitted
        ]


def _without_texts(branches: tuple[Conditioning, ...]) -> list[list[list[tuple[str, object]]]]:
    return [
        [
            [
                (field.name, getattr(entry, field.name))
                for field in fields(entry)
                if field.name != "encoding"
            ]
            for entry in branch
        ]
        for branch in branches
    ]


def _name(file: FileIdentity) -> str:
    return _file_name(file.path)


def _file_name(path: str) -> str:
    return shown(path).rstrip("/").rpartition("/")[2]


def _text(encoding: Encoding) -> str:
    """Returns the texts of an encoding in the order in which they were combined."""
    match encoding:
        case Prompt():
            return encoding.text
        case Joined() | Averaged():
            return f"{_text(encoding.first)} + {_text(encoding.second)}"
        case Zeroed():
            return ""
        case Given():
            return "(encoding)"
