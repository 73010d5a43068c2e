"""Connections of the server write and end correctly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from katz_graph.web.http import connections
from katz_graph.web.http.connections import GATHERED, Gathering, HttpServer, listen


class Sent:
    """Records a transport's writes, and when it was closed."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: bytes) -> None:
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.closed_after = len(self.pieces)

    def is_closing(self) -> bool:
        return self.closed_after is not None


def gather(use: Callable[[Any, Sent], Coroutine[Any, Any, None]]) -> Sent:
    sent = Sent()

    async def main() -> None:
        await use(Gathering(sent), sent)  # type: ignore[arg-type]

    asyncio.run(main())
    return sent


def test_writes_of_one_turn_leave_together_and_in_order() -> None:
    async def use(transport: Any, sent: Sent) -> None:
        transport.write(b"head")
        transport.write(b"body")
        assert sent.pieces == []
        await asyncio.sleep(0)
        transport.write(b"more")
        await asyncio.sleep(0)

    assert gather(use).pieces == [b"headbody", b"more"]


def test_written_data_is_sent_before_the_end_in_large_parts() -> None:
    async def use(transport: Any, sent: Sent) -> None:
        transport.write(b"x" * (GATHERED + 1))
        assert len(sent.pieces) == 1
        transport.write(b"last")
        transport.close()
        assert transport.is_closing()
        await asyncio.sleep(0)

    sent = gather(use)
    assert sent.pieces[1:] == [b"last"] and sent.closed_after == 2


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/pieces":
        await StreamingResponse(iter([b"a" * 100_000, b"b" * 100_000]))(scope, receive, send)
    else:
        await PlainTextResponse("hello")(scope, receive, send)


def test_answers_arrive_whole_and_the_server_ends_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "DATE", 60.0)  # seconds until the next check

    async def main() -> tuple[bytes, bytes]:
        listening = listen("127.0.0.1", 0)
        server = HttpServer(answer, 16)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        port = listening.getsockname()[1]
        short, long = await asked(port, "/"), await asked(port, "/pieces")
        server.end()
        await asyncio.wait_for(serving, 30)
        return short, long

    short, long = asyncio.run(main())
    assert short.endswith(b"\r\n\r\nhello") and b"\r\ndate: " in short.lower()
    assert b"a" * 100_000 in long and b"b" * 100_000 in long


async def asked(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    data = await reader.read()
    writer.close()
    return data
