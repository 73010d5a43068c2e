"""Runs a single node as the graph run does, with a context that writes into a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from katz_graph.core.errors import OutOfMemory
from katz_graph.core.recipe import UpscaleModelRecipe
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.files.folders import Folders
from katz_graph.node import WithUi
from katz_graph.node.literals import check_literal
from katz_graph.packs import Registry, load_registry


@cache
def registry() -> Registry:
    return load_registry()[0]


@dataclass
class PlainEngine:
    """Runs upscalers on this thread."""

    models: DeviceModels = field(default_factory=DeviceModels)
    tiles: list[tuple[int, int]] = field(default_factory=list)
    max_pixels: int = 1 << 40  # larger pictures raise OutOfMemory

    def upscale(
        self, model: UpscaleModelRecipe, picture: torch.Tensor, context: Any
    ) -> torch.Tensor:
        high, wide = picture.shape[-2:]
        if high * wide > self.max_pixels:
            raise OutOfMemory("too large")
        self.tiles.append((high, wide))
        return self.models.upscale(model, picture)


def context_in(folder: Path, **options: Any) -> RunContext:
    folders = Folders((folder / "models",), folder / "input", folder / "output")
    return RunContext(
        options.pop("engine", None) or PlainEngine(), folders, folder / "output", **options
    )  # type: ignore[arg-type]


def call(name: str, context: RunContext | None = None, **inputs: Any) -> Any:
    """Returns a node's only output, or the tuple of all outputs."""
    return call_with_ui(name, context, **inputs)[0]


def call_with_ui(name: str, context: RunContext | None = None, **inputs: Any) -> tuple[Any, Any]:
    """Returns a node's only output or the tuple of all outputs, and its `ui` for editors. Checks
    knobs like literals from a file.
    """
    kind = registry()[name]
    assert set(inputs) <= set(kind.inputs)
    values = {
        key: check_literal(value, kind.inputs[key])
        if kind.inputs[key].knob and not kind.takes_lists
        else value
        for key, value in inputs.items()
    }
    result = kind.run(context or context_in(Path("nowhere")), values)
    outputs, ui = (result.result, result.ui) if isinstance(result, WithUi) else (result, None)
    assert len(outputs) == len(kind.outputs)
    return outputs[0] if len(outputs) == 1 else outputs, ui


def picture(*rows: list[float]) -> torch.Tensor:
    """Returns a picture [1, H, W, 3] of grey values."""
    return torch.tensor(rows).unsqueeze(0).unsqueeze(-1).repeat(1, 1, 1, 3)


def grey(image: torch.Tensor) -> list[list[float]]:
    """Returns the first picture's red channel, rounded."""
    return rounded(image[0, ..., 0])


def rounded(values: torch.Tensor, digits: int = 4) -> Any:
    return torch.round(values.double(), decimals=digits).tolist()
