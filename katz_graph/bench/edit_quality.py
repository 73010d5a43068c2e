"""Measures how far edits that read a template's cached activations are from full computation, for
`katz bench edit`.

The miniature models paint a template of one thing, and repaint it as another shape in another
colour, under a mask around its place. Full and cached runs start from the same noise; the template
is filled with its own caption and noise. The judge compares both with the edited caption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from katz_graph.bench.contact_sheet import contact_sheet
from katz_graph.bench.likeness import psnr, ssim
from katz_graph.bench.result import BenchResult, Figures
from katz_graph.executor.calls.computing import Computing, Eagerly
from katz_graph.executor.engine import DeviceEngine
from katz_graph.files.folders import MINI
from katz_graph.ir.region import Region
from katz_graph.mini.draw import CENTRES
from katz_graph.mini.evaluate import attributes, held_out_scenes, hints_for
from katz_graph.mini.judge import Judge, judge, load_judge
from katz_graph.mini.world import COLOURS, SHAPES, Scene, caption
from katz_graph.models.active import MARGIN, MAX_NOISE, active_positions
from katz_graph.testing.miniature import (
    SIDE,
    EnginePaint,
    Miniature,
    flow_miniature,
    miniature_region,
    noise_miniature,
)
from katz_graph.testing.requests import local_engine
from katz_graph.testing.template_calls import CachedCalls, CollectingCalls, Template

POINTS, SSIM, DECIBELS = 0.03, 0.99, 8.0
MAX_DECIBELS = 99.0  # of equal pictures
CELLS = 16  # sides of the latent
CELL = SIDE // CELLS  # pixels
CONDITIONS = ("plain", "controlnet", "lora")
CONTROL, STYLE = "silhouette", "dusk"
WAYS = ("full", "cached", "other seed", "empty caption")
SHOWN = 6  # edits in the contact sheet


@dataclass(frozen=True, slots=True)
class Mask:
    """Describes a square mask by its share of the picture."""

    share: float
    cells: int  # sides
    size: str  # of the thing that it covers


MASKS = (Mask(0.1, 5, "small"), Mask(0.2, 7, "medium"), Mask(0.4, 10, "large"))


@dataclass(frozen=True, slots=True)
class Layout:
    """Describes a network's tokens and noise levels."""

    side: int  # cells of a token at the first level
    levels: int
    max_noise: float  # noise level above which evaluations are full


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the miniatures, with their tokens, and the edits of each mask and condition."""

    miniatures: Mapping[str, tuple[Callable[[], Miniature], Layout]] = field(
        default_factory=lambda: {
            "noise": (noise_miniature, Layout(1, 3, MAX_NOISE)),
            "flow": (flow_miniature, Layout(2, 1, MAX_NOISE / (1 + MAX_NOISE))),
        }
    )
    edits: int = 18
    masks: Sequence[Mask] = MASKS
    conditions: Sequence[str] = CONDITIONS
    steps: int = 20
    margin: int = MARGIN  # cells


@dataclass(frozen=True, slots=True)
class Edit:
    """Describes an edit of one thing. All seeds follow from its number."""

    before: Scene
    after: Scene
    mask: Mask
    condition: str
    number: int

    @property
    def box(self) -> tuple[slice, slice]:
        """Returns the rows and columns of the mask's cells around the thing's place."""
        (thing,) = self.before.things
        return self._along(thing.row), self._along(thing.column)

    def _along(self, place: int) -> slice:
        start = round(CENTRES[place] * CELLS - self.mask.cells / 2)
        start = max(0, min(start, CELLS - self.mask.cells))
        return slice(start, start + self.mask.cells)

    @property
    def area(self) -> Tensor:
        """Returns the mask [1, 1, CELLS, CELLS]."""
        found = torch.zeros(1, 1, CELLS, CELLS)
        found[0, 0][self.box] = 1
        return found

    def cut(self, picture: Tensor) -> Tensor:
        """Returns the part of a picture [H, W, 3] under the mask."""
        return picture[tuple(slice(one.start * CELL, one.stop * CELL) for one in self.box)]


def edits_of(scale: Scale) -> Iterator[Edit]:
    """Yields edits of held-out scenes: another shape in another colour."""
    generator = np.random.default_rng(11)
    number = 0
    for mask in scale.masks:
        scenes = iter(held_out_scenes(20 * scale.edits * len(scale.conditions), 1, 12 + mask.cells))
        for condition in scale.conditions:
            for _ in range(scale.edits):
                scene = next(one for one in scenes if one.things[0].size == mask.size)
                (thing,) = scene.things
                shape = generator.choice([one for one in SHAPES if one != thing.shape])
                colour = generator.choice([one for one in COLOURS if one != thing.colour])
                other = replace(thing, shape=str(shape), colour=str(colour))
                yield Edit(scene, replace(scene, things=(other,)), mask, condition, number)
                number += 1


@dataclass(frozen=True, slots=True)
class Editor:
    """Runs edits of a miniature on an engine in this process."""

    engine: DeviceEngine
    paint: EnginePaint
    layout: Layout
    steps: int
    margin: int

    def pictures(self, edit: Edit) -> tuple[dict[str, Tensor], bool]:
        """Returns the pictures [128, 128, 3] by way, and whether the latents of cached and full run
        are equal where the mask is 0. The empty caption is for plain edits only.
        """
        first = 4 * edit.number
        template = self._latent(self._region(edit, edit.before, first))
        area = edit.area.repeat_interleave(CELL, -2).repeat_interleave(CELL, -1)
        whole = {"samples": template, "noise_mask": torch.zeros_like(area)}
        masked = {"samples": template, "noise_mask": area}

        def filled(text: str | None = None) -> Template:
            collecting = CollectingCalls()
            region = self._region(edit, edit.before, first + 1, text, latent=whole)
            self._latent(region, collecting)
            return collecting.template

        def edited(seed: int, compute: Computing | None = None) -> Tensor:
            region = self._region(edit, edit.after, seed, latent=masked)
            return self._latent(region, compute)

        positions = active_positions(
            edit.area.repeat(2, 1, 1, 1), self.layout.side, self.layout.levels, self.margin
        )
        latents = {
            "full": edited(first + 2),
            "cached": edited(first + 2, self._reading(filled(), positions)),
            "other seed": edited(first + 3),
        }
        if edit.condition == "plain":
            latents["empty caption"] = edited(first + 2, self._reading(filled(""), positions))
        outside = (edit.area == 0).expand_as(template)
        same = torch.equal(latents["full"][outside], latents["cached"][outside])
        return {way: self.paint.decoded(latent)[0] for way, latent in latents.items()}, same

    def _region(
        self, edit: Edit, scene: Scene, seed: int, text: str | None = None, **options: Any
    ) -> Region:
        control = None
        if edit.condition == "controlnet":
            control = CONTROL, hints_for([scene], CONTROL, edit.number)[1]
        loras = [(STYLE, 1.0)] if edit.condition == "lora" else []
        text = caption(scene) if text is None else text
        return miniature_region(
            self.paint.miniature, text, seed, control, loras, self.steps, **options
        )

    def _reading(self, template: Template, positions: Mapping[int, Tensor]) -> CachedCalls:
        return CachedCalls(template, positions, self.layout.max_noise)

    def _latent(self, region: Region, compute: Computing | None = None) -> Tensor:
        self.engine.models.compute = compute or Eagerly()
        return self.paint.sampled(region)


def run(scale: Scale | None = None) -> BenchResult:
    """Edits with all miniatures, masks and conditions."""
    scale = scale or Scale()
    model = load_judge(MINI / "judge")
    figures = Figures()
    shown: dict[str, list[Tensor]] = {}
    edits = list(edits_of(scale))
    for name, (miniature, layout) in scale.miniatures.items():
        with local_engine(threads=torch.get_num_threads(), batching=True) as engine:
            paint = EnginePaint(engine, miniature())
            editor = Editor(engine, paint, layout, scale.steps, scale.margin)
            found = [editor.pictures(edit) for edit in edits]
        different = sum(not same for _, same in found)
        figures.add(f"{name}_different_outside", different, "<=", 0)
        pairs = [(edit, pictures) for edit, (pictures, _) in zip(edits, found, strict=True)]
        for mask in scale.masks:
            chosen = [pair for pair in pairs if pair[0].mask is mask]
            _compare(figures, model, f"{name}_{mask.share:g}", chosen)
        for condition in scale.conditions:
            chosen = [pair for pair in pairs if pair[0].condition == condition]
            _compare(figures, model, f"{name}_{condition}", chosen)
        sample = pairs[:: max(1, len(pairs) // SHOWN)]
        blank = torch.ones(SIDE, SIDE, 3)
        shown |= {f"{name}: {way}": [one.get(way, blank) for _, one in sample] for way in WAYS}
    columns = ("edits", "number", "attributes", "SSIM", "SSIM inside", "PSNR inside, dB")
    return figures.result(
        "edit", columns, contact_sheet(shown, [str(number + 1) for number in range(len(sample))])
    )


def _compare(
    figures: Figures, model: Judge, name: str, edits: Sequence[tuple[Edit, Mapping[str, Tensor]]]
) -> None:
    """Adds a row for each way, and the bounded figures."""
    found = {way: _figures(model, edits, way) for way in WAYS}
    figures.rows += [[f"{name}: {way}", *one.values()] for way, one in found.items() if one]
    full, cached, other = (found[way] for way in ("full", "cached", "other seed"))
    off = abs(cached["attributes"] - full["attributes"])
    figures.add(f"{name}_attributes_off", off, "<=", POINTS)
    figures.add(f"{name}_ssim", cached["ssim"], ">=", SSIM)
    figures.add(f"{name}_psnr_gain", cached["psnr"] - other["psnr"], ">=", DECIBELS)


def _figures(
    model: Judge, edits: Sequence[tuple[Edit, Mapping[str, Tensor]]], way: str
) -> dict[str, float]:
    """Returns the share of right attributes, and means of the likeness to full computation."""
    chosen = [(edit, pictures) for edit, pictures in edits if way in pictures]
    if not chosen:
        return {}
    verdicts = judge(model, torch.stack([pictures[way] for _, pictures in chosen]), 1)
    right = attributes(verdicts, [edit.after for edit, _ in chosen])
    pairs = [(edit, pictures["full"], pictures[way]) for edit, pictures in chosen]
    inside = [(edit.cut(one), edit.cut(other)) for edit, one, other in pairs]
    return {
        "number": len(chosen),
        "attributes": fmean(right.values()),
        "ssim": fmean(ssim(one, other) for _, one, other in pairs),
        "ssim_inside": fmean(ssim(*pair) for pair in inside),
        "psnr": fmean(min(psnr(*pair), MAX_DECIBELS) for pair in inside),
    }
