"""Caches thumbnails in memory, so that a gallery's pictures are decoded once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from katz_graph.web.options import MB

KEPT = 64 * MB
Encoded = tuple[bytes, str]  # bytes and media type


class Thumbnails:
    """Caches the most recently used pictures, up to `limit` bytes."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[Hashable, Encoded] = OrderedDict()

    def get(self, key: Hashable) -> Encoded | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def keep(self, key: Hashable, picture: Encoded) -> None:
        if len(picture[0]) > self._limit or key in self._kept:
            return
        self._kept[key] = picture
        self._bytes += len(picture[0])
        while self._bytes > self._limit:
            self._bytes -= len(self._kept.popitem(last=False)[1][0])
