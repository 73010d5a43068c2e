"""Computes the ETags of stored files, and checks `If-Match` and `If-None-Match` of requests."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from starlette.requests import Request

from katz_graph.web.http.responses import Refusal


def tag_of(state: os.stat_result) -> str:
    """Returns the ETag of a file in this state. Files are replaced, never changed in place, so each
    version has a new inode.
    """
    version = f"{state.st_mtime_ns} {state.st_size} {state.st_ino}"
    return f'"{hashlib.sha256(version.encode()).hexdigest()[:32]}"'


@dataclass(frozen=True, slots=True)
class Precondition:
    """Holds a client's condition for replacing a file: it has one of these tags (`*`: any), or, if
    `new`, does not exist.
    """

    tags: frozenset[str] | None = None
    new: bool = False

    @classmethod
    def of(cls, request: Request) -> Precondition:
        """Reads `If-Match` and `If-None-Match: *`."""
        match = frozenset(_tags(request, "if-match")) or None
        return cls(match, _tags(request, "if-none-match") == ["*"])

    def check(self, state: os.stat_result | None) -> None:
        """Raises Refusal 412 if a file in this state does not meet the condition; None: no file."""
        if self.new and state is not None:
            raise Refusal(412, "a file of this name exists", "exists")
        if self.tags is None:
            return
        if state is None:
            raise Refusal(412, "the file was deleted since it was read", "gone")
        if "*" not in self.tags and tag_of(state) not in self.tags:
            raise Refusal(412, "the file has changed since it was read", "changed")


def is_known(request: Request, tag: str) -> bool:
    """Returns whether the client has the response with this ETag."""
    known = _tags(request, "if-none-match")
    return tag in known or known == ["*"]


def _tags(request: Request, name: str) -> list[str]:
    return [
        given.strip().removeprefix("W/")
        for header in request.headers.getlist(name)
        for given in header.split(",")
    ]
