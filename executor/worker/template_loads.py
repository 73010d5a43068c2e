"""Reads a request's cached activations from a template, concurrently with the computation, and
collects those that a request computes for a template.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, wait
from functools import partial
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

    @property
    def abandoned(self) -> bool:
        """Returns whether nothing that is written is stored, so that the request may end."""

    def close(self) -> None:
        """Ends the request's use of the template."""


READERS = 2  # threads that read templates
LOADS = 64  # last ones whose mean seconds predict those on the way

Loading = Mapping[str, Future[Uploaded | None]]
"""By layer: its output on the way; None if it cannot be read."""


class ActivationLoads:
    """Reads layer by layer on READERS threads, in the order of `load`, and copies to the device on
    a stream for copies. Calls `wake` when activations have arrived. `recorded`: calls may be
    recorded, so that their inputs must arrive before they begin.
    """

    def __init__(
        self,
        program: Program,
        template: Template,
        stream: Stream,
        device: torch.device,
        threads: Executor,
        wake: Callable[[], None],
        recorded: bool,
    ) -> None:
        assert program.template is not None
        self._use: TemplateUse = program.template
        self._reused, self._template = program.reused, template
        self._stream, self._threads, self._wake = stream, threads, wake
        self._recorded = recorded
        # by number of operations of a call, and number of tokens of a level
        self._positions = {
            1: {
                tokens: to_device(positions, device)
                for tokens, positions in self._use.positions.items()
            }
        }
        self._loading: dict[tuple[int, tuple[str, ...]], Loading] = {}
        self._reads: list[tuple[int, float]] = []  # bytes and seconds of each layer
        self._waits_since: float | None = None
        self.waited: defaultdict[int, float] = defaultdict(float)
        """Seconds of waiting for loads, by evaluation."""

    @property
    def use(self) -> ActivationReads:
        """Returns what was read so far."""
        read = list(self._reads)
        seconds = sum(seconds for _, seconds in read) / READERS
        return ActivationReads(sum(size for size, _ in read), seconds, sum(self.waited.values()))

    @property
    def fills(self) -> bool:
        return self._use.fills

    def covers(self, evaluation: int) -> bool:
        """Returns whether the template has the noise level of an evaluation."""
        return self._use.numbers[evaluation] >= 0

    def load(self, segment: Segment, evaluation: int) -> None:
        """Starts reading what the calls of a segment need in an evaluation."""
        for call in segment.calls:
            if layers := self._reused.get(call.operations[0]):
                self._loading[evaluation, call.operations] = {
                    layer: self._threads.submit(self._read, call.operations, layer, evaluation)
                    for layer in layers
                }
                for future in self._loading[evaluation, call.operations].values():
                    future.add_done_callback(lambda _: self._wake())

    def has(self, segment: Segment, evaluation: int, pace: float = 1.0) -> bool:
        """Returns whether a segment may begin: what `load` started for it has been read, or will
        be, at the speed so far, while the segment computes, so that no layer waits; or what was
        collected before has been stored. pace: seconds of computation by planned seconds.
        """
        if self.fills:
            return self._template.ready
        there, now = self._arrive_in_time(segment, evaluation, pace), time.perf_counter()
        if not there and self._waits_since is None:
            self._waits_since = now
        elif there and self._waits_since is not None:
            self.waited[evaluation] += now - self._waits_since
            self._waits_since = None
        return there

    def _arrive_in_time(self, segment: Segment, evaluation: int, pace: float) -> bool:
        absent, computed, each = 0, 0.0, self._load_seconds
        for call in segment.calls:
            layers = self._loading.get((evaluation, call.operations), {})
            absent += sum(not future.done() for future in layers.values())
            ahead = computed
            computed += pace * (call.seconds - call.waits)
            if absent and absent * each > (ahead if self._recorded else computed):
                return False
        return True

    @property
    def _load_seconds(self) -> float:
        """Returns the mean seconds of the last loads; infinite before the first one."""
        last = self._reads[-LOADS:]
        if not last:
            return math.inf
        return sum(seconds for _, seconds in last) / len(last) / READERS

    def taken(self, call: Call, evaluation: int) -> CachedActivations | None:
        """Returns what a call reads, and releases it; None if it computes all tokens. An output is
        awaited when a layer reads it.
        """
        layers = self._loading.pop((evaluation, call.operations), None)
        if layers is None:
            return None
        outputs = _Arriving(layers, partial(self._note_wait, evaluation))
        return CachedActivations(self._positions_of(len(call.operations)), outputs)

    def _note_wait(self, evaluation: int, seconds: float) -> None:
        self.waited[evaluation] += seconds

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

    @property
    def abandoned(self) -> bool:
        """Returns whether the request fills a template that cannot be stored."""
        return self._template.abandoned

    def close(self) -> None:
        for layers in self._loading.values():
            for future in layers.values():
                future.cancel()
        self._loading.clear()
        self._template.close()

    def _read(self, operations: tuple[str, ...], layer: str, evaluation: int) -> Uploaded | None:
        number, started = self._use.numbers[evaluation], time.perf_counter()
        parts = [self._template.read(number, operation, layer) for operation in operations]
        there = [part for part in parts if part is not None]
        if len(there) < len(parts):
            return None
        uploaded = self._stream.upload(there)
        size = sum(part.nbytes for part in there)
        self._reads.append((size, time.perf_counter() - started))
        return uploaded


class _Arriving(Mapping[str, Tensor]):
    """Maps layers to outputs that may be on their way. A look-up waits for one output, iteration
    for all. A layer whose output cannot be read is absent, and computes all tokens. `waited` gets
    the seconds of each wait.
    """

    def __init__(self, loading: Loading, waited: Callable[[float], None]) -> None:
        self._loading, self._waited = loading, waited

    def __getitem__(self, layer: str) -> Tensor:
        if (uploaded := self._awaited(layer)) is None:
            raise KeyError(layer)
        return uploaded()

    def __contains__(self, layer: object) -> bool:
        return isinstance(layer, str) and self._awaited(layer) is not None

    def __iter__(self) -> Iterator[str]:
        return (layer for layer in self._loading if layer in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _awaited(self, layer: str) -> Uploaded | None:
        future = self._loading.get(layer)
        if future is None:
            return None
        if not future.done():
            since = time.perf_counter()
            wait([future])
            self._waited(time.perf_counter() - since)
        return future.result()
