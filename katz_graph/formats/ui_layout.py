"""Extracts the layout of a UI document: positions, sizes, colours, notes and groups.

A layout is `{"nodes": {id: {pos, size, ...}}, "notes": [...], "groups": [...], "view": {...}}`. The
members of a subgraph form one block below the other nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from katz_graph.formats.front_end.browser_nodes import NOTES
from katz_graph.formats.ui_document import UiDocument
from katz_graph.formats.ui_flatten import Member, Scope

LAYOUT_KEYS = ("pos", "size", "flags", "color", "bgcolor", "shape", "properties")
GAP = 100.0  # pixels between blocks
TITLE = 60.0  # pixels above the first node of a group
PLAIN = (300.0, 120.0)  # default size of a node
MAX_POSITION_PIXELS = 1e9  # pixels; limit of positions and sizes


def layout_of(
    document: UiDocument, scopes: Sequence[Scope], members: Iterable[Member]
) -> dict[str, Any]:
    """Builds the layout of a UI document for the flat graph of its members."""
    by_scope: dict[str, list[Member]] = {scope.prefix: [] for scope in scopes}
    for member in members:
        by_scope[member.scope.prefix].append(member)
    nodes = {
        member.id: _look(member.node.raw) for of_scope in by_scope.values() for member in of_scope
    }
    notes = [dict(node.raw) for node in document.root.nodes.values() if node.type in NOTES]
    groups = [dict(group) for group in document.groups]
    left, _, _, bottom = bounds(
        [*(nodes[member.id] for member in by_scope[""]), *map(_look, notes)]
    )
    for scope in scopes[1:]:
        looks = [nodes[member.id] for member in by_scope[scope.prefix]]
        if looks:
            x, y, right, lowest = bounds(looks)
            shift = left - x, bottom + GAP + TITLE - y
            for look in looks:
                look["pos"] = [look["pos"][0] + shift[0], look["pos"][1] + shift[1]]
            bounding = [left - 20, bottom + GAP, right - x + 40, lowest - y + TITLE + 20]
            groups.append(
                {"title": scope.graph.name, "bounding": bounding, "color": "#3f789e", "flags": {}}
            )
            bottom = bounding[1] + bounding[3]
    view = document.extra.get("ds")
    layout = {
        "nodes": nodes,
        "notes": notes,
        "groups": groups,
        "view": view if isinstance(view, Mapping) else {},
    }
    return {name: part for name, part in layout.items() if part}


def bounds(looks: Iterable[Mapping[str, Any]]) -> tuple[float, float, float, float]:
    """Returns left, top, right and bottom of nodes with these positions and sizes."""
    boxes = [(*look["pos"], *(pair(look.get("size")) or PLAIN)) for look in looks]
    if not boxes:
        return 0.0, 0.0, 0.0, 0.0
    return (
        min(b[0] for b in boxes),
        min(b[1] for b in boxes),
        max(b[0] + b[2] for b in boxes),
        max(b[1] + b[3] for b in boxes),
    )


def pair(value: Any) -> tuple[float, float] | None:
    """Returns two finite numbers, or None. Old files store them as {"0": x, "1": y}."""
    numbers = [value.get("0"), value.get("1")] if isinstance(value, Mapping) else value
    if not isinstance(numbers, (list, tuple)) or len(numbers) < 2:
        return None
    first, second = numbers[:2]
    sound = all(
        isinstance(n, (int, float))
        and not isinstance(n, bool)
        and math.isfinite(n)
        and abs(n) < MAX_POSITION_PIXELS
        for n in (first, second)
    )
    return (first, second) if sound else None


def _look(raw: Mapping[str, Any]) -> dict[str, Any]:
    look = {name: raw[name] for name in LAYOUT_KEYS if raw.get(name) not in (None, {}, [])}
    return look | {
        "pos": list(pair(raw.get("pos")) or (0.0, 0.0)),
        "size": list(pair(raw.get("size")) or PLAIN),
    }
