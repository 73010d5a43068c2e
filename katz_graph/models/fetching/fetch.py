"""Reads safetensors files at URLs: identities from headers, and whole files. Must not know the
cache, nor the use of files.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from katz_graph.core.errors import Cancelled, InputError, KatzError, RunError
from katz_graph.core.messages import first_line, one_line, shorten
from katz_graph.core.recipe import FileIdentity
from katz_graph.files.locks import never
from katz_graph.files.urls import ANY, CHAIN, FetchRule, address, checksum, shown, without_secrets
from katz_graph.models.fetching.hops import MAX_HOPS, WEB, check_hop, client_of, redirected
from katz_graph.models.loading.identity import (
    LENGTH_BYTES,
    LONGEST_HEADER,
    LONGEST_SIGN,
    read_header_of,
    size_by_header,
)

VERSIONS = (
    "ETag", "etag", "generation", "md5Hash", "checksum", "Last-Modified", "LastModified",
    "last_modified", "updated", "mtime", "modified", "created",
)  # fmt: skip
"""Lists the metadata keys of servers that identify a file's version, most reliable first."""
PART_OF_FILE = 206  # HTTP status for a range request (RFC 9110, section 15.3.7)
NO_SUCH_RANGE = 416
POLL_S = 0.05  # between two checks of `cancelled`
PIECE = 2**20  # bytes per read
BLOCK = 2**24  # bytes per request of a protocol without streams
HEADER_BLOCK = 2**19  # bytes of the first request; most headers are shorter
log = logging.getLogger("katz_graph")


@dataclass(frozen=True, slots=True)
class Patience:
    """Holds the timeouts for servers, in seconds."""

    connecting: float = 30.0  # until the connection
    silence: float = 60.0  # between two reads
    header: float = 60.0  # for a file's whole header


PATIENCE = Patience()


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds a server's response, the bytes of a file from `start`. `size`: bytes of the whole file,
    None if the server does not report them. `read(n)` returns the next n bytes at most, and none at
    the end.
    """

    read: Callable[[int], bytes]
    start: int
    size: int | None
    version: str


class Changed(InputError):
    """Signals that the file at a URL has changed since its identity was taken."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{shown(url)}: changed since the workflow began to use it: run the workflow again"
        )


def identify(
    url: str,
    patience: Patience = PATIENCE,
    cancelled: Callable[[], bool] = never,
    rule: FetchRule = ANY,
) -> tuple[FileIdentity, bytes]:
    """Returns the identity and the header of the file at a URL; reads no more than the header.
    Raises Cancelled when `cancelled` returns true; does not stop a request in flight.

    url: of any protocol supported by fsspec and its installed extensions, optionally followed by
    `#sha256=` and the file's hash. `rule`: the permitted URLs, redirects included. RunError has the
    same text for every reason. Only the log names the reason, because responses of servers in the
    local network must not reach the author of the URL.
    """
    checksum(url)
    asked: Future[tuple[FileIdentity, bytes]] = Future()

    def ask() -> None:
        try:
            asked.set_result(_identify(url, patience, rule.naming(url)))
        except BaseException as error:
            asked.set_exception(error)

    threading.Thread(target=ask, name="katz-identify", daemon=True).start()
    deadline = time.monotonic() + patience.header
    while not wait((asked,), POLL_S).done:
        if cancelled():
            raise Cancelled(f"{shown(url)}: no longer needed")
        if time.monotonic() > deadline:
            raise _not_fetched(url, f"its header did not arrive within {patience.header:g} s")
    return asked.result()


def _identify(url: str, patience: Patience, rule: FetchRule) -> tuple[FileIdentity, bytes]:
    with _errors_of(url, patience):
        with _opened(url, rule, patience, 0, HEADER_BLOCK, HEADER_BLOCK) as answer:
            begin = _read(url, answer, 0, LENGTH_BYTES)
            end = LENGTH_BYTES + int.from_bytes(begin, "little")
            if end > min(LONGEST_HEADER, answer.size or LONGEST_HEADER):
                end = (
                    LENGTH_BYTES + LONGEST_SIGN
                )  # no safetensors header: reads a signature for the error
            begin += _read(url, answer, len(begin), min(end, HEADER_BLOCK))
        if end > HEADER_BLOCK:
            with _opened(url, rule, patience, HEADER_BLOCK, HEADER_BLOCK, end) as rest:
                if rest.version != answer.version:
                    raise Changed(url)
                more = _read(url, rest, rest.start, end)
                begin += more[HEADER_BLOCK - rest.start :]
        header, entries = read_header_of(shown(url), BytesIO(begin).read, answer.size)
    size = size_by_header(header, entries)
    file = FileIdentity(
        url, size, 0, hashlib.sha256(header).hexdigest(), answer.version, fetch=rule.words
    )
    return file, header


def download(
    file: FileIdentity,
    part: BinaryIO,
    cancelled: Callable[[], bool],
    patience: Patience = PATIENCE,
) -> None:
    """Writes the bytes of the file at a URL to `part`, after the bytes that `part` already has.

    Checks `cancelled` between reads, and raises Cancelled if it returns true. Raises Changed if the
    server has another file, RunError if the network fails; `part` keeps the bytes received. OSError
    is a disk error.
    """
    url = file.path
    rule = FetchRule.parse(file.fetch) if file.fetch else ANY.naming(url)
    here = part.seek(0, os.SEEK_END)
    # resuming needs a version to check that the file is the same
    start = here if file.version and here < file.size else 0
    with _errors_of(url, patience), _opened(url, rule, patience, start, BLOCK) as answer:
        if answer.version != file.version or answer.size not in (None, file.size):
            raise Changed(url)
        done = answer.start
        _to_disk(lambda: (part.seek(done), part.truncate()))
        while True:
            if cancelled():
                raise Cancelled(f"{shown(url)}: no longer needed")
            piece = answer.read(PIECE)
            if not piece:
                break
            done += len(piece)
            if done > file.size:
                raise Changed(url)
            _to_disk(lambda piece=piece: part.write(piece))  # type: ignore[misc]
        _to_disk(part.flush)
        if done != file.size:
            raise _ended(url, done, file.size)


class _DiskError(KatzError):
    """Carries a disk error through `with` statements that handle network errors."""


def _to_disk(write: Callable[[], Any]) -> None:
    try:
        write()
    except OSError as error:
        raise _DiskError from error


@contextmanager
def _errors_of(url: str, patience: Patience) -> Iterator[None]:
    """Turns all errors of a URL into one error, and logs the reason."""
    try:
        yield
    except _DiskError as error:
        assert isinstance(error.__cause__, OSError)
        raise error.__cause__ from None
    except (Cancelled, Changed):
        raise
    except FileNotFoundError:
        reason = "file not found"
    except TimeoutError:
        reason = (
            f"the server did not answer within {patience.connecting:g} s, or was silent for "
            f"{patience.silence:g} s"
        )
    except Exception as error:  # fsspec's network libraries raise their own error types
        reason = _reason(error)
    else:
        return
    raise _not_fetched(url, reason)


def _not_fetched(url: str, reason: str) -> RunError:
    """Logs why a URL could not be fetched. Returns an error without the reason."""
    log.warning("%s: could not be fetched: %s", shown(url), reason)
    return RunError(f"{shown(url)}: could not be fetched; the log says why")


@contextmanager
def _opened(
    url: str, rule: FetchRule, patience: Patience, start: int, block: int, stop: int | None = None
) -> Iterator[Answer]:
    """Requests a file from byte `start` to `stop`. Servers without range requests send the whole
    file.
    """
    check_hop(address(url), rule)
    if urlsplit(url).scheme.lower() in WEB:
        with _stream(url, rule, patience, start, stop) as answer:
            yield answer
        return
    from fsspec.core import url_to_fs

    chain, options = _without_redirects(address(url), rule, patience)
    files, path = url_to_fs(chain, **options)
    information = files.info(path)
    with files.open(path, "rb", block_size=block) as file:
        file.seek(start)
        yield Answer(file.read, start, information["size"], _version(information))


@contextmanager
def _stream(
    url: str, rule: FetchRule, patience: Patience, start: int, stop: int | None
) -> Iterator[Answer]:
    """Requests a file from a web server, and follows redirects. Requests no compression, so the
    length is known. Limits silence, not total time, because large files take long.
    """
    headers = {"Accept-Encoding": "identity"}
    if start or stop is not None:
        headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    try:
        _, stream = _followed(address(url), rule, patience, headers)
    except Exception as error:
        if start and getattr(error, "status", None) == NO_SUCH_RANGE:
            raise Changed(url) from None
        raise
    with stream:
        said = stream.r.headers
        if stream.r.status == PART_OF_FILE:  # Content-Range: bytes 0-99/1234
            begins, size = start, said.get("Content-Range", "").rpartition("/")[2]
        else:
            begins, size = 0, said.get("Content-Length", "")
        known = size.isdecimal() and not said.get("Content-Encoding")
        yield Answer(stream.read, begins, int(size) if known else None, _version(said))


def _followed(
    url: str, rule: FetchRule, patience: Patience, headers: dict[str, str]
) -> tuple[str, Any]:
    """Requests a URL and follows redirects. Returns the last URL and its response; the caller
    closes the response.
    """
    for _ in range(MAX_HOPS):
        with ExitStack() as closing:
            stream = closing.enter_context(_asked(url, rule, patience, headers))
            following = redirected(url, stream.r.status, stream.r.headers.get("Location"))
            if following is None:
                closing.pop_all()
                return url, stream
        check_hop(following, rule)
        if urlsplit(following).scheme.lower() not in WEB:
            raise ValueError("a redirect leads to another protocol")
        url = following
    raise ValueError(f"more than {MAX_HOPS} redirects")


def _without_redirects(
    chain: str, rule: FetchRule, patience: Patience
) -> tuple[str, dict[str, Any]]:
    """Replaces the web addresses in a protocol chain by their redirect targets. Returns the chain
    and the fsspec options that forbid further redirects.
    """
    parts, options = CHAIN.split(chain), dict[str, Any]()
    for place, part in enumerate(parts):
        if urlsplit(part).scheme.lower() in WEB:
            parts[place], stream = _followed(part, rule, patience, {"Range": "bytes=0-0"})
            stream.close()
            options["skip_instance_cache"] = True
            options[urlsplit(parts[place]).scheme] = {
                "skip_instance_cache": True,
                "get_client": client_of(parts[place], rule),
                "allow_redirects": False,
            }
    return "::".join(parts), options


def _asked(url: str, rule: FetchRule, patience: Patience, headers: dict[str, str]) -> Any:
    """Requests a URL from one web server, and follows no redirect."""
    from aiohttp import ClientTimeout
    from fsspec.implementations.http import HTTPFileSystem

    timeout = ClientTimeout(
        total=None, sock_connect=patience.connecting, sock_read=patience.silence
    )
    files = HTTPFileSystem(
        skip_instance_cache=True,
        get_client=client_of(url, rule),
        client_kwargs={"timeout": timeout, "trust_env": True},
    )
    # block size 0 means one stream; any `size` saves the request for it
    return files.open(url, block_size=0, size=1, headers=headers, allow_redirects=False)


def _version(said: Any) -> str:
    return next((str(said[word]) for word in VERSIONS if said.get(word)), "")


def _read(url: str, answer: Answer, start: int, stop: int) -> bytes:
    """Reads the bytes of a file from its position `start` to `stop`, fewer at the end of the file.
    Raises RunError if the connection ends early.
    """
    pieces, done = [], start
    while done < stop and (piece := answer.read(stop - done)):
        pieces.append(piece)
        done += len(piece)
    if answer.size is not None and done < min(stop, answer.size):
        raise _ended(url, done, answer.size)
    return b"".join(pieces)


def _ended(url: str, done: int, size: int) -> RunError:
    return RunError(
        f"{shown(url)}: the connection ended after {done:,} of {size:,} bytes: run it again"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    # for aiohttp's errors: the remaining text is the URL, including secrets
    status = getattr(error, "status", None)
    if isinstance(status, int):
        said = str(getattr(error, "message", "")).strip().partition("\n")[0]
        return f"the server answered {status} {one_line(shorten(said))}".rstrip()
    return without_secrets(one_line(first_line(error)))
