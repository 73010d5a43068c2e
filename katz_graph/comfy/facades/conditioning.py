"""Presents a conditioning to packs: a list of [tensor, options]. The text is encoded on the first
access to an entry.

In a pack's result, an unchanged encoder output becomes its recipe again. Options become fields of
the entry, which also retains unknown options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, cast, get_args

from katz_graph.comfy.facades.control import chain, uses
from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import FRAME_AXES, of_pictures
from katz_graph.core.recipe import (
    Area,
    Concatenated,
    Conditioning,
    ConditioningEntry,
    Encoding,
    Given,
    MaskUse,
    Picture,
    ReferencePlacing,
    References,
    Sizes,
    tensor_digest,
)
from katz_graph.node.scope import current, current_context

if TYPE_CHECKING:
    from torch import Tensor

RELATIVE = "percentage"
SIZES = {
    "width": "width",
    "height": "height",
    "crop_w": "crop_left",
    "crop_h": "crop_top",
    "target_width": "target_width",
    "target_height": "target_height",
    "aesthetic_score": "aesthetic_score",
}
"""Option names of packs -> fields of Sizes."""
KNOWN = frozenset(
    (
        *(
            "pooled_output",
            "strength",
            "start_percent",
            "end_percent",
            "area",
            "mask",
            "mask_strength",
            "set_area_to_bounds",
        ),
        *("control", "control_apply_to_uncond", "concat_latent_image", "concat_mask", *SIZES),
        *("guidance", "reference_latents", "reference_latents_method"),
    )
)
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
    entry = ConditioningEntry(
        encoding=_encoding(tensor, options.get("pooled_output")),
        strength=float(options.get("strength", 1.0)),
        start_percent=float(options.get("start_percent", 0.0)),
        end_percent=float(options.get("end_percent", 1.0)),
        area=_area(options.get("area")),
        mask=_mask(options),
        sizes=_sizes(options),
        concatenated=_concatenated(options),
        control=uses(options.get("control"), bool(options.get("control_apply_to_uncond"))),
        guidance=_guidance(options),
        references=_references(options),
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
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 3:
        got = (
            list(tensor.shape) if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
        )
        raise InputError(
            f"the conditioning has {got} for a text encoding, expected a tensor [batch, "
            "tokens, width]"
        )
    source = _source(tensor)
    if source is not None and (pooled is None or _source(pooled) == source):
        return source
    return Given.of(tensor.detach(), None if pooled is None else pooled.detach())


def _source(tensor: Tensor) -> Encoding | None:
    mark: _Mark | None = getattr(tensor, MARK, None)
    return mark.encoding if mark is not None and mark.digest == tensor_digest(tensor) else None


def _area(area: Any) -> Area | None:
    if area is None:
        return None
    relative = area[0] == RELATIVE
    sides = area[1:] if relative else area
    if len(sides) != 4:
        raise InputError(
            f"the conditioning has an area of {len(sides)} numbers, expected height, width, "
            "top and left"
        )
    height, width, top, left = map(float, sides)
    return Area(top, left, height, width, relative)


def _mask(options: Mapping[str, Any]) -> MaskUse | None:
    mask = options.get("mask")
    if mask is None:
        return None
    planes = mask if mask.ndim == 3 else mask.reshape(-1, *mask.shape[-2:])
    return MaskUse(
        Picture.of(planes.float()),
        float(options.get("mask_strength", 1.0)),
        bool(options.get("set_area_to_bounds", False)),
    )


def _sizes(options: Mapping[str, Any]) -> Sizes | None:
    given = {its: options[name] for name, its in SIZES.items() if options.get(name) is not None}
    return replace(Sizes(), **given) if given else None


def _concatenated(options: Mapping[str, Any]) -> Concatenated | None:
    latent, mask = options.get("concat_latent_image"), options.get("concat_mask")
    if latent is None and mask is None:
        return None
    return Concatenated(*(None if part is None else Picture.of(part) for part in (latent, mask)))


def _guidance(options: Mapping[str, Any]) -> float | Literal["off"] | None:
    """Reads the guidance embedding of a distilled model. A key with the value None disables
    guidance.
    """
    if "guidance" not in options:
        return None
    given = options["guidance"]
    return "off" if given is None else float(given)


def _references(options: Mapping[str, Any]) -> References | None:
    """Reads an editing model's reference latents. InputError for an invalid shape or method."""
    import torch

    latents, method = options.get("reference_latents"), options.get("reference_latents_method")
    if not latents and method is None:
        return None
    for latent in latents or ():
        if not isinstance(latent, torch.Tensor) or latent.ndim not in (4, FRAME_AXES):
            got = (
                list(latent.shape)
                if isinstance(latent, torch.Tensor)
                else f"a {type(latent).__name__}"
            )
            raise InputError(
                f"the conditioning has {got} in reference_latents, expected tensors [batch, "
                "channels, height, width]"
            )
    placings = get_args(ReferencePlacing)
    if method is not None and method not in placings:
        raise InputError(
            f"the conditioning has reference_latents_method {method!r}, expected one of "
            f"{', '.join(placings)}"
        )
    pictures = tuple(Picture.of(of_pictures(latent)) for latent in latents or ())
    return References(pictures, cast(ReferencePlacing, method or "offset"))
