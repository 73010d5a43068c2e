"""Measures with the judge whether pictures of the miniature world match caption, hint and style.
Measures any engine through one callable; must not know how it paints.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Protocol

import numpy as np
import torch

from katz_graph.mini.draw import draw
from katz_graph.mini.judge import Judge, Verdict, judge, overlap
from katz_graph.mini.world import STYLES, Scene, caption, sample_scene

BATCH = 10
HINTS = "silhouette", "edges"  # inputs of the ControlNets
BOUNDS = {
    "one_shape": (">=", 0.95),
    "one_colour": (">=", 0.95),
    "one_background": (">=", 0.95),
    "one_place": (">=", 0.95),
    "two_everything": (">=", 0.75),
    "silhouette_overlap": (">=", 0.8),
    **{f"style_{style}": (">=", 0.9) for style in STYLES},
    **{f"without_{style}": ("<=", 0.05) for style in STYLES},
    **{f"both_{a}_{b}": (">=", 0.7) for a, b in combinations(STYLES, 2)},
}


class Paint(Protocol):
    """Paints pictures [B, 128, 128, 3] in 0..1. `captions` and `seeds` have equal length.
    `control`: name of a ControlNet ("edges", "silhouette") and its hints [B, H, W, 3] in 0..1.
    `loras`: names and strengths.
    """

    def __call__(
        self,
        captions: list[str],
        seeds: list[int],
        control: tuple[str, torch.Tensor] | None,
        loras: Sequence[tuple[str, float]],
        steps: int,
    ) -> torch.Tensor: ...


def held_out_scenes(count: int, things: int, seed: int) -> list[Scene]:
    """Samples scenes whose combinations of attributes are held out from training."""
    generator = np.random.default_rng(seed)
    return [sample_scene(generator, things, held_out=True) for _ in range(count)]


def painted(
    paint: Paint,
    model: Judge,
    scenes: list[Scene],
    steps: int,
    loras: Sequence[tuple[str, float]] = (),
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for start in range(0, len(scenes), BATCH):
        part = scenes[start : start + BATCH]
        seeds = list(range(start, start + len(part)))
        pictures = paint([caption(scene) for scene in part], seeds, None, loras, steps)
        verdicts += judge(model, pictures, len(part[0].things))
    return verdicts


def attributes(verdicts: Sequence[Verdict], scenes: Sequence[Scene]) -> dict[str, float]:
    """Returns the share of one-thing pictures with the right shape, colour, size, place and
    background.
    """
    pairs = list(zip(verdicts, scenes, strict=True))
    names = ("shape", "colour", "size", "place")
    right = {
        name: sum(getattr(v.things[0], name) == getattr(s.things[0], name) for v, s in pairs)
        for name in names
    }
    right["background"] = sum(v.background == s.background for v, s in pairs)
    return {name: number / len(pairs) for name, number in right.items()}


def one_thing(paint: Paint, model: Judge, count: int, steps: int) -> dict[str, float]:
    """Returns the shares of `attributes` for held-out scenes, and of pictures with an unrequested
    style.
    """
    scenes = held_out_scenes(count, 1, 1)
    verdicts = painted(paint, model, scenes, steps)
    figures = {f"one_{name}": part for name, part in attributes(verdicts, scenes).items()}
    figures |= {
        f"without_{style}": sum(style in v.styles for v in verdicts) / count for style in STYLES
    }
    return figures


def two_things(paint: Paint, model: Judge, count: int, steps: int) -> dict[str, float]:
    """Returns the share of pictures in which shape, colour, size and place of both things are
    right, and the shares for each attribute alone and the background.
    """
    scenes = held_out_scenes(count, 2, 2)
    figures = dict.fromkeys(
        (
            "two_everything",
            "two_shapes",
            "two_colours",
            "two_sizes",
            "two_places",
            "two_background",
        ),
        0.0,
    )
    for verdict, scene in zip(painted(paint, model, scenes, steps), scenes, strict=True):
        found = {(thing.row, thing.column): thing for thing in verdict.things}
        pairs = [(found.get((thing.row, thing.column)), thing) for thing in scene.things]
        figures["two_everything"] += all(a == b for a, b in pairs)
        figures["two_places"] += all(a is not None for a, _ in pairs)
        figures["two_background"] += verdict.background == scene.background
        for plural, name in (
            ("two_shapes", "shape"),
            ("two_colours", "colour"),
            ("two_sizes", "size"),
        ):
            figures[plural] += all(
                a is not None and getattr(a, name) == getattr(b, name) for a, b in pairs
            )
    return {name: value / count for name, value in figures.items()}


def hints_for(scenes: Sequence[Scene], kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws scenes with seeds counted from `seed`. Returns boolean silhouettes [B, 128, 128] and
    the ControlNet's hints [B, 128, 128, 3] in 0..1.
    """
    from katz_graph.picture.filters import canny

    drawings = [draw(scene, 128, 128, seed + index) for index, scene in enumerate(scenes)]
    wanted = torch.from_numpy(np.stack([drawing.silhouette for drawing in drawings])) > 127
    hints = wanted.float()
    if kind == "edges":
        hints = canny(
            torch.from_numpy(np.stack([drawing.picture for drawing in drawings])).float() / 255,
            0.4,
            0.8,
        )
    return wanted, hints.unsqueeze(-1).expand(-1, -1, -1, 3)


def with_hints(
    paint: Paint, model: Judge, count: int, steps: int, kind: str = "silhouette"
) -> dict[str, float]:
    """Returns the mean intersection over union of the requested and the judged silhouette."""
    scenes = held_out_scenes(count, 1, 3)
    total = 0.0
    for start in range(0, count, BATCH):
        part = scenes[start : start + BATCH]
        wanted, hints = hints_for(part, kind, start)
        pictures = paint(
            [caption(scene) for scene in part],
            list(range(start, start + len(part))),
            (kind, hints),
            (),
            steps,
        )
        verdicts = judge(model, pictures, 1)
        total += sum(
            overlap(verdict.silhouette, mask)
            for verdict, mask in zip(verdicts, wanted, strict=True)
        )
    return {f"{kind}_overlap": total / count}


def in_styles(
    paint: Paint, model: Judge, count: int, steps: int, styles: Sequence[str] = STYLES
) -> dict[str, float]:
    """Returns the share of pictures with a recognised style at strength 1, with both of two styles,
    and with the right shape and colour despite a style.
    """
    scenes = held_out_scenes(count, 1, 4)
    figures: dict[str, float] = {}
    for style in styles:
        verdicts = painted(paint, model, scenes, steps, [(style, 1.0)])
        pairs = list(zip(verdicts, scenes, strict=True))
        figures[f"style_{style}"] = sum(style in v.styles for v in verdicts) / count
        for name in ("shape", "colour"):
            same = sum(getattr(v.things[0], name) == getattr(s.things[0], name) for v, s in pairs)
            figures[f"style_{style}_{name}"] = same / count
    for first, second in combinations(styles, 2):
        verdicts = painted(paint, model, scenes, steps, [(first, 1.0), (second, 1.0)])
        figures[f"both_{first}_{second}"] = (
            sum({first, second} <= v.styles for v in verdicts) / count
        )
    return figures


def evaluate(
    paint: Paint,
    model: Judge,
    n_one: int = 200,
    n_two: int = 100,
    n_hints: int = 50,
    n_styles: int = 50,
    steps: int = 20,
    hints: Sequence[str] = HINTS,
    styles: Sequence[str] = STYLES,
) -> dict[str, float]:
    """Measures all figures, with the ControlNets for `hints` and the LoRAs of `styles`. `BOUNDS`
    holds the bounds that they must meet.
    """
    figures = one_thing(paint, model, n_one, steps)
    figures |= two_things(paint, model, n_two, steps)
    for kind in hints:
        figures |= with_hints(paint, model, n_hints, steps, kind)
    figures |= in_styles(paint, model, n_styles, steps, styles)
    return {name: round(value, 4) for name, value in figures.items()}


def failures(figures: dict[str, float]) -> list[str]:
    """Returns one line for each missed bound."""
    missed = []
    for name, (sign, bound) in BOUNDS.items():
        if name in figures and not (
            figures[name] >= bound if sign == ">=" else figures[name] <= bound
        ):
            missed.append(f"{name} is {figures[name]:.3f}, wanted {sign} {bound}")
    return missed
