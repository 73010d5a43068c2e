"""What a worker runs, whatever started it. Importing this module loads torch, diffusers and transformers."""

from __future__ import annotations

import diffusers

from katz_graph.executor.serve import serve
from katz_graph.executor.transport.connection import Connection
from katz_graph.packs import load_registry

NETWORKS = (diffusers.AutoencoderKL, diffusers.ControlNetModel, diffusers.UNet2DConditionModel)
"""What nearly all jobs need. To name them is to load their modules, which takes seconds: here, and not in the first job."""


def work(connection: Connection) -> None:
    """Serve with the nodes of the installed packs. What is wrong with a pack is the driver's to tell."""
    serve(connection, load_registry()[0])
