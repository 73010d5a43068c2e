"""Sends HTTP requests to a server for the command line. Every failure is reported in one line. Must
not know jobs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from katz_graph.core.errors import InputError, KatzError, RunError
from katz_graph.core.messages import one_line, shorten
from katz_graph.formats.strict_json import parse_json

TIMEOUT = 60.0  # seconds without a byte
LIMIT = 256 * 2**20  # bytes read of one answer
SHOWN = 20  # error lines printed for one rejected request


class Unreachable(RunError):
    """The server did not answer. It may have received the request, unless the connection was
    `refused` because no server listens.
    """

    def __init__(self, message: str, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class _NoRedirects(HTTPRedirectHandler):
    """Disables redirects: a redirect would send the token to an arbitrary address."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class RemoteServer:
    """Sends requests to a server at the root `url`. InputError unless it is an HTTP or HTTPS
    address.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
            or "@" in parts.netloc
        ):
            raise InputError(
                f"--server {one_line(url)}: expected an address like http://127.0.0.1:8188"
            )
        if token is not None and not (token.isascii() and token.isprintable() and token):
            raise InputError("--token: expected printable ASCII characters")
        self.root = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = build_opener(_NoRedirects)

    def websocket(self, client: str) -> str:
        """Returns the address of a client's websocket."""
        return f"ws{self.root.removeprefix('http')}/ws?clientId={quote(client, safe='')}"

    def get(self, path: str) -> Any:
        """Sends a GET request; returns the parsed JSON answer."""
        with self._open(Request(f"{self.root}{path}")) as answer:
            return self._parsed(answer.read(LIMIT))

    def post(
        self, path: str, document: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Any:
        """Posts a JSON document; returns the parsed JSON answer, or None if it is empty."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        with self._open(
            Request(f"{self.root}{path}", json.dumps(document).encode(), sent, method="POST")
        ) as answer:
            data = answer.read(LIMIT)
        return self._parsed(data) if data else None

    def download(self, path: str, query: Mapping[str, str], target: Path) -> None:
        """Downloads an answer into a file. The file exists only if the download completed."""
        partial = target.with_name(f".{target.name}.partial")
        try:
            with (
                self._open(Request(f"{self.root}{path}?{urlencode(query)}")) as answer,
                partial.open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def refusal(self, status: int, body: bytes, retry_after: str | None = None) -> KatzError:
        """Converts an error answer of the server to an exception."""
        lines = _reasons(body) or [f"answered {status}"]
        if status in (401, 403):
            return InputError(f"--server {self.root}: {lines[0]}; is --token right?")
        if status in (429, 503):
            wait = (
                f"; try again in {retry_after} s" if retry_after and retry_after.isdecimal() else ""
            )
            return RunError(f"{self.root}: {lines[0]}{wait}")
        if status == 400:
            return InputError("\n".join(lines[:SHOWN]))
        return RunError(
            f"{self.root}: "
            + (
                "redirects to another address; use that address"
                if 300 <= status < 400
                else lines[0]
            )
        )

    def unreachable(self, error: Exception) -> Unreachable:
        """Converts a failed or lost connection to an exception."""
        reason = error.reason if isinstance(error, URLError) else error
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return Unreachable(
            f"--server {self.root}: {one_line(shorten(text, 200))}",
            isinstance(reason, ConnectionRefusedError),
        )

    def _open(self, request: Request) -> Any:
        for name, value in self.headers.items():
            request.add_unredirected_header(name, value)
        try:
            return self._opener.open(request, timeout=TIMEOUT)
        except HTTPError as error:
            with error:
                raise self.refusal(
                    error.code, error.read(LIMIT), error.headers.get("Retry-After")
                ) from None
        except (OSError, HTTPException) as error:
            raise self.unreachable(error) from None

    def _parsed(self, data: bytes) -> Any:
        try:
            return parse_json(data.decode())
        except (InputError, UnicodeDecodeError):
            raise InputError(
                f"--server {self.root}: the response is not JSON; is that a Katz Graph server?"
            ) from None


def _reasons(body: bytes) -> list[str]:
    """Returns the lines of an error answer in ComfyUI's format: node errors if present, otherwise
    the error of the whole prompt.
    """
    try:
        document = parse_json(body.decode())
    except (InputError, UnicodeDecodeError):
        return []
    if not isinstance(document, Mapping):
        return []
    error = document.get("error")
    if not isinstance(error, Mapping):
        return [shorten(one_line(error), 500)] if isinstance(error, str) else []
    of_nodes = node_problems(document.get("node_errors"))
    return of_nodes or [line for line in (_said(error),) if line]


def node_problems(node_errors: Any) -> list[str]:
    """Formats a line per problem in ComfyUI's `node_errors`."""
    lines = []
    for node, found in node_errors.items() if isinstance(node_errors, Mapping) else ():
        errors = found.get("errors") if isinstance(found, Mapping) else None
        for error in errors if isinstance(errors, list) else ():
            if isinstance(error, Mapping):
                lines.append(
                    f"node {one_line(shorten(str(node)))} "
                    f"({one_line(shorten(str(found.get('class_type'))))}): {_said(error)}"
                )
    return lines


def _said(error: Mapping[str, Any]) -> str:
    parts = (error.get("message"), error.get("details"))
    return ": ".join(
        shorten(one_line(part), 500) for part in parts if isinstance(part, str) and part
    )
