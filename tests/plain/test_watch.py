"""Watching a job survives lost connections and misbehaving servers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import msgpack
import pytest
from websockets.sync.server import ServerConnection, serve

from katz_graph.cli import watch
from katz_graph.cli.remote import RemoteServer, Unreachable
from katz_graph.cli.watch import Listener, follow, open_line
from katz_graph.web.events import Ended
from katz_graph.web.live.katz_channel import SUBPROTOCOL, NativeChannel

KNOWN = {
    "id": "j",
    "result": {"job": "j", "status": "completed", "at": 1.0, "kind": "ended"},
    "state": None,
}


@contextlib.contextmanager
def served(handle: Callable[[ServerConnection], None]) -> Iterator[RemoteServer]:
    with serve(handle, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield RemoteServer(f"http://127.0.0.1:{server.socket.getsockname()[1]}")
        finally:
            server.shutdown()
            thread.join()


def followed(server: RemoteServer, said: list[str]) -> Ended:
    return follow(
        server,
        "ann",
        open_line(server, "ann"),
        "j",
        Listener(lambda event: None, lambda before: None, said.append),
    )


def test_a_server_that_accepts_and_closes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.4)
    lines: list[float] = []

    def close(socket: ServerConnection) -> None:
        lines.append(time.monotonic())
        socket.close(1013, "there are enough sockets")

    said: list[str] = []
    with (
        served(close) as server,
        pytest.raises(
            Unreachable,
            match="closes every connection; gave up after 0 s; job j continues on the server",
        ),
    ):
        followed(server, said)
    assert len(said) == 1 and "reconnecting" in said[0]
    assert 2 <= len(lines) <= 5 and all(
        later - earlier > 0.15 for earlier, later in itertools.pairwise(lines)
    )


def test_a_line_that_the_server_ends_in_order_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    lines = 0

    def restart(socket: ServerConnection) -> None:
        nonlocal lines
        lines += 1
        channel = NativeChannel()
        socket.recv()
        for frame in channel.pong():
            socket.send(frame.data)
        if lines < 6:  # longer than the timeout, counted from the first loss
            return socket.close(1001, "the server is shutting down")
        return socket.send(msgpack.packb({"type": "job", "seq": 1, "id": "j", "job": KNOWN}))

    said: list[str] = []
    with served(restart) as server:
        assert followed(server, said).status == "completed"
    assert lines == 6 and said[-1] == "connected again"
