"""Serves `/ws`: sends the hub's frames to a client and reads the client's requests. A lost
connection ends only its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from katz_graph.core.errors import InputError
from katz_graph.web.live.comfy_channel import ConventionChannel, features
from katz_graph.web.live.hub import CLIENT_ID, Session, TooManySockets
from katz_graph.web.live.katz_channel import SUBPROTOCOL, NativeChannel, Watch, read_request
from katz_graph.web.live.outbox import TOO_SLOW
from katz_graph.web.state import State

RECENT = 64  # finished jobs in a native snapshot
# seconds that a client has to receive a frame; shorter than the hub's GRACE, after which an open
# session counts as intact
READING = 90.0
CLOSING = 5.0  # seconds that a client has to confirm the close
IN_ORDER = (1000, 1001)  # codes with which a client closes an intact connection
# RFC 6455, section 7.4.1, and IANA's registry
POLICY, UNSUPPORTED, MALFORMED, BUSY = 1008, 1003, 1007, 1013


class Goodbye(Exception):
    """Ends the connection with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def router(state: State) -> APIRouter:
    routes = APIRouter()

    @routes.websocket("/ws")
    async def socket(websocket: WebSocket) -> None:
        client = websocket.query_params.get("clientId") or uuid.uuid4().hex
        if not CLIENT_ID.fullmatch(client):
            await websocket.close(
                POLICY, "clientId: 1 to 200 characters, none of them a control character"
            )
            return
        native = SUBPROTOCOL in websocket.scope["subprotocols"]
        channel = NativeChannel() if native else ConventionChannel(features(state.options.limits))
        await websocket.accept(SUBPROTOCOL if native else None)
        try:
            address = websocket.client.host if websocket.client else ""
            session = state.hub.connect(client, channel, address)
        except TooManySockets as refusal:
            await _close(websocket, BUSY, str(refusal))
            return
        try:
            session.begin(await state.jobs.recent(client, RECENT) if native else ())
            code, reason = await _carry(websocket, session, channel, state)
        finally:
            session.close()
        await _close(websocket, code, reason)

    return routes


async def _carry(
    websocket: WebSocket, session: Session, channel: NativeChannel | ConventionChannel, state: State
) -> tuple[int, str]:
    """Sends and receives until one side ends the connection; returns the code and the reason."""
    reading = (
        _read_native(websocket, session, channel, state)
        if isinstance(channel, NativeChannel)
        else _read(websocket, session, channel)
    )
    tasks = [
        asyncio.ensure_future(part)
        for part in (_send(websocket, session), reading, session.outbox.closed())
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, WebSocketDisconnect) and error.code in IN_ORDER:
            session.goodbye()
        if isinstance(error, Goodbye):
            return error.code, error.reason
        if error is not None and not isinstance(
            error, (WebSocketDisconnect, OSError, RuntimeError)
        ):
            raise error
    return session.outbox.end or (1000, "")


async def _send(websocket: WebSocket, session: Session) -> None:
    while True:
        data = await session.next()
        try:
            async with asyncio.timeout(READING):
                await (
                    websocket.send_text(data)
                    if isinstance(data, str)
                    else websocket.send_bytes(data)
                )
        except TimeoutError:
            raise Goodbye(*TOO_SLOW) from None


async def _read(websocket: WebSocket, session: Session, channel: ConventionChannel) -> None:
    while True:
        text, _ = await _receive(websocket)
        if text is not None:
            session.send(channel.read(text))


async def _read_native(
    websocket: WebSocket, session: Session, channel: NativeChannel, state: State
) -> None:
    while True:
        _, data = await _receive(websocket)
        if data is None:
            raise Goodbye(UNSUPPORTED, f"{SUBPROTOCOL} takes binary frames only")
        try:
            request = read_request(data)
        except InputError as error:
            raise Goodbye(MALFORMED, str(error)) from None
        if not isinstance(request, Watch):
            session.send(channel.pong())
            continue
        job = await state.jobs.job(request.job)
        owned = job if job is not None and job.client == session.client else None
        session.send(
            channel.watched(
                request.job, owned, state.hub.state(owned) if owned is not None else None
            )
        )


async def _receive(websocket: WebSocket) -> tuple[str | None, bytes | None]:
    """Receives a text or binary message. Raises WebSocketDisconnect after a disconnect."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    return message.get("text"), message.get("bytes")


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(Exception):  # may be closed already
        async with asyncio.timeout(CLOSING):
            await websocket.close(code, reason)
