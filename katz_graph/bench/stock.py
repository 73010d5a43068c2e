"""Times the engine on one device against diffusers' stock pipelines, from prompt to latent:
transformers with and without a ControlNet. Files and threads are the same; runs alternate. Part of
`katz bench overhead`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from katz_graph.bench.parity import BOUND
from katz_graph.bench.result import medians
from katz_graph.testing.model_files import difference
from katz_graph.testing.random_models import (
    Kind,
    kinds,
    make_controlnet,
    make_pipeline,
    playing,
)
from katz_graph.testing.requests import local_engine, sample
from katz_graph.testing.stock_pipelines import Asked, region, stock

RATIO_BOUND = 1.02
STRENGTH, GUIDANCE, SEED = 0.8, 3.5, 7


@dataclass(frozen=True, slots=True)
class Size:
    """Sets the size of models and requests."""

    heads: int = 4  # of 64 channels
    blocks: int = 6  # of a transformer; a ControlNet has half
    side: int = 32  # latent height and width
    steps: int = 8
    runs: int = 9

    def make(self, folder: Path, kind: Kind) -> None:
        """Writes a pipeline and its ControlNet."""
        made = kinds()[kind]
        sizes = {**made.widened(self.heads, self.side), **made.steady}
        make_pipeline(folder / kind, kind, 1, self.blocks, True, **sizes)
        make_controlnet(folder / kind / "controlnet", kind, 2, self.blocks // 2, **sizes)


def measure(size: Size | None = None) -> dict[str, Any]:
    """Returns the seconds of engine and pipeline, their ratio, and the difference of the latents,
    by kind of model, with and without a ControlNet.
    """
    size = size or Size()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, local_engine() as engine:
        for kind, controlled in product(playing("timed"), (False, True)):
            folder = Path(name) / kind
            if not folder.exists():
                size.make(Path(name), kind)
            asked = _asked(folder, kind, size, controlled)
            ours = partial(sample, engine, region(asked, SEED, engine))
            theirs = stock(asked, "latent")
            moved = difference(ours(), theirs())
            seconds = medians({"katz": ours, "diffusers": theirs}, size.runs)
            title = f"{kind}_controlnet" if controlled else kind
            found |= {f"{title}_{whose}_seconds": took for whose, took in seconds.items()}
            found[f"{title}_ratio"] = seconds["katz"] / seconds["diffusers"]
            found[f"{title}_difference"] = moved
    return found


def _asked(folder: Path, kind: Kind, size: Size, controlled: bool) -> Asked:
    draw = torch.Generator().manual_seed(SEED)
    noise = torch.randn(1, 16, size.side, size.side, generator=draw)
    pixels = 8 * size.side
    image = torch.rand(1, pixels, pixels, 3, generator=torch.Generator().manual_seed(5))
    return Asked(
        folder,
        kind,
        noise,
        size.steps,
        guidance=GUIDANCE,
        image=image if controlled else None,
        strength=STRENGTH,
    )


def bounds() -> dict[str, str]:
    """Returns the bounds of the figures of `measure`."""
    titles = [f"{kind}{end}" for kind, end in product(playing("timed"), ("", "_controlnet"))]
    return {f"{title}_ratio": f"<= {RATIO_BOUND}" for title in titles} | {
        f"{title}_difference": f"<= {BOUND}" for title in titles
    }


def within_bounds(found: Mapping[str, Any]) -> bool:
    return all(
        found[name] <= (RATIO_BOUND if name.endswith("ratio") else BOUND) for name in bounds()
    )


def rows(found: Mapping[str, Any]) -> list[list[object]]:
    titles = [name.removesuffix("_ratio") for name in found if name.endswith("_ratio")]
    return [
        [
            f"sampling, {title.replace('_', ' with ')}",
            found[f"{title}_katz_seconds"],
            found[f"{title}_diffusers_seconds"],
        ]
        for title in titles
    ]
