"""Measures unknown devices of a set of workers, alone and all devices of a host concurrently.
Estimates devices and links if no workers run.
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
from katz_graph.executor.measure.links import ways_between
from katz_graph.executor.measure.store import CostStore, Rates
from katz_graph.executor.planning import Choices
from katz_graph.ir.device import Device, NetworkLink, Target

Call = Callable[..., Any]
"""`call(device, service, *arguments)`: calls a worker's service and returns its value."""

STRETCH = 0.4  # seconds per kind of work when the devices of a host are measured together


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """Holds the identity of a measured device: its cost key, host and properties, and the number of
    devices on that host (`together`).
    """

    name: str
    key: str
    host: str
    together: int
    dtype: str
    memory_bytes: float
    torch_name: str

    def device(self, store: CostStore) -> Device:
        """Returns the device for the planner, with all costs that the store has now."""
        return store.device(
            self.name,
            self.key,
            self.dtype,
            self.host,
            self.together,
            self.memory_bytes,
            self.torch_name,
        )


def _identified(
    names: Sequence[str], call: Call, hosts: Mapping[str, str] | None = None
) -> list[MeasuredDevice]:
    """Queries the identity of every device; `hosts` as for `survey`."""
    identities = {name: call(name, "identity") for name in names}
    host_of = {name: (hosts or {}).get(name, identities[name]["host"]) for name in names}
    sizes = Counter(host_of.values())
    return [
        MeasuredDevice(
            name,
            one["key"],
            host_of[name],
            sizes[host_of[name]],
            one["dtype"],
            one["memory_bytes"],
            one["device"],
        )
        for name, one in identities.items()
    ]


def assume(names: Sequence[str], call: Call, store: CostStore) -> list[MeasuredDevice]:
    """Queries the identity of every device, and assumes the rates of unknown devices from their
    properties.
    """
    places = _identified(names, call)
    for key, equal in _grouped(places, lambda place: place.key).items():
        if store.rates(key) is None:
            store.assume_rates(key, Rates(*call(equal[0].name, "assumed_rates")))
    return places


def survey(
    names: Sequence[str],
    call: Call,
    store: CostStore,
    again: bool = False,
    hosts: Mapping[str, str] | None = None,
) -> list[MeasuredDevice]:
    """Queries the identity of every device and measures unknown devices, or all with `again`.
    `hosts`: overrides reported hosts, for devices that share a machine but report different hosts
    (network namespaces).
    """
    places = _identified(names, call, hosts)
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


LATENCY = 1e-4  # seconds of a message through shared memory, if not measured
PAGEABLE = 6e9  # typical bytes/s of copies between GPUs and pageable host memory


def estimated(
    devices: Mapping[str, str],
    dtype: torch.dtype,
    cache: Path | None,
    link: NetworkLink | None,
    choices: Choices,
) -> tuple[Target, CostStore]:
    """Estimates devices and links without workers, and opens the store with the other costs that
    plans need.

    `devices`: name -> torch name; all compute in `dtype`. `link`: used for all links. If None, uses
    the measured links of this host. An unmeasured link has half the slower device's memory rate,
    or half PAGEABLE if a GPU takes part and that is lower.
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
    for way in ways_between(*kinds):
        if known := store.link(host, host, way):
            return known
    rate = min(source.bytes_per_second, target.bytes_per_second)
    return NetworkLink((rate if kinds == ("cpu", "cpu") else min(rate, PAGEABLE)) / 2, LATENCY)


def _found(
    store: CostStore, name: str, device: str, dtype: torch.dtype, host: str, together: int
) -> Device:
    key = device_key(torch.device(device), dtype, torch.get_num_threads())
    return store.device(name, key, format_name(dtype), host, together, torch_name=device)
