"""Counts cache misses against capacity, for ControlNets and for LoRAs, on a synthetic trace: Figure
6 of the Katz paper.

Each service gets a fifth of the trace's requests, so that the bench takes less than a minute. All
adapters of one kind have the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from katz_graph.bench.result import BenchResult
from katz_graph.bench.trace_requests import SERVICES, requests
from katz_graph.core.eviction import POLICIES, Policy
from katz_graph.models.loading.residency import Residency
from katz_graph.planner.report.line_chart import Curve, Panel, line_chart

REQUESTS = 55_000  # per service
CAPACITIES = {"controlnets": (1, 2, 3, 4, 5, 6, 8, 10, 15, 20), "loras": (1, 2, 5, 10, 20, 50, 100)}
ELIMINATED = {"A": 5, "B": 8}  # cached ControlNets that suffice according to the paper
# misses per request; each causes two loads: of the rare ControlNet, and later of the popular one
# that it evicts
MAX_MISSES = 0.2
# miss rates of service B (§3.2)
LORA_CAPACITY, PUBLISHED, TOLERANCE = 10, {"lru": 0.54, "lfu": 0.57}, 0.05
COLOURS = {"controlnets": "#1f6fb4", "loras": "#e8801a"}
DASHES = {"lru": "", "lfu": "6 3", "optimum": "2 3"}
WORDS = {
    "controlnets": "ControlNets",
    "loras": "LoRAs",
    "lru": "LRU",
    "lfu": "LFU",
    "optimum": "optimum",
}

Curves = Mapping[tuple[str, str, str], Mapping[int, float]]
"""Maps (service, kind of adapter, policy) to the misses per request by capacity."""


class Optimum:
    """Evicts the item with the latest next use (Belady 1966). No policy has fewer misses, because
    this one knows the future uses.
    """

    def __init__(self, uses: Sequence[Hashable]) -> None:
        latest: dict[Hashable, int] = {}
        following = []
        for place in range(len(uses) - 1, -1, -1):
            following.append(latest.get(uses[place], len(uses)))
            latest[uses[place]] = place
        self._following = iter(reversed(following))
        self._next_use: dict[Hashable, int] = {}

    def used(self, key: Hashable) -> None:
        self._next_use[key] = next(self._following)

    def victim(self, spared: frozenset[Hashable]) -> Hashable | None:
        return max(
            (key for key in self._next_use if key not in spared),
            key=self._next_use.__getitem__,
            default=None,
        )

    def removed(self, key: Hashable) -> None:
        del self._next_use[key]


def run(number: int = REQUESTS) -> BenchResult:
    """Runs `number` requests of each service through every policy and capacity."""
    curves = {
        (service.name, kind, policy): curve
        for service in SERVICES
        for made in [requests(service, number)]
        for kind in CAPACITIES
        for policy, curve in replayed(
            [getattr(request, kind) for request in made], CAPACITIES[kind]
        ).items()
    }
    above = max(
        curves[service, kind, "optimum"][capacity] - misses
        for (service, kind, _), curve in curves.items()
        for capacity, misses in curve.items()
    )
    bounds: dict[str, tuple[float, float, float]] = {"optimum above a policy": (above, 0.0, 0.0)}
    for service, capacity in ELIMINATED.items():
        bounds[f"{service}, {capacity} ControlNets, LRU"] = (
            curves[service, "controlnets", "lru"][capacity],
            0.0,
            MAX_MISSES,
        )
    for policy, expected in PUBLISHED.items():
        found = curves["B", "loras", policy][LORA_CAPACITY]
        bounds[f"B, {LORA_CAPACITY} LoRAs, {WORDS[policy]}"] = (
            found,
            expected - TOLERANCE,
            expected + TOLERANCE,
        )
    return BenchResult(
        "trace",
        all(least <= value <= most for value, least, most in bounds.values()),
        {name: value for name, (value, _, _) in bounds.items()}
        | {".".join(key): dict(curve) for key, curve in curves.items()},
        {
            name: f"{least:.2f} to {most:.2f}" if least else f"<= {most:g}"
            for name, (_, least, most) in bounds.items()
        },
        ("service, adapters", "kept", *(WORDS[policy] for policy in DASHES)),
        [
            (
                f"{service.name}, {WORDS[kind]}",
                capacity,
                *(f"{curves[service.name, kind, policy][capacity]:.3f}" for policy in DASHES),
            )
            for service in SERVICES
            for kind in CAPACITIES
            for capacity in CAPACITIES[kind]
        ],
        svg=_picture(curves),
    )


def replayed(
    wanted: Sequence[tuple[str, ...]], capacities: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Returns the misses by policy and capacity, per request whose adapters differ from the
    previous request's, as in the paper.
    """
    uses = [item for items in wanted for item in items]
    changes = 1 + sum(items != before for before, items in pairwise(wanted))
    policies: dict[str, Callable[[], Policy]] = {**POLICIES, "optimum": lambda: Optimum(uses)}
    return {
        name: {capacity: misses(uses, capacity, policy()) / changes for capacity in capacities}
        for name, policy in policies.items()
    }


def misses(
    uses: Sequence[Hashable],
    capacity: int,
    policy: Policy,
    sizes: Mapping[Any, int] = MappingProxyType({}),
) -> int:
    """Counts the misses of a cache of size `capacity`. `sizes`: sizes of items, by default 1."""
    cache = Residency(capacity, policy)
    for item in uses:
        cache.touch(item, sizes.get(item, 1))
    return cache.misses


def _picture(curves: Curves) -> str:
    """Draws a panel per service, like the paper's figure."""
    return line_chart(
        [
            Panel(
                f"Service {service.name}",
                "adapters kept in memory",
                "misses a request",
                [
                    Curve(
                        f"{WORDS[kind]}, {WORDS[policy]}",
                        list(curves[service.name, kind, policy].items()),
                        COLOURS[kind],
                        dashes,
                    )
                    for kind in CAPACITIES
                    for policy, dashes in DASHES.items()
                ],
            )
            for service in SERVICES
        ]
    )
