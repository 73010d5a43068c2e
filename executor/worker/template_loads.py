"""Reads a request's cached activations from a template, concurrently with the computation, and
collects those that a request computes for a template.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Protocol

import torch
from torch import Tensor

from katz_graph.executor.messages import ActivationReads
from katz_graph.executor.worker.stream import Stream, Uploaded
from katz_graph.host.transfer import to_device
from katz_graph.ir.program import Call, Program, Segment
from katz_graph.ir.reuse import TemplateUse
from katz_graph.ir.values import CachedActivations


class Template(Protocol):
    """Represents a template of a store, for one request."""

    def read(self, number: int, operation: str, layer: str) -> Tensor | None:
        """Returns a layer's output [B, N, D] at a noise level, which may be mapped from a file;
        None if it cannot be read.
        """

    def write(self, number: int, operation: str, outputs: Mapping[str, Tensor]) -> None:
        """Stores the outputs of an operation's layers at a noise level. Must copy them."""

    @property
    def ready(self) -> bool:
        """Returns whether the request may go on to the next segment."""

    @property
    def completed(self) -> bool:
        """Returns whether all that was written is stored, or cannot be; asked after the last
        evaluation.
        """

    def close(self) -> None:
        """Ends the request's use of the template."""


class ActivationLoads:
    """Reads on `threads`, in the order of `load`, and copies to the device on a stream for copies.
    Calls `wake` when the activations of a call have arrived.
    """

    def __init__(
        self,
        program: Program,
        template: Template,
        stream: Stream,
        device: torch.device,
        threads: Executor,
        wake: Callable[[], None],
    ) -> None:
        assert program.template is not None
        self._use: TemplateUse = program.template
        self._reused, self._template = program.reused, template
        self._stream, self._threads, self._wake = stream, threads, wake
        # by number of operations of a call, and number of tokens of a level
        self._positions = {
            1: {
                tokens: to_device(positions, device)
                for tokens, positions in self._use.positions.items()
            }
        }
        # by evaluation and operations of a call: by layer, the output on the way
        self._loading: dict[tuple[int, tuple[str, ...]], Future[Mapping[str, Uploaded]]] = {}
        self._reads: list[tuple[int, float]] = []  # bytes and seconds of each call's layers
        self._waits_since: float | None = None
        self._waited = 0.0

    @property
    def use(self) -> ActivationReads:
        """Returns what was read so far."""
        read = list(self._reads)
        return ActivationReads(
            sum(size for size, _ in read), sum(seconds for _, seconds in read), self._waited
        )

    @property
    def fills(self) -> bool:
        return self._use.fills

    def covers(self, evaluation: int) -> bool:
        """Returns whether the template has the noise level of an evaluation."""
        return self._use.numbers[evaluation] >= 0

    def load(self, segment: Segment, evaluation: int) -> None:
        """Starts reading what the calls of a segment need in an evaluation."""
        for call in self._calls(segment):
            future = self._threads.submit(self._read, call.operations, evaluation)
            self._loading[evaluation, call.operations] = future
            future.add_done_callback(lambda _: self._wake())

    def has(self, segment: Segment, evaluation: int) -> bool:
        """Returns whether all that `load` started for the segment has been read, or what was
        collected before has been stored.
        """
        if self.fills:
            return self._template.ready
        found = [self._loading.get((evaluation, call.operations)) for call in self._calls(segment)]
        there = all(one is None or one.done() for one in found)
        now = time.perf_counter()
        if not there and self._waits_since is None:
            self._waits_since = now
        elif there and self._waits_since is not None:
            self._waited += now - self._waits_since
            self._waits_since = None
        return there

    def taken(self, call: Call, evaluation: int) -> CachedActivations | None:
        """Returns what a call reads, and releases it; None if it computes all tokens."""
        future = self._loading.pop((evaluation, call.operations), None)
        if future is None:
            return None
        outputs = {layer: uploaded() for layer, uploaded in future.result().items()}
        return CachedActivations(self._positions_of(len(call.operations)), outputs)

    def _positions_of(self, members: int) -> Mapping[int, Tensor]:
        if members not in self._positions:
            alone = self._positions[1]
            self._positions[members] = {
                tokens: one.repeat(members, 1) for tokens, one in alone.items()
            }
        return self._positions[members]

    def collect(self, operation: str, evaluation: int, outputs: Mapping[str, Tensor]) -> None:
        """Passes the outputs of an operation's layers to the template."""
        self._template.write(self._use.numbers[evaluation], operation, outputs)

    @property
    def completed(self) -> bool:
        """Returns whether the request may end after its last evaluation: a template that it fills
        is stored.
        """
        return self._template.completed

    def close(self) -> None:
        for future in self._loading.values():
            future.cancel()
        self._loading.clear()
        self._template.close()

    def _calls(self, segment: Segment) -> Sequence[Call]:
        return [call for call in segment.calls if self._reused.get(call.operations[0])]

    def _read(self, operations: tuple[str, ...], evaluation: int) -> Mapping[str, Uploaded]:
        number, started, size = self._use.numbers[evaluation], time.perf_counter(), 0
        found: dict[str, Uploaded] = {}
        for layer in self._reused[operations[0]]:
            parts = [self._template.read(number, operation, layer) for operation in operations]
            there = [part for part in parts if part is not None]
            if len(there) == len(parts):  # else the layer computes all tokens
                found[layer] = self._stream.upload(there)
                size += sum(part.nbytes for part in there)
        self._reads.append((size, time.perf_counter() - started))
        return found
