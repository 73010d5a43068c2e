"""Imitates a third-party ComfyUI client, using only `urllib` and `websockets`. Assumes that a
server is ready as soon as its port is open.

The client sends the requests that front ends send at startup, uploads a picture, posts a graph
immediately and waits for the result. It retries nothing.
"""

from __future__ import annotations

import json
import socket
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from websockets.sync.client import ClientConnection, connect

from katz_graph.core.errors import RunError

ANSWER = 150.0  # seconds, timeout of one HTTP response
POLL = 0.01
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c4944415478da63f8ffff3f0005fe02fe6ce0c92e0000000049454e44ae426082"
)  # a white PNG


@dataclass(frozen=True, slots=True)
class Seen:
    """Records when a client got its responses, in seconds after `since`."""

    port: float  # the port was open
    object_info: float  # all node types were received
    first_picture: float  # the picture was received
    picture: bytes  # PNG


class Session:
    """Sends one prompt after another, and waits for each on a websocket."""

    def __init__(self, base: str, client: str, watched: ClientConnection) -> None:
        self.base, self._client, self._watched = base, client, watched

    def picture(self, prompt: Mapping[str, Any], until: float) -> bytes:
        """Returns the first output picture of a prompt. Raises RunError if it fails, TimeoutError
        after `until`, a time of `time.perf_counter`.
        """
        body = json.dumps({"prompt": prompt, "client_id": self._client}).encode()
        asked = json.loads(_ask(f"{self.base}/prompt", body))
        image = _shown(self._watched, asked["prompt_id"], until)
        return _ask(f"{self.base}/view?{urllib.parse.urlencode(image)}")


@contextmanager
def session(address: str, port: int) -> Iterator[Session]:
    """Yields a client's session. Raises OSError if the server does not answer."""
    client = uuid.uuid4().hex
    with connect(f"ws://{address}:{port}/ws?clientId={client}", max_size=None) as watched:
        yield Session(f"http://{address}:{port}", client, watched)


def visit(
    address: str, port: int, prompt: Mapping[str, Any], since: float, patience: float
) -> Seen:
    """Waits for the port, then uses the server. `since` is a time of `time.perf_counter`. Raises
    urllib's HTTPError for an HTTP error status, RunError if the job failed.
    """
    _wait_for_port(address, port, since + patience)
    opened = time.perf_counter()
    json.loads(_ask(f"http://{address}:{port}/object_info"))
    known = time.perf_counter()
    with session(address, port) as client:
        for path in ("/system_stats", "/queue", "/api/settings", "/api/extensions"):
            json.loads(_ask(client.base + path))
        json.loads(_uploaded(f"{client.base}/upload/image", PIXEL))
        picture = client.picture(prompt, since + patience)
    return Seen(opened - since, known - since, time.perf_counter() - since, picture)


def _wait_for_port(address: str, port: int, until: float) -> None:
    while time.perf_counter() < until:
        try:
            socket.create_connection((address, port), 1.0).close()
            return
        except OSError:
            time.sleep(POLL)
    raise TimeoutError(f"{address}:{port} did not open")


def _ask(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    with urllib.request.urlopen(
        urllib.request.Request(url, body, dict(headers or {})), timeout=ANSWER
    ) as answer:
        data: bytes = answer.read()
    return data


def _uploaded(url: str, picture: bytes) -> bytes:
    edge = uuid.uuid4().hex
    part = (
        f'--{edge}\r\nContent-Disposition: form-data; name="image"; '
        'filename="pixel.png"\r\nContent-Type: image/png\r\n\r\n'
    )
    body = part.encode() + picture + f"\r\n--{edge}--\r\n".encode()
    return _ask(url, body, {"Content-Type": f"multipart/form-data; boundary={edge}"})


def _shown(watched: ClientConnection, prompt: str, until: float) -> dict[str, str]:
    """Waits for the end of a prompt; returns its first output picture. Raises RunError if it
    failed.
    """
    image: dict[str, str] = {}
    while True:
        message = watched.recv(timeout=max(0.0, until - time.perf_counter()))
        event = json.loads(message) if isinstance(message, str) else {}
        data = event.get("data", {})
        if event.get("type") == "execution_error" and data["prompt_id"] == prompt:
            raise RunError(data["exception_message"])
        if event.get("type") == "executed" and data["prompt_id"] == prompt:
            image = image or data["output"]["images"][0]
        if (
            event.get("type") == "executing"
            and data["node"] is None
            and data["prompt_id"] == prompt
        ):
            return image
