"""Measures the current speed of two cores of this machine: two processes share a sampler's work
without the engine.

Both run the engine's stages on modules of the same sizes, with one thread each. In every step, one
process sends the latent over a socket and receives the other's result. Both spin while they wait,
as workers do. The machine causes the gap between this loop and the ideal: shared memory bandwidth,
other virtual machines on the host.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, Literal, Self

import torch
from torch import Tensor

from katz_graph.executor.worker.host import AWAKE
from katz_graph.ir.values import Residuals
from katz_graph.testing.placement import Models, Scale
from katz_graph.testing.random_models import usual

Part = Literal["branch", "controlnet"]


class Bare:
    """Runs the loop in this process and a second one. `controls`: 0 or 1 ControlNets."""

    def __init__(self, models: Models, scale: Scale, controls: int) -> None:
        self._half, self._scale, self._controls = _half(models, scale), scale, controls
        here, there = socket.socketpair()
        with there:
            command = [sys.executable, "-m", "katz_graph.bench.bare", str(there.fileno())]
            self._other = subprocess.Popen(command, pass_fds=[there.fileno()])
        self._end = Connection(here.detach())
        self._end.send((models, scale, controls))
        self.seconds(1, None)
        self.seconds(2, "branch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()
        self._other.wait()

    def seconds(self, branches: int, apart: Part | None) -> float:
        """Returns the seconds of all steps. `apart`: the work of the other process, either the
        second branch or the ControlNet; if None, the other process waits.
        """
        with torch.inference_mode():
            latent = torch.randn(1, 4, self._scale.side, self._scale.side)
            started = time.perf_counter()
            for _ in range(self._scale.steps):
                predictions = self._predictions(latent, branches, apart)
                latent = latent - 0.01 * torch.stack(predictions).mean(0)
            return time.perf_counter() - started

    def _predictions(self, latent: Tensor, branches: int, apart: Part | None) -> list[Tensor]:
        if apart is None:
            return [self._half.branch(latent, self._controls) for _ in range(branches)]
        self._end.send((apart, latent.numpy()))
        if apart == "branch":
            return [
                self._half.branch(latent, self._controls),
                torch.from_numpy(_received(self._end)),
            ]
        middle = self._half.encode(latent)
        down, mid = _received(self._end)
        return [
            self._half.decode(
                middle, [Residuals(tuple(map(torch.from_numpy, down)), torch.from_numpy(mid))]
            )
        ]


def _half(models: Models, scale: Scale) -> Any:
    """Loads one process's modules."""
    torch.set_num_threads(1)
    return usual().by_hand(models.pipeline, models.controls[0], scale.side)


def _serve(end: Connection) -> None:
    """Runs the other process until the connection closes."""
    models, scale, controls = end.recv()
    half = _half(models, scale)
    with torch.inference_mode():
        while (asked := _asked(end)) is not None:
            part, latent = asked
            if part == "branch":
                end.send(half.branch(torch.from_numpy(latent), controls).numpy())
            else:
                residuals = half.control(torch.from_numpy(latent))
                end.send(([one.numpy() for one in residuals.down], residuals.mid.numpy()))


def _received(end: Connection) -> Any:
    """Receives the next message; spins for up to AWAKE seconds before it blocks."""
    ends = time.perf_counter() + AWAKE
    while not end.poll() and time.perf_counter() < ends:
        pass
    return end.recv()


def _asked(end: Connection) -> Any:
    try:
        return _received(end)
    except EOFError:
        return None


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
