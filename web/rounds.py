"""Queues items by client in round-robin order. Must not know the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Rounds(Generic[Item]):
    """Queues items; clients take turns, and each client's items stay in the order of arrival. Not
    thread-safe.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}  # in the order of turns

    def add(self, client: str, item: Item) -> None:
        self._waiting.setdefault(client, deque()).append(item)

    def take(self, may: Callable[[str], bool] = lambda client: True) -> tuple[str, Item] | None:
        """Removes the next item of the first client for which `may` is true, and moves that client
        to the end of the round. Returns the client and the item, or None if no item qualifies.
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
