"""Holds one device's loaded modules within a memory budget. Must not know their use."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Any, TypeVar

from torch import Tensor

from katz_graph.core.errors import OutOfMemory
from katz_graph.core.eviction import POLICIES
from katz_graph.core.recipe import FileIdentity
from katz_graph.host.memory import GB, WAY_OUT, RanOut, attempt
from katz_graph.models.loading.fill import refill
from katz_graph.models.loading.loadable import Loadable, Resident
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.residency import CONTROL_NETS, ControlNetUse, ModelUse, Residency
from katz_graph.models.loading.room import Movable, Room

Result = TypeVar("Result")


class ResidentHooks:
    """Manages a device's data in addition to modules: originals of weights with LoRAs, recordings,
    copies on the host. This base class does nothing.
    """

    def evicted(self, line: str) -> None:
        """Reports an eviction in one line: the module, its load time, and the reason."""

    def leaving(self, key: Hashable, module: Any) -> None:
        """May copy the weights of a module before its eviction."""

    def copy_of(self, key: Hashable) -> Mapping[str, Tensor] | None:
        """Returns the weights copied by `leaving`, if any."""

    def also_free(self, module: Any) -> Iterable[Tensor]:
        """Returns further tensors to free with the weights of a module."""
        return ()

    def freeing(self, module: Any) -> None:
        """Drops data that depends on a module before it is freed."""

    def movable(self) -> Iterable[Movable]:
        """Returns data that can move to the host."""
        return ()

    def release_cached(self) -> None:
        """Releases cached data when memory has run out, and before an error for lack of memory."""


NO_HOOKS = ResidentHooks()


class Residents:
    """Loads modules by key, each once. Before loading, evicts modules of replaced files, offloads
    movable data to the host (`room`), then evicts the least recently used modules until the new one
    fits. Never evicts modules in use. Before raising an error, releases data that can be computed
    again (`ResidentHooks.release_cached`). If an evicted module has the new module's form, the new
    weights are copied into it, so addresses in recordings stay valid.

    `model_bytes` and `memory`: see `Room`. ControlNets also have a separate budget,
    `control_net_bytes`, with eviction policy `policy`.
    """

    def __init__(
        self,
        hooks: ResidentHooks = NO_HOOKS,
        model_bytes: int | None = None,
        memory: DeviceMemory | None = None,
        control_net_bytes: int | None = None,
        policy: str = "lru",
    ) -> None:
        self._hooks = hooks
        self.room = Room(model_bytes, memory, hooks.movable)
        self._lock = RLock()
        self._here: dict[Hashable, Resident] = {}  # in the order of loading
        self._books = Residency(math.inf, POLICIES["lru"]())
        most = math.inf if control_net_bytes is None else control_net_bytes
        self._control_nets = Residency(most, POLICIES[policy](), CONTROL_NETS)
        self._load_seconds = self._control_net_seconds = self._evicted_seconds = 0.0
        self._short = self._fills = self._returns = 0

    # loading and using modules

    def get(self, wanted: Loadable) -> Any:
        """Returns the loaded module. Raises OutOfMemory if it is too large, InputError if it alone
        exceeds the ControlNet budget, NoRoom if modules in use leave too little memory.
        """
        with self._lock:
            if self._books.is_pinned(wanted.key):
                return self._here[wanted.key].module  # this use is already counted
            return self._touched(wanted)

    @contextmanager
    def using(self, wanted: Loadable) -> Iterator[Any]:
        """Yields the loaded module, protected from eviction inside the `with` statement. Counts as
        one use. Raises the errors of `get`.
        """
        with self._lock:
            module = self._touched(wanted)
            self._books.pin(wanted.key)
            if wanted.control_net:
                self._control_nets.pin(wanted.key)
        try:
            yield module
        finally:
            with self._lock:
                self._books.unpin(wanted.key)
                if wanted.control_net:
                    self._control_nets.unpin(wanted.key)

    def has(self, key: Hashable) -> bool:
        """Returns whether a module is loaded."""
        return key in self._here

    def drop(self, key: Hashable) -> None:
        """Drops a module, unless it is in use or not loaded."""
        with self._lock:
            if key in self._here and not self._books.is_pinned(key):
                self._evict_keys([key])

    def takes_more(self, module: Any, size: int) -> None:
        """Records that a loaded module takes `size` bytes in addition to its weights."""
        with self._lock:
            for key, one in self._here.items():
                if one.module is module:
                    for books in (self._books, self._control_nets):
                        if key in books:
                            books.resize(key, one.size + size)

    def clear(self) -> None:
        """Drops all modules that are not in use."""
        with self._lock:
            self._evict_keys(self._books.idle())

    @property
    def in_use(self) -> bool:
        """Returns whether any module is in use (inside `using`)."""
        with self._lock:
            return self._books.has_pins

    # memory for computing

    def with_room(self, what: str, work: Callable[[], Result], again: bool = True) -> Result:
        """Returns the result of `work`. If memory runs out, evicts all modules not in use and, with
        `again`, retries once. Raises OutOfMemory, with `what` and sizes, if memory does not
        suffice.
        """
        done = self.attempt(what, work, again)
        if isinstance(done, RanOut):
            raise self.short_of_memory(what, str(done))
        return done

    def attempt(self, what: str, work: Callable[[], Result], again: bool = True) -> Result | RanOut:
        """Works like `with_room`, but returns RanOut if memory does not suffice."""
        done = attempt(work)
        if isinstance(done, RanOut):
            self._short += 1
            self._hooks.release_cached()
            self.make_room(math.inf, what)
            self.collect()
            if again:
                return attempt(work)
        return done

    def make_room(self, size: float, what: str) -> float:
        """Evicts modules not in use until `size` bytes are free or none is left. Returns the free
        bytes.
        """
        if self.room.memory is None:
            self._give_up(math.inf if math.isinf(size) else 0.0, what)
        elif (missing := size - self.room.free) > 0:
            self._give_up(missing, what)
        return self.room.free

    def _give_up(self, size: float, what: str) -> None:
        with self._lock:
            keys = self._books.idle(size - self.room.give_back(size))
            self._leave(keys)
            self._evict_keys(keys, what)

    def within_reach(self) -> float:
        """Returns the bytes that would be free without unused modules and movable data."""
        with self._lock:
            idle = self._books.resident_bytes - self._books.pinned_bytes
            return self.room.free + self.room.movable_bytes + idle

    @contextmanager
    def keeping(self) -> Iterator[float]:
        """Yields the bytes available to movable data, see `Room.keeping`."""
        with self._lock, self.room.keeping(self._books.resident_bytes) as spare:
            yield spare

    def collect(self) -> None:
        """Releases the memory of unreferenced objects."""
        self.room.collect()

    def short_of_memory(self, what: str, why: str = "out of memory") -> OutOfMemory:
        """Returns an error for a computation or module that does not fit."""
        with self._lock:
            held = f"models in use take {self._books.pinned_bytes / GB:.2f} GB"
        parts = filter(None, (str(self.room), held))
        return OutOfMemory(f"{what}: {why}; {', '.join(parts)}; {WAY_OUT}")

    def too_much(self, what: str, wanted: Iterable[Loadable]) -> OutOfMemory:
        """Returns the error for models that do not fit together, with the size of each."""
        sizes = {one.key: (one.size(), one.name) for one in wanted}
        largest_first = sorted(sizes.values(), reverse=True)
        listed = ", ".join(f"{name} {size / GB:.2f}" for size, name in largest_first)
        total, budget = sum(size for size, _ in largest_first), self._limits()[0]
        memory = self.room.memory
        place = "" if memory is None else f" of {memory.device}"
        return OutOfMemory(
            f"{what}: needs {total / GB:.2f} GB: {listed}; models may take {budget / GB:.2f} GB"
            f"{place} (--model-gb); {WAY_OUT}"
        )

    # figures

    @property
    def control_net_use(self) -> ControlNetUse:
        books = self._control_nets
        return ControlNetUse(
            books.hits,
            books.misses,
            books.evictions,
            self._control_net_seconds,
            books.resident_bytes,
        )

    @property
    def use(self) -> ModelUse:
        books = self._books
        seconds = self._load_seconds, self._evicted_seconds
        room = self._limits()
        return ModelUse(
            books.misses,
            self._fills,
            self._returns,
            books.evictions,
            *seconds,
            books.resident_bytes,
            *room,
            self._short,
        )

    @property
    def capacity(self) -> float:
        """Returns the bytes available to all models together."""
        budget, reserve = self._limits()
        return max(0.0, budget - reserve)

    def _limits(self, extra_bytes: float = 0.0, held: float = 0.0) -> tuple[float, float]:
        return self.room.limits(self._books.resident_bytes, extra_bytes, held)

    # loading and evicting

    def _touched(self, wanted: Loadable) -> Any:
        if wanted.key not in self._here:
            return self._loaded(wanted)
        self._books.touch(wanted.key, 0)
        if wanted.control_net:
            self._control_nets.touch(wanted.key, 0)
        return self._here[wanted.key].module

    def _loaded(self, wanted: Loadable) -> Any:
        size = wanted.size()
        form = None if wanted.shells is None else wanted.shells.form()
        self.room.measure()
        place = self._make_way(wanted, form, size)
        started = time.perf_counter()
        self._books.pin(wanted.key)  # not loaded yet, so it cannot be evicted
        try:
            module = self.with_room(wanted.name, partial(self._made, wanted, place))
        except BaseException:
            self._books.unpin(wanted.key)
            self._books.forget(wanted.key)
            if wanted.control_net:
                self._control_nets.forget(wanted.key)
            self._free(place)  # the weights may be partly overwritten
            raise
        self._books.unpin(wanted.key)
        seconds = time.perf_counter() - started
        self._load_seconds += seconds
        self._control_net_seconds += seconds if wanted.control_net else 0.0
        self._fills += len(place)
        self._here[wanted.key] = Resident(module, wanted, form, size, seconds)
        self.room.watch()
        return module

    def _made(self, wanted: Loadable, place: Sequence[Resident]) -> Any:
        """Allocates a module, or reuses the evicted one in `place`, and fills in its weights."""
        module = place[0].module if place else wanted.load()
        if wanted.shells is not None:
            copies = self._hooks.copy_of(wanted.key)
            if copies is None:
                wanted.shells.fill(module)
            else:
                refill(module, copies)
            self._returns += copies is not None
        return module

    def _make_way(self, wanted: Loadable, form: Hashable, size: int) -> list[Resident]:
        """Reserves room for a module to load, and evicts others. Returns an evicted module of equal
        form for reuse, not yet freed, if any.
        """
        what = f"a newer file, {wanted.name}"
        place = self._evict_keys(self._superseded(wanted.files), what, form)
        try:
            if wanted.control_net:
                place += self._displaced(self._control_nets, wanted, None if place else form, size)
            books, held = self._books, sum(one.size for one in place)
            widening = wanted.widening() if self.room.is_measured else None
            work = 0 if widening is None else widening.work_bytes
            extra = max(work, wanted.extra_bytes())
            books.budget_bytes, books.reserve_bytes = self._limits(extra, held)
            if size + work > books.budget_bytes:
                self._hooks.release_cached()
                books.budget_bytes, books.reserve_bytes = self._limits(extra, held)
            if size + work > books.budget_bytes:
                most = f"{books.budget_bytes / GB:.2f} GB that models may take (--model-gb)"
                raise self.short_of_memory(
                    wanted.name, f"takes {_sizes(wanted, size)}, more than the {most}"
                )
            self.room.fit(books.resident_bytes + size + books.reserve_bytes, books.budget_bytes)
            place += self._displaced(books, wanted, None if place else form, size)
        except BaseException:
            if wanted.control_net and wanted.key in self._control_nets:
                self._control_nets.forget(wanted.key)
            self._free(place)
            raise
        return place

    def _displaced(
        self, books: Residency, wanted: Loadable, form: Hashable, size: int
    ) -> list[Resident]:
        alike = [key for key, one in self._here.items() if form is not None and one.form == form]
        keys = books.touch(wanted.key, size, wanted.name, alike)
        try:
            self._leave(keys)
        except BaseException:
            books.forget(wanted.key)
            self._evict_keys(keys, wanted.name)
            raise
        return self._evict_keys(keys, wanted.name, form)

    def _leave(self, keys: Iterable[Hashable]) -> None:
        """Calls `hooks.leaving` for evicted modules with a form."""
        for key in keys:
            if self._here[key].form is not None:
                self._hooks.leaving(key, self._here[key].module)

    def _superseded(self, files: Iterable[FileIdentity]) -> list[Hashable]:
        """Returns the modules of files replaced by newer versions, except those in use."""
        newest = {file.path: file for one in self._here.values() for file in one.wanted.files} | {
            file.path: file for file in files
        }
        old = [
            key
            for key, one in self._here.items()
            if any(newest[file.path] != file for file in one.wanted.files)
        ]
        return [key for key in old if not self._books.is_pinned(key)]

    def _evict_keys(
        self, keys: Iterable[Hashable], what: str = "", form: Hashable = None
    ) -> list[Resident]:
        """Evicts modules that are not in use. `what`: the reason, if evicted for another module.
        Returns the first of form `form`; frees the others.
        """
        replaced: list[Resident] = []
        freed: list[Resident] = []
        for key in keys:
            for books in (self._books, self._control_nets):
                if key in books:
                    (books.evict if what else books.forget)(key)
            evicted = self._here.pop(key)
            takes_place = form is not None and evicted.form == form and not replaced
            (replaced if takes_place else freed).append(evicted)
            if what:
                self._evicted_seconds += evicted.seconds
                how = f"{what}, its replacement" if takes_place else what
                self._hooks.evicted(f"released {evicted} for {how}")
            del evicted
        for one in replaced:
            self._hooks.also_free(one.module)
        self._free(freed)
        return replaced

    def _free(self, residents: list[Resident]) -> None:
        """Frees modules and empties the list."""
        weights: list[Tensor] = []
        while residents:
            module = residents.pop().module
            self._hooks.freeing(module)
            weights += (*module.parameters(), *module.buffers(), *self._hooks.also_free(module))
            del module
        self.room.count()
        if weights:
            # frees one tensor at a time, so threads that serve requests are not blocked
            while weights:
                del weights[-1]
            self.collect()


def _sizes(wanted: Loadable, size: int) -> str:
    """Describes the bytes of a module in a message."""
    widening = wanted.widening()
    if widening is None:
        return f"{size / GB:.2f} GB"
    return (
        f"{size / GB:.2f} GB as 8-bit numbers ({widening.wide_bytes / GB:.2f} GB wide) and "
        f"{widening.work_bytes / GB:.2f} GB to widen one weight at a time"
    )
