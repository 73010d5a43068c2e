"""Stores templates in host memory, within a budget of bytes."""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.eviction import POLICIES
from katz_graph.executor.templates.budget import TEMPLATES, no_room
from katz_graph.executor.templates.manifest import Form, Manifest
from katz_graph.executor.transport.registration import Register
from katz_graph.ir.reuse import shown_template
from katz_graph.models.loading.residency import NoRoom, Residency

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

    def holds(self, manifest: Manifest) -> bool:
        """Returns whether all tensors of this fill are in memory."""
        held = self._templates.get(manifest.name)
        return held is not None and held.manifest.fill == manifest.fill and held.complete

    @contextmanager
    def use(self, manifest: Manifest) -> Iterator[HeldTemplate | None]:
        """Yields a template, which is not evicted inside the `with` statement. Makes room for it if
        it is absent or of another fill; yields None if there is no room.
        """
        with self._lock:
            held = self._pinned(manifest)
        pinned = held is not None
        try:
            yield held
        finally:
            del held  # evicted memory is free at once
            if pinned:
                with self._lock:
                    self._books.unpin(manifest.name)

    def _pinned(self, manifest: Manifest) -> HeldTemplate | None:
        name, held = manifest.name, self._templates.get(manifest.name)
        if held is not None and held.manifest.fill != manifest.fill:
            if not self._forget(name):
                return None
            held = None
        if not self._resident(name, manifest.nbytes):
            return None
        if held is None:
            held = self._templates[name] = HeldTemplate(manifest, self._register)
        self._books.pin(name)
        return held

    def _resident(self, name: str, size: int) -> bool:
        """Makes a template resident; returns false if it does not fit next to those in use."""
        try:
            evicted = self._books.touch(name, size)
        except NoRoom:
            return False
        except InputError:
            if self.budget_bytes and name not in self._too_large:
                self._too_large.add(name)
                why = no_room(size, self.budget_bytes, "memory")
                log.warning("template %s is read from the disk: %s", shown_template(name), why)
            return False
        for victim in evicted:
            del self._templates[str(victim)]
        return True

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


class HeldTemplate:
    """Holds a template's tensors in memory, those that were read."""

    def __init__(self, manifest: Manifest, register: Register) -> None:
        self.manifest = manifest
        self._register = register
        self._buffers: dict[int, Mapping[str, Tensor]] = {}  # by evaluation
        self._tensors: dict[tuple[int, str], Tensor] = {}  # those that were read
        self._missing = sum(len(one.layers) for one in manifest.evaluations)
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
