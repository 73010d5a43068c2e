"""Tests slow, dead and hostile sockets over TCP."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator

import msgpack
import pytest
from web_clients import make_job
from web_live import Live, live
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from katz_graph.core.events import Warned
from katz_graph.web.events import EncodedPicture, Ended, Started
from katz_graph.web.http.connections import listen
from katz_graph.web.live.hub import OUTBOX
from katz_graph.web.live.katz_channel import SUBPROTOCOL


@pytest.fixture
def server() -> Iterator[Live]:
    with live() as running:
        running.jobs.running.append(make_job())
        running.do(running.hub.publish, make_job(), Started(1.0))
        yield running


def native(server: Live, client: str = "ann") -> ClientConnection:
    return connect(
        f"ws://127.0.0.1:{server.port}/ws?clientId={client}",
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        compression=None,
        max_size=None,
    )


def eventually(server: Live, sockets: int, seconds: float = 8.0) -> bool:
    until = time.monotonic() + seconds
    while server.do(lambda: server.hub.sockets) != sockets:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def unread(server: Live, more: str = "") -> socket.socket:
    """Connects a client that never reads; `more`: further headers."""
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    head = (
        f"GET /ws?clientId=ann HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: "
        "websocket\r\nConnection: Upgrade\r\n"
    )
    raw.sendall(
        f"{head}Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: "
        f"13\r\n{more}\r\n".encode()
    )
    assert raw.recv(12) == b"HTTP/1.1 101"
    return raw


def test_a_client_that_never_reads_is_let_go_while_another_gets_everything(server: Live) -> None:
    with unread(server, f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n"), native(server) as quick:
        assert eventually(server, 2)
        quick.recv()
        text, messages = "x" * 2**19, OUTBOX // 2**19 + 40
        for number in range(messages):
            began = time.perf_counter()
            server.do(server.hub.publish, make_job(), Warned(f"{number}{text}"))
            assert time.perf_counter() - began < 1.0
            frame = msgpack.unpackb(quick.recv(timeout=5))
            assert frame["event"]["message"].startswith(f"{number}x")
        assert eventually(server, 1)


def test_a_client_that_vanishes_is_forgotten_and_finds_the_end_on_return(server: Live) -> None:
    raw = unread(server)
    assert eventually(server, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()  # with a reset
    assert eventually(server, 0)
    server.do(server.hub.publish, server.jobs.running.pop(), Ended("completed", 2.0))
    with connect(f"ws://127.0.0.1:{server.port}/ws?clientId=ann") as back:
        kinds = [json.loads(back.recv(timeout=5))["type"] for _ in range(4)]
    assert kinds == ["status", "execution_success", "status", "executing"]


def test_an_end_sent_to_a_dead_connection_is_sent_again(server: Live) -> None:
    """The server takes the connection for sound, but the client has read nothing."""
    with unread(server):
        assert eventually(server, 1)
        server.do(server.hub.publish, server.jobs.running.pop(), Ended("completed", 2.0))
        with connect(f"ws://127.0.0.1:{server.port}/ws?clientId=ann") as back:
            assert [json.loads(back.recv(timeout=5))["type"] for _ in range(2)] == [
                "status",
                "execution_success",
            ]


def test_large_and_many_messages_harm_no_other_client(server: Live) -> None:
    with (
        connect(f"ws://127.0.0.1:{server.port}/ws", compression=None) as loud,
        native(server) as neighbour,
    ):
        neighbour.recv()
        for _ in range(2_000):
            loud.send("[" * 500)
        with pytest.raises(ConnectionClosed) as closed:
            loud.send("x" * (2**20 + 1))
            while True:
                loud.recv(timeout=5)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        neighbour.send(msgpack.packb({"type": "ping"}))
        assert msgpack.unpackb(neighbour.recv(timeout=5))["type"] == "pong"
    assert eventually(server, 0)


def test_pictures_reach_a_reading_client_whole(server: Live) -> None:
    with native(server) as client:
        client.recv()
        server.do(
            server.hub.publish, make_job(), EncodedPicture("3", "3", bytes(range(256)) * 1000)
        )
        assert msgpack.unpackb(client.recv(timeout=5))["event"]["image"] == bytes(range(256)) * 1000


def test_a_peer_that_reads_nothing_is_dropped_by_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No task of the server waits for the peer, however much was sent."""
    monkeypatch.setattr("katz_graph.web.http.connections.UNREAD", 300)
    with (
        listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()) as peer,
    ):
        listening.setblocking(True)
        accepted, _ = listening.accept()
        with accepted, pytest.raises(TimeoutError):
            assert peer
            accepted.settimeout(None)
            while True:
                accepted.sendall(b"x" * 2**20)


def test_the_end_of_the_server_is_a_proper_close(server: Live) -> None:
    with native(server) as client:
        client.recv()
        server.do(server.hub.close)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=5)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
