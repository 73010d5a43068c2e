"""Moves tensors between devices of one host through device memory that both processes open: one
copy to send, one to receive, none through the host. Must not know how a device shares its memory.

A message is sent when the sender's device has completed the copies. No event is shared, because a
device's wait for the event of a killed process may never end. Each segment has a pipe: the receiver
writes a byte when it has released a message, and closes the pipe after the memory. The end of its
process closes the pipe, too.
"""

from __future__ import annotations

import contextlib
import os
import select
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from katz_graph.core.errors import RunError
from katz_graph.executor.transport.bulk import Meeting, Transfer, awaited, fields
from katz_graph.executor.transport.codec import Closed, Encoded
from katz_graph.executor.transport.connection import Connection, Message
from katz_graph.executor.transport.cuda_memory import CudaAllocator
from katz_graph.executor.transport.segments import Array, Segments
from katz_graph.executor.transport.shared_memory import SharedMemory

NAME = "CUDA IPC"
LIMIT = 1 << 30  # bytes of device memory per direction
PROBE_BYTES = 32
ANSWER_S = 30.0  # seconds in which the peer opens the memory and answers


class DeviceAllocator(Protocol):
    """Allocates memory of `device` that other processes can open. Memory is freed or closed with
    the last reference to its array. Memory of another device of the host becomes accessible to
    `device` when it is opened.
    """

    device: torch.device

    def allocate(self, capacity: int) -> tuple[Array, bytes]:
        """Returns `capacity` bytes and their handle. Raises RunError with the reason if it
        cannot.
        """

    def open(self, handle: bytes, closed: Callable[[], object]) -> Array:
        """Opens the memory of another process; calls `closed` when it is closed again. Raises
        RunError with the reason if it cannot.
        """


class SentSegment:
    """Implements `Segment`. `answers`: the reading end of the pipe."""

    def __init__(self, array: Array, answers: int) -> None:
        self._array, self._answers = array, answers
        self._used = False
        weakref.finalize(self, os.close, answers).atexit = False

    @property
    def capacity(self) -> int:
        return int(self._array.nbytes)

    @property
    def free(self) -> bool:
        if self._used and self._answer() is not None:
            self._used = False
        return not self._used

    def mark(self, used: bool) -> None:
        self._used = used

    @property
    def closed(self) -> bool:
        while (answer := self._answer()) is not None:
            if not answer:
                return True
        return False

    def _answer(self) -> bytes | None:
        """Reads a byte from the pipe: none at its end. Returns None if there is no answer yet."""
        try:
            return os.read(self._answers, 1)
        except BlockingIOError:
            return None

    def wait(self) -> None:
        waiting = select.poll()
        waiting.register(self._answers, 0)  # waits for the end of the pipe only
        waiting.poll()

    def array(self, length: int) -> Array:
        return self._array[:length]


@dataclass(frozen=True, slots=True)
class ReceivedSegment:
    """Implements `OpenedSegment`. `release`: the writing end of the pipe."""

    memory: Array
    release: int

    @property
    def capacity(self) -> int:
        return int(self.memory.nbytes)

    def lease(self, length: int) -> Array:
        array = self.memory[:length]
        weakref.finalize(array, _write, self.release).atexit = False
        return array


def _write(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the sender has ended
        os.write(descriptor, b"\0")


class DeviceMemory:
    """Implements `Memory` for an allocator. Descriptors are writing ends of pipes."""

    name = "device memory"
    granule = 2 << 20  # CUDA shares blocks of 2 MiB

    def __init__(self, allocator: DeviceAllocator) -> None:
        self._allocator = allocator
        self.device = allocator.device

    def allocate(self, capacity: int) -> tuple[SentSegment, int, bytes]:
        array, handle = self._allocator.allocate(capacity)
        answers, release = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        return SentSegment(array, answers), release, handle

    def open(self, descriptor: int, handle: bytes) -> ReceivedSegment:
        release = os.dup(descriptor)
        try:
            array = self._allocator.open(handle, lambda: os.close(release))
        except BaseException:
            os.close(release)
            raise
        return ReceivedSegment(array, release)


class DeviceTransport:
    """Moves tensors in both directions between two workers. Tensors on the device pass through
    device memory, all others, and those that find it full, through shared memory. `limit`: bytes of
    device memory per direction.
    """

    slow = True

    def __init__(
        self, allocator: DeviceAllocator, shared: SharedMemory, limit: int = LIMIT
    ) -> None:
        memory = DeviceMemory(allocator)
        self.device = memory.device
        self.shared = shared
        self.segments = Segments("device", limit, memory)
        self.accepted = True  # whether the peer opens this end's device memory

    @property
    def transport(self) -> str:
        return NAME if self.accepted else self.shared.transport

    def take(self, connection: Connection, encoded: Encoded) -> Transfer:
        on_device = all(tensor.device == self.device for tensor in encoded.tensors)
        if self.accepted and on_device and encoded.tensors:
            try:
                return self.segments.take(connection, encoded)
            except RunError:  # the device memory is full
                pass
        return self.shared.take(connection, encoded)

    def receive(self, message: Message) -> tuple[bytes, list[Tensor]]:
        match message.body:
            case ("device", *_):
                return self.segments.receive(message)
        return self.shared.receive(message)

    def close(self) -> None:
        self.segments.close()
        self.shared.close()


def open_bulk(connection: Connection, meeting: Meeting) -> DeviceTransport:
    allocator, shared = CudaAllocator(meeting.device), SharedMemory(device=meeting.device)
    return agreed(connection, DeviceTransport(allocator, shared))


def agreed(connection: Connection, transport: DeviceTransport) -> DeviceTransport:
    """Tries both directions: each end sends random bytes and answers whether it could read the
    peer's. Both ends call this before other messages. Warns if this end has to send through shared
    memory. Raises Closed if the peer does not answer.
    """
    try:
        why = _refusal(connection, transport)
    except BaseException:
        transport.close()
        raise
    if why:
        transport.accepted = False
        transport.segments.sending.clear()
        warnings.warn(
            f"CUDA IPC cannot be used ({why}): tensors to another worker on a GPU "
            "go through shared memory",
            stacklevel=1,
        )
    return transport


def _refusal(connection: Connection, transport: DeviceTransport) -> str:
    """Returns the reason why the peer cannot open this end's memory; "" if it can."""
    sent, why = os.urandom(PROBE_BYTES), ""
    try:
        probe = torch.tensor(list(sent), dtype=torch.uint8, device=transport.device)
        transport.segments.take(connection, Encoded(sent, (probe,)))()
    except Closed:
        raise
    except Exception as error:  # whatever fails here, shared memory does not need it
        why = _reason(error)
        connection.send(("none",))
    connection.send(("answer", _tried(transport, awaited(connection, ANSWER_S, "device memory"))))
    (answer,) = fields(awaited(connection, ANSWER_S, "answer"), "answer", str)
    return why or answer


def _tried(transport: DeviceTransport, message: Message) -> str:
    """Reads the peer's probe. Returns the reason if that fails."""
    if message.body == ("none",):
        return ""
    try:
        expected, (came,) = transport.segments.receive(message)
        return "" if bytes(came.tolist()) == expected else "the memory has other contents"
    except Exception as error:  # whatever fails here, shared memory does not need it
        return _reason(error)


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
