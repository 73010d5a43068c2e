"""Generates the candidates of the search from groups of operations and their placements: initial
candidates, and the neighbours of a candidate. Times nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, combinations, permutations, product

import networkx

from katz_graph.ir.program import Program
from katz_graph.ir.provenance import STALE_CONTROLNET
from katz_graph.ir.tree import Tree
from katz_graph.planner.region import stage_of
from katz_graph.planner.searching.bound import MAX_OPERATIONS_FOR_PAIRS, Bounds
from katz_graph.planner.searching.candidate import Candidate, CandidateTimer
from katz_graph.planner.searching.placement_rules import PlacementRules

MAX_ENUMERATED = 10_000
"""Maximum number of placements of single operations that are all generated. Beyond it, a beam
search is used.
"""
GLUED_SHARE = 0.01
"""Items with less than this share of an evaluation's work join the item that reads them."""
MAX_GROWN = 4000
"""Maximum number of partial placements before a beam is cut to `BEAM_WIDTH`."""
BEAM_WIDTH = 200
MAX_PAIR_MOVES = 1000
"""Maximum number of neighbours that move two operations to any two devices. Beyond it, only an
operation and its reader are moved, both to one device.
"""
MAX_DELAY_SUBSETS = 3
"""Maximum number of ControlNet operations read by other devices for which every subset is tried
as stale. Beyond it, candidates start with all or none.
"""
Item = tuple[str, ...]


class Space:
    """Generates candidates; skips equivalents on interchangeable devices."""

    def __init__(self, bench: CandidateTimer, bounds: Bounds) -> None:
        self._bench, self._bounds, self._sites = bench, bounds, bench.sites
        self.stale = STALE_CONTROLNET in bench.program.target.allowed
        self._classes = bench.sites.classes()
        self._members: dict[int, list[str]] = {}  # class of interchangeable devices -> devices
        for device, number in self._classes.items():
            self._members.setdefault(number, []).append(device)
        main = max(bounds.graphs, key=lambda graph: graph.evaluations, default=None)
        self._feeders = main.feeders if main else ()
        self._edges = {
            (reading.source, name)
            for graph in bounds.graphs
            for name, reads in graph.reads.items()
            for reading in reads
        }
        self._branches = self._stages_of_branches()
        count = len(self._sites.devices) ** len(bench.names)
        self.all_enumerated = count <= MAX_ENUMERATED
        """True if `beginnings` covers all placements and sampler devices."""

    def beginnings(self) -> list[Candidate]:
        """Returns the initial candidates without stale ControlNets. If few placements exist,
        returns all, with every device that feeds the prediction as the sampler's. Otherwise returns
        the best of beam searches over chains of the tree and, if few, over single operations.
        Raises InputError if nothing fits.
        """
        found = [
            one for one in dict.fromkeys(map(self._canonical, self._placed())) if self._fits(one)
        ]
        if not found:
            raise self._sites.nothing_fits()
        return found

    def with_stale(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Returns copies of `candidates` in which ControlNets read by another device are stale: one
        copy per subset, or one with all if the subsets are many. Returns none unless staleness is
        allowed.
        """
        return [
            Candidate(one.devices, one.sampler_device, controlnet_ops)
            for one in candidates
            if self.stale
            for controlnet_ops in _subsets(self._bench.crossing(one))
        ]

    def near(self, candidate: Candidate) -> tuple[list[Candidate], list[Candidate]]:
        """Returns two lists of neighbours. The first changes the device of one operation or a pair,
        the sampler's device, or the staleness of one ControlNet. The second moves a stage of every
        branch.

        The second is needed because moving one branch's stage gains nothing if others are as slow.
        """
        placement, names = self._bench.placement(candidate), self._bench.names
        devices = self._sites.devices
        moves = [{name: device} for name in names for device in devices]
        pairs = list(combinations(names, 2))
        if len(pairs) * len(devices) ** 2 <= MAX_PAIR_MOVES:
            moves += [
                dict(zip(pair, homes, strict=True))
                for pair in pairs
                for homes in product(devices, repeat=2)
            ]
        else:
            moves += [
                dict.fromkeys(pair, device)
                for pair in pairs
                if pair in self._edges or pair[::-1] in self._edges
                for device in devices
            ]
        single = self._changed(candidate, moves)
        other = [
            replace(candidate, sampler_device=sampler_device)
            for sampler_device in self._ends(placement)
        ]
        if self.stale:
            other += [
                replace(candidate, stale=candidate.stale ^ {name})
                for name in self._bench.crossing(candidate)
            ]
        return self._distinct([*single, *other]), self._distinct(
            self._changed(candidate, self._joined(placement))
        )

    def _placed(self) -> Iterator[Candidate]:
        names, devices = self._bench.names, self._sites.devices
        if not names:
            yield Candidate((), devices[0])
            return
        single: list[Item] = [(name,) for name in names]
        if self.all_enumerated:
            for placement in placements(single, self._sites, self._partial_seconds):
                homes = tuple(placement[name] for name in names)
                yield from (
                    Candidate(homes, sampler_device) for sampler_device in self._ends(placement)
                )
            return
        seconds = self._bench.costs.seconds
        chains = items_of(
            self._bench.program,
            self._sites,
            lambda name: min(seconds(name, 1, device) for device in devices),
        )
        together = (dict.fromkeys(names, device) for device in devices)
        alone = [
            one
            for one in together
            if all(device in self._sites.allowed[name] for name, device in one.items())
        ]
        beams = (chains, single) if len(names) <= MAX_OPERATIONS_FOR_PAIRS else (chains,)
        found = (placements(items, self._sites, self._partial_seconds) for items in beams)
        for placement in chain(alone, *found):
            yield Candidate(
                tuple(placement[name] for name in names), self._sampler_device(placement)
            )

    def _partial_seconds(self, partial: Sequence[Mapping[str, str]]) -> list[float]:
        names = self._bench.names
        rows = ([one.get(name, "") for name in names] for one in partial)
        known = self._bounds.placements(rows, (self._sampler_device(one) for one in partial), ())
        return [float(seconds) for seconds in self._bounds.seconds(known)]

    def _changed(
        self, candidate: Candidate, changes: Iterable[Mapping[str, str]]
    ) -> Iterator[Candidate]:
        placement, allowed = self._bench.placement(candidate), self._sites.allowed
        for change in changes:
            if any(placement[name] != device for name, device in change.items()) and all(
                change[name] in allowed[name] for name in change
            ):
                moved = {**placement, **change}
                sampler_device = (
                    candidate.sampler_device
                    if candidate.sampler_device in self._ends(moved)
                    else self._sampler_device(moved)
                )
                one = Candidate(tuple(moved.values()), sampler_device, candidate.stale)
                yield one
                yield from (other for other in self.with_stale([one]) if other.stale != one.stale)

    def _joined(self, placement: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """Yields moves, in all branches at once, of a stage to the device of another stage."""
        for stage, other in permutations(range(max(map(len, self._branches), default=0)), 2):
            yield {
                branch[stage]: placement[branch[other]]
                for branch in self._branches
                if max(stage, other) < len(branch)
            }

    def _stages_of_branches(self) -> list[list[str]]:
        """Returns the costed operations of every branch; equal branches in the same order."""
        names, keys = self._bench.names, self._bench.program.keys
        graph = networkx.Graph()
        graph.add_nodes_from(names)
        graph.add_edges_from(self._edges)
        return [
            sorted(part, key=lambda name: (keys.get(name, ""), names.index(name)))
            for part in networkx.connected_components(graph)
        ]

    def _distinct(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        fitting = [
            one for one in dict.fromkeys(map(self._canonical, candidates)) if self._fits(one)
        ]
        return [
            replace(one, stale=one.stale & self._bench.crossing(one)) if one.stale else one
            for one in fitting
        ]

    def _ends(self, placement: Mapping[str, str]) -> list[str]:
        """Returns the devices of operations that feed the prediction, in device order."""
        there = {placement[name] for name in self._feeders if name in placement}
        return [device for device in self._sites.devices if device in there] or list(
            dict.fromkeys(placement.values())
        )

    def _sampler_device(self, placement: Mapping[str, str]) -> str:
        at = [placement.get(name) for name in self._feeders]
        return max(self._ends(placement), key=at.count, default=self._sites.devices[0])

    def _fits(self, candidate: Candidate) -> bool:
        return self._sites.fits(self._bench.placement(candidate), candidate.sampler_device)

    def _canonical(self, candidate: Candidate) -> Candidate:
        """Returns the candidate on the first devices of every class of interchangeable devices,
        starting with the sampler's.
        """
        names: dict[str, str] = {}
        used: dict[int, int] = {}
        for device in (candidate.sampler_device, *candidate.devices):
            if device not in names:
                number = self._classes[device]
                names[device] = self._members[number][used.get(number, 0)]
                used[number] = used.get(number, 0) + 1
        return Candidate(
            tuple([names[device] for device in candidate.devices]),
            names[candidate.sampler_device],
            candidate.stale,
        )


@cache
def _subsets(names: frozenset[str]) -> list[frozenset[str]]:
    """Returns the non-empty sets of `names` that may be stale together."""
    if len(names) > MAX_DELAY_SUBSETS:
        return [names]
    return [
        frozenset(some) for size in range(1, len(names) + 1) for some in combinations(names, size)
    ]


def items_of(
    program: Program, sites: PlacementRules, seconds: Callable[[str], float]
) -> list[Item]:
    """Returns items (operations to place together), largest work first. Splits them at pins."""
    found: list[Item] = []
    known: set[str] = set()
    order = sorted(
        range(len(program.trees)),
        key=lambda number: -sum(map(seconds, program.trees[number].leaves())),
    )
    for number in order:
        for item in _items(program.trees[number], _models(program), seconds):
            fresh = tuple(name for name in item if name not in known)
            known |= set(fresh)
            found += [fresh] if fresh else []
    total = sum(seconds(name) for item in found for name in item)
    found = _absorb_small(
        program, found, lambda item: sum(map(seconds, item)) < GLUED_SHARE * total
    )
    found = [part for item in found for part in _by_pins(item, sites)]
    return sorted(found, key=lambda item: -sum(map(seconds, item)))


def _models(program: Program) -> dict[str, object]:
    return {
        op.id: op.inputs.get(stage_of(op).module)
        for variant in program.variants
        for op in variant.operations
    }


def _items(
    tree: Tree, models: Mapping[str, object], seconds: Callable[[str], float]
) -> list[list[str]]:
    """Makes every child of a P an item, and adds operations in series to their model's heaviest
    chain. Groups the blocks of a prime by model, because moving a single block is not worth its
    transfers.
    """
    if tree.kind == "leaf":
        return [[tree.leaf]]
    if tree.kind == "prime":
        together: dict[object, list[str]] = {}
        for name in tree.leaves():
            together.setdefault(models.get(name), []).append(name)
        return list(together.values())
    if tree.kind == "P":
        return [item for child in tree.children for item in _items(child, models, seconds)]
    spine = [child.leaf for child in tree.children if child.kind == "leaf"]
    found = [
        item
        for child in tree.children
        if child.kind != "leaf"
        for item in _items(child, models, seconds)
    ]
    if not spine or not found:
        return [spine] if spine else found
    own = [item for item in found if models.get(item[-1]) == models.get(spine[-1])] or found
    heaviest = max(own, key=lambda item: sum(map(seconds, item)))
    return [item + spine if item is heaviest else item for item in found]


def _absorb_small(
    program: Program, items: list[Item], little: Callable[[Item], bool]
) -> list[Item]:
    """Merges items of little work into their first reader."""
    readers: dict[str, str] = {}
    for variant in program.variants:
        for operation in variant.operations:
            for _, ref in operation.references():
                readers.setdefault(ref.operation, operation.id)
    large = [item for item in items if not little(item)]
    joined = {item: list(item) for item in large}
    for item in (item for item in items if little(item)):
        reader: str | None = item[-1]
        while reader is not None and not any(reader in other for other in large):
            reader = readers.get(reader)
        home = next((other for other in large if reader in other), large[0] if large else None)
        if home is None:
            return items
        joined[home] += item
    return [tuple(names) for names in joined.values()]


def _by_pins(item: Item, sites: PlacementRules) -> list[Item]:
    """Splits an item by allowed devices, unless one device may run all of it."""
    if set.intersection(*(set(sites.allowed[name]) for name in item)):
        return [item]
    parts: dict[tuple[str, ...], list[str]] = {}
    for name in item:
        parts.setdefault(sites.allowed[name], []).append(name)
    return [tuple(names) for names in parts.values()]


def placements(
    items: Sequence[Item],
    sites: PlacementRules,
    score: Callable[[Sequence[Mapping[str, str]]], Sequence[float]],
) -> list[dict[str, str]]:
    """Returns operation -> device for every placement that satisfies pins and memory; skips
    equivalents on interchangeable devices.

    Beyond `MAX_ENUMERATED`, retains a beam of partial placements with the best `score`.
    """
    classes = sites.classes()
    found: list[dict[str, str]] = [{}]
    few = len(sites.devices) ** len(items) <= MAX_ENUMERATED
    for item in items:
        if not few and len(found) * len(sites.devices) > MAX_GROWN:
            scores = score(found)
            best = sorted(range(len(found)), key=scores.__getitem__)[:BEAM_WIDTH]
            found = [found[place] for place in best]
        found = [grown for partial in found for grown in _grown(partial, item, sites, classes)]
    return found


def _grown(
    partial: Mapping[str, str], item: Item, sites: PlacementRules, classes: Mapping[str, int]
) -> Iterator[dict[str, str]]:
    """Yields the placement with one more item, on every device that may run it, but only the first
    of unused interchangeable ones.
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
