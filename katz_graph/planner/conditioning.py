"""Prepares all conditioning lists as ComfyUI's samplers do: converts areas to cells and pairs every
area with an entry in the other lists. Adds the nodes that combine predictions.

Runs on recipes, before `expand` makes a branch of each entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Protocol

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.guidance_spec import Guider
from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE
from katz_graph.core.patches import (
    OpaquePatch,
    SkippedBlocks,
    guidance_patch,
    needs_uncond,
    post_guidance_patches,
    weakened_guidance,
    weakened_negative,
)
from katz_graph.core.recipe import Area, Conditioning, ConditioningEntry, ModelRecipe


def balanced(sides: Sequence[Conditioning], height: int, width: int) -> tuple[Conditioning, ...]:
    """Prepares conditioning lists, the positive first, for a latent of this size in cells.

    Pairs each regional entry with an entry of the same area in every other list. A new entry takes
    text and extra conditioning from the smallest entry of its list that covers the area.
    If positive entries without area have ControlNets with `spreads`, these are assigned in turn to
    the entries without area of each other list, unless one of those has a ControlNet.
    """
    entries = [[placed(entry, height, width) for entry in side] for side in sides]
    for number, side in enumerate(entries):
        for entry in list(side):
            for other in entries[:number] + entries[number + 1 :]:
                other += _partner(entry, other)
    positive, *others = entries
    return (tuple(positive), *(tuple(_controlled(positive, other)) for other in others))


def placed(entry: ConditioningEntry, height: int, width: int) -> ConditioningEntry:
    """Returns the entry with its area in cells, clipped to the latent. A bounded mask sets the area
    to its box. Raises InputError if the area begins outside the latent.
    """
    area = entry.area
    if entry.mask is not None and entry.mask.bounds:
        from katz_graph.sampling.areas import mask_box

        area = Area(*mask_box(entry.mask.mask.pixels, height, width))
    if area is None:
        return entry
    if area.relative:
        top, left = round(area.top * height), round(area.left * width)
        cells = Area(
            top, left, max(1, round(area.height * height)), max(1, round(area.width * width))
        )
    else:
        cells = Area(int(area.top), int(area.left), int(area.height), int(area.width))
    if cells.top >= height or cells.left >= width:
        x, y, wide, high = map(
            DEFAULT_LATENT_SPACE.pixels, (int(cells.left), int(cells.top), width, height)
        )
        raise InputError(
            f"a conditioning has an area that begins at x {x}, y {y} pixels, "
            f"outside of the picture of {wide}x{high}; move it or enlarge the latent"
        )
    return replace(
        entry,
        area=replace(
            cells,
            height=min(cells.height, height - cells.top),
            width=min(cells.width, width - cells.left),
        ),
    )


def _partner(
    entry: ConditioningEntry, others: Sequence[ConditioningEntry]
) -> list[ConditioningEntry]:
    """Returns a list of the entry to add to `others` for the area of `entry`, if any."""
    if entry.area is None:
        return []
    covering = [other for other in others if other.area is None or _covers(other.area, entry.area)]
    if not covering:
        return []
    smallest = min(
        covering,
        key=lambda other: (
            float("inf") if other.area is None else other.area.height * other.area.width
        ),
    )
    if smallest.area == entry.area:
        return []
    return [
        replace(
            entry,
            encoding=smallest.encoding,
            sizes=smallest.sizes,
            concatenated=smallest.concatenated,
            guidance=smallest.guidance,
            references=smallest.references,
        )
    ]


def _covers(outer: Area, inner: Area) -> bool:
    return (
        outer.top <= inner.top
        and outer.left <= inner.left
        and outer.top + outer.height >= inner.top + inner.height
        and outer.left + outer.width >= inner.left + inner.width
    )


def _controlled(
    positive: Sequence[ConditioningEntry], negative: Sequence[ConditioningEntry]
) -> list[ConditioningEntry]:
    """Returns the negative entries, with the ControlNets that they take over; see `balanced`."""
    spreading = [
        entry.control
        for entry in positive
        if entry.area is None and entry.control and entry.control[-1].spreads
    ]
    takers = [number for number, entry in enumerate(negative) if entry.area is None]
    if not spreading or not takers or any(negative[number].control for number in takers):
        return list(negative)
    given = list(negative)
    for uses, number in zip(spreading, cycle(takers), strict=False):
        given[number] = replace(negative[number], control=uses)
    return given


class Side(Protocol):
    """Adds a conditioning's branches to the region."""

    def __call__(self, name: str, without: SkippedBlocks | None = None, number: int = 0) -> Link:
        """Returns the prediction of list `name`. `without`: blocks to skip, as set `number`."""


WHOLE = (0.0, 1.0)


def within(
    nodes: dict[str, NodeCall],
    name: str,
    value: Link,
    window: tuple[float, float],
    number: int = 0,
    outside: Link | None = None,
) -> Link:
    """Switches to `value` inside a window of the schedule, else to `outside` or nothing. `number`
    is the index of `value` among the values of the same window.
    """
    if window == WHOLE:
        return value
    nodes[name] = NodeCall(
        "StepWindow",
        {"step": Link("begin", 0), "start_percent": window[0], "end_percent": window[1]},
    )
    switch = f"{name}-switch{number or ''}"
    other = {} if outside is None else {"on_false": outside}
    nodes[switch] = NodeCall("Switch", {"condition": Link(name, 0), "on_true": value, **other})
    return Link(switch, 0)


def combine(nodes: dict[str, NodeCall], guider: Guider, side: Side) -> Link:
    """Adds the guider's nodes to `nodes`. Returns the guided prediction."""
    everything = needs_uncond(guider.model.patches)
    plain, plain_outer = (
        math.isclose(scale, 1.0) and not everything for scale in (guider.guidance, guider.outer)
    )
    if guider.kind == "nested":
        negative, middle = side("negative"), side("middle")
        inner = _patched(
            nodes, "guidance-inner", guider.model, side, "positive", middle, guider.guidance
        )
        return _combined(
            nodes, "guidance", {"cond": inner, "uncond": negative, "guidance": guider.outer}
        )
    if guider.kind == "dual" and not (plain and plain_outer):
        outer_uncond = None if plain_outer else side("negative")
        middle, positive = side("middle"), side("positive")
        outer = _patched(
            nodes, "guidance-outer", guider.model, side, "middle", outer_uncond, guider.outer
        )
        return _combined(
            nodes,
            "guidance",
            {"cond": positive, "uncond": middle, "base": outer, "guidance": guider.guidance},
        )
    alone = guider.kind != "cfg" or plain
    uncond = None if alone else _negative(nodes, guider.model, side)
    return _patched(
        nodes,
        "guidance",
        guider.model,
        side,
        "positive",
        uncond,
        1.0 if guider.kind == "basic" else guider.guidance,
    )


def _negative(nodes: dict[str, NodeCall], model: ModelRecipe, side: Side) -> Link:
    """Returns the negative prediction of plain guidance. In a patch's window, it skips the patch's
    blocks.
    """
    patch = weakened_negative(model.patches)
    if patch is None:
        return side("negative")
    weak, window = side("negative", patch.blocks), _window(patch.blocks)
    if window == WHOLE:
        return weak
    return within(nodes, "weakened-negative", weak, window, outside=side("negative"))


def _window(blocks: SkippedBlocks) -> tuple[float, float]:
    return blocks.start_percent, blocks.end_percent


def _patched(
    nodes: dict[str, NodeCall],
    name: str,
    model: ModelRecipe,
    side: Side,
    positive: str,
    uncond: Link | None,
    guidance: float,
) -> Link:
    """Combines two predictions as the model's patches require. Returns a single prediction
    unchanged if no patch acts on it.
    """
    cond, instead = side(positive), guidance_patch(model.patches)
    alone = uncond is None and not isinstance(instead, OpaquePatch)
    if (instead is None or alone) and not post_guidance_patches(model.patches):
        return (
            cond
            if uncond is None
            else _combined(nodes, name, {"cond": cond, "uncond": uncond, "guidance": guidance})
        )
    sides = {"cond": cond} if uncond is None else {"cond": cond, "uncond": uncond}
    for number, patch in enumerate(weakened_guidance(model.patches), start=1):
        weak = side(positive, patch.blocks, number)
        sides[f"weakened_{number}"] = within(
            nodes, f"{name}-weakened{number}", weak, _window(patch.blocks)
        )
    nodes[name] = NodeCall(
        "PatchedCFGCombine",
        {"step": Link("begin", 0), "model": model, "guidance": guidance, **sides},
    )
    return Link(name, 0)


def _combined(nodes: dict[str, NodeCall], name: str, inputs: dict[str, object]) -> Link:
    nodes[name] = NodeCall("CFGCombine", inputs)
    return Link(name, 0)
