"""Defines the entry points of a worker for all launchers. Importing this module loads torch,
diffusers and transformers.
"""

from __future__ import annotations

import diffusers
import torch
import transformers
from diffusers.utils import torch_utils

from katz_graph.core.phases import Phases
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.worker.main import serve
from katz_graph.models.family import families
from katz_graph.models.loading.convert import library_class
from katz_graph.packs import builtin_nodes, load_registry

NETWORKS = (
    diffusers.AutoencoderKL,
    *(library_class(name) for family in families() for name in family.class_names),
    transformers.CLIPTextModel,
    transformers.CLIPTokenizer,
)
"""Classes that nearly all jobs need. Accessing them imports their modules here instead of in the
first job, which takes seconds.
"""
builtin_nodes()  # cached, and inherited by forks


def work(connection: Connection) -> None:
    """Serves with the nodes of the installed packs. The driver reports errors of packs."""
    _serve(connection, Phases("worker"))


def work_on_gpu(connection: Connection) -> None:
    """Initialises CUDA and queries device properties, then serves. Initialisation blocks answers to
    pings for seconds, so it precedes `hello`. Allocates no device memory, because the worker's
    device is assigned later.
    """
    phases = Phases("worker")
    if torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            torch.cuda.get_device_properties(number)
    find_gpus_again()
    phases.end("initialise CUDA")
    _serve(connection, phases)


def _serve(connection: Connection, phases: Phases) -> None:
    types = load_registry()[0]
    phases.end("load node types")
    serve(connection, types, phases=phases.done)


def find_gpus_again() -> None:
    """Makes diffusers detect GPUs again, because its import found them hidden and packs may query
    its device.
    """
    torch_utils.TorchDeviceBackend._detect_device_type.cache_clear()
    torch_utils.torch_device = torch_utils.get_device()
