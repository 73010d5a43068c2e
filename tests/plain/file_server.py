"""Runs a web server of model files with the behaviour that a test chooses; makes safetensors files
for it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def safetensors(values: int = 1_000, fill: int = 0, name: str = "weight") -> bytes:
    """Returns a file of one tensor whose bytes are all `fill`."""
    header = json.dumps(
        {name: {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes([fill]) * (4 * values)


@dataclass
class Served:
    """Describes a served file. `reported`: reported length if it differs; `sent`: number of bytes after
    which the body stops; `hangs`: keeps the connection open afterwards; `pause`: seconds after each
    4 kB.
    """

    content: bytes
    etag: str | None = '"1"'
    ranges: bool = True
    length: bool = True
    reported: int | None = None
    sent: int | None = None
    hangs: bool = False
    pause: float = 0.0


@dataclass
class Request:
    path: str
    range: str | None
    sent: int = 0  # bytes of the body


@dataclass
class FileServer:
    port: int
    files: dict[str, Served] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def put(self, path: str, content: bytes, **manners: Any) -> str:
        """Serves a file and returns its URL."""
        self.files[path] = Served(content, **manners)
        return self.url(path)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def sent(self) -> int:
        return sum(request.sent for request in self.requests)


@contextmanager
def file_server() -> Iterator[FileServer]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    http.daemon_threads = True
    server = FileServer(http.server_port)
    http.files = server  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        http.shutdown()
        thread.join()
        http.server_close()


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: FileServer = self.server.files  # type: ignore[attr-defined]
        path = self.path.partition("?")[0].lstrip("/")
        request = Request(path, self.headers.get("Range"))
        server.requests.append(request)
        if path in server.moved:
            self.send_response(302)
            self.send_header("Location", server.moved[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path in server.files:
            with suppress(ConnectionError):
                self._send(server.files[path], request, server.stopping)
        else:
            self.send_error(server.statuses.get(path, 404))

    def _send(self, file: Served, request: Request, stopping: threading.Event) -> None:
        start, stop, total = 0, len(file.content), len(file.content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.range or "")
        if asked and file.ranges:
            start = int(asked[1])
            stop = min(int(asked[2] or total) + 1, total)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{file.reported or total}")
        else:
            self.send_response(200)
        if file.length:
            self.send_header(
                "Content-Length",
                str((file.reported or total) - start if stop == total else stop - start),
            )
        if file.etag:
            self.send_header("ETag", file.etag)
        self.end_headers()
        body = memoryview(file.content)[
            start : min(stop, total if file.sent is None else file.sent)
        ]
        for begin in range(0, len(body), 4096) if file.pause else (0,):
            piece = body[begin : begin + 4096] if file.pause else body
            for at in range(0, len(piece), 1 << 16):  # small writes keep `sent` exact
                self.wfile.write(piece[at : at + (1 << 16)])
                request.sent += len(piece[at : at + (1 << 16)])
            if file.pause and stopping.wait(file.pause):
                return
        if file.hangs:
            stopping.wait()
        self.close_connection = True

    def log_message(self, *_: Any) -> None: ...
