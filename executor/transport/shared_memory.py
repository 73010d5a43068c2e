"""Moves tensors between processes of one host through anonymous shared memory: one copy to send,
none to receive. A worker on a GPU registers the memory with CUDA.

A segment is an unnamed memory file, which is freed with the last process that maps it. Its first
byte marks it as in use.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from dataclasses import dataclass

import numpy as np
import torch

from katz_graph.executor.transport.bulk import Meeting
from katz_graph.executor.transport.codec import ProtocolError
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.registration import Mapping, Register, registering
from katz_graph.executor.transport.segments import Segments

HEAD = 64  # bytes before the data; the first is 1 while the segment is in use
LIMIT = 4 << 30  # bytes per direction
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
USED, FREE = 1, 0
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class MemorySegment:
    """Maps a memory file. The mapping does not need the file descriptor."""

    memory: Mapping

    @property
    def capacity(self) -> int:
        return len(self.memory) - HEAD

    @property
    def free(self) -> bool:
        return bool(self.memory[0] == FREE)

    def mark(self, used: bool) -> None:
        self.memory[0] = USED if used else FREE

    @property
    def closed(self) -> bool:
        """Returns True: both processes hold the memory."""
        return True

    def wait(self) -> None:
        """Does nothing."""

    def array(self, length: int) -> Mapping:
        return self.memory[HEAD : HEAD + length]

    def lease(self, length: int) -> Mapping:
        array = self.array(length)
        weakref.finalize(array, self.memory.__setitem__, 0, FREE).atexit = False
        return array


class HostMemory:
    """Implements `Memory` by memory files, whose handles are empty."""

    name = "shared memory"
    granule = 64 << 10
    device = CPU

    def __init__(self, register: Register) -> None:
        self._register = register

    def allocate(self, capacity: int) -> tuple[MemorySegment, int, bytes]:
        descriptor = os.memfd_create("katz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, HEAD + capacity)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            return self._mapped(descriptor, HEAD + capacity), descriptor, b""
        except BaseException:
            os.close(descriptor)
            raise

    def open(self, descriptor: int, handle: bytes) -> MemorySegment:
        """Maps a segment. Raises ProtocolError if it is not a sealed memory file, which could
        shrink under its readers.
        """
        size = os.fstat(descriptor).st_size
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
        except OSError:
            sealed = False
        if not sealed or size <= HEAD:
            raise ProtocolError("a message has a segment that is not from this connection")
        return self._mapped(descriptor, size)

    def _mapped(self, descriptor: int, size: int) -> MemorySegment:
        """Maps a file of `size` bytes for the lifetime of the array and its views."""
        memory = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        self._register(memory)
        return MemorySegment(memory)


class SharedMemory(Segments):
    """Moves tensors in both directions between two workers. `limit`: bytes per direction; exceeding
    it raises an error instead of waiting. `device`: the device of this worker.
    """

    transport = "shared memory"

    def __init__(self, limit: int = LIMIT, device: torch.device = CPU) -> None:
        super().__init__("shared", limit, HostMemory(registering(device)))
        self.slow = device.type == "cuda"


def open_bulk(connection: Connection, meeting: Meeting) -> SharedMemory:
    return SharedMemory(device=meeting.device)
