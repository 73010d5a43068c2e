"""Simulates a machine with a GPU on which the first CUDA call takes seconds and holds the
interpreter lock.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import torch

from katz_graph.executor.launch import work as real
from katz_graph.executor.transport.connection import Connection

NAME = "stand-in"
SECONDS = 4.0  # longer than the silence allowed for a worker


@cache
def initialise() -> None:
    ctypes.PyDLL(None).usleep(int(SECONDS * 1e6))


def install() -> None:
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.init = initialise
    torch.cuda.get_device_properties = lambda device=None: (
        initialise() or SimpleNamespace(name=NAME)
    )  # type: ignore[func-returns-value]
    torch.cuda.get_device_name = lambda device=None: torch.cuda.get_device_properties(device).name
    torch.cuda.mem_get_info = lambda device=None: initialise() or (8 << 30, 8 << 30)  # type: ignore[func-returns-value]
    torch.cuda.Stream = lambda device=None: initialise()
    torch.cuda.stream = lambda stream: nullcontext()


def work(connection: Connection) -> None:
    install()
    real.work(connection)


def work_on_gpu(connection: Connection) -> None:
    install()
    real.work_on_gpu(connection)
