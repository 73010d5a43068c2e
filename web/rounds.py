"""Keeps what waits, by client: each client has one turn a round. Must not know what waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Rounds(Generic[Item]):
    """Holds items of clients, those of one client in the order in which they came. Not for several
    threads at once.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}  # in the order of turns

    def add(self, client: str, item: Item) -> None:
        """Puts an item behind those of its client."""
        self._waiting.setdefault(client, deque()).append(item)

    def take(self, may: Callable[[str], bool] = lambda client: True) -> tuple[str, Item] | None:
        """Takes the next item out, and passes the turn on; of clients that `may` have one. Returns
        it with its client, None when there is none.
        """
        client = next(filter(may, self._waiting), None)
        if client is None:
            return None
        items = self._waiting.pop(client)
        item = items.popleft()
        if items:
            self._waiting[client] = items
        return client, item

    def clear(self) -> None:
        self._waiting.clear()
