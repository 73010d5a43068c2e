"""Finds the templates of masked requests in the store, and fills those that are absent."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median

from katz_graph.core.errors import Cancelled, InputError, KatzError
from katz_graph.core.messages import first_line
from katz_graph.executor.templates.store import TemplateStore
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.ir.reuse import OfferedTemplate, TemplateUse, shown_template
from katz_graph.models.active import active_positions
from katz_graph.planner.passes.reuse import MAX_ACTIVE_SHARE, why_in_full
from katz_graph.planner.region import stage_of
from katz_graph.planner.sampling import evaluations_of, sampling_of
from katz_graph.planner.template import TemplateRequest, template_request

log = logging.getLogger("katz_graph")

LEVELS = 5  # of a network's resolutions
ASSUMED_RATE = 1.5e9  # bytes per second from the store, until requests have read from it
READS = 20  # requests whose median rate is used


def offers_of(config: WorkerConfig) -> TemplateOffers | None:
    """Returns the templates that workers of this configuration store; None if they store none."""
    place = config.templates
    if place is None:
        return None
    store = TemplateStore(Path(place.folder), 0, place.disk_bytes)
    return TemplateOffers(store, str(config.dtype).removeprefix("torch."), place.bytes_per_second)


class TemplateOffers:
    """Offers a store's templates to the planner. `dtype`: that of models; `link`: bytes per second
    from the store; None: the median of the last requests.
    """

    def __init__(self, store: TemplateStore, dtype: str, link: float | None = None) -> None:
        self.store = store
        self._dtype, self._link = dtype, link
        self._filler = ThreadPoolExecutor(1, "katz-template-fill")
        self._refused: set[str] = set()  # names that a fill did not store
        self._rates: deque[float] = deque(maxlen=READS)

    def close(self) -> None:
        self._filler.shutdown(wait=False, cancel_futures=True)

    def request(self, region: Region) -> TemplateRequest | str:
        """Returns the template of a request, or the reason why it has none."""
        return _request(region, self._dtype)

    def offered(self, request: TemplateRequest) -> OfferedTemplate | None:
        """Returns what the store has for a request; None if it has no template."""
        found = self.store.find(request.name)
        if found is None and not request.exact:
            found = next(iter(self.store.templates(request.prefix)), None)
        if found is None:
            return None
        rate = self._link or (median(self._rates) if self._rates else ASSUMED_RATE)
        return _offer(request, rate, found.manifest.name)

    def ran(self, size: float, seconds: float) -> None:
        """Learns from a request that read `size` bytes in these seconds."""
        if size > 0 and seconds > 0:
            self._rates.append(size / seconds)

    def fill_later(self, request: TemplateRequest, fill: Callable[[], None]) -> None:
        """Fills the template that a request would have read, after those asked for before, if the
        store has none. A template that a fill did not store is not tried again.
        """
        self._filler.submit(self._filled, request, fill)

    def _filled(self, request: TemplateRequest, fill: Callable[[], None]) -> None:
        if request.name in self._refused:
            return
        if float(request.mask.mean()) > MAX_ACTIVE_SHARE or self.offered(request) is not None:
            return
        try:
            fill()
        except Cancelled:
            return
        except KatzError as error:
            log.warning(
                "template %s is not filled: %s", shown_template(request.name), first_line(error)
            )
        if self.store.find(request.name) is None:
            self._refused.add(request.name)


def assumed(region: Region, link: float | None) -> OfferedTemplate | str:
    """Returns what a store with the request's template would offer, or the reason why it has
    none.
    """
    request = _request(region, "")
    return request if isinstance(request, str) else _offer(request, link or ASSUMED_RATE)


def _request(region: Region, dtype: str) -> TemplateRequest | str:
    spec, table = sampling_of(region.begin)
    return template_request(region, evaluations_of(spec, table), table.path, dtype)


def _offer(request: TemplateRequest, link: float, name: str = "") -> OfferedTemplate:
    """Returns the offer of a template. `name` is empty if it is only assumed."""
    positions = active_positions(request.mask, 1, LEVELS, request.margin)
    return OfferedTemplate(
        frozenset(index for index, number in enumerate(request.numbers) if number >= 0),
        {tokens: one.shape[1] for tokens, one in positions.items()},
        link,
        use=TemplateUse(name, request.numbers, positions) if name else None,
    )


def filling(program: Program, request: TemplateRequest) -> Program:
    """Returns the program of a request that fills a template. Raises InputError if no layer could
    read it.
    """
    if reason := why_in_full(program):
        raise InputError(f"no template is filled, which could not be read: {reason}")
    collects = {
        operation.id: ()
        for variant in program.variants
        for operation in variant.operations
        if stage_of(operation).count_layers is not None
    }
    use = TemplateUse(request.name, request.numbers, fills=True, details=request.details)
    return replace(program, template=use, reused=collects)
