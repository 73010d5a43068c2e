"""The entry points of a worker, whatever started it. Importing this module loads torch, diffusers
and transformers.
"""

from __future__ import annotations

import diffusers
import torch

from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.worker.main import serve
from katz_graph.packs import load_registry

NETWORKS = (diffusers.AutoencoderKL, diffusers.ControlNetModel, diffusers.UNet2DConditionModel)
"""What nearly all jobs need. To name them is to load their modules, which takes seconds: here, and
not in the first job.
"""


def work(connection: Connection) -> None:
    """Serve with the nodes of the installed packs. What is wrong with a pack is the driver's to
    tell.
    """
    serve(connection, load_registry()[0])


def work_on_gpu(connection: Connection) -> None:
    """Initialise CUDA and learn what its devices are, then serve. That takes seconds in which no
    ping would be answered, so it comes before the worker says that it is there. Takes no memory of
    a device yet: which one it gets is said later.
    """
    if torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            torch.cuda.get_device_properties(number)
    work(connection)
