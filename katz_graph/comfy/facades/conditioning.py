"""Presents a conditioning to packs: a list of [tensor, options]. The text is encoded on the first
access to an entry.

In a pack's result, an unchanged encoder output becomes its recipe again. Options become fields of
the entry, which also retains unknown options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from katz_graph.comfy.facades.control import chain, uses
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    Conditioning,
    ConditioningEntry,
    Encoding,
    tensor_digest,
)
from katz_graph.models.text.options import KNOWN, RELATIVE, SIZES, encoding_of, entry_of
from katz_graph.node.scope import current, current_context

if TYPE_CHECKING:
    from torch import Tensor

MARK = "_katz_encoding"  # attribute of an encoder's output tensor: its source


@dataclass(frozen=True, slots=True)
class PackEntry(ConditioningEntry):
    """An entry with additional options from packs, which have no effect here."""

    options: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class _Mark:
    encoding: Encoding
    digest: str  # of the tensor as the encoder returned it


class LazyPair(list[Any]):
    """Computes [tensor, options] of one entry on first access."""

    def __init__(self, entry: ConditioningEntry) -> None:
        super().__init__((None, None))
        self.entry = entry
        self.made = False

    def _make(self) -> None:
        if not self.made:
            self.made = True
            tensor, pooled = encoded(self.entry.encoding)
            list.__setitem__(self, slice(None), (tensor, options_of(self.entry, pooled)))

    def __getitem__(self, index: Any) -> Any:
        self._make()
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        self._make()
        return super().__iter__()

    def __setitem__(self, index: Any, value: Any) -> None:
        self._make()
        super().__setitem__(index, value)

    def __eq__(self, other: object) -> bool:
        self._make()
        return super().__eq__(other)

    def copy(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        from copy import deepcopy

        tensor, options = self
        return [tensor, deepcopy(options, memo)]

    def pop(self, index: SupportsIndex = -1) -> Any:
        self._make()
        return super().pop(index)


class ConditioningList(list[Any]):
    """The entries of a conditioning. Each is a LazyPair until a pack replaces it."""


def to_list(conditioning: Conditioning) -> ConditioningList:
    return ConditioningList(map(LazyPair, conditioning))


def from_list(pairs: Iterable[Any]) -> Conditioning:
    """Converts a pack's list to a conditioning. InputError unless it is a list of [tensor,
    options].
    """
    return tuple(_entry(pair) for pair in pairs)


def encoded(encoding: Encoding) -> tuple[Tensor, Tensor | None]:
    """Encodes a text with the engine: hidden [1, T, D] and pooled [1, P], both marked with their
    source.
    """
    context = current_context("encoding a text for a pack")
    made = context.engine.encode_text(encoding, context)
    return marked(made.hidden, encoding), None if made.pooled is None else marked(
        made.pooled, encoding
    )


def marked(tensor: Tensor, encoding: Encoding) -> Tensor:
    setattr(tensor, MARK, _Mark(encoding, tensor_digest(tensor)))
    return tensor


def options_of(entry: ConditioningEntry, pooled: Tensor | None) -> dict[str, Any]:
    """Returns an entry's options under ComfyUI's names."""
    options: dict[str, Any] = {"pooled_output": pooled}
    plain = ConditioningEntry(entry.encoding)
    for name in ("strength", "start_percent", "end_percent"):
        if getattr(entry, name) != getattr(plain, name):
            options[name] = getattr(entry, name)
    if entry.area is not None:
        sides = (entry.area.height, entry.area.width, entry.area.top, entry.area.left)
        options["area"] = (RELATIVE, *sides) if entry.area.relative else tuple(map(int, sides))
    if entry.mask is not None:
        options |= {
            "mask": entry.mask.mask.pixels,
            "mask_strength": entry.mask.strength,
            "set_area_to_bounds": entry.mask.bounds,
        }
    if entry.sizes is not None:
        options |= {
            name: value
            for name, its in SIZES.items()
            if (value := getattr(entry.sizes, its)) is not None
        }
    if entry.concatenated is not None:
        parts = {
            "concat_latent_image": entry.concatenated.latent,
            "concat_mask": entry.concatenated.mask,
        }
        options |= {name: part.pixels for name, part in parts.items() if part is not None}
    if entry.guidance is not None:
        options["guidance"] = None if entry.guidance == "off" else entry.guidance
    if entry.references is not None:
        options |= {
            "reference_latents": [one.pixels for one in entry.references.latents],
            "reference_latents_method": entry.references.placing,
        }
    if entry.control:
        options |= {
            "control": chain(entry.control),
            "control_apply_to_uncond": any(use.spreads for use in entry.control),
        }
    return options | (dict(entry.options) if isinstance(entry, PackEntry) else {})


def _entry(pair: Any) -> ConditioningEntry:
    if isinstance(pair, LazyPair) and not pair.made:
        return pair.entry
    if isinstance(pair, ConditioningEntry):
        return pair
    if not isinstance(pair, Sequence) or len(pair) != 2 or not isinstance(pair[1], Mapping):
        raise InputError("the conditioning is not a list of [tensor, options]")
    tensor, options = pair
    unknown = {name: value for name, value in options.items() if name not in KNOWN}
    entry = replace(
        entry_of(_encoding(tensor, options.get("pooled_output")), options),
        control=uses(options.get("control"), bool(options.get("control_apply_to_uncond"))),
    )
    if not unknown:
        return entry
    now = current()
    if now is not None:
        names = ", ".join(map(str, unknown))
        now.context.warn(f"conditioning: unknown options are passed on without effect: {names}")
    fields = {name: getattr(entry, name) for name in ConditioningEntry.__dataclass_fields__}
    return PackEntry(**fields, options=unknown)


def _encoding(tensor: Any, pooled: Any) -> Encoding:
    """Returns the recipe of both tensors if they are unchanged, else an encoding that holds the
    tensors.
    """
    source = _source(tensor)
    if source is not None and (pooled is None or _source(pooled) == source):
        return source
    return encoding_of(tensor, pooled)


def _source(tensor: Any) -> Encoding | None:
    mark: _Mark | None = getattr(tensor, MARK, None)
    return mark.encoding if mark is not None and mark.digest == tensor_digest(tensor) else None
