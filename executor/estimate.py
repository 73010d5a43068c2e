"""Estimates devices and links for a plan before any worker was started: from the store, and from one device of this process."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping
from pathlib import Path

import torch

from katz_graph.devices import format_name
from katz_graph.executor.calibrate import calibrated, device_key
from katz_graph.executor.costs import CostStore
from katz_graph.executor.engine import Choices
from katz_graph.executor.planning import Resources
from katz_graph.executor.probing import shared_between
from katz_graph.models.counts import Counts
from katz_graph.planner.program import Device, Link

LATENCY = 1e-4  # seconds of a message through shared memory, where it was not measured
PAGEABLE = 6e9  # bytes a second that copies between GPUs and memory of programs usually come to


def estimated(devices: Mapping[str, str], dtype: torch.dtype, cache: Path | None, link: Link | None, choices: Choices) -> Resources:
    """`devices`: names -> what torch calls them; all compute in `dtype`. `link`: what all links are said to be; else shared
    memory, which where it was not measured holds at half the rate of the slower device's copies, or of those off and onto GPUs."""
    host, store = socket.gethostname(), CostStore(cache)
    for device in dict.fromkeys(devices.values()):
        calibrated(device, torch.device(device), dtype, store)
    found = tuple(_found(store, name, device, dtype, host, len(devices)) for name, device in devices.items())
    between = {(one.name, other.name): link or _shared(store, host, devices, one, other) for one, other in itertools.permutations(found, 2)}
    return Resources(found, between, choices.pins, choices.allowed, choices.batching, Counts(store))


def _shared(store: CostStore, host: str, devices: Mapping[str, str], source: Device, target: Device) -> Link:
    kinds = devices[source.name], devices[target.name]
    if known := store.link(host, host, shared_between(*kinds)):
        return known
    rate = min(source.bytes_per_second, target.bytes_per_second)
    return Link((rate if kinds == ("cpu", "cpu") else min(rate, PAGEABLE)) / 2, LATENCY)


def _found(store: CostStore, name: str, device: str, dtype: torch.dtype, host: str, together: int) -> Device:
    key = device_key(torch.device(device), dtype, torch.get_num_threads())
    return store.device(name, key, format_name(dtype), host, together, torch_name=device)
