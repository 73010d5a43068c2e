"""Moves tensors between processes of one host through anonymous shared memory: one copy to send,
none to receive. A worker on a GPU registers the memory with CUDA.

A segment is an unnamed memory file, passed over the connection once, then reused, and freed with
the last process that maps it. The first byte marks a segment in use: the sender sets it, and the
receiver clears it with the last view.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from katz_graph.core.errors import RunError
from katz_graph.executor.transport.bulk import Meeting, Transfer, fields
from katz_graph.executor.transport.coalesce import fill, lengths_of, parts, size_of
from katz_graph.executor.transport.codec import Encoded, ProtocolError
from katz_graph.executor.transport.connection import Connection, Message, close_all
from katz_graph.executor.transport.registration import Mapping, Register, registering

HEAD = 64  # bytes before the data; the first is 1 while the segment is in use
MIN_SEGMENT_BYTES = 64 << 10  # minimum bytes of data in a segment
LIMIT = 4 << 30  # bytes per direction
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
USED, FREE = 1, 0
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class MemorySegment:
    """Maps a memory file. The mapping does not need the file descriptor."""

    number: int
    memory: Mapping

    @property
    def capacity(self) -> int:
        """Returns the capacity for data in bytes."""
        return len(self.memory) - HEAD

    @property
    def free(self) -> bool:
        return bool(self.memory[0] == FREE)

    def array(self, length: int) -> Mapping:
        """Returns the first `length` bytes of the data."""
        return self.memory[HEAD : HEAD + length]


class SendingPool:
    """Manages the segments of one direction at its sending end."""

    def __init__(self, limit: int, register: Register) -> None:
        self._limit, self._register = limit, register
        self._segments: dict[int, MemorySegment] = {}
        self._made = 0
        self._lock = threading.Lock()

    @property
    def capacity(self) -> int:
        """Returns the bytes of all segments."""
        return sum(segment.capacity for segment in self._segments.values())

    @contextmanager
    def segment(self, size: int) -> Iterator[tuple[MemorySegment, int | None, list[int]]]:
        """Yields a segment marked as in use, its descriptor if new, and the numbers of released
        segments.

        Raises RunError if the limit would be exceeded. Marks the segment free again if the block
        raises.
        """
        with self._lock:
            dropped: list[int] = []
            descriptor = None
            free = [
                segment
                for segment in self._segments.values()
                if segment.capacity >= size and segment.free
            ]
            if free:
                segment = min(free, key=lambda one: one.capacity)
            else:
                dropped = self._make_room(size)
                segment, descriptor = self._new(size)
            segment.memory[0] = USED
        try:
            yield segment, descriptor, dropped
        except BaseException:
            segment.memory[0] = FREE
            raise
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def clear(self) -> None:
        with self._lock:
            self._segments.clear()

    def _make_room(self, size: int) -> list[int]:
        """Releases the free segments (all too small) if a new segment would exceed the limit."""
        if self.capacity + _rounded(size) <= self._limit:
            return []
        dropped = [number for number, segment in self._segments.items() if segment.free]
        used = sum(
            segment.capacity for number, segment in self._segments.items() if number not in dropped
        )
        if used + _rounded(size) > self._limit:
            raise RunError(
                f"the shared memory between two workers is full: {used / 2**20:.0f} of "
                f"{self._limit / 2**20:.0f} MiB are unread, {size / 2**20:.0f} MiB more are "
                "needed; use smaller batches"
            )
        for number in dropped:
            del self._segments[number]
        return dropped

    def _new(self, size: int) -> tuple[MemorySegment, int]:
        capacity = _rounded(size)
        descriptor = os.memfd_create("katz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, HEAD + capacity)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            segment = MemorySegment(self._made, _mapped(descriptor, HEAD + capacity))
            self._register(segment.memory)
        except BaseException as error:
            os.close(descriptor)
            if not isinstance(error, OSError):
                raise
            raise RunError(
                f"{size / 2**20:.0f} MiB of shared memory between two workers cannot be "
                f"allocated: {error}"
            ) from None
        self._made += 1
        self._segments[segment.number] = segment
        return segment, descriptor


class ReceivingPool:
    """Manages the same segments at the receiving end."""

    def __init__(self, limit: int, register: Register) -> None:
        self._limit, self._register = limit, register
        self._segments: dict[int, MemorySegment] = {}

    def add(self, number: int, descriptor: int) -> None:
        """Maps a new segment. Raises ProtocolError if it exceeds the limit, has a known number, or
        is not a sealed memory file, which could shrink under its readers.
        """
        size = os.fstat(descriptor).st_size
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
        except OSError:
            sealed = False
        held = sum(segment.capacity for segment in list(self._segments.values()))
        if (
            not sealed
            or size <= HEAD
            or number in self._segments
            or held + size - HEAD > self._limit
        ):
            raise ProtocolError(
                f"a message has a segment {number} of {size} bytes that is not from this "
                "connection, or exceeds the limit"
            )
        self._segments[number] = MemorySegment(number, _mapped(descriptor, size))
        self._register(self._segments[number].memory)

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
        array = segment.array(length)
        weakref.finalize(array, segment.memory.__setitem__, 0, FREE).atexit = False
        return torch.from_numpy(array)


class SharedMemory:
    """Moves tensors in both directions between two workers. `limit`: bytes per direction; exceeding
    it raises an error instead of waiting. `device`: the device of this worker.
    """

    slow = False

    def __init__(self, limit: int = LIMIT, device: torch.device = CPU) -> None:
        register = registering(device)
        self._sending = SendingPool(limit, register)
        self._receiving = ReceivingPool(limit, register)

    @property
    def capacity(self) -> int:
        """Returns the bytes of this side's segments."""
        return self._sending.capacity

    def take(self, connection: Connection, encoded: Encoded) -> Transfer:
        return lambda: self._send(connection, encoded)

    def _send(self, connection: Connection, encoded: Encoded) -> None:
        lengths = lengths_of(encoded.tensors)
        size = size_of(lengths)
        if not size:
            return connection.send(("shared", encoded.header, lengths, -1, [], False))
        with self._sending.segment(size) as (segment, descriptor, dropped):
            fill(torch.from_numpy(segment.array(size)), encoded.tensors)
            new = descriptor is not None
            descriptors = [] if descriptor is None else [descriptor]
            connection.send(
                ("shared", encoded.header, lengths, segment.number, dropped, new), descriptors
            )

    def receive(self, message: Message) -> tuple[bytes, list[Tensor]]:
        try:
            header, lengths, number, dropped, new = fields(
                message, "shared", bytes, list, int, list, bool
            )
            for old in dropped:
                self._receiving.drop(old)
            if new != (len(message.descriptors) == 1):
                raise ProtocolError(
                    f"got {len(message.descriptors)} file descriptors, expected {int(new)}"
                )
            if new:
                self._receiving.add(number, message.descriptors[0])
        finally:
            close_all(message.descriptors)
        if number < 0:
            return header, [torch.empty(0, dtype=torch.uint8) for _ in lengths]
        return header, parts(self._receiving.block(number, size_of(lengths)), lengths)

    def close(self) -> None:
        """Releases all segments; a segment with views is unmapped with the last view."""
        self._sending.clear()
        self._receiving.clear()


def open_bulk(connection: Connection, meeting: Meeting) -> SharedMemory:
    return SharedMemory(device=meeting.device)


def _mapped(descriptor: int, size: int) -> Mapping:
    """Maps a file of `size` bytes for the lifetime of the array and its views."""
    return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)


def _rounded(size: int) -> int:
    """Rounds up to an eighth of a power of two, so that similar sizes share segments."""
    step = max(1 << max(size.bit_length() - 4, 0), mmap.PAGESIZE)
    return max(-(-size // step) * step, MIN_SEGMENT_BYTES)
