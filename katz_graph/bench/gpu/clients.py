"""Requests pictures from the servers that the bench compares."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from katz_graph.bench.gpu.originals import Originals
from katz_graph.bench.gpu.peers import Start
from katz_graph.bench.gpu.setting import Setting
from katz_graph.testing.comfyui_client import Session, session
from katz_graph.testing.server_process import Served

PATIENCE = 120.0  # seconds, timeout of a picture


@contextmanager
def served(
    start: Start, setting: Setting, files: Originals
) -> Iterator[tuple[Served, Iterator[int]]]:
    """Yields a server that has made two pictures at each size, and the seeds of further ones."""
    seeds = count(1)
    with tempfile.TemporaryDirectory() as name:
        server = start(Path(name))
        server.start()
        try:
            with session("127.0.0.1", server.port) as client:
                for side in (setting.sides[0], setting.sides[-1]):
                    for _ in range(2):
                        paint(client, files.workflow(side, setting.steps, next(seeds)))
            yield server, seeds
        finally:
            server.end()


def paint(client: Session, prompt: dict[str, Any]) -> float:
    """Returns the seconds until a client has the picture of a prompt."""
    began = time.perf_counter()
    client.picture(prompt, began + PATIENCE)
    return time.perf_counter() - began
