"""Moves tensors through segments: memory that one process allocates and another one opens. Both
ends reuse them. Must not know the kind of memory.

A segment passes over the connection once, as a descriptor and a handle. The sender marks it as in
use; the receiver marks it as free with the last view of the message.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from katz_graph.core.errors import RunError
from katz_graph.executor.transport.bulk import Transfer, fields
from katz_graph.executor.transport.coalesce import fill, lengths_of, parts, size_of
from katz_graph.executor.transport.codec import Encoded, ProtocolError
from katz_graph.executor.transport.connection import Connection, Message, close_all

Array = Any
"""Bytes of a segment, as an object that `torch.as_tensor` shares: a NumPy array, or an object with
the attribute `__cuda_array_interface__`.
"""


class Segment(Protocol):
    """A segment at its sending end."""

    @property
    def capacity(self) -> int:
        """Returns the bytes for data."""

    @property
    def free(self) -> bool:
        """Returns whether the receiver has released the last message."""

    def mark(self, used: bool) -> None:
        """Marks the segment as in use, or as free."""

    @property
    def closed(self) -> bool:
        """Returns whether the memory may be freed, because the receiver has closed it or ended."""

    def wait(self) -> None:
        """Waits until the segment is `closed`."""

    def array(self, length: int) -> Array:
        """Returns the first `length` bytes."""


class OpenedSegment(Protocol):
    """A segment at its receiving end."""

    @property
    def capacity(self) -> int:
        """Returns the bytes for data."""

    def lease(self, length: int) -> Array:
        """Returns the first `length` bytes. The segment is free when the object is freed."""


class Memory(Protocol):
    """A kind of memory. `name`: its name in errors. `granule`: sizes are multiples of it; a power
    of two. `device`: the device of its tensors in this process.
    """

    name: str
    granule: int
    device: torch.device

    def allocate(self, capacity: int) -> tuple[Segment, int, bytes]:
        """Allocates a free segment. Returns it with the descriptor and the handle to open it.
        Raises OSError or RunError.
        """

    def open(self, descriptor: int, handle: bytes) -> OpenedSegment:
        """Opens a segment; the caller closes the descriptor. Raises ProtocolError if the descriptor
        or the handle is unsuitable, RunError with the reason if it cannot be opened.
        """


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Use:
    """A segment in use for one message. `new`: the descriptor and the handle, unless the receiver
    has opened the segment. `dropped`: segments that the receiver closes.
    """

    number: int
    segment: Segment
    new: tuple[int, bytes] | None
    dropped: list[int]


class SendingPool:
    """Manages the segments of one direction at its sending end. `limit`: maximum bytes."""

    def __init__(self, limit: int, memory: Memory) -> None:
        self._limit, self._memory = limit, memory
        self._segments: dict[int, Segment] = {}
        self._dropped: list[Segment] = []  # that the receiver may not have closed
        self._unsent: list[int] = []  # numbers of dropped segments, for the next message
        self._made = 0
        self._lock = threading.Lock()

    @property
    def segments(self) -> Mapping[int, Segment]:
        return self._segments

    @property
    def capacity(self) -> int:
        """Returns the bytes of all segments."""
        return sum(one.capacity for one in (*self._segments.values(), *self._dropped))

    def use(self, size: int) -> Use:
        """Returns a segment of at least `size` bytes, marked as in use. Raises RunError if the
        limit would be exceeded or the memory is full.
        """
        with self._lock:
            new = None
            self._dropped = [segment for segment in self._dropped if not segment.closed]
            free = [
                number
                for number, segment in self._segments.items()
                if segment.capacity >= size and segment.free
            ]
            if free:
                number = min(free, key=lambda one: self._segments[one].capacity)
            else:
                self._make_room(size)
                number, new = self._new(size)
            dropped, self._unsent = self._unsent, []
            use = Use(number, self._segments[number], new, dropped)
            if new is not None:
                weakref.finalize(use, os.close, new[0]).atexit = False
            use.segment.mark(used=True)
            return use

    def cancel(self, use: Use) -> None:
        """Takes a segment back whose message was not sent."""
        with self._lock:
            use.segment.mark(used=False)
            self._unsent += use.dropped
            if use.new is not None:
                self._segments.pop(use.number, None)

    def clear(self) -> None:
        """Frees all segments, each when the receiver has closed it."""
        with self._lock:
            left = [*self._segments.values(), *self._dropped]
            self._segments.clear()
            self._dropped.clear()
        if left := [segment for segment in left if not segment.closed]:
            threading.Thread(target=_wait, args=[left], name="free memory", daemon=True).start()

    def _make_room(self, size: int) -> None:
        """Drops the free segments (all too small) if a new segment would exceed the limit."""
        needed = _rounded(size, self._memory.granule)
        if self.capacity + needed <= self._limit:
            return
        free = [number for number, segment in self._segments.items() if segment.free]
        used = self.capacity - sum(self._segments[number].capacity for number in free)
        if used + needed > self._limit:
            raise RunError(
                f"the {self._memory.name} between two workers is full: {used / 2**20:.0f} of "
                f"{self._limit / 2**20:.0f} MiB are unread, {size / 2**20:.0f} MiB more are "
                "needed; use smaller batches"
            )
        dropped = [self._segments.pop(number) for number in free]
        self._dropped += [segment for segment in dropped if not segment.closed]
        self._unsent += free

    def _new(self, size: int) -> tuple[int, tuple[int, bytes]]:
        try:
            segment, descriptor, handle = self._memory.allocate(
                _rounded(size, self._memory.granule)
            )
        except OSError as error:
            raise RunError(
                f"{size / 2**20:.0f} MiB of {self._memory.name} between two workers cannot be "
                f"allocated: {error}"
            ) from None
        number, self._made = self._made, self._made + 1
        self._segments[number] = segment
        return number, (descriptor, handle)


class ReceivingPool:
    """Manages the same segments at the receiving end."""

    def __init__(self, limit: int, memory: Memory) -> None:
        self._limit, self._memory = limit, memory
        self._segments: dict[int, OpenedSegment] = {}

    def add(self, number: int, descriptor: int, handle: bytes) -> None:
        """Opens a new segment. Raises ProtocolError if it exceeds the limit or has a known number;
        otherwise as `Memory.open`.
        """
        segment = self._memory.open(descriptor, handle)
        held = sum(one.capacity for one in list(self._segments.values()))
        if number in self._segments or held + segment.capacity > self._limit:
            raise ProtocolError(
                f"a message has a segment {number} of {segment.capacity} bytes that is not from "
                "this connection, or exceeds the limit"
            )
        self._segments[number] = segment

    def drop(self, number: int) -> None:
        self._segments.pop(number, None)

    def clear(self) -> None:
        self._segments.clear()

    def block(self, number: int, length: int) -> Tensor:
        """Returns the first `length` bytes of a segment as a flat uint8 tensor. The segment is free
        again when the tensor and all its views are freed.
        """
        segment = self._segments.get(number)
        if segment is None or not 0 < length <= segment.capacity:
            raise ProtocolError(
                f"a message has {length} bytes in segment {number}, which does not exist or is "
                "smaller"
            )
        return torch.as_tensor(segment.lease(length), device=self._memory.device)


class Segments:
    """Moves tensors in both directions through one kind of memory. `kind`: the first field of its
    messages. `limit`: bytes per direction; exceeding it raises an error instead of waiting.
    """

    def __init__(self, kind: str, limit: int, memory: Memory) -> None:
        self._kind, self._device = kind, memory.device
        self.sending = SendingPool(limit, memory)
        self.receiving = ReceivingPool(limit, memory)

    def take(self, connection: Connection, encoded: Encoded) -> Transfer:
        """Copies the tensors, in order with the work of their devices. The transfer waits for the
        copies. Raises RunError if the memory is full.
        """
        lengths = lengths_of(encoded.tensors)
        size = size_of(lengths)
        if not size:
            return lambda: connection.send((self._kind, encoded.header, lengths, -1, [], []))
        use = self.sending.use(size)
        try:
            block = torch.as_tensor(use.segment.array(size), device=self._device)
            wait = fill(block, encoded.tensors)
        except BaseException:
            self.sending.cancel(use)
            raise

        def transfer() -> None:
            descriptors, handles = ([], []) if use.new is None else ([use.new[0]], [use.new[1]])
            body = (self._kind, encoded.header, lengths, use.number, use.dropped, handles)
            try:
                wait()
                connection.send(body, descriptors)
            except BaseException:
                self.sending.cancel(use)
                raise

        return transfer

    def receive(self, message: Message) -> tuple[bytes, list[Tensor]]:
        """Returns the header and the buffers, which share the sender's memory. Raises
        ProtocolError, or RunError if the sender's memory cannot be opened.
        """
        try:
            header, lengths, number, dropped, handles = fields(
                message, self._kind, bytes, list, int, list, list
            )
            for old in dropped:
                self.receiving.drop(old)
            if len(handles) != len(message.descriptors) or len(handles) > 1:
                raise ProtocolError(
                    f"got {len(message.descriptors)} file descriptors for {len(handles)} segments"
                )
            for handle, descriptor in zip(handles, message.descriptors, strict=True):
                self.receiving.add(number, descriptor, handle)
        finally:
            close_all(message.descriptors)
        if number < 0:
            return header, [torch.empty(0, dtype=torch.uint8) for _ in lengths]
        return header, parts(self.receiving.block(number, size_of(lengths)), lengths)

    def close(self) -> None:
        """Frees all segments; a segment with views is closed with the last view."""
        self.sending.clear()
        self.receiving.clear()


def _wait(left: list[Segment]) -> None:
    while left:
        left.pop().wait()


def _rounded(size: int, granule: int) -> int:
    """Rounds up to an eighth of a power of two, so that similar sizes share segments."""
    step = max(1 << max(size.bit_length() - 4, 0), granule)
    return -(-size // step) * step
