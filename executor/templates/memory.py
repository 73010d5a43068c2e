"""Stores templates in host memory, within a budget of bytes."""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.eviction import POLICIES
from katz_graph.executor.templates.budget import TEMPLATES, TooLarge, no_room
from katz_graph.executor.templates.manifest import Form, Manifest, StoredEvaluation, forms_of, shown
from katz_graph.executor.transport.registration import Register
from katz_graph.models.loading.residency import NoRoom, Residency

FILL_ENDING = ".fill"  # of the name that stands for a fill in the budget

log = logging.getLogger("katz_graph")


class TemplateMemory:
    """Stores templates in at most `budget_bytes`; evicts the least recently used unpinned ones. A
    template's bytes count from its first use, and its tensors are copied when they are first read.
    Threads may share one.
    """

    def __init__(self, budget_bytes: int, register: Register) -> None:
        self._books = Residency(budget_bytes, POLICIES["lru"](), TEMPLATES)
        self._register = register
        self._templates: dict[str, HeldTemplate] = {}
        self._too_large: set[str] = set()  # templates that were reported
        self._lock = threading.Lock()

    @property
    def budget_bytes(self) -> float:
        return self._books.budget_bytes

    @property
    def bytes(self) -> int:
        return self._books.resident_bytes

    @property
    def evictions(self) -> int:
        return self._books.evictions

    def manifests(self) -> list[Manifest]:
        """Returns the templates in memory, complete or in part, the least recently used first."""
        with self._lock:
            return [one.manifest for one in self._templates.values()]

    def holds(self, manifest: Manifest) -> bool:
        """Returns whether all tensors of this fill are in memory."""
        held = self._templates.get(manifest.name)
        return held is not None and held.manifest.fill == manifest.fill and held.complete

    @contextmanager
    def use(self, name: str, manifest: Manifest | None = None) -> Iterator[HeldTemplate | None]:
        """Yields a template, which is not evicted inside the `with` statement. With a manifest,
        makes room for its template if it is absent or of another fill.

        Yields None if there is no room, or without a manifest no template.
        """
        with self._lock:
            held = self._pinned(name, manifest)
        pinned = held is not None
        try:
            yield held
        finally:
            del held  # evicted memory is free at once
            if pinned:
                with self._lock:
                    self._books.unpin(name)

    def _pinned(self, name: str, manifest: Manifest | None) -> HeldTemplate | None:
        held = self._templates.get(name)
        if manifest is not None and (held is None or held.manifest.fill != manifest.fill):
            if held is not None and not self._forget(name):
                return None
            try:
                self._make_room(name, manifest.nbytes)
            except NoRoom as reason:
                if (
                    isinstance(reason, TooLarge)
                    and self.budget_bytes
                    and name not in self._too_large
                ):
                    self._too_large.add(name)
                    log.warning("template %s is read from the disk: %s", shown(name), reason)
                return None
            held = self._templates[name] = HeldTemplate(manifest, self._register)
        elif held is not None:
            self._books.touch(name, 0)
            self._templates[name] = self._templates.pop(name)
        if held is not None:
            self._books.pin(name)
        return held

    def _make_room(self, key: str, size: int) -> None:
        """Makes an item resident. Raises NoRoom if it does not fit next to items in use."""
        try:
            evicted = self._books.touch(key, size)
        except (InputError, NoRoom):
            raise no_room(size, self.budget_bytes, "memory") from None
        for name in evicted:
            del self._templates[str(name)]

    def _forget(self, name: str) -> bool:
        if self._books.is_pinned(name):
            return False
        self._books.forget(name)
        del self._templates[name]
        return True

    def drop(self, name: str) -> bool:
        """Removes a template. Returns false if it is used."""
        with self._lock:
            return name not in self._templates or self._forget(name)

    def begin_fill(
        self, name: str, evaluations: int, details: Mapping[str, str]
    ) -> MemoryFill | None:
        """Returns None if the template is complete, or another thread fills it."""
        key = f"{name}{FILL_ENDING}"
        with self._lock:
            if name in self._templates or key in self._books:
                return None
            self._books.touch(key, 0)
            self._books.pin(key)
        return MemoryFill(self, name, evaluations, details)

    def reserve(self, fill: str, reserved: int, size: int) -> Register:
        """Makes room for a fill of `size` bytes in place of `reserved`. Raises NoRoom if it does
        not fit.
        """
        with self._lock:
            self._release(fill)
            try:
                self._make_room(fill, size)
            except NoRoom:
                self._books.touch(fill, reserved)
                raise
            finally:
                self._books.pin(fill)
        return self._register

    def publish(self, manifest: Manifest, tensors: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Makes a complete fill a template."""
        with self._lock:
            self._release(f"{manifest.name}{FILL_ENDING}")
            self._make_room(manifest.name, manifest.nbytes)
            self._templates[manifest.name] = HeldTemplate(manifest, self._register, tensors)

    def discard(self, fill: str) -> None:
        with self._lock:
            self._release(fill)

    def _release(self, fill: str) -> None:
        self._books.unpin(fill)
        self._books.forget(fill)


class HeldTemplate:
    """Holds a template's tensors in memory, those that were read."""

    def __init__(
        self,
        manifest: Manifest,
        register: Register,
        tensors: Mapping[int, Mapping[str, Tensor]] | None = None,
    ) -> None:
        self.manifest = manifest
        self._register = register
        self._buffers: dict[int, Mapping[str, Tensor]] = dict(tensors or {})
        self._tensors = {
            (evaluation, layer): tensor
            for evaluation, layers in self._buffers.items()
            for layer, tensor in layers.items()
        }
        self._missing = sum(len(one.layers) for one in manifest.evaluations) - len(self._tensors)
        self._lock = threading.Lock()

    @property
    def complete(self) -> bool:
        """Returns whether all tensors are in memory."""
        return not self._missing

    def get(self, evaluation: int, layer: str) -> Tensor | None:
        """Returns a tensor if it is in memory."""
        return self._tensors.get((evaluation, layer))

    def add(self, evaluation: int, layer: str, source: Tensor) -> Tensor:
        """Copies a tensor to memory, unless another thread has; returns the copy. OSError if the
        system has no memory.
        """
        with self._lock:
            key = evaluation, layer
            if key not in self._tensors:
                if evaluation not in self._buffers:
                    layers = self.manifest.evaluations[evaluation].layers
                    self._buffers[evaluation] = host_tensors(layers, self._register)
                self._tensors[key] = self._buffers[evaluation][layer].copy_(source)
                self._missing -= 1
            return self._tensors[key]


class MemoryFill:
    """Stores a template's evaluations in memory, within its budget."""

    def __init__(
        self, memory: TemplateMemory, name: str, evaluations: int, details: Mapping[str, str]
    ) -> None:
        self._memory, self._name, self._details = memory, name, details
        self._number = evaluations
        self._reserved = 0
        self._tensors: dict[int, Mapping[str, Tensor]] = {}

    @property
    def _key(self) -> str:
        return f"{self._name}{FILL_ENDING}"

    def write(self, evaluation: int, tensors: Mapping[str, Tensor]) -> None:
        """Copies one evaluation's host tensors. Raises NoRoom if the template does not fit, OSError
        if the system has no memory.
        """
        layers = forms_of(tensors)
        stored = [_nbytes(forms_of(one)) for one in self._tensors.values()]
        needed = sum(stored) + _nbytes(layers) * (self._number - len(stored))
        needed = max(needed, self._reserved)
        register = self._memory.reserve(self._key, self._reserved, needed)
        self._reserved = needed
        copies = host_tensors(layers, register)
        for layer, tensor in tensors.items():
            copies[layer].copy_(tensor)
        self._tensors[evaluation] = copies

    def finish(self) -> None:
        """Makes the template available."""
        evaluations = []
        for number in range(self._number):
            layers = forms_of(self._tensors[number])
            evaluations.append(StoredEvaluation(_nbytes(layers), "", layers))
        manifest = Manifest(self._name, uuid4().hex, self._details, tuple(evaluations))
        self._memory.publish(manifest, self._tensors)

    def discard(self) -> None:
        self._tensors.clear()
        self._memory.discard(self._key)


def host_tensors(layers: Mapping[str, Form], register: Register) -> dict[str, Tensor]:
    """Returns uninitialised tensors in one mapping of exactly their bytes, which `register` pins.
    OSError if the system has no memory.
    """
    mapping = np.frombuffer(mmap.mmap(-1, max(1, _nbytes(layers))), np.uint8)
    register(mapping)
    buffer, begin, found = torch.from_numpy(mapping), 0, dict[str, Tensor]()
    # the widest values first, so that all are aligned
    for layer in sorted(layers, key=lambda layer: -layers[layer].torch_dtype.itemsize):
        form = layers[layer]
        part = buffer[begin : begin + form.nbytes]
        found[layer] = part.view(form.torch_dtype).view(form.shape)
        begin += form.nbytes
    return found


def _nbytes(layers: Mapping[str, Form]) -> int:
    return sum(form.nbytes for form in layers.values())
