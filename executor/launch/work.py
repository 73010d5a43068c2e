"""What a worker runs, whatever started it. Importing this module loads torch, diffusers and transformers."""

from __future__ import annotations

from katz_graph.executor.serve import serve
from katz_graph.executor.transport.connection import Connection
from katz_graph.packs import load_registry


def work(connection: Connection) -> None:
    """Serve with the nodes of the installed packs. What is wrong with a pack is the driver's to tell."""
    serve(connection, load_registry()[0])
