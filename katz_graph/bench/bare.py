"""Measures what two cores of this machine give now: two processes share a sampler's work with
nothing of the engine between them.

The same stages on modules of the same sizes, one thread each. Every step the other process gets the
latent over a pipe, and its part comes back over it. Both wait awake, as workers do. The machine
takes what this loop misses of the ideal: memory that the cores share, other machines on the same
host.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal, Self

import torch
from diffusers import ControlNetModel, UNet2DConditionModel
from torch import Tensor

from katz_graph.bench.placed import Models, Scale
from katz_graph.executor.worker.host import AWAKE
from katz_graph.ir.values import Features, Residuals, Step, TextEncoding
from katz_graph.latent_space import DEFAULT_LATENT_SPACE
from katz_graph.models.families.unet import blocks as unet
from katz_graph.models.families.unet import control_blocks as controlnet
from katz_graph.models.families.unet.attention import cross_attention_keys_values
from katz_graph.models.families.unet.embedding import added_embedding

Part = Literal["branch", "controlnet"]


class Bare:
    """Runs one process here, and one beside it. `controls` of 0 or 1 ControlNets."""

    def __init__(self, models: Models, scale: Scale, controls: int) -> None:
        self._half, self._scale, self._controls = _Half(models, scale), scale, controls
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
        """Times all steps. `apart`: the work of the other process, the second branch or the
        ControlNet; None: it waits.
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


class _Half:
    """Holds the modules of one process."""

    def __init__(self, models: Models, scale: Scale) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():
            self._unet = UNet2DConditionModel.from_pretrained(models.pipeline / "unet")
            self._controlnet = ControlNetModel.from_pretrained(models.controls[0])
            side = DEFAULT_LATENT_SPACE.pixels(scale.side)
            width = self._unet.config.cross_attention_dim
            pooled = self._unet.config.projection_class_embeddings_input_dim
            pooled -= 6 * self._unet.config.addition_time_embed_dim
            sizes = torch.tensor([[side, side, 0, 0, side, side, 6.0]])
            self._text = TextEncoding(torch.randn(1, 77, width), torch.randn(1, pooled), sizes)
            self._kept = {
                module: (
                    cross_attention_keys_values(module, self._text.hidden),
                    added_embedding(module, self._text),
                )
                for module in (self._unet, self._controlnet)
            }
            self._reference = controlnet.embed_reference(
                self._controlnet, torch.rand(1, 3, side, side)
            )

    def branch(self, latent: Tensor, controls: int) -> Tensor:
        residuals = [self.control(latent)] if controls else []
        return self.decode(self.encode(latent), residuals)

    def encode(self, latent: Tensor) -> Features:
        kept, added = self._kept[self._unet]
        features = unet.encode(self._unet, _step(latent), self._text, kept, added=added)
        return unet.mid(self._unet, features, self._text, kept)

    def decode(self, middle: Features, residuals: Sequence[Residuals]) -> Tensor:
        _, raw = unet.decode(
            self._unet, middle, self._text, self._kept[self._unet][0], residuals=residuals
        )
        assert raw is not None  # all blocks were asked for
        return raw

    def control(self, latent: Tensor) -> Residuals:
        return controlnet.control(
            self._controlnet,
            _step(latent),
            self._text,
            self._reference,
            torch.full((len(latent),), 0.8),
            *self._kept[self._controlnet],
        )


def _step(latent: Tensor) -> Step:
    return Step.of(latent, latent, 1.0, 500.0)


def _serve(end: Connection) -> None:
    """Runs the other process until nobody asks any more."""
    models, scale, controls = end.recv()
    half = _Half(models, scale)
    with torch.inference_mode():
        while (asked := _asked(end)) is not None:
            part, latent = asked
            if part == "branch":
                end.send(half.branch(torch.from_numpy(latent), controls).numpy())
            else:
                residuals = half.control(torch.from_numpy(latent))
                end.send(([one.numpy() for one in residuals.down], residuals.mid.numpy()))


def _received(end: Connection) -> Any:
    """Receives the next message; the processor stays awake for AWAKE seconds until it is there."""
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
