"""Messages of all sizes arrive whole and in order. Damage ends a connection with a clear error and
allocates no memory.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from other_process import descriptors_open

from katz_graph.executor.transport import handshake
from katz_graph.executor.transport.codec import Closed, ProtocolError
from katz_graph.executor.transport.connection import LARGEST_HEADER, MAGIC, PREFIX, Connection
from katz_graph.executor.transport.handshake import (
    MAX_HANDSHAKES,
    accept,
    authenticate,
    dial,
    listen,
)


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection]]:
    first, second = map(Connection, socket.socketpair())
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Connection]]:
    """Yields a bare socket and the connection at its other end."""
    first, second = socket.socketpair()
    connection = Connection(second, tensor_limit=1 << 20)
    yield first, connection
    first.close()
    connection.close()


def test_tensors_larger_than_any_buffer_arrive(pair: tuple[Connection, Connection]) -> None:
    first, second = pair
    tensors = [torch.rand(3_000_000), torch.empty(0), torch.arange(7).bfloat16()] + [
        torch.full((3,), float(n)) for n in range(2000)
    ]
    sender = threading.Thread(target=first.send, args=(("features", {"tensors": tensors}),))
    sender.start()
    kind, body = second.receive()
    sender.join()
    assert kind == "features"
    assert all(torch.equal(came, sent) for came, sent in zip(body["tensors"], tensors, strict=True))


def test_messages_of_many_threads_stay_whole(pair: tuple[Connection, Connection]) -> None:
    first, second = pair

    def send(number: int) -> None:
        for turn in range(50):
            first.send(("part", (number, turn, torch.full((1000 * number,), number))))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    came = [second.receive()[1] for _ in range(200)]
    for thread in threads:
        thread.join()
    assert all(
        len(tensor) == 1000 * number and (tensor == number).all() for number, _, tensor in came
    )
    for number in range(4):
        assert [turn for sender, turn, _ in came if sender == number] == list(range(50))


def test_descriptors_come_with_their_own_message(pair: tuple[Connection, Connection]) -> None:
    first, second = pair
    ends = [os.pipe() for _ in range(3)]
    for number, (reading, writing) in enumerate(ends):
        first.send(("plain", torch.rand(5)))
        first.send(("pipe", number), [reading, writing])
        os.close(reading)
        os.close(writing)
    for number in range(3):
        assert second.receive_message().descriptors == ()
        message = second.receive_message()
        assert message.body == ("pipe", number)
        reading, writing = message.descriptors
        os.write(writing, b"through")
        assert os.read(reading, 10) == b"through"
        assert not os.get_inheritable(reading)
        os.close(reading)
        os.close(writing)


def test_unexpected_descriptors_are_closed(pair: tuple[Connection, Connection]) -> None:
    first, second = pair
    before = len(descriptors_open())
    first.send(("hello", None), [0, 1])
    with pytest.raises(ProtocolError, match="descriptors"):
        second.receive()
    assert len(descriptors_open()) == before


HUGE = 1 << 62


@pytest.mark.defect(45)
@pytest.mark.parametrize("module", ["torch.empty", "decode"])
def test_an_error_while_a_message_arrives_leaves_no_descriptor(
    pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory")

    first, second = pair
    reading, writing = os.pipe()
    first.send(("message", torch.arange(3)), [reading])
    os.close(reading)
    before = descriptors_open()
    monkeypatch.setattr(f"katz_graph.executor.transport.connection.{module}", fails)
    with pytest.raises(RuntimeError, match="not enough memory"):
        second.receive_message()
    assert descriptors_open() == before
    with pytest.raises(BrokenPipeError):  # every copy of that end is closed
        os.write(writing, b"x")
    os.close(writing)
    with pytest.raises(Closed):  # the rest of the stream is unreadable
        first.send(("message", None))


@pytest.mark.parametrize(
    "frame",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREFIX.pack(MAGIC, LARGEST_HEADER + 1, 0, 0),
        PREFIX.pack(MAGIC, 10, 2**32 - 1, 0),
        PREFIX.pack(MAGIC, 1, 1, 0) + struct.pack("<Q", HUGE) + b"\xc0",
        PREFIX.pack(MAGIC, 1, 2, 0) + struct.pack("<2Q", 1 << 19, (1 << 19) + 1) + b"\xc0",
        PREFIX.pack(MAGIC, 1, 0, 1) + b"\xc0",
        PREFIX.pack(MAGIC, 1, 0, 0) + b"\x93",
        PREFIX.pack(MAGIC, 3, 0, 0) + b"\xff\xff\xff",
    ],
)
def test_damaged_frames_are_refused(raw: tuple[socket.socket, Connection], frame: bytes) -> None:
    sender, connection = raw
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sender.sendall(frame)
    with pytest.raises(ProtocolError):
        connection.receive()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB
    assert sender.recv(1) == b""  # the connection is closed


@pytest.mark.parametrize("length", [0, 5, 16, 20, 25, 200])
def test_a_frame_that_ends_early_is_a_closed_connection(
    raw: tuple[socket.socket, Connection], length: int
) -> None:
    sender, connection = raw
    recorded, recorder = socket.socketpair()
    Connection(recorder).send(("x", torch.zeros(1000)))
    sender.sendall(recorded.recv(length) if length else b"")
    sender.close()
    recorded.close()
    recorder.close()
    with pytest.raises(Closed):
        connection.receive()


def test_too_large_a_message_is_refused_where_it_is_sent() -> None:
    first, second = socket.socketpair()
    connection = Connection(first, tensor_limit=1000)
    with pytest.raises(TypeError, match="too large"):
        connection.send(("x", torch.zeros(251)))
    connection.send(("x", torch.zeros(250)))
    connection.close()
    second.close()


def test_shutting_down_wakes_up_senders_and_receivers(
    pair: tuple[Connection, Connection],
) -> None:
    first, _ = pair
    outcomes: list[str] = []

    def attempt(action: object) -> None:
        try:
            action()  # type: ignore[operator]
        except Closed:
            outcomes.append("closed")

    threads = [
        threading.Thread(target=attempt, args=(action,))
        for action in (first.receive, lambda: first.send(("x", torch.zeros(10**7))))
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    assert outcomes == []
    first.shut_down()
    for thread in threads:
        thread.join(2)
    assert outcomes == ["closed", "closed"]


def test_clients_that_read_nothing_count_as_lost() -> None:
    first, second = socket.socketpair()
    connection = Connection(first, send_timeout=0.2)
    started = time.monotonic()
    with pytest.raises(Closed):
        connection.send(("x", torch.zeros(10**7)))
    assert time.monotonic() - started < 2
    connection.close()
    second.close()


def test_clients_with_the_token_connect_despite_others() -> None:
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    accepted: list[Connection] = []
    thread = threading.Thread(target=lambda: accepted.append(accept(listener, b"secret")))
    thread.start()
    with pytest.raises(ProtocolError, match="token"):
        dial("127.0.0.1", port, b"guess")
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 100)
    friend = dial("127.0.0.1", port, b"secret")
    thread.join(5)
    friend.send(("hello", torch.arange(3)))
    assert accepted[0].receive()[1].tolist() == [0, 1, 2]
    friend.close()
    accepted[0].close()
    listener.close()


def silent(stranger: socket.socket) -> None:
    pass


def halfway(stranger: socket.socket) -> None:
    stranger.sendall(b"x" * 31)


def unproven(stranger: socket.socket) -> None:
    stranger.sendall(b"x" * 32)


@pytest.mark.defect(39)
@pytest.mark.parametrize("knock", [silent, halfway, unproven])
@pytest.mark.parametrize("strangers", [1, MAX_HANDSHAKES + 20])
def test_idle_strangers_block_no_client(
    knock: Callable[[socket.socket], None], strangers: int
) -> None:
    with (
        listen("127.0.0.1") as listener,
        ThreadPoolExecutor(1) as pool,
        contextlib.ExitStack() as opened,
    ):
        port = listener.getsockname()[1]
        accepted = pool.submit(accept, listener, b"secret", 5.0)
        for _ in range(strangers):
            knock(opened.enter_context(socket.create_connection(("127.0.0.1", port))))
        began = time.monotonic()
        with contextlib.closing(dial("127.0.0.1", port, b"secret", 5.0)) as friend:
            friend.send(("hello", 1))
            with contextlib.closing(accepted.result(5)) as connection:
                assert connection.receive() == ("hello", 1)
        assert time.monotonic() - began < 2.5


@pytest.mark.defect(39)
def test_a_stranger_has_a_short_time_and_does_not_end_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT", 0.1)
    with listen("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        port = listener.getsockname()[1]
        accepted = pool.submit(accept, listener, b"secret", 10.0)
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            assert len(stranger.recv(32)) == 32
            assert stranger.recv(32) == b""  # rejected
        assert not accepted.done()
        with contextlib.closing(dial("127.0.0.1", port, b"secret")):
            accepted.result(5).close()


@pytest.mark.defect(39)
def test_end_of_a_wait_is_noticed_for_every_client() -> None:
    def failed() -> None:
        if connected:
            raise KeyError("the start has failed")

    connected: list[socket.socket] = []
    with (
        listen("127.0.0.1") as listener,
        ThreadPoolExecutor(1) as pool,
        pytest.raises(KeyError),
    ):
        accepted = pool.submit(accept, listener, b"secret", 10.0, failed)
        with socket.create_connection(listener.getsockname()) as stranger:
            connected.append(stranger)
            accepted.result(5)


def test_an_echo_of_our_own_proof_is_not_let_in() -> None:
    ours, theirs = socket.socketpair()

    def echo() -> None:
        for _ in range(2):
            theirs.sendall(theirs.recv(32))

    thread = threading.Thread(target=echo)
    thread.start()
    with pytest.raises(ProtocolError, match="token"):
        authenticate(ours, b"secret", True)
    thread.join(5)
    ours.close()
    theirs.close()


def test_a_silent_one_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    started = time.monotonic()
    with pytest.raises(Closed):
        authenticate(ours, b"secret", True, timeout=0.2)
    assert time.monotonic() - started < 1
    ours.close()
    theirs.close()
