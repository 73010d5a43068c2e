"""Groups operations for the search: chains out of the series-parallel tree, and their candidate
placements.

Enumerates all placements while few, else uses a beam; takes interchangeable devices in one order
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from katz_graph.ir.program import Program
from katz_graph.planner.passes.decompose import Tree
from katz_graph.planner.searching.placement_rules import Sites

LITTLE = 0.01  # of an evaluation's work: glued to its consumer
MOST = 8000  # placements that are looked at
BEAM = 200

Item = tuple[str, ...]


def items_of(program: Program, sites: Sites, seconds: Callable[[str], float]) -> list[Item]:
    """Returns the items, those with most work first. Separates what pins keep apart."""
    found: list[Item] = []
    known: set[str] = set()
    order = sorted(range(len(program.trees)), key=lambda number: -sum(map(seconds, program.trees[number].leaves())))
    for number in order:
        for item in _items(program.trees[number], _models(program), seconds):
            fresh = tuple(name for name in item if name not in known)
            known |= set(fresh)
            found += [fresh] if fresh else []
    total = sum(seconds(name) for item in found for name in item)
    found = _glued(program, found, lambda item: sum(map(seconds, item)) < LITTLE * total)
    found = [part for item in found for part in _by_pins(item, sites)]
    return sorted(found, key=lambda item: -sum(map(seconds, item)))


def _models(program: Program) -> dict[str, object]:
    return {op.id: op.inputs.get("model") or op.inputs.get("control_net") for variant in program.variants for op in variant.operations}


def _items(tree: Tree, models: Mapping[str, object], seconds: Callable[[str], float]) -> list[list[str]]:
    """Makes every child of a P (or prime) an item; what stands in series goes with the heaviest
    chain of its own model.
    """
    if tree.kind == "leaf":
        return [[tree.leaf]]
    if tree.kind != "S":
        return [item for child in tree.children for item in _items(child, models, seconds)]
    spine = [child.leaf for child in tree.children if child.kind == "leaf"]
    found = [item for child in tree.children if child.kind != "leaf" for item in _items(child, models, seconds)]
    if not spine or not found:
        return [spine] if spine else found
    own = [item for item in found if models.get(item[-1]) == models.get(spine[-1])] or found
    heaviest = max(own, key=lambda item: sum(map(seconds, item)))
    return [item + spine if item is heaviest else item for item in found]


def _glued(program: Program, items: list[Item], little: Callable[[Item], bool]) -> list[Item]:
    """Joins items of little work to the item that reads them first."""
    readers: dict[str, str] = {}
    for variant in program.variants:
        for operation in variant.operations:
            for _, ref in operation.references():
                readers.setdefault(ref.operation, operation.id)
    kept = [item for item in items if not little(item)]
    joined = {item: list(item) for item in kept}
    for item in (item for item in items if little(item)):
        reader: str | None = item[-1]
        while reader is not None and not any(reader in other for other in kept):
            reader = readers.get(reader)
        home = next((other for other in kept if reader in other), kept[0] if kept else None)
        if home is None:
            return items
        joined[home] += item
    return [tuple(names) for names in joined.values()]


def _by_pins(item: Item, sites: Sites) -> list[Item]:
    """Returns the item; where no device may run all of it, splits it by allowed devices."""
    if set.intersection(*(set(sites.allowed[name]) for name in item)):
        return [item]
    parts: dict[tuple[str, ...], list[str]] = {}
    for name in item:
        parts.setdefault(sites.allowed[name], []).append(name)
    return [tuple(names) for names in parts.values()]


def placements(items: Sequence[Item], sites: Sites, score: Callable[[Mapping[str, str]], float]) -> list[dict[str, str]]:
    """Returns operation -> device for every placement that meets pins and memory and differs by
    more than interchangeable devices.

    Beyond `MOST` placements, keeps the best of a beam by `score` of what is placed so far.
    """
    classes = sites.classes()
    found: list[dict[str, str]] = [{}]
    for item in items:
        if len(found) * len(sites.devices) > MOST:
            found = sorted(found, key=score)[:BEAM]
        found = [grown for partial in found for grown in _grown(partial, item, sites, classes)]
    return found


def _grown(partial: Mapping[str, str], item: Item, sites: Sites, classes: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Yields the placement with one more item, on every device that may run it; of unused ones that
    are interchangeable, on the first.
    """
    used, fresh = set(partial.values()), set()
    for device in sites.devices:
        if device not in used:
            if classes[device] in fresh:
                continue
            fresh.add(classes[device])
        if all(device in sites.allowed[name] for name in item):
            trial = {**partial, **dict.fromkeys(item, device)}
            if sites.fits(trial):
                yield trial
