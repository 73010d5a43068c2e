"""Merges LoRAs into live modules, and two modules into a new one. Changes weights in place, so
their addresses, and CUDA graphs that read them, stay valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn

from katz_graph.adapters.encoders import TextParts
from katz_graph.adapters.fit import fit
from katz_graph.adapters.lora import LoraFile, read_lora
from katz_graph.adapters.methods import ALL, Method
from katz_graph.adapters.methods import Lora as LoraMethod
from katz_graph.core.errors import RunError
from katz_graph.core.recipe import Component, FileIdentity, Lora, MergedComponent, tensor_digest
from katz_graph.executor.weights.originals import Originals, SpareMemory, nowhere
from katz_graph.executor.weights.weight_cache import WeightCache, byte_size
from katz_graph.kernels.lora_patch import prepared, row_blocks
from katz_graph.kernels.patches import Delta, Patch, Send
from katz_graph.models.family import family_of_class
from katz_graph.models.loading.fill import stored_tensors
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.quantised_weight import QuantisedWeight
from katz_graph.models.row_loras import LoraFactors
from katz_graph.settings.environment import checks_weights

Resident = tuple[tuple[Lora, TextParts], ...]
"""LoRAs in order, each with the parts of its file that patch a text encoder. The parts are empty
for a network, because the network's class determines them.
"""

SET_BYTES = 2**30  # default budget for the cached weights of sets that recurred
REMEMBERED = 4096  # number of merged sets remembered


Deltas = Mapping[str, Sequence[tuple[Method, float]]]
"""Deltas with their strengths, in order, by weight."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Holds the patches of a set: a function that writes the weights changed by plain LoRAs only,
    with all scales multiplied by its argument, and the names of the other weights.
    """

    patch: Callable[[float], None]
    others: Sequence[str]


class WeightSetCache:
    """Caches the merged weights of earlier sets, of all modules of a device, within a budget of
    bytes, so switching back to a set is a copy.

    A set is cached when it is merged the second time, because most of a long tail of sets never
    recur.
    """

    def __init__(self, budget: float = SET_BYTES) -> None:
        self._cache = WeightCache(lambda: budget)
        self._seen: dict[Any, None] = {}  # sets merged at least once, latest last

    def get(self, key: Any) -> Mapping[str, Tensor] | None:
        return self._cache.get(key)

    def made(self, key: Any, weights: Mapping[str, Tensor]) -> None:
        """Records a set's merge; from the second on, caches the weights if the budget allows."""
        if key not in self._seen:
            self._seen[key] = None
            while len(self._seen) > REMEMBERED:
                del self._seen[next(iter(self._seen))]
            return
        if self._cache.make_room(byte_size(weights.values())):
            self._cache.keep(key, {name: weight.clone() for name, weight in weights.items()})

    def forget(self, owner: object) -> None:
        """Drops the sets of a module."""

        def is_its(key: Any) -> bool:
            return bool(key[0] is owner)

        self._cache.forget(is_its)
        for key in filter(is_its, list(self._seen)):
            del self._seen[key]

    @property
    def bytes(self) -> int:
        return self._cache.bytes


class WeightSets:
    """Makes weight sets resident in one module, a network or a text encoder, and holds its original
    weights.

    Each set names the parts of a LoRA file that it uses, because a text encoder may be the first of
    one model and the second of another. A set's weights are the originals plus all deltas in order,
    accumulated in float32 and rounded once; those of the empty set are the originals, bit for bit.
    A switch writes only the weights that the old or the new set changes. Not thread-safe. Weights
    that are stored as 8-bit numbers are their own originals; those that a set changes are read from
    wide memory of their own while it is resident.

    `read` returns the files; `cache` may hold recurring sets; `spare_memory` limits the device
    memory for originals; `send` copies factors to a GPU; `make_room` is called with the bytes that
    wide weights will take. Raises RunError when a restored weight
    differs from its original, if that is checked (KATZ_CHECK_WEIGHTS).
    """

    def __init__(
        self,
        module: Any,
        read: Callable[[FileIdentity], LoraFile] = read_lora,
        cache: WeightSetCache | None = None,
        spare_memory: SpareMemory = nowhere,
        send: Send | None = None,
        make_room: Callable[[int], object] = lambda size: None,
    ) -> None:
        self._send, self._make_room = send, make_room
        self._weights: dict[str, Tensor] = stored_tensors(module)
        self._family = family_of_class(type(module).__name__)
        self._read, self._cache = read, cache
        # by live file, then by parts
        self._fitted: WeakKeyDictionary[LoraFile, dict[TextParts, Mapping[str, Method]]]
        self._fitted = WeakKeyDictionary()
        self._prepared: WeakKeyDictionary[LoraFile, dict[TextParts, Prepared]]
        self._prepared = WeakKeyDictionary()
        self._factors: WeakValueDictionary[Resident, LoraFactors] = WeakValueDictionary()
        # of all weights that any set has changed
        self.originals = Originals(spare_memory, self._prepared.clear)
        self._quantised = {
            name: one for name, one in self._weights.items() if isinstance(one, QuantisedWeight)
        }
        self._touched: frozenset[str] = frozenset()
        self._resident: Resident = ()
        self._gpus = {weight.device for weight in self._weights.values() if weight.is_cuda}
        self._checks = checks_weights()
        self._digests: dict[str, str] = {}  # of originals, if they are checked

    @property
    def resident(self) -> Resident:
        """Returns the LoRAs merged into the weights, without those of strength 0."""
        return self._resident

    @property
    def replaced(self) -> Mapping[str, int]:
        """Returns the bytes of the replacements of stored weights, by name."""
        return {
            name: one.replacement.nbytes
            for name, one in self._quantised.items()
            if one.replacement is not None
        }

    @property
    def touched(self) -> frozenset[str]:
        """Returns the names of the weights that the resident set changes."""
        return self._touched

    @torch.no_grad()
    def use(self, loras: tuple[Lora, ...], parts: TextParts = ()) -> float:
        """Makes a set resident; returns the seconds it took, 0 if it already was. `parts`: the
        parts of the files for a text encoder.

        Raises InputError if a file does not fit; the resident set then stays unchanged.
        """
        wanted = as_resident(loras, parts)
        if wanted == self._resident:
            return 0.0
        begin = time.perf_counter()
        cached = None if self._cache is None else self._cache.get((self, wanted))
        files: list[LoraFile] = []
        made: dict[str, list[tuple[Method, float]]] = {}
        if cached is None:
            files = [self._read(lora.file) for lora, _ in wanted]
            made = self._deltas(wanted, files)
        touched = frozenset(made if cached is None else cached)
        try:
            self._restore(self._touched - touched)
            self._replace(touched & self._quantised.keys())
            self._copy(cached or {})
            self._keep(made)
            self._patch(wanted, files, made)
        except BaseException:
            self._restore(self.originals.tensors.keys() | self._quantised.keys())
            self._touched, self._resident = frozenset(), ()
            raise
        self._touched, self._resident = touched, wanted
        if self._cache is not None and made:
            self._cache.made((self, wanted), {name: self._target(name) for name in touched})
        for device in self._gpus:
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    def applies_by_row(self, module: nn.Module, loras: tuple[Lora, ...]) -> bool:
        """Returns whether each LoRA is a plain low-rank product of linear layers and convolutions,
        which rows of a call may have without the others (`models.row_loras`).
        """
        wanted = as_resident(loras)
        deltas = self._deltas(wanted, [self._read(lora.file) for lora, _ in wanted])
        merged = () if self._family is None else self._family.lora.merged
        return not any(name.startswith(merged) for name in deltas) and all(
            _takes_products(module, name) and all(_is_plain(method) for method, _ in some)
            for name, some in deltas.items()
        )

    @torch.no_grad()
    def factors(self, loras: tuple[Lora, ...]) -> LoraFactors | None:
        """Returns the factors of LoRAs that apply by row, in the weights' dtype; None without
        LoRAs.
        """
        wanted = as_resident(loras)
        found = self._factors.get(wanted)
        if found is None and wanted:
            deltas = self._deltas(wanted, [self._read(lora.file) for lora, _ in wanted])
            if not deltas:
                return None  # the files change text encoders only
            made = {name: _joined(self._weights[name], some) for name, some in deltas.items()}
            found = self._factors[wanted] = LoraFactors(made)
        return found

    def _deltas(
        self, wanted: Resident, files: Sequence[LoraFile]
    ) -> dict[str, list[tuple[Method, float]]]:
        """Returns the deltas of a set, in order, by weight."""
        found: dict[str, list[tuple[Method, float]]] = {}
        for (lora, parts), file in zip(wanted, files, strict=True):
            for name, method in self._fit(file, parts).items():
                found.setdefault(name, []).append((method, lora.strength))
        return found

    def _fit(self, file: LoraFile, parts: TextParts) -> Mapping[str, Method]:
        fitted = self._fitted.setdefault(file, {})
        if parts not in fitted:
            fitted[parts] = fit(file, self._family or parts, self._weights)
        return fitted[parts]

    def _keep(self, names: Iterable[str]) -> None:
        """Stores the originals of weights that no set has changed before."""
        originals = self.originals.tensors
        names = [name for name in names if name not in originals]
        self.originals.keep(
            {name: self._weights[name] for name in names if name not in self._quantised}
        )
        for name in names if self._checks else ():
            self._digests.setdefault(name, tensor_digest(self._stored(name)))

    def _restore(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in self._quantised.keys() & names:
            self._quantised[name].replacement = None
        self._copy(
            {name: self.originals.tensors[name] for name in names if name not in self._quantised}
        )
        for name in self._digests.keys() & names:
            if tensor_digest(self._stored(name)) != self._digests[name]:
                raise RunError(f"{name} differs from its weights before LoRAs were added")

    def _replace(self, names: Iterable[str]) -> None:
        """Gives stored weights replacements with their own values."""
        weights = [self._quantised[name] for name in names]
        new = [one for one in weights if one.replacement is None]
        self._make_room(sum(one.numel() * one.element_size() for one in new))
        for one in weights:
            one.replace()

    def _stored(self, name: str) -> Tensor:
        """Returns the tensor with a weight as it was loaded, if no set changes it."""
        quantised = self._quantised.get(name)
        return self._weights[name] if quantised is None else quantised.codes

    def _target(self, name: str) -> Tensor:
        """Returns the tensor that a set writes: the weight, or the replacement of a stored one."""
        quantised = self._quantised.get(name)
        if quantised is None or quantised.replacement is None:
            return self._weights[name]
        return quantised.replacement

    def _copy(self, values: Mapping[str, Tensor]) -> None:
        """Copies values into the weights of these names."""
        if values:
            weights = [self._target(name) for name in values]
            torch._foreach_copy_(weights, list(values.values()), non_blocking=True)

    def _patch(self, wanted: Resident, files: Sequence[LoraFile], made: Deltas) -> None:
        """Adds deltas to originals, in float32 on the device. Tensors on the host are transferred
        in their own dtype.
        """
        self._copy(
            {
                name: self.originals.tensors[name]
                for name in self._touched.intersection(made)
                if self._source(name) is self._weights[name]
            }
        )
        if len(files) == 1 and self._quantised.keys().isdisjoint(made):
            ((lora, parts),) = wanted
            strength, patches = lora.strength, self._prepared_file(files[0], parts, made)
        else:
            strength, patches = 1.0, self._prepare(made)
        for name in patches.others:
            self._write(name, made[name])
        patches.patch(strength)

    def _prepared_file(self, file: LoraFile, parts: TextParts, made: Deltas) -> Prepared:
        """Prepares the only file of a set once, at strength 1."""
        by_parts = self._prepared.setdefault(file, {})
        if parts not in by_parts:
            unscaled = {name: [(method, 1.0) for method, _ in made[name]] for name in made}
            by_parts[parts] = self._prepare(unscaled)
        return by_parts[parts]

    def _prepare(self, made: Deltas) -> Prepared:
        patches, others = [], []
        for name in sorted(made):
            weight = self._target(name)
            if plain := _plain(weight, made[name]):
                patches.append(Patch(weight, self._source(name), plain))
            else:
                others.append(name)
        return Prepared(prepared(patches, self._send), others)

    def _source(self, name: str) -> Tensor:
        """Returns a weight's original if that is on the weight's device; else the weight itself,
        into which the original is copied before patching.
        """
        if name in self._quantised:
            return self._target(name)
        weight, original = self._weights[name], self.originals.tensors[name]
        return original if original.device == weight.device else weight

    def _write(self, name: str, deltas: Sequence[tuple[Method, float]]) -> None:
        """Adds deltas to one original."""
        weight, original = self._target(name), self._source(name)
        in_place = weight.dtype == torch.float32 and weight.is_contiguous()
        for rows in _blocks(weight, deltas):
            target, source = (weight, original) if rows is ALL else (weight[rows], original[rows])
            total = target if in_place else target.new_empty(target.shape, dtype=torch.float32)
            total.copy_(source)
            for method, strength in deltas:
                method.add_to(total, strength, rows)
            if not in_place:
                target.copy_(total)


def _plain(weight: Tensor, deltas: Sequence[tuple[Method, float]]) -> Sequence[Delta]:
    """Returns the deltas if all are LoRAs, which are added to many weights together."""
    if not (weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)):
        return ()
    plain = [
        Delta(method.product.left, method.product.right, strength * method.scale)
        for method, strength in deltas
        if _is_plain(method)
    ]
    return plain if len(plain) == len(deltas) else ()


def _is_plain(method: Method) -> TypeGuard[LoraMethod]:
    return isinstance(method, LoraMethod) and method.product.core is None


def _takes_products(module: nn.Module, name: str) -> bool:
    """Returns whether a weight is that of a layer to whose output products can be added."""
    path, _, parameter = name.rpartition(".")
    layer = module.get_submodule(path)
    convolution = isinstance(layer, nn.Conv2d)
    if convolution and (layer.groups != 1 or layer.padding_mode != "zeros"):
        return False
    return parameter == "weight" and (convolution or isinstance(layer, nn.Linear))


def _joined(weight: Tensor, deltas: Sequence[tuple[Method, float]]) -> tuple[Tensor, Tensor]:
    """Joins plain LoRAs of a weight along their ranks: down [r, ...], and up [out, r] with the
    strengths.
    """
    plain = [(method, strength) for method, strength in deltas if _is_plain(method)]
    down = [
        one.product.right.to(weight.device, weight.dtype).reshape(-1, *weight.shape[1:])
        for one, _ in plain
    ]
    up = [one.product.left.float() * (strength * one.scale) for one, strength in plain]
    return torch.cat(down), torch.cat(up, 1).to(weight.device, weight.dtype)


def _blocks(weight: Tensor, deltas: Sequence[tuple[Method, float]]) -> Iterable[slice]:
    """Returns the slices of rows to compute at a time; all rows if a method cannot compute them
    separately.
    """
    return row_blocks(weight) if all(method.by_rows for method, _ in deltas) else (ALL,)


def as_resident(loras: Iterable[Lora], parts: TextParts = ()) -> Resident:
    """Returns the resident set after merging LoRAs into a module. `parts`: see `use`."""
    return tuple((lora, parts) for lora in loras if lora.strength != 0)


MERGING_BYTES = 8  # bytes per weight, while two modules are held in float32


@torch.no_grad()
def merged_module(part: MergedComponent, parts: TextParts) -> Any:
    """Merges two modules into one on the CPU, in float32. For other dtypes the caller rounds the
    weights, but not computed buffers. `parts`: parts of LoRA files for a text encoder.
    """
    module, other = (_whole(source, loras, parts) for source, loras in part.sources)
    weights = stored_tensors(other)
    for name, weight in stored_tensors(module).items():
        if name not in weights or weights[name].shape != weight.shape:  # already warned
            continue
        of_first, of_second = next(
            (first, second)
            for beginning, first, second in part.scales
            if name.startswith(beginning)
        )
        weight.mul_(of_first).add_(weights[name], alpha=of_second)
    return module


def _whole(part: Component, loras: tuple[Lora, ...], parts: TextParts) -> Any:
    """Creates an unshared module in float32."""
    if isinstance(part, MergedComponent):
        module = merged_module(part, parts)
    else:
        store = ModelStore(widens=True)
        load = store.text_encoder if parts else store.network
        module = load(part, "cpu", torch.float32)
    WeightSets(module).use(loras, parts)
    return module
