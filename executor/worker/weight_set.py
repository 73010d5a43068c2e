"""Merges LoRAs into live modules, and modules into new ones. Weights are changed in place, so their
addresses, and CUDA graphs over them, stay valid.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from katz_graph.adapters.fit import fit
from katz_graph.adapters.lora import read_lora
from katz_graph.adapters.methods import Method
from katz_graph.adapters.naming import TEXT_PARTS
from katz_graph.models.loading.store import ModelStore
from katz_graph.recipe import Component, FileIdentity, Lora, MergedComponent

Resident = tuple[tuple[Lora, str], ...]
"""LoRAs in order, each with the part of its file that is meant: that of the network, `text_encoder`
or `text_encoder_2`.
"""

FILES_KEPT = 8  # that a module's sets are made of, so that switching between them reads nothing


class WeightSets:
    """Makes weight sets resident in one module, a network or a text encoder; the only keeper of its
    originals.

    A text encoder may be one model's first and another's second: which part of a LoRA file it takes
    is told with each set. A set is made from the originals plus all its deltas in order,
    accumulated in float32 and rounded once; the empty set is the originals, bit for bit. Not for
    use by several threads at once.
    """

    def __init__(self, module: Any) -> None:
        self._weights: dict[str, Tensor] = dict(module.named_parameters())
        self._originals: dict[str, Tensor] = {}  # on the CPU, of weights that some set has touched
        self._touched: frozenset[str] = frozenset()
        self._resident: Resident = ()
        self._fitted = lru_cache(maxsize=FILES_KEPT)(partial(_fitted, self._weights))

    @property
    def resident(self) -> Resident:
        """Returns what is merged into the weights, without LoRAs of strength 0, which are none."""
        return self._resident

    @property
    def originals(self) -> Collection[Tensor]:
        """Returns the originals of the weights that some set has touched, on the CPU."""
        return self._originals.values()

    @torch.no_grad()
    def use(self, loras: tuple[Lora, ...], part: str) -> float:
        """Makes a set resident; returns the seconds it took, 0 when it was there. `part`: of the
        files, which is what the module is to its model.

        InputError when a file does not fit: the resident set then stays as it was.
        """
        wanted = tuple((lora, part) for lora in loras if lora.strength != 0)
        if wanted == self._resident:
            return 0.0
        begin = time.perf_counter()
        methods = [(self._fitted(lora.file, part), lora.strength) for lora, part in wanted]
        touched = frozenset(name for fitted, _ in methods for name in fitted)
        try:
            self._restore(self._touched)
            for name in sorted(touched):
                self._keep(name)
                self._write(
                    name,
                    [(fitted[name], strength) for fitted, strength in methods if name in fitted],
                )
        except BaseException:
            self._restore(frozenset(self._originals))
            self._touched, self._resident = frozenset(), ()
            raise
        self._touched, self._resident = touched, wanted
        for device in {weight.device for weight in self._weights.values() if weight.is_cuda}:
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    def _keep(self, name: str) -> None:
        """Keeps the original of a weight that nothing was added to, once."""
        if name not in self._originals:
            weight = self._weights[name]
            self._originals[name] = torch.empty_like(
                weight, device="cpu", pin_memory=weight.is_cuda
            ).copy_(weight)

    def _restore(self, names: frozenset[str]) -> None:
        for name in names:
            self._weights[name].copy_(self._originals[name], non_blocking=True)

    def _write(self, name: str, deltas: list[tuple[Method, float]]) -> None:
        """Adds deltas in float32 on the device: factors cross the bus in their own format."""
        weight = self._weights[name]
        total = weight.to(torch.float32)
        for method, strength in deltas:
            method.add_to(total, strength)
        if total is not weight:
            weight.copy_(total)


def _fitted(weights: Mapping[str, Tensor], file: FileIdentity, part: str) -> Mapping[str, Method]:
    return fit(read_lora(file), part, weights)


MERGING_BYTES = 8  # bytes for each weight, while two modules in float32 are at hand


@torch.no_grad()
def merged_module(part: MergedComponent, target: str, dtype: torch.dtype) -> Any:
    """Merges two modules into one on the CPU. `target` is the part of LoRA files that is for it."""
    module, other = (_whole(source, loras, target) for source, loras in part.sources)
    weights = dict(other.named_parameters())
    for name, weight in module.named_parameters():
        of_first, of_second = next(
            (first, second)
            for beginning, first, second in part.scales
            if name.startswith(beginning)
        )
        weight.mul_(of_first).add_(weights[name], alpha=of_second)
    return module.to(dtype)


def _whole(part: Component, loras: tuple[Lora, ...], target: str) -> Any:
    """Makes a module of its own in float32, which nobody else holds."""
    if isinstance(part, MergedComponent):
        module = merged_module(part, target, torch.float32)
    else:
        store = ModelStore()
        load = store.text_encoder if target in TEXT_PARTS else store.network
        module = load(part, "cpu", torch.float32)
    WeightSets(module).use(loras, target)
    return module
