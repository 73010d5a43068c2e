"""Names the functions that workers run. Imports nothing heavy itself."""

from __future__ import annotations

MODULE = "katz_graph.executor.launch.work"
"""Imports everything that a worker needs, which takes seconds."""
ENTRY = f"{MODULE}:work"
"""Serves a connection."""
ENTRY_ON_GPU = f"{MODULE}:work_on_gpu"
"""Serves a connection after initialising CUDA."""


def entry_for(device: str) -> str:
    """Returns the entry for a device; `device` is a torch name."""
    return ENTRY_ON_GPU if device.startswith("cuda") else ENTRY
