"""Recognises URLs, writes them without their secrets, and says which of them may be fetched. Must
not know what is at them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import unquote, urldefrag, urlsplit

from katz_graph.core.errors import InputError
from katz_graph.core.messages import one_line

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://\S+")
# in a URL: user and password, query, and a fragment that assigns something, unless a checksum
SECRET = re.compile(r"(?<=//)[^/?#\s]*@|\?[^\s#]*|#(?=[^\s#]*=)(?!(?i:sha256=[0-9a-f]*)(?!\S))\S*")
# a URL within a text, without its scheme
EMBEDDED = re.compile(r"""://[^\s"'<>\\)]+""")
CHECKSUM = re.compile(r"sha256=([0-9a-f]{64})", re.IGNORECASE)
# joins the protocols of one address in fsspec, zip://a::https://b; [::1] is a host
CHAIN = re.compile(r"::(?![^\[]*\])")


def is_url(name: str) -> bool:
    """Recognises a URL, which says how it is reached: `https://...`. One whose host or port cannot
    be read is none.
    """
    if URL.fullmatch(name) is None:
        return False
    try:
        _ = urlsplit(name).port
    except ValueError:
        return False
    return True


def is_remote(name: str) -> bool:
    """Recognises a URL whose file has to be fetched; that of `file://...` is on this machine."""
    return is_url(name) and _scheme(name) != "file"


def shown(name: str) -> str:
    """Formats a file's name for display; a URL without passwords and the keys in its query."""
    return one_line(urldefrag(without_secrets(name)).url) if is_url(name) else name


def without_secrets(text: str) -> str:
    """Leaves out of a URL, or of each URL within a text, what may be a secret: user, password,
    query, and a fragment such as `#token=...`, unless it is a checksum.
    """
    if "://" not in text:
        return text
    if URL.fullmatch(text):
        return SECRET.sub("", text)
    return EMBEDDED.sub(lambda found: SECRET.sub("", found[0]), text)


def address(url: str) -> str:
    """Returns what is asked for: a URL without the checksum behind `#`."""
    return urldefrag(url).url


def checksum(url: str) -> str | None:
    """Returns the SHA-256 that stands behind a URL: `https://...#sha256=<64 hex digits>`; None when
    nothing does. InputError when it is written in another way.
    """
    fragment = urldefrag(url).fragment
    if not fragment:
        return None
    told = CHECKSUM.fullmatch(fragment)
    if told is None:
        raise InputError(
            f"{shown(url)}: got #{one_line(fragment)[:20]} at its end, expected #sha256= and "
            "64 hexadecimal digits"
        )
    return told[1].lower()


@dataclass(frozen=True, slots=True)
class FetchRule:
    """Says which URLs may be fetched: all of them, or those below one of `beginnings`. A private
    address (this machine's, its network's) has to be below one, also where all others may be
    fetched; or to be in the URL itself that somebody wrote, where `trusted`: whoever runs a
    workflow reads it first.
    """

    every: bool = False
    beginnings: tuple[str, ...] = ()
    trusted: bool = False

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """Reads `none`, or beginnings of URLs, `any` among them for all. InputError for anything
        else.
        """
        if list(words) == ["none"]:
            return cls()
        beginnings = tuple(word for word in words if word != EVERY)
        for word in beginnings:
            if not is_url(word) or CHAIN.search(word):
                raise InputError(
                    f"--fetch {shown(word)}: expected any, none, or beginnings of URLs: "
                    "https://example.org/models/"
                )
        return cls(len(beginnings) < len(words), beginnings)

    @property
    def words(self) -> tuple[str, ...]:
        """Returns what `parse` makes this rule of, but for `trusted`."""
        return (*((EVERY,) if self.every else ()), *self.beginnings) or ("none",)

    def allows(self, url: str) -> bool:
        """Compares scheme, host and port, and the folders of the path: `https://example.org/a` is
        the beginning of `https://example.org/a/b`, not of `https://example.org.eu/a`, nor of
        `https://example.org/a/../b`.
        """
        return self.every or self.names(url)

    def names(self, url: str) -> bool:
        """Tells whether a URL is below one of the beginnings."""
        return any(_is_below(url, beginning) for beginning in self.beginnings)

    def naming(self, url: str) -> Self:
        """Returns this rule for the fetching of a URL and of what it leads to."""
        if not self.trusted or not self.every:
            return self
        parts = (part for part in map(urlsplit, CHAIN.split(url)) if part.netloc)
        origins = (f"{part.scheme}://{part.netloc.rpartition('@')[2]}/" for part in parts)
        return replace(self, beginnings=(*self.beginnings, *origins), trusted=False)


EVERY = "any"
ANY, NONE = FetchRule(True, trusted=True), FetchRule()


def _is_below(url: str, beginning: str) -> bool:
    if CHAIN.search(url) or "\\" in url or not url.isprintable():
        return False  # addresses that others may read in another way
    try:
        same_place = _place(url) == _place(beginning)
    except ValueError:  # a port that is no number
        return False
    path, above = (_folders(each) for each in (url, beginning))
    return same_place and ".." not in path and path[: len(above)] == above


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.hostname, parts.port


def _folders(url: str) -> list[str]:
    return [part for part in unquote(urlsplit(url).path).split("/") if part]


def _scheme(url: str) -> str:
    return urlsplit(url).scheme.lower()
