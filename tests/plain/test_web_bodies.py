"""Bodies that are or become larger than a route needs are refused. Each line of `HOSTILE` and
`MAX_BYTES` is a case (docs/testing.md).
"""

from __future__ import annotations

import asyncio
import io
import re
import struct
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from pace import pace
from starlette.types import Message
from web_server import Served, run

from katz_graph.core.errors import InputError
from katz_graph.formats.image import MAX_CHUNKS, workflow_from_picture
from katz_graph.formats.strict_json import MAX_VALUES, TooLarge
from katz_graph.web.app import build
from katz_graph.web.options import Limits

KB, MB = 2**10, 2**20
PIECE = 64 * KB  # that arrive at once
PROMPT_BYTES = 256 * KB
LIMITS = Limits(prompt_bytes=PROMPT_BYTES, body_bytes=16 * MB, upload_bytes=2 * MB)


TEXT = b'prompt:{"1":{}}'


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(*texts: tuple[bytes, bytes]) -> bytes:
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), *texts, (b"IDAT", zlib.compress(b"\0\0")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def packed(text: bytes, key: bytes = b"prompt") -> tuple[bytes, bytes]:
    return b"zTXt", key + b"\0\0" + zlib.compress(text, 9)


def webp(entries: int, size: int, order: str = ">", step: int = 1, text: bytes = TEXT) -> bytes:
    """Makes a WebP whose EXIF entries share one value of `size` bytes; with `step` 0, all but the
    first share a tag, too.
    """
    start = 8 + 2 + 12 * entries + 4
    exif = (b"MM\0*" if order == ">" else b"II*\0") + struct.pack(f"{order}IH", 8, entries)
    for at in range(entries):
        tag = 0x0110 if at == 0 else (0xA000 if step else 0x010F) + step * at
        exif += struct.pack(f"{order}HHII", tag, 2, size, start)
    exif += b"\0\0\0\0" + text.ljust(size)
    return b"RIFF\0\0\0\0WEBPEXIF" + struct.pack("<I", len(exif)) + exif


MANY = b"[" + b"[]," * 2_000_000 + b"[]]"
PAGE = b'{"prompt":{"1":{"class_type":"X","inputs":{"a":%s}}}}'
HOSTILE: dict[str, tuple[bytes, int]] = {
    "zTXt of many lists": (png(packed(MANY)), 413),
    "zTXt of blanks": (png(packed(b" " * 8 * MB)), 413),
    "two zTXt together": (
        png(packed(b'"' * 200_000), packed(b'"' * 200_000, b"workflow")),
        413,
    ),
    "zTXt after a text of the whole limit": (
        png((b"tEXt", b"prompt\0" + b" " * PROMPT_BYTES), packed(b" " * 8 * MB, b"workflow")),
        413,
    ),
    "compressed iTXt": (png((b"iTXt", b"prompt\0\1\0\0\0" + zlib.compress(MANY, 9))), 413),
    "plain iTXt": (png((b"iTXt", b"prompt\0\0\0\0\0" + b"9" * 2 * PROMPT_BYTES)), 413),
    "tEXt": (png((b"tEXt", b"prompt\0" + b"9" * 2 * PROMPT_BYTES)), 413),
    "zTXt that nobody reads": (png(packed(b" " * 8 * MB, b"comment")), 400),
    "EXIF with one value for many entries": (webp(5_000, 60_000), 200),
    "EXIF of more than the limit": (webp(1, 2 * PROMPT_BYTES), 413),
    "EXIF whose value lies outside": (webp(1, 60_000)[:-1000], 400),
    "JSON of more than the limit": (b"[" * 2 * PROMPT_BYTES, 413),
    "JSON with a false length": (PAGE % (b"9" * 2 * PROMPT_BYTES), 413),
    "JSON of most lists": (PAGE % (b"[" + b"[]," * 80_000 + b"[]]"), 200),
    "JSON that is nested": (PAGE % (b"[" * 100_000 + b"]" * 100_000), 400),
}
MAX_BYTES = {
    "/prompt": PROMPT_BYTES,
    "/katz/check": PROMPT_BYTES,
    "/katz/open": PROMPT_BYTES,
    "/katz/plan": PROMPT_BYTES,
    "/katz/tokens": PROMPT_BYTES,
    "/katz/unfold": PROMPT_BYTES,
    "/upload/image": 3 * MB,
    "/upload/mask": 3 * MB,
    "/userdata/{file}": 16 * MB,
    "/settings": 2 * MB,
    "/settings/{id}": 2 * MB,
    "/queue": MB,
    "/history": MB,
    "/api/jobs/cancel": MB,
    "/katz/files/trash": 2 * MB,
    "/katz/files/restore": 2 * MB,
    "/katz/presence": 256 * KB,
}
"""Maximum bytes read of a JSON body before it is refused; 64 KB for other routes."""


@pytest.mark.defect(21)
@pytest.mark.parametrize("path", ["/prompt", "/katz/open"])
def test_growing_bodies_are_refused_early(tmp_path: Path, path: str) -> None:
    async def scenario(server: Served) -> None:
        await server.client.post(path, json={})  # imports now, so that no case counts it
        for case, (content, expected) in HOSTILE.items():
            if expected == 200 and path != "/prompt":
                continue  # drawing other formats needs all node types
            tracemalloc.start()
            answer = await server.client.post(path, content=content)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert answer.status_code == expected, (case, answer.text[:300])
            assert peak < 40 * MB, (case, peak)
            assert expected != 413 or f"{PROMPT_BYTES:,}" in answer.text, case

    run(tmp_path, scenario, LIMITS)


@pytest.mark.defect(21)
@pytest.mark.parametrize(
    ("head", "piece"),
    [(b"\x89PNG\r\n\x1a\n", chunk(b"gAMA", b"")), (b"RIFF\0\0\0\0WEBP", b"ABCD\0\0\0\0")],
    ids=["PNG", "WebP"],
)
def test_a_picture_of_countless_chunks_is_not_read_to_its_end(head: bytes, piece: bytes) -> None:
    stream = io.BytesIO(head + piece * (2 * MAX_CHUNKS))
    with pytest.raises(TooLarge, match=f"{MAX_CHUNKS:,} chunks"):
        workflow_from_picture(stream)
    assert stream.tell() == len(head + piece * MAX_CHUNKS)


@pytest.mark.defect(21)
def test_a_value_of_exif_is_decoded_once_for_each_tag() -> None:
    content = webp(5_000, 4 * MB, step=0, text=b"")
    began = time.process_time()
    with pytest.raises(InputError, match="a WebP without a workflow"):
        workflow_from_picture(io.BytesIO(content), 8 * MB)
    took = time.process_time() - began
    assert took < 1.0 * pace()


@pytest.mark.defect(21)
def test_values_are_counted_before_they_are_made(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        body = PAGE % (b"[" + b"[]," * MAX_VALUES + b"[]]")
        answer = await server.client.post("/prompt", content=body)
        assert answer.status_code == 413 and f"{MAX_VALUES:,}" in answer.text
        commas = PAGE % (b'"' + b'a\\",' * MAX_VALUES + b'"')
        assert (await server.client.post("/prompt", content=commas)).status_code == 200

    run(tmp_path, scenario)


@pytest.mark.defect(22)
@pytest.mark.parametrize("announced", [True, False])
def test_no_route_reads_more_than_it_needs(tmp_path: Path, announced: bool) -> None:
    async def scenario(server: Served) -> None:
        paths = (await server.client.get("/openapi.json")).json()["paths"]
        routes = [
            (path, method)
            for path, methods in paths.items()
            for method in methods
            if method in ("post", "put", "patch", "delete")
        ]
        assert {path for path, _ in routes} >= MAX_BYTES.keys()
        app = build(server.state)
        for path, method in routes:
            asked = re.sub(r"{.*?}", "x", path)
            read, status = await endless(app, asked, method.upper(), announced)
            most = MAX_BYTES.get(path, 64 * KB)
            assert read <= most + 2 * PIECE and status == (413 if read else status), path
            assert not announced or status == 413, path

    run(tmp_path, scenario, LIMITS)


async def endless(app: Any, path: str, method: str, announced: bool) -> tuple[int, int]:
    """Sends a body of 64 MB; returns how many bytes were read, and the status of the answer."""
    headers = [(b"host", b"127.0.0.1:8188"), (b"content-type", b"application/json")]
    headers.append(
        (b"content-length", b"%d" % (64 * MB)) if announced else (b"transfer-encoding", b"chunked")
    )
    read, statuses = 0, []

    async def receive() -> Message:
        nonlocal read
        read += PIECE
        return {"type": "http.request", "body": b"[" * PIECE, "more_body": read < 64 * MB}

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "http_version": "1.1",
        "server": ("127.0.0.1", 8188),
        "headers": headers,
    }
    async with asyncio.timeout(20):
        await app(scope, receive, send)
    return read, statuses[0]
