"""Tells a worker, first of all, the device that it serves and how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from katz_graph.core.devices import AUTO, number_format


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configures a worker: the device that it serves, and how. One without a name stands for all
    workers of a run.
    """

    name: str = ""
    device: str = "cpu"  # as torch calls it
    threads: int = 1
    dtype: torch.dtype = torch.float32
    # that are its own: it stays on them, and keeps them awake while a request waits
    processors: tuple[int, ...] = ()
    packs: tuple[str, ...] = ()  # folders of node packs, for nodes inside of step regions
    # that models in memory may take; None: what is free, less what computing needs
    model_bytes: int | None = None
    # of the host's memory, that LoRA files which were read may take, and as much again for weights
    # with them; None: 1 GB each
    lora_bytes: int | None = None
    tells: bool = False  # whether it prints which models it lets go for others
    control_net_bytes: int | None = None  # that resident ControlNets may take; None: no limit
    policy: str = "lru"  # which of them goes first
    cuda_graphs: bool = True  # whether a GPU's stages are recorded and replayed


def dtype_for(devices: Iterable[str], wanted: str = AUTO) -> torch.dtype:
    """Returns the torch dtype of `number_format`."""
    dtype: torch.dtype = getattr(torch, number_format(devices, wanted))
    return dtype
