"""Creates or finds the model files of one family, and compares the outputs of two engines."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path

from torch import Tensor

from katz_graph.files.folders import MINI
from katz_graph.testing.random_models import Kind, make_controlnet, make_lora, make_pipeline


@dataclass(frozen=True, slots=True)
class Models:
    """Holds the model files of one family."""

    name: str
    pipeline: Path
    controls: tuple[Path, ...]
    loras: tuple[Path, ...]


def random_models(folder: Path, family: Kind, layers: int = 2) -> Models:
    """Creates a pipeline, three ControlNets, and two LoRAs of different rank and alpha that patch
    common layers; the second also patches the text encoder. `layers`: layers per network block.

    Reuses the files if the folder already has them.
    """
    controls = tuple(folder / f"{family}-control{number}" for number in range(3))
    loras = (folder / f"{family}-first.safetensors", folder / f"{family}-second.safetensors")
    if not loras[1].exists():
        make_pipeline(folder / family, family, seed=1, layers=layers)
        for number, control in enumerate(controls):
            make_controlnet(control, family, seed=10 + number, layers=layers)
        first = {"rank": 4, "alpha": 2.0, "naming": "kohya", "seed": 20, "text_encoder": False}
        second = {"rank": 8, "alpha": 8.0, "naming": "peft", "seed": 21, "text_encoder": True}
        for path, made in zip(loras, (first, second), strict=True):
            make_lora(path, family, **made, layers=layers)
    return Models(family, folder / family, controls, loras)


def mini_models() -> Models:
    """Returns the noise-predicting miniature model, with its ControlNets and LoRAs."""
    controls = tuple(MINI / "controlnet" / name for name in ("edges", "silhouette"))
    return Models(
        "mini",
        MINI / "pipeline",
        (*controls, *controls)[:3],
        tuple(MINI / "loras" / f"{name}.safetensors" for name in ("dusk", "sticker")),
    )


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Computes the largest absolute difference, divided by the range of `theirs`. Infinite instead
    of nan, because the maximum of several numbers may leave out nan.
    """
    found = float((ours - theirs).abs().max() / (theirs.max() - theirs.min()))
    return inf if isnan(found) else found
