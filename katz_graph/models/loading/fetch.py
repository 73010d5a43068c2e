"""Downloads safetensors files from URLs once: whole and checked, or not at all. Must not know what
they are for.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from katz_graph.errors import InputError, RunError
from katz_graph.messages import first_line, one_line
from katz_graph.models.loading.identity import read_header

CONNECTING = 30.0  # seconds until a server must answer
SILENCE = 60.0  # seconds without a byte
SECRET = re.compile(r"(?<=//)[^/@\s]+@|\?[^\s'\"]+")  # in an address: user and password, query


def fetch(url: str, place: Path) -> None:
    """Downloads the file of `url` to `place`; takes what is there already as it is. Of several at a
    time, one downloads and the others wait.

    url: of any protocol that fsspec and what is installed beside it know. InputError when there is
    no such file, or it is not safetensors, RunError when the network or the disk fails; nothing is
    at `place` then.
    """
    if place.exists():
        return
    from filelock import FileLock

    partial = place.with_name(f"{place.name}.part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(f"{place.name}.lock")):
            if place.exists():
                return
            try:
                _download(url, partial)
                _check(url, partial)
                partial.replace(place)
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"{shown(url)}: could not be fetched to {place.parent}: {_reason(error)}"
        ) from None


def shown(url: str) -> str:
    """Formats a URL for display: without passwords and the keys that stand in its query."""
    parts = urlsplit(url)
    return one_line(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))


def _download(url: str, partial: Path) -> None:
    from fsspec.callbacks import Callback
    from fsspec.core import url_to_fs

    progress = Callback()
    try:
        files, path = url_to_fs(
            url, skip_instance_cache=urlsplit(url).scheme in ("http", "https"), **_options(url)
        )
        files.get_file(path, str(partial), callback=progress)
    except FileNotFoundError:
        raise InputError(f"{shown(url)}: there is no such file") from None
    # a protocol that nothing here knows, or whose library is missing
    except (ImportError, ValueError) as error:
        raise InputError(f"{shown(url)}: cannot be fetched: {_reason(error)}") from None
    except OSError:
        raise
    except Exception as error:  # network libraries of fsspec's protocols have errors of their own
        raise RunError(f"{shown(url)}: could not be fetched: {_reason(error)}") from None
    size = partial.stat().st_size
    if progress.size is not None and progress.size != size:
        raise RunError(
            f"{shown(url)}: the connection ended after {size:,} of {progress.size:,} bytes: "
            "run it again"
        )


def _options(url: str) -> dict[str, Any]:
    """Limits silence, but not the whole time that a large file takes; asks for it uncompressed, so
    that its length is known.
    """
    if urlsplit(url).scheme.lower() not in ("http", "https"):
        return {}
    from aiohttp import ClientTimeout

    timeout = ClientTimeout(total=None, sock_connect=CONNECTING, sock_read=SILENCE)
    return {
        "client_kwargs": {"timeout": timeout, "trust_env": True},
        "headers": {"Accept-Encoding": "identity"},
    }


def _check(url: str, partial: Path) -> None:
    """Raises InputError when what came is a web page, a pickle, or cut off."""
    try:
        read_header(partial)
    except InputError as problem:
        raise InputError(f"{shown(url)}: {str(problem).removeprefix(f'{partial}: ')}") from None


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    # of aiohttp's answers; the rest of their text is the address, keys included
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return f"the server answered {status} {getattr(error, 'message', '')}".rstrip()
    return SECRET.sub("", one_line(first_line(error)))
