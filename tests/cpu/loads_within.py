"""Loads transformer files in a separate process. Prints one line per file, in bytes: memory after
loading, peak memory while loading, and the largest weight if it is wide. Arguments: a small file of
the same kind, which loads the libraries; then each file and its dtype.
"""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import torch

from katz_graph.models.loading.sources import network_recipe
from katz_graph.models.loading.store import ModelStore


def own_memory() -> int:
    """Returns the anonymous memory of the process in bytes, without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def main(small: str, *given: str) -> None:
    for file, name in zip(given[::2], given[1::2], strict=True):
        dtype = getattr(torch, name)
        ModelStore().network(network_recipe(small).network, "cpu", dtype)
        print(*taken(file, dtype))


def taken(file: str, dtype: torch.dtype) -> tuple[int, int, int]:
    gc.collect()  # earlier modules, if freed later, would hide the memory taken
    store = ModelStore()
    before, most, ended = own_memory(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.0005):
            most[0] = max(most[0], own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    module = store.network(network_recipe(file).network, "cpu", dtype)
    ended.set()
    watcher.join()
    gc.collect()
    after = own_memory()
    largest = max(one.numel() for one in module.parameters()) * dtype.itemsize
    return after - before, max(most[0], after) - before, largest


if __name__ == "__main__":
    main(*sys.argv[1:])
