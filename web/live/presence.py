"""Remembers for a while which pages have which files open. Must not know what is in the files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

STAYS = 45.0  # seconds after which a page that says nothing is gone
MOST_PAGES = 1_000  # of all people; then the one that said nothing for longest goes


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of a user: what the person there is called, which files it has open, and when it said
    so.
    """

    user: str
    name: str
    files: frozenset[str]
    at: float


class Presence:
    """Tells pages of the others that have the same files of the same user open. `clock` gives
    seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pages: OrderedDict[str, _Page] = OrderedDict()

    def tell(
        self, user: str, page: str, name: str, files: Sequence[str]
    ) -> Mapping[str, Sequence[str]]:
        """Takes in what a page has open; returns the names of others by file, "" for who gave
        none.
        """
        now = self._clock()
        self._pages.pop(page, None)
        while self._pages and (
            len(self._pages) >= MOST_PAGES or next(iter(self._pages.values())).at < now - STAYS
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
