"""Recognises URLs, removes their secrets, and decides which may be fetched. Must not know their
contents.
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
# in a URL: user and password, query, and a fragment with an assignment other than a checksum
SECRET = re.compile(r"(?<=//)[^/?#\s]*@|\?[^\s#]*|#(?=[^\s#]*=)(?!(?i:sha256=[0-9a-f]*)(?!\S))\S*")
# a URL inside a text, without its scheme
EMBEDDED = re.compile(r"""://[^\s"'<>\\)]+""")
CHECKSUM = re.compile(r"sha256=([0-9a-f]{64})", re.IGNORECASE)
# separates chained fsspec addresses, zip://a::https://b; [::1] is a host
CHAIN = re.compile(r"::(?![^\[]*\])")


def is_url(name: str) -> bool:
    """Returns whether a name is a URL with a scheme: `https://...`. False if its host or port
    cannot be parsed.
    """
    if URL.fullmatch(name) is None:
        return False
    try:
        _ = urlsplit(name).port
    except ValueError:
        return False
    return True


def is_remote(name: str) -> bool:
    """Returns whether a name is a URL of a file to fetch; `file://...` is local."""
    return is_url(name) and _scheme(name) != "file"


def shown(name: str) -> str:
    """Formats a file's name for display; removes passwords, query and fragment from a URL."""
    return one_line(urldefrag(without_secrets(name)).url) if is_url(name) else name


def without_secrets(text: str) -> str:
    """Removes possible secrets from a URL, or from each URL inside a text: user, password, query,
    and a fragment such as `#token=...` unless it is a checksum.
    """
    if "://" not in text:
        return text
    if URL.fullmatch(text):
        return SECRET.sub("", text)
    return EMBEDDED.sub(lambda found: SECRET.sub("", found[0]), text)


def address(url: str) -> str:
    """Returns the address to request: the URL without its fragment."""
    return urldefrag(url).url


def checksum(url: str) -> str | None:
    """Returns the SHA-256 at the end of a URL: `https://...#sha256=<64 hex digits>`; None without a
    fragment. InputError for another form of fragment.
    """
    fragment = urldefrag(url).fragment
    if not fragment:
        return None
    checksum_part = CHECKSUM.fullmatch(fragment)
    if checksum_part is None:
        raise InputError(
            f"{shown(url)}: got #{one_line(fragment)[:20]} at its end, expected #sha256= and "
            "64 hexadecimal digits"
        )
    return checksum_part[1].lower()


@dataclass(frozen=True, slots=True)
class FetchRule:
    """Decides which URLs may be fetched: `every` URL, or those below one of `beginnings`.

    A private address (of this machine or its network) must be below one of `beginnings`, even with
    `every`. If `trusted`, a private address may also be named by the URL in the workflow itself,
    because the user reads a workflow before running it.
    """

    every: bool = False
    beginnings: tuple[str, ...] = ()
    trusted: bool = False

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """Parses `none`, or URL prefixes, with `any` among them for all URLs. InputError for
        anything else.
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
        """Returns the words that `parse` accepts for this rule, apart from `trusted`."""
        return (*((EVERY,) if self.every else ()), *self.beginnings) or ("none",)

    def allows(self, url: str) -> bool:
        """Returns whether a URL may be fetched. Compares scheme, host, port and path folders:
        `https://example.org/a` is a prefix of `https://example.org/a/b`, but not of
        `https://example.org.eu/a` or `https://example.org/a/../b`.
        """
        return self.every or self.names(url)

    def names(self, url: str) -> bool:
        """Returns whether a URL is below one of `beginnings`."""
        return any(_is_below(url, beginning) for beginning in self.beginnings)

    def naming(self, url: str) -> Self:
        """Returns the rule for fetching this URL and its redirects. A trusted rule allows the URL's
        own hosts, even private ones.
        """
        if not self.trusted or not self.every:
            return self
        parts = (part for part in map(urlsplit, CHAIN.split(url)) if part.netloc)
        origins = (f"{part.scheme}://{part.netloc.rpartition('@')[2]}/" for part in parts)
        return replace(self, beginnings=(*self.beginnings, *origins), trusted=False)


EVERY = "any"
ANY, NONE = FetchRule(True, trusted=True), FetchRule()


def _is_below(url: str, beginning: str) -> bool:
    if CHAIN.search(url) or "\\" in url or not url.isprintable():
        return False  # other parsers may read such an address differently
    try:
        same_place = _place(url) == _place(beginning)
    except ValueError:  # the port is not a number
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
