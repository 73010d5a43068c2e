"""Serves a server's routes over folders of a test, without a runner."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from starlette.testclient import TestClient

from katz_graph.files.folders import Folders
from katz_graph.web.app import build
from katz_graph.web.http.responses import PathRedactor
from katz_graph.web.metrics import Metrics
from katz_graph.web.options import ServeOptions
from katz_graph.web.state import State

ADDRESS = "http://127.0.0.1:8188"
# headers that a browser sends for the server's own pages
PAGE = {"Origin": ADDRESS, "Sec-Fetch-Site": "same-origin"}


def file_server(folder: Path, **options: Any) -> TestClient:
    """Serves the folders `models`, `input`, `output` and `data` below `folder`. Requests that need
    jobs or a runner fail.
    """
    settings = ServeOptions(
        data=folder / "data", input=folder / "input", output=folder / "output", **options
    )
    folders = Folders((folder / "models",), folder / "input", folder / "output", paths=False)
    nothing: Any = None
    state = State(
        settings, folders, PathRedactor.of(settings, folders), nothing, nothing, nothing, Metrics()
    )
    return TestClient(
        build(state), base_url=ADDRESS, raise_server_exceptions=False, follow_redirects=False
    )


def picture(
    kind: str = "png",
    size: tuple[int, int] = (4, 3),
    colour: Any = (200, 10, 30, 128),
    **texts: str,
) -> bytes:
    """Returns a picture file of one colour; `texts` are chunks of a PNG."""
    file = io.BytesIO()
    chunks = PngInfo()
    for key, text in texts.items():
        chunks.add_text(key, text)
    image = Image.new("RGBA", size, colour)
    (image.convert("RGB") if kind == "jpeg" else image).save(
        file, kind, **({"pnginfo": chunks} if kind == "png" else {})
    )
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """Returns a small PNG whose header declares many pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )


def everything_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
