"""Defines the entry points of a worker, whatever started it. Importing this module loads torch,
diffusers and transformers.
"""

from __future__ import annotations

import diffusers
import torch
from diffusers.utils import torch_utils

from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.worker.main import serve
from katz_graph.models.family import families
from katz_graph.packs import builtin_nodes, load_registry

NETWORKS = (
    diffusers.AutoencoderKL,
    *(getattr(diffusers, name) for family in families() for name in family.class_names),
)
"""Needed by nearly all jobs. To name them is to load their modules, which takes seconds: here, and
not in the first job.
"""
builtin_nodes()  # kept by all that is forked from here


def work(connection: Connection) -> None:
    """Serves with the nodes of the installed packs; the driver reports faults of packs."""
    serve(connection, load_registry()[0])


def work_on_gpu(connection: Connection) -> None:
    """Initialises CUDA and learns what its devices are, then serves. That takes seconds in which no
    ping would be answered, so it comes before `hello`. Takes no memory of a device yet: the worker
    learns later which one it gets.
    """
    if torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            torch.cuda.get_device_properties(number)
    find_gpus_again()
    work(connection)


def find_gpus_again() -> None:
    """Has diffusers look again for GPUs, which were hidden while it was loaded: packs may ask for
    its device.
    """
    torch_utils.TorchDeviceBackend._detect_device_type.cache_clear()
    torch_utils.torch_device = torch_utils.get_device()
