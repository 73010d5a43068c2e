"""Tracks which pages have which files open. Must not know the content of files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

STAYS = 45.0  # seconds without a heartbeat after which a page is dropped
MAX_PAGES = 1_000  # of all users; beyond it, the page with the oldest heartbeat is dropped


@dataclass(frozen=True, slots=True)
class _Page:
    """Holds a page of a user: the user's display name, the open files, and the time of the last
    heartbeat.
    """

    user: str
    name: str
    files: frozenset[str]
    at: float


class Presence:
    """Reports other pages that have the same user's files open. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pages: OrderedDict[str, _Page] = OrderedDict()

    def update(
        self, user: str, page: str, name: str, files: Sequence[str]
    ) -> Mapping[str, Sequence[str]]:
        """Records a page's open files. Returns, for each of these files, the user names of the
        other pages that have it open; "" for a page without a name.
        """
        now = self._clock()
        self._pages.pop(page, None)
        while self._pages and (
            len(self._pages) >= MAX_PAGES or next(iter(self._pages.values())).at < now - STAYS
        ):
            self._pages.popitem(last=False)
        others = [one for one in self._pages.values() if one.user == user]
        if files:
            self._pages[page] = _Page(user, name, frozenset(files), now)
        return {
            file: names
            for file in files
            if (names := [other.name for other in others if file in other.files])
        }
