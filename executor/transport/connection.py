"""Sends and receives messages, values and their tensor data, over a stream socket. Must not know
what messages mean.

A frame consists of a prefix (magic, header length, number of tensors, number of descriptors), the
tensor lengths, the header and the tensors. On UNIX sockets, file descriptors are sent with the
first byte of their frame.
"""

from __future__ import annotations

import array
import contextlib
import os
import queue
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from katz_graph.executor.transport.codec import Closed, ProtocolError, as_bytes, decode, encode

MAGIC = b"KZ6\n"
PREFIX = struct.Struct("<4sIII")
LARGEST_HEADER = 64 << 20
MAX_TENSORS = 1 << 16
MAX_DESCRIPTORS = 64
ROOM = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
TENSOR_LIMIT = 4 << 30
VECTORS = 512  # buffers per system call; Linux allows 1024
_TIMEOUT = struct.Struct("@ll")  # struct timeval


@dataclass(frozen=True, slots=True)
class Message:
    """Holds a received message. The receiver must close the descriptors."""

    body: Any
    descriptors: tuple[int, ...] = ()


class Sender(Protocol):
    """Sends messages without waiting for the peer."""

    def send(self, body: Any, descriptors: Sequence[int] = ()) -> None:
        """Sends or queues a message. The descriptors may be closed afterwards. Raises TypeError if
        it cannot be sent.
        """

    def close(self) -> None:
        """Stops sending after the messages queued so far."""


class MessageChannel(Protocol):
    """Carries messages to and from another process or thread."""

    def send(self, body: Any, descriptors: Sequence[int] = ()) -> None:
        """Sends a complete message. Raises Closed if the peer is disconnected, TypeError if the
        message cannot be sent.
        """

    def receive(self) -> Any:
        """Waits for the next message. Raises Closed at the end, ProtocolError for a damaged message
        or one with descriptors.
        """

    def receive_message(self) -> Message:
        """Waits for the next message, with its descriptors."""

    def sender(self) -> Sender: ...

    def shut_down(self) -> None:
        """Ends both directions: senders and receivers at both ends get Closed."""

    def close(self) -> None:
        """Frees the channel. Call after `shut_down`, when its threads have ended."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Holds a message ready to send: its header, the bytes of its non-empty tensors, and the
    lengths of all tensors.
    """

    header: bytes
    payloads: list[memoryview]
    lengths: list[int]


class Connection:
    """Sends and receives messages at one end of a connected stream socket. Any thread may send; one
    thread receives.

    `tensor_limit`: maximum bytes of tensors in a received or sent message. `send_timeout`: seconds
    after which a peer that accepts no data counts as disconnected. `sent` and `received` count
    bytes, including those of unfinished messages.
    """

    def __init__(
        self,
        connected: socket.socket,
        tensor_limit: int = TENSOR_LIMIT,
        send_timeout: float | None = None,
    ) -> None:
        self.sent = self.received = 0
        self._socket = connected
        self._tensor_limit = tensor_limit
        self._sending = threading.Lock()
        connected.settimeout(None)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if send_timeout is not None:
            seconds = int(send_timeout)
            timeout = _TIMEOUT.pack(seconds, int((send_timeout - seconds) * 1e6))
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, body: Any, descriptors: Sequence[int] = ()) -> None:
        """Sends a complete message. Raises Closed if the peer is disconnected, TypeError if the
        message cannot be sent.
        """
        self.transmit(self.frame(body), descriptors)

    def sender(self) -> Sender:
        """Returns an outbox, which sends from a separate thread."""
        return Outbox(self)

    def frame(self, body: Any) -> Frame:
        """Builds the frame of a message. Raises TypeError if it cannot be encoded or is too
        large.
        """
        encoded = encode(body)
        payloads = [as_bytes(tensor.cpu()).numpy().data for tensor in encoded.tensors]
        if (
            len(encoded.header) > LARGEST_HEADER
            or sum(map(len, payloads)) > self._tensor_limit
            or len(payloads) > MAX_TENSORS
        ):
            size = f"{len(encoded.header)} bytes and {sum(map(len, payloads))} of tensors"
            raise TypeError(f"a message of type {type(body).__name__} is too large: {size}")
        return Frame(
            encoded.header,
            [payload for payload in payloads if len(payload)],
            [len(payload) for payload in payloads],
        )

    def transmit(self, frame: Frame, descriptors: Sequence[int] = ()) -> None:
        """Sends a complete frame. Raises Closed if the peer is disconnected."""
        prefix = PREFIX.pack(MAGIC, len(frame.header), len(frame.lengths), len(descriptors))
        lengths = struct.pack(f"<{len(frame.lengths)}Q", *frame.lengths)
        start = memoryview(prefix + lengths + frame.header)
        ancillary = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            if descriptors
            else []
        )
        with self._sending:
            try:
                self._send_all([start, *frame.payloads], ancillary)
            except OSError as error:  # part of the frame may be sent, so no frame can follow
                self.shut_down()
                raise Closed(f"sending failed: {error}") from None

    def _send_all(self, buffers: list[memoryview], ancillary: list[Any]) -> None:
        first = 0
        while first < len(buffers):
            sent = self._socket.sendmsg(buffers[first : first + VECTORS], ancillary)
            self.sent += sent
            ancillary = []
            while first < len(buffers) and sent >= len(buffers[first]):
                sent -= len(buffers[first])
                first += 1
            if sent:
                buffers[first] = buffers[first][sent:]

    def receive(self) -> Any:
        """Returns the next message. Raises Closed at the end, ProtocolError for a damaged message
        or one with descriptors.
        """
        message = self.receive_message()
        if message.descriptors:
            close_all(message.descriptors)
            raise ProtocolError(
                f"a message of type {type(message.body).__name__} has unexpected file descriptors"
            )
        return message.body

    def receive_message(self) -> Message:
        """Returns the next message with its descriptors. Shuts the connection down after an
        error.
        """
        descriptors: list[int] = []
        try:
            return self._receive(descriptors)
        except OSError as error:
            close_all(descriptors)
            raise Closed(f"receiving failed: {error}") from None
        except BaseException:  # including torch out-of-memory errors for the received tensors
            close_all(descriptors)
            self.shut_down()
            raise

    def _receive(self, descriptors: list[int]) -> Message:
        prefix = bytearray(PREFIX.size)
        self._fill(memoryview(prefix), descriptors, ROOM)
        magic, header_length, tensor_count, descriptor_count = PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise ProtocolError(
                f"a message begins with {magic!r}; the peer is another program or version"
            )
        if header_length > LARGEST_HEADER or tensor_count > MAX_TENSORS:
            raise ProtocolError(
                f"a message of {header_length} bytes and {tensor_count} tensors is larger than "
                "allowed"
            )
        if descriptor_count != len(descriptors):
            raise ProtocolError(
                f"got {len(descriptors)} file descriptors, expected {descriptor_count}"
            )
        start = memoryview(bytearray(8 * tensor_count + header_length))
        self._fill(start, descriptors)
        lengths = struct.unpack_from(f"<{tensor_count}Q", start)
        if sum(lengths) > self._tensor_limit:
            raise ProtocolError(
                f"a message has {sum(lengths)} bytes of tensors; {self._tensor_limit} are allowed"
            )
        buffers = [torch.empty(length, dtype=torch.uint8) for length in lengths]
        for buffer in buffers:
            self._fill(buffer.numpy().data, descriptors)
        return Message(decode(start[8 * tensor_count :], buffers), tuple(descriptors))

    def _fill(self, target: memoryview, descriptors: list[int], room: int = 0) -> None:
        """Reads until `target` is full. Collects the file descriptors that arrive with it, up to
        `room` bytes of ancillary data.
        """
        while target:
            count, ancillary, flags, _ = self._socket.recvmsg_into(
                [target], room, socket.MSG_CMSG_CLOEXEC
            )
            self.received += count
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    received = array.array("i")
                    received.frombytes(data[: len(data) - len(data) % received.itemsize])
                    descriptors += received
            if flags & socket.MSG_CTRUNC:
                raise ProtocolError(f"a message has more than {MAX_DESCRIPTORS} file descriptors")
            if count == 0:
                raise Closed("the peer closed the connection")
            target = target[count:]

    def shut_down(self) -> None:
        """Ends both directions: senders and receivers at both ends get Closed. The socket stays
        open until `close`.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket. Call after `shut_down`, when its threads have ended."""
        self.shut_down()
        self._socket.close()


class Outbox:
    """Sends messages in the order of `send`, from a separate thread, until the connection ends. Any
    thread may call. A message that cannot be sent completely ends the connection, because its
    receiver would wait forever.

    Prevents a deadlock of two sides that both block in sending and do not read.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[tuple[Frame, tuple[int, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="katz-outbox", daemon=True)
        self._thread.start()

    def send(self, body: Any, descriptors: Sequence[int] = ()) -> None:
        """Queues a message. The descriptors may be closed afterwards. Raises TypeError if it cannot
        be sent.
        """
        frame, copies = self._connection.frame(body), list[int]()
        try:
            for descriptor in descriptors:
                copies.append(os.dup(descriptor))
        except OSError:
            close_all(copies)
            raise
        self._waiting.put((frame, tuple(copies)))

    def close(self) -> None:
        """Stops sending after the messages queued so far. A send in progress ends with the
        connection.
        """
        self._waiting.put(None)

    def _run(self) -> None:
        closed = False
        while (item := self._waiting.get()) is not None:
            frame, descriptors = item
            try:
                if not closed:
                    self._connection.transmit(frame, descriptors)
            except Exception:  # Closed, or out of memory: the reader of the connection notices
                closed = True
                self._connection.shut_down()
            finally:
                close_all(descriptors)
            del item, frame


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
