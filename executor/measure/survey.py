"""Measures the devices of a set of workers, alone and all of a host at once, where the store does
not know them yet; estimates resources where there are no workers.
"""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from katz_graph.core.devices import format_name
from katz_graph.executor.measure.device import calibrated, contention, device_key
from katz_graph.executor.measure.links import way_between
from katz_graph.executor.measure.store import CostStore, Rates
from katz_graph.executor.planning import Choices
from katz_graph.ir.device import Device, NetworkLink, Target

Call = Callable[..., Any]
"""`call(device, service, *arguments)`: has one of `services` done on a device and gives its value.
"""

STRETCH = 0.4  # seconds for each kind of work when the devices of a host are measured together


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """Holds where costs of a device are kept, and what it says of itself: its key, its host, and
    how many devices of that host there are.
    """

    name: str
    key: str
    host: str
    together: int
    dtype: str
    memory_bytes: float
    torch_name: str

    def device(self, store: CostStore) -> Device:
        """Returns the device as the planner sees it, with all that the store knows now."""
        return store.device(
            self.name,
            self.key,
            self.dtype,
            self.host,
            self.together,
            self.memory_bytes,
            self.torch_name,
        )


def survey(
    names: Sequence[str],
    call: Call,
    store: CostStore,
    again: bool = False,
    hosts: Mapping[str, str] | None = None,
) -> list[MeasuredDevice]:
    """Asks every device what it is, and measures what the store does not know of it, or everything
    with `again`.

    `hosts` says which devices share a machine, where their own answer would not (network
    namespaces).
    """
    told = {name: call(name, "identity") for name in names}
    host_of = {name: (hosts or {}).get(name, told[name]["host"]) for name in names}
    sizes = Counter(host_of.values())
    places = [
        MeasuredDevice(
            name,
            one["key"],
            host_of[name],
            sizes[host_of[name]],
            one["dtype"],
            one["memory_bytes"],
            one["device"],
        )
        for name, one in told.items()
    ]
    for key, equal in _grouped(places, lambda place: place.key).items():
        if again or store.wants_rates(key):
            store.keep_rates(key, Rates(*call(equal[0].name, "rates")))
    for host, members in _grouped(places, lambda place: place.host).items():
        unknown = [
            place for place in members if store.wants_contention(host, place.key, place.together)
        ]
        if len(members) > 1 and (again or unknown):
            _measure_contention(host, members, call, store)
    return places


def _measure_contention(
    host: str, members: Sequence[MeasuredDevice], call: Call, store: CostStore
) -> None:
    groups = _grouped(members, lambda place: place.key)
    alone = {key: Rates(*call(equal[0].name, "rates", STRETCH)) for key, equal in groups.items()}
    with ThreadPoolExecutor(len(members)) as pool:
        together = list(
            pool.map(lambda place: (place.key, Rates(*call(place.name, "rates", STRETCH))), members)
        )
    for key in groups:
        rates = [one for other, one in together if other == key]
        usual = Rates(
            median(one.flops_per_second for one in rates),
            median(one.bytes_per_second for one in rates),
            median(one.seconds_per_kernel for one in rates),
            disturbed=any(one.disturbed for _, one in together),
        )
        store.keep_contention(host, key, len(members), contention(alone[key], usual))


def _grouped(
    places: Iterable[MeasuredDevice], by: Callable[[MeasuredDevice], str]
) -> dict[str, list[MeasuredDevice]]:
    groups: dict[str, list[MeasuredDevice]] = {}
    for place in places:
        groups.setdefault(by(place), []).append(place)
    return groups


LATENCY = 1e-4  # seconds of a message through shared memory, where it was not measured
PAGEABLE = 6e9  # bytes a second that copies between GPUs and memory of programs usually come to


def estimated(
    devices: Mapping[str, str],
    dtype: torch.dtype,
    cache: Path | None,
    link: NetworkLink | None,
    choices: Choices,
) -> tuple[Target, CostStore]:
    """Estimates devices and links without workers, and opens the store of what else plans need.

    `devices`: names -> what torch calls them; all compute in `dtype`. `link` stands for all links;
    else shared memory, which where it was not measured holds at half the rate of the slower
    device's copies, or of those off and onto GPUs.
    """
    host, store = socket.gethostname(), CostStore(cache)
    for device in dict.fromkeys(devices.values()):
        calibrated(device, torch.device(device), dtype, store)
    found = tuple(
        _found(store, name, device, dtype, host, len(devices)) for name, device in devices.items()
    )
    between = {
        (one.name, other.name): link or _shared(store, host, devices, one, other)
        for one, other in itertools.permutations(found, 2)
    }
    return Target(found, between, choices.pins, choices.allowed, choices.batching), store


def _shared(
    store: CostStore, host: str, devices: Mapping[str, str], source: Device, target: Device
) -> NetworkLink:
    kinds = devices[source.name], devices[target.name]
    if known := store.link(host, host, way_between(*kinds)):
        return known
    rate = min(source.bytes_per_second, target.bytes_per_second)
    return NetworkLink((rate if kinds == ("cpu", "cpu") else min(rate, PAGEABLE)) / 2, LATENCY)


def _found(
    store: CostStore, name: str, device: str, dtype: torch.dtype, host: str, together: int
) -> Device:
    key = device_key(torch.device(device), dtype, torch.get_num_threads())
    return store.device(name, key, format_name(dtype), host, together, torch_name=device)
