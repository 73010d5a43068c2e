"""Measures the devices of a set of workers, alone and all of a host at once, where the store does not know them yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

from katz_graph.executor.calibrate import contention
from katz_graph.executor.costs import CostStore, Rates
from katz_graph.planner.program import Device

Call = Callable[..., Any]
"""`call(device, service, *arguments)`: has one of `services` done on a device and gives its value."""

STRETCH = 0.4  # seconds for each kind of work when the devices of a host are measured together


@dataclass(frozen=True, slots=True)
class Place:
    """Where costs of a device are kept, and what it says of itself: its key, its host, and how many devices of that host there are."""

    name: str
    key: str
    host: str
    together: int
    dtype: str
    memory_bytes: float
    torch_name: str

    def device(self, store: CostStore) -> Device:
        """The device as the planner sees it, with all that the store knows now."""
        return store.device(self.name, self.key, self.dtype, self.host, self.together, self.memory_bytes, self.torch_name)


def survey(names: Sequence[str], call: Call, store: CostStore, again: bool = False, hosts: Mapping[str, str] | None = None) -> list[Place]:
    """Ask every device what it is, and measure what the store does not know of it, or everything with `again`.

    `hosts` says which devices share a machine, where their own answer would not (network namespaces).
    """
    told = {name: call(name, "identity") for name in names}
    host_of = {name: (hosts or {}).get(name, told[name]["host"]) for name in names}
    sizes = Counter(host_of.values())
    places = [
        Place(name, one["key"], host_of[name], sizes[host_of[name]], one["dtype"], one["memory_bytes"], one["device"])
        for name, one in told.items()
    ]
    for key, equal in _grouped(places, lambda place: place.key).items():
        if again or store.rates(key) is None:
            store.keep_rates(key, Rates(*call(equal[0].name, "rates")))
    for host, members in _grouped(places, lambda place: place.host).items():
        unknown = [place for place in members if store.contention(host, place.key, place.together) is None]
        if len(members) > 1 and (again or unknown):
            _measure_contention(host, members, call, store)
    return places


def _measure_contention(host: str, members: Sequence[Place], call: Call, store: CostStore) -> None:
    groups = _grouped(members, lambda place: place.key)
    alone = {key: Rates(*call(equal[0].name, "rates", STRETCH)) for key, equal in groups.items()}
    with ThreadPoolExecutor(len(members)) as pool:
        together = list(pool.map(lambda place: (place.key, Rates(*call(place.name, "rates", STRETCH))), members))
    for key in groups:
        rates = [one for other, one in together if other == key]
        usual = Rates(
            median(one.flops_per_second for one in rates),
            median(one.bytes_per_second for one in rates),
            median(one.seconds_per_kernel for one in rates),
        )
        store.keep_contention(host, key, len(members), contention(alone[key], usual))


def _grouped(places: Iterable[Place], by: Callable[[Place], str]) -> dict[str, list[Place]]:
    groups: dict[str, list[Place]] = {}
    for place in places:
        groups.setdefault(by(place), []).append(place)
    return groups
