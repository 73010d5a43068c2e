"""Names the functions that workers run. Imports nothing heavy itself."""

from __future__ import annotations

MODULE = "katz_graph.executor.launch.work"
"""Has all that a worker needs: to import it takes seconds."""
ENTRY = f"{MODULE}:work"
"""Serves a connection."""
ENTRY_ON_GPU = f"{MODULE}:work_on_gpu"
"""The same for a GPU, which has to be initialised."""


def entry_for(device: str) -> str:
    """Returns the entry for a device; `device` as torch calls it."""
    return ENTRY_ON_GPU if device.startswith("cuda") else ENTRY
