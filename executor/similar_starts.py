"""Decides from which finished request's picture a request begins, and at which step, by a table
that `katz profile --similar` has measured.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from katz_graph.core.recipe import Encoding, digest, tensor_digest
from katz_graph.executor.similar_index import SimilarCounts, SimilarIndex
from katz_graph.ir.region import Region, SimilarStart
from katz_graph.ir.values import TextEncoding
from katz_graph.planner.similar import SimilarRequest, similar_request, started_at

MAX_ENCODINGS = 1000  # of prompts, in memory
DIGITS = 12  # of a picture's id
NO_TABLE = (
    "no similarity is measured for its model, size and guidance; run katz profile WORKFLOW "
    "--similar"
)

NONE_NEAR = "no picture with a prompt near enough is stored"

Encode = Callable[[Encoding], TextEncoding]


class LevelStore(Protocol):
    """Stores measured tables: `measure.store.CostStore`."""

    def similar_levels(self, scale: str) -> Sequence[tuple[float, float]]: ...

    def keep_similar_levels(self, scale: str, levels: Sequence[tuple[float, float]]) -> None: ...


@dataclass(frozen=True, slots=True)
class ChosenStart:
    """A request as it runs, possibly from another's picture, and what is stored of it later."""

    region: Region
    request: SimilarRequest | None = None  # None: its picture is not stored
    encoding: Tensor | None = None  # [D], of its prompt


def in_full(region: Region, why: str) -> ChosenStart:
    return ChosenStart(replace(region, similar=SimilarStart(why_not=why)))


class SimilarStarts:
    """Looks up and stores the pictures of requests. `dtype`: that of models."""

    def __init__(self, levels: LevelStore, dtype: str, index: SimilarIndex | None = None) -> None:
        self._levels, self._dtype = levels, dtype
        self._index = index or SimilarIndex()
        self._lock = threading.Lock()
        self._encodings: OrderedDict[str, Tensor] = OrderedDict()

    @property
    def counts(self) -> SimilarCounts:
        return self._index.counts

    def request(self, region: Region) -> SimilarRequest | str:
        """Returns the request as others may be similar to it, or the reason why there is none."""
        return similar_request(region, self._dtype)

    def keep(self, scale: str, table: Sequence[tuple[float, float]]) -> None:
        """Stores a measured table: least similarities, and the relative noise levels that they
        earn.
        """
        self._levels.keep_similar_levels(scale, table)

    def begin(self, region: Region, encode: Encode) -> ChosenStart:
        """Returns the request to run: from the most similar picture if that is near enough."""
        request = self.request(region)
        if isinstance(request, str):
            return in_full(region, request)
        table = self._levels.similar_levels(request.scale)
        if not table:
            return in_full(region, NO_TABLE)
        encoding = self.encoded(request.text, encode)
        found = self._index.nearest(request.key, encoding)
        step = 0 if found is None else request.step_at(level_for(table, found.similarity))
        if found is None or not step:
            self._index.note(None)
            return replace(in_full(region, NONE_NEAR), request=request, encoding=encoding)
        saved = request.saved(step)
        self._index.note(found.picture, saved)
        start = SimilarStart(found.picture.id, found.similarity, saved, len(request.schedule))
        return ChosenStart(
            started_at(region, found.picture.latent.float(), step, start), request, encoding
        )

    def store(self, chosen: ChosenStart, latent: Tensor) -> None:
        """Stores the picture of a finished request."""
        if chosen.request is not None and chosen.encoding is not None:
            name = tensor_digest(latent)[:DIGITS]
            self._index.add(chosen.request.key, chosen.encoding, name, latent)

    def encoded(self, text: Encoding, encode: Encode) -> Tensor:
        """Returns a prompt's encoding [D]."""
        name = digest(text)
        with self._lock:
            known = self._encodings.get(name)
        if known is None:
            known = pooled(encode(text))
        with self._lock:
            self._encodings[name] = known
            self._encodings.move_to_end(name)
            if len(self._encodings) > MAX_ENCODINGS:
                self._encodings.popitem(last=False)
        return known


def level_for(table: Sequence[tuple[float, float]], similarity: float) -> float:
    """Returns the relative noise level at which a request of this similarity may begin; infinite if
    at none. `table`: least similarities and the levels that they earn.
    """
    return min((level for least, level in table if similarity >= least), default=float("inf"))


def pooled(encoding: TextEncoding) -> Tensor:
    """Returns the pooled encoding [D] of a prompt; for families without one, the mean over tokens
    that are no padding.
    """
    if encoding.pooled is not None:
        return encoding.pooled[0].float()
    hidden = encoding.hidden[0].float()
    return hidden.mean(0) if encoding.mask is None else hidden[encoding.mask[0]].mean(0)
