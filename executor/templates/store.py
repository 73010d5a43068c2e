"""Stores templates in memory and on the disk, and counts their use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor

from katz_graph.core.messages import first_line
from katz_graph.executor.templates.budget import TooLarge
from katz_graph.executor.templates.folder import NAME, FolderFill, TemplateFolder
from katz_graph.executor.templates.manifest import Form, Manifest
from katz_graph.executor.templates.memory import HeldTemplate, TemplateMemory
from katz_graph.executor.transport.registration import Register, registering
from katz_graph.ir.reuse import names_template, shown_template
from katz_graph.models.loading.residency import NoRoom

Level = Literal["memory", "disk"]
UNREGISTERED = registering(torch.device("cpu"))

log = logging.getLogger("katz_graph")


@dataclass(frozen=True, slots=True)
class TemplateCounts:
    """Counts uses of templates (`hits`) and of absent ones (`misses`), and their bytes."""

    hits: int = 0
    misses: int = 0
    fills: int = 0  # templates stored
    abandoned: int = 0  # fills that ended without a template
    read_memory_bytes: int = 0
    read_disk_bytes: int = 0
    memory_evictions: int = 0
    disk_evictions: int = 0
    memory_bytes: int = 0  # counted against the budget now


@dataclass(frozen=True, slots=True)
class StoredTemplate:
    """Describes a complete template. `level`: memory if all of its tensors are there."""

    manifest: Manifest
    level: Level
    used: float  # last use, in seconds since the epoch


class TemplateStore:
    """Stores templates by name, a digest of their key. A fill goes to the disk, and a template's
    tensors to memory when they are first read.

    Budgets are in bytes and hold at every moment. `register`: pins memory for a GPU, see
    `registering`. Processes may share `folder`; threads may share a store. Errors of the disk are
    reported in one line, and the template then counts as absent.
    """

    def __init__(
        self, folder: Path, memory_bytes: int, disk_bytes: int, register: Register = UNREGISTERED
    ) -> None:
        self._memory = TemplateMemory(memory_bytes, register)
        self._folder = TemplateFolder(folder, disk_bytes)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("hits", "misses", "fills", "abandoned", "read_memory_bytes", "read_disk_bytes"), 0
        )
        self._too_large: set[str] = set()

    @property
    def counts(self) -> TemplateCounts:
        with self._lock:
            return TemplateCounts(
                **self._counts,
                memory_evictions=self._memory.evictions,
                disk_evictions=self._folder.evictions,
                memory_bytes=self._memory.bytes,
            )

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what] += number

    def begin_fill(
        self, name: str, evaluations: int, details: Mapping[str, str] | None = None
    ) -> Fill | None:
        """Begins to store a template of this number of evaluations. `details`: readable parts of
        its key.

        Returns None if the template is stored, is being filled, was too large before, or its folder
        cannot be written, which is reported.
        """
        assert NAME.fullmatch(name) and evaluations > 0
        if name in self._too_large:
            return None
        try:
            target = self._folder.begin_fill(name, evaluations, details or {})
        except OSError as error:
            log.warning("template %s is not cached: %s", shown_template(name), first_line(error))
            return None
        return None if target is None else Fill(self, target, name, evaluations)

    def refuse(self, name: str) -> None:
        """Refuses further fills of a template."""
        self._too_large.add(name)

    def find(self, name: str) -> StoredTemplate | None:
        """Returns a complete template, without a use."""
        found = self._folder.find(name)
        if found is None:
            return None
        level: Level = "memory" if self._memory.holds(found.manifest) else "disk"
        return StoredTemplate(found.manifest, level, found.used)

    def templates(self, prefix: str = "") -> list[StoredTemplate]:
        """Returns the complete templates with names that begin with `prefix`, the most recently
        used first.
        """
        names = (name for name in self._folder.names() if name.startswith(prefix))
        found = [one for name in names if (one := self.find(name)) is not None]
        return sorted(found, key=lambda one: one.used, reverse=True)

    def drop(self, given: str) -> tuple[list[str], list[str]]:
        """Removes the templates that `given` names by the begin of each half, damaged ones
        included. Returns the names of removed ones, and of those in use, which stay. OSError if the
        disk fails.
        """
        dropped, used = list[str](), list[str]()
        for name in self._folder.names():
            if not names_template(given, name):
                continue
            done = self._memory.drop(name) and self._folder.drop(name)
            (dropped if done else used).append(name)
        return dropped, used

    @contextmanager
    def use(self, name: str) -> Iterator[Template | None]:
        """Yields a complete template, which is not evicted inside the `with` statement; None if it
        is absent or damaged.
        """
        with ExitStack() as stack:
            template = self._used(name, stack)
            self.count("misses" if template is None else "hits")
            try:
                yield template
            finally:
                if template is not None:
                    template.close()

    def _used(self, name: str, stack: ExitStack) -> Template | None:
        held: HeldTemplate | None = None

        def opens(manifest: Manifest) -> bool:
            nonlocal held
            held = stack.enter_context(self._memory.use(manifest))
            return held is None or not held.complete

        try:
            found = stack.enter_context(self._folder.use(name, opens))
        except OSError as error:
            log.warning("template %s cannot be read: %s", shown_template(name), first_line(error))
            return None
        if found is None:
            stack.close()  # releases the memory of a damaged template
            self._memory.drop(name)
            return None
        manifest, files = found
        return Template(self, manifest, held, files)


class Template:
    """A complete template in use. Threads may share one."""

    def __init__(
        self,
        store: TemplateStore,
        manifest: Manifest,
        held: HeldTemplate | None,
        files: tuple[Any, ...],
    ) -> None:
        self.manifest = manifest
        self._store, self._held, self._files = store, held, files

    def layers(self, evaluation: int) -> Mapping[str, Form]:
        """Returns the layers of an evaluation, with dtypes and shapes."""
        return self.manifest.evaluations[evaluation].layers

    def read(self, evaluation: int, layer: str) -> Tensor:
        """Returns a layer's output [branches, N, D] in host memory, or mapped from the disk if the
        memory's budget has no room. It must be neither changed nor used outside of the `with`
        statement. KeyError for an unknown layer; RuntimeError outside of the `with` statement.
        """
        form, held, files = self.layers(evaluation)[layer], self._held, self._files
        if held is not None and (found := held.get(evaluation, layer)) is not None:
            self._store.count("read_memory_bytes", form.nbytes)
            return found
        if not files:
            raise RuntimeError("the use of the template has ended")
        self._store.count("read_disk_bytes", form.nbytes)
        mapped: Tensor = files[evaluation].get_tensor(layer)
        if held is None:
            return mapped
        try:
            return held.add(evaluation, layer, mapped)
        except OSError:  # the system has no memory
            return mapped

    def close(self) -> None:
        """Releases memory and files, before the store may evict them."""
        self._held, self._files = None, ()


class Fill:
    """A template that is being filled. Threads may share one. Inside a `with` statement, an error
    abandons it.
    """

    def __init__(
        self, store: TemplateStore, target: FolderFill, name: str, evaluations: int
    ) -> None:
        self._store, self._target, self._name = store, target, name
        self._missing = set(range(evaluations))
        self._lock = threading.Lock()
        self.active = True
        """Whether further evaluations are accepted."""

    def __enter__(self) -> Fill:
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()

    def put(self, evaluation: int, tensors: Mapping[str, Tensor]) -> bool:
        """Stores the layers' outputs [branches, N, D] of one evaluation, which are on the host, in
        any order of the evaluations.

        Returns false if the fill is abandoned, such as by a full disk, which is reported.
        """
        with self._lock:
            if not self.active:
                return False
            if evaluation not in self._missing:
                raise ValueError(f"evaluation {evaluation} is stored or does not exist")
            host = {name: one.detach().contiguous() for name, one in tensors.items()}
            try:
                self._target.write(evaluation, host)
            except (OSError, SafetensorError, NoRoom) as error:
                self._give_up(error)
            else:
                self._missing.remove(evaluation)
            return self.active

    def finish(self) -> bool:
        """Makes the template available; returns false if the fill is abandoned. Raises ValueError
        if evaluations are missing.
        """
        with self._lock:
            if not self.active:
                return False
            if self._missing:
                raise ValueError(f"evaluations {sorted(self._missing)} are missing")
            try:
                self._target.finish()
            except OSError as error:
                self._give_up(error)
                return False
            self.active = False
            self._store.count("fills")
            return True

    def abandon(self) -> None:
        """Removes what is stored, unless the fill is finished."""
        with self._lock:
            if self.active:
                self._end()

    def _give_up(self, error: Exception) -> None:
        if isinstance(error, TooLarge):
            self._store.refuse(self._name)
        log.warning("template %s is not cached: %s", shown_template(self._name), first_line(error))
        self._end()

    def _end(self) -> None:
        self.active = False
        self._store.count("abandoned")
        self._target.discard()
