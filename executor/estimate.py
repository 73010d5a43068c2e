"""What a plan may rest on before any worker was started: what the store remembers, and what one device of this process measures."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping
from pathlib import Path

import torch

from katz_graph.executor.calibrate import calibrated, device_key
from katz_graph.executor.costs import CostStore
from katz_graph.executor.engine import Choices, dtype_for
from katz_graph.executor.planning import Resources
from katz_graph.executor.probing import shared_between
from katz_graph.planner.program import Device, Link

LATENCY = 1e-4  # seconds of a message through shared memory, where it was not measured


def estimated(devices: Mapping[str, str], cache: Path | None, link: Link | None, choices: Choices) -> Resources:
    """`devices`: names -> what torch calls them. `link`: what all links are said to be; else shared memory, which holds at half the rate of
    a copy where it was not measured."""
    host, store = socket.gethostname(), CostStore(cache)
    for device in dict.fromkeys(devices.values()):
        calibrated(device, torch.device(device), dtype_for(device), store)
    found = tuple(_found(store, name, device, host, len(devices)) for name, device in devices.items())
    usual = Link(found[0].bytes_per_second / 2, LATENCY)
    pairs = itertools.permutations(devices, 2)
    links = {pair: link or store.link(host, host, shared_between(*map(devices.__getitem__, pair))) or usual for pair in pairs}
    return Resources(found, links, choices.pins, choices.allowed, choices.batching)


def _found(store: CostStore, name: str, device: str, host: str, together: int) -> Device:
    dtype = dtype_for(device)
    return store.device(name, device_key(torch.device(device), dtype, torch.get_num_threads()), dtype.itemsize, host, together)
