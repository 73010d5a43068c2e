"""Reads conditionings of packs and of files: as in ComfyUI, a tensor with options by name, which
become fields of the entry. Never imports torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import FRAME_AXES, of_pictures
from katz_graph.core.recipe import (
    Area,
    Concatenated,
    ConditioningEntry,
    Encoding,
    Given,
    MaskUse,
    Picture,
    ReferencePlacing,
    References,
    Sizes,
)
from katz_graph.models.loading.contents import contents

if TYPE_CHECKING:
    from torch import Tensor

TENSOR, OPTIONS = "conditioning", "conditioning_options"  # a file's tensor and metadata
NUMBERED = re.compile(r"(.+)\.(\d+)")
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


def read_conditioning(path: Path) -> tuple[ConditioningEntry, tuple[str, ...]]:
    """Reads a file of SaveConditioning. Tensors with numbers at the end of their names are the
    elements of a list. Returns the entry and the names of options without effect. Raises
    InputError for other files.
    """
    from safetensors import safe_open

    known = contents(path)
    try:
        options = json.loads(known.metadata.get(OPTIONS, "{}"))
    except ValueError as error:
        raise InputError(f"{path}: its {OPTIONS} are not JSON: {error}") from None
    if TENSOR not in known.shapes or not isinstance(options, dict):
        raise InputError(
            f"{path}: expected a file of SaveConditioning: a tensor {TENSOR!r}, and options as a "
            "JSON object"
        )
    with safe_open(path, framework="pt") as file:
        tensors: dict[str, Tensor] = {
            name: file.get_tensor(name).float().clone() for name in known.shapes
        }
    lists: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := NUMBERED.fullmatch(name):
            lists.setdefault(match[1], {})[int(match[2])] = tensor
        elif name != TENSOR:
            options[name] = tensor
    options |= {name: [one[at] for at in sorted(one)] for name, one in lists.items()}
    try:
        entry = entry_of(encoding_of(tensors[TENSOR], options.get("pooled_output")), options)
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: an option is not of its type: {error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return entry, tuple(name for name in options if name not in KNOWN)


def entry_of(encoding: Encoding, options: Mapping[str, Any]) -> ConditioningEntry:
    """Returns an entry without ControlNets. Ignores unknown options. Raises InputError for values
    that an option does not have.
    """
    return ConditioningEntry(
        encoding=encoding,
        strength=float(options.get("strength", 1.0)),
        start_percent=float(options.get("start_percent", 0.0)),
        end_percent=float(options.get("end_percent", 1.0)),
        area=_area(options.get("area")),
        mask=_mask(options),
        sizes=_sizes(options),
        concatenated=_concatenated(options),
        guidance=_guidance(options),
        references=_references(options),
    )


def encoding_of(tensor: Any, pooled: Any) -> Encoding:
    """Returns an encoding that holds the tensors. Raises InputError for another shape."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 3:
        got = (
            list(tensor.shape) if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
        )
        raise InputError(
            f"the conditioning has {got} for a text encoding, expected a tensor [batch, "
            "tokens, width]"
        )
    return Given.of(tensor.detach(), None if pooled is None else pooled.detach())


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
