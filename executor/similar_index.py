"""Stores pictures of finished requests in memory, and finds the one with the most similar prompt
among those with equal keys. Must not know regions and engines.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

SKETCH = 32  # numbers of a projected encoding, by which candidates are chosen
CANDIDATES = 64  # whose similarity is computed exactly
MAX_ENTRIES = 100_000
MAX_BYTES = 2**30
FIRST_ROWS = 16  # of a new group


@dataclass(frozen=True, slots=True)
class StoredPicture:
    """A picture of a finished request: its latent [B, C, h, w], unscaled, in half precision."""

    id: str
    latent: Tensor


@dataclass(frozen=True, slots=True)
class Similar:
    """A stored picture, and the cosine similarity of its prompt."""

    picture: StoredPicture
    similarity: float


@dataclass(frozen=True, slots=True)
class SimilarCounts:
    """Counts look-ups, and the present entries with their bytes."""

    hits: int = 0  # requests that began from a picture
    misses: int = 0
    evaluations_saved: int = 0
    evictions: int = 0
    entries: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Group:
    """The entries of one key. Row i of `sketches` and `encodings` belongs to entry i."""

    sketches: Tensor  # [rows, SKETCH]
    encodings: Tensor  # [rows, D], of length 1
    entries: list[StoredPicture] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)  # entry's id -> its row

    def add(self, sketch: Tensor, encoding: Tensor, entry: StoredPicture) -> None:
        row = len(self.entries)
        if row == len(self.encodings):
            self.sketches, self.encodings = map(_doubled, (self.sketches, self.encodings))
        self.sketches[row], self.encodings[row] = sketch, encoding
        self.entries.append(entry)
        self.rows[entry.id] = row

    def remove(self, identifier: str) -> StoredPicture:
        """Removes an entry, and moves the last one to its row."""
        row, last = self.rows.pop(identifier), self.entries.pop()
        if row == len(self.entries):
            return last
        removed, self.entries[row] = self.entries[row], last
        self.rows[last.id] = row
        for rows in (self.sketches, self.encodings):
            rows[row] = rows[len(self.entries)]
        return removed


def _doubled(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.empty_like(rows)])


class SimilarIndex:
    """Stores at most this many pictures and bytes; the least used goes first. Thread-safe.

    Finds candidates by the product with encodings projected to a few dimensions (Johnson and
    Lindenstrauss 1984), and computes the similarity of the best candidates exactly. So a picture
    may be overlooked, but a similarity is never wrong.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._used: OrderedDict[str, str] = OrderedDict()  # entry's id -> key, least used first
        self._projections: dict[int, Tensor] = {}
        self._counts = SimilarCounts()

    @property
    def counts(self) -> SimilarCounts:
        with self._lock:
            return replace(self._counts, entries=len(self._used))

    def nearest(self, key: str, encoding: Tensor) -> Similar | None:
        """Returns the picture with this key whose prompt's encoding [D] is the most similar; None
        if there is none.
        """
        unit = _unit(encoding)
        with self._lock:
            group = self._groups.get(key)
            if group is None:
                return None
            number = len(group.entries)
            rows = torch.arange(number)
            if number > CANDIDATES:
                near = group.sketches[:number] @ self._sketch(unit)
                rows = near.topk(CANDIDATES).indices
            similarities = group.encodings[rows] @ unit
            best = int(similarities.argmax())
            return Similar(group.entries[int(rows[best])], float(similarities[best]))

    def note(self, picture: StoredPicture | None, saved: int = 0) -> None:
        """Notes that a request began from a picture, or from none."""
        with self._lock:
            counts = self._counts
            if picture is None:
                self._counts = replace(counts, misses=counts.misses + 1)
                return
            if picture.id in self._used:
                self._used.move_to_end(picture.id)
            self._counts = replace(
                counts,
                hits=counts.hits + 1,
                evaluations_saved=counts.evaluations_saved + saved,
            )

    def add(self, key: str, encoding: Tensor, identifier: str, latent: Tensor) -> None:
        """Stores the picture of a request: its prompt's encoding [D], an id, and its latent
        [B, C, h, w].
        """
        unit, entry = _unit(encoding), StoredPicture(identifier, latent.half())
        size = _bytes(entry.latent, unit)
        with self._lock:
            if identifier in self._used or size > self._max_bytes or not self._max_entries:
                return
            while self._used and (
                len(self._used) >= self._max_entries or self._counts.bytes + size > self._max_bytes
            ):
                self._evict()
            group = self._groups.get(key)
            if group is None:
                group = _Group(torch.empty(FIRST_ROWS, SKETCH), torch.empty(FIRST_ROWS, len(unit)))
                self._groups[key] = group
            group.add(self._sketch(unit), unit, entry)
            self._used[identifier] = key
            self._counts = replace(self._counts, bytes=self._counts.bytes + size)

    def _evict(self) -> None:
        identifier, key = self._used.popitem(last=False)
        group = self._groups[key]
        removed = group.remove(identifier)
        size = _bytes(removed.latent, group.encodings[0])
        if not group.entries:
            del self._groups[key]
        counts = self._counts
        self._counts = replace(counts, bytes=counts.bytes - size, evictions=counts.evictions + 1)

    def _sketch(self, unit: Tensor) -> Tensor:
        width = len(unit)
        if width not in self._projections:
            generator = torch.Generator().manual_seed(width)
            self._projections[width] = torch.randn(width, SKETCH, generator=generator)
        return unit @ self._projections[width]


def _unit(encoding: Tensor) -> Tensor:
    return torch.nn.functional.normalize(encoding.float().flatten(), dim=0).cpu()


def _bytes(latent: Tensor, encoding: Tensor) -> int:
    """Returns the memory of an entry; rows that a group has in advance are not counted."""
    return latent.nbytes + encoding.nbytes + 4 * SKETCH
