"""Defines the configuration that assigns a device to a worker, its first message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from katz_graph.core.devices import AUTO, number_format
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.templates.budget import TemplatePlace


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configures a worker: its device and its settings. A config without a name is the template for
    all workers of a run.
    """

    name: str = ""
    device: str = "cpu"  # torch's name
    threads: int = 1
    dtype: torch.dtype = torch.float32
    # claimed processors: the worker is pinned to them and keeps them busy while a request waits
    processors: tuple[int, ...] = ()
    packs: tuple[str, ...] = ()  # folders of node packs, for nodes inside step regions
    # budget for resident models; None: free memory minus the reserve for computing
    model_bytes: int | None = None
    # host memory for LoRA files, and as much again for cached merged weights; None: 1 GB each
    lora_bytes: int | None = None
    report_evictions: bool = False  # whether to print a line for each model evicted for another
    control_net_bytes: int | None = None  # budget for resident ControlNets; None: no limit
    policy: str = "lru"  # eviction policy for ControlNets
    cuda_graphs: bool = True  # whether to record and replay stages on a GPU
    shared_rows: SharedRows = ALONE  # of calls that requests share
    templates: TemplatePlace | None = None  # None: no cached activations


def dtype_for(devices: Iterable[str], wanted: str = AUTO) -> torch.dtype:
    """Returns the dtype for all devices of a run, see `number_format`, as a torch dtype."""
    dtype: torch.dtype = getattr(torch, number_format(devices, wanted))
    return dtype
