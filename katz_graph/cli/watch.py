"""Follows a job on a server over its native channel until the job ends, across dropped connections
and server restarts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgpack
from pydantic import ValidationError
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from katz_graph.cli.remote import RemoteServer, Unreachable
from katz_graph.core.errors import InputError, RunError
from katz_graph.core.events import Progress
from katz_graph.web.events import JOB_EVENT, ClientEvent, Ended, JobEvent, PlanMade
from katz_graph.web.live.katz_channel import SUBPROTOCOL

PATIENCE = 120.0  # seconds without a connection
PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds between attempts; the last one repeats
FRAME_BYTES = 512 * 2**20
CLOSING = 1.0  # seconds to wait for the closing handshake
POLL_INTERVAL_S = 0.25  # seconds of one wait; the longest delay of Ctrl-C


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks for a job's events: `on_event` receives each event, `queued` the number of jobs
    ahead, and `say` lines about the connection.
    """

    on_event: Callable[[ClientEvent], None]
    queued: Callable[[int], None]
    say: Callable[[str], None]


def follow(
    server: RemoteServer, client: str, line: ClientConnection, job: str, listener: Listener
) -> Ended:
    """Follows a job and returns its final event. Takes ownership of `line`, and reconnects if the
    connection drops. After a reconnect, plans and progress are reported again.

    Raises Unreachable if the server cannot be reached for PATIENCE seconds; the job continues on
    the server. Raises RunError if the server does not know the job.
    """
    away: float | None = None
    attempts = 0
    connected: ClientConnection | None = line
    while True:
        try:
            with connected if connected is not None else open_line(server, client) as socket:
                connected = None
                socket.send(msgpack.packb({"type": "watch", "job": job}))
                while True:
                    frame = _read(socket)
                    if away is not None:
                        listener.say("connected again")
                    away, attempts = None, 0
                    for event in _events(frame, job, listener.queued):
                        if isinstance(event, Ended):
                            return event
                        listener.on_event(event)
        except (Unreachable, ConnectionClosed) as error:
            now = time.monotonic()
            if away is None:
                away = now
                listener.say(
                    "the connection to the server is lost; the job continues; reconnecting"
                )
            elif now - away > PATIENCE:
                reason = (
                    str(error)
                    if isinstance(error, Unreachable)
                    else f"--server {server.root}: closes every connection"
                )
                raise Unreachable(
                    f"{reason}; gave up after {PATIENCE:.0f} s; job {job} continues on the server",
                    refused=False,
                ) from None
            time.sleep(PAUSES[min(attempts, len(PAUSES) - 1)])
            attempts += 1


def open_line(server: RemoteServer, client: str) -> ClientConnection:
    """Opens the native channel of a client. Raises Unreachable if the server does not answer or is
    not ready, and InputError if it refuses or speaks another protocol.
    """
    try:
        socket = connect(
            server.websocket(client),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers=server.headers,
            compression=None,
            max_size=FRAME_BYTES,
            close_timeout=CLOSING,
        )
    except InvalidStatus as error:
        if error.response.status_code >= 500:  # the server starts or stops
            raise server.unreachable(error) from None
        raise server.refusal(
            error.response.status_code, bytes(error.response.body or b"")
        ) from None
    except (OSError, WebSocketException) as error:
        raise server.unreachable(error) from None
    if socket.subprotocol != SUBPROTOCOL:
        socket.close()
        raise InputError(
            f"--server {server.root}: does not speak {SUBPROTOCOL}; is that a Katz Graph server?"
        )
    return socket


def _read(socket: ClientConnection) -> Mapping[str, Any]:
    """Returns the next frame; an empty mapping for a text frame. ConnectionClosed if the connection
    ends for any reason.
    """
    while True:
        with suppress(TimeoutError):
            data = socket.recv(POLL_INTERVAL_S)
            return msgpack.unpackb(data) if isinstance(data, bytes) else {}


def _events(
    frame: Mapping[str, Any], job: str, queued: Callable[[int], None]
) -> Iterator[ClientEvent]:
    """Yields the events of a job in a frame, including the state that answers `watch`."""
    kind = frame.get("type")
    if kind in ("snapshot", "queue"):
        places = (frame.get("queue") or {} if kind == "snapshot" else frame).get("places") or {}
        if job in places:
            queued(places[job])
    elif kind == "job" and frame["id"] == job:
        yield from _job_messages(frame["job"], job)
    elif (
        kind == "event"
        and (reported := _parsed(frame["event"])) is not None
        and reported.job == job
    ):
        yield reported.event


def _job_messages(known: Mapping[str, Any] | None, job: str) -> Iterator[ClientEvent]:
    if known is None:
        raise RunError(f"the server no longer knows job {job}")
    state = known.get("state") or {}
    for node, plan in state.get("plans", {}).items():
        yield PlanMade(node, plan)
    for node, reported in state.get("nodes", {}).items():
        if reported["status"] == "running":
            yield Progress(
                node,
                display=reported["display"],
                value=reported["value"],
                maximum=reported["maximum"],
            )
    if (ended := _parsed(known.get("result"))) is not None:
        yield ended.event


def _parsed(event: Any) -> JobEvent | None:
    """Parses an event; None for an event type of a newer server."""
    try:
        return JOB_EVENT.validate_python(event)
    except ValidationError:
        return None
