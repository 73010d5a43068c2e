"""Fits LoRA files to modules. Checks the LoRAs of recipes before loading, from headers and
configurations alone. Warns about all tensors that no module uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from torch import Tensor

from katz_graph.adapters.encoders import TITLES, TextParts, text_parts
from katz_graph.adapters.layers import layouts
from katz_graph.adapters.lora import LoraFile, describe
from katz_graph.adapters.methods import Method
from katz_graph.adapters.naming import NETWORK, matching_families
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    FileIdentity,
    Lora,
    MergedComponent,
    ModelRecipe,
)
from katz_graph.files.urls import shown
from katz_graph.models.family import ModelFamily, family_of
from katz_graph.models.loading.shapes import Shapes, parameter_shapes
from katz_graph.settings.environment import lora_keys

MAX_NAMES = 3  # of layers or tensors, in a message
FITS_KNOWN = 256  # cached results of `_used`, by file and module
FILES_DESCRIBED = 4

Target = ModelFamily | TextParts
"""The role of a module in its model: a family's network, or a text encoder, given by its parts of
LoRA files.
"""
Place = tuple[str, str]
"""A part of a file, and the name of a weight or bias in this part."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Holds a LoRA file's methods for a module, by parameter name. `used`: the places of these
    methods in the file.
    """

    methods: Mapping[str, Method]
    used: frozenset[Place]


def check_fits(lora: LoraFile, target: Target, shapes: Shapes) -> Fitted:
    """Returns the methods for a module by parameter name. Splits the method of a fused layer. The
    header from `describe` suffices as `lora`.

    Raises InputError if a layer does not fit (names both shapes), if two layers are for the same
    parameter, and if the file has layers for this kind of module, but none for this module.
    """
    fitted: dict[str, Method] = {}
    used: set[Place] = set()
    lacking: list[Place] = []
    parts, names = ((NETWORK,), target.lora) if isinstance(target, ModelFamily) else (target, None)
    given = {(part, name): one for part in parts for name, one in lora.parts.get(part, {}).items()}
    known = layouts(tuple(shapes), names).of_file([name for _, name in given], lora.original)
    for place, method in given.items():
        pieces = known.get(place[1], ())
        if not pieces:
            lacking.append(place)
            continue
        layer = name_of(lora, target, place)
        wanted = _joined([shapes[rows.layer] for rows in pieces])
        if not method.fits(wanted):
            raise InputError(
                f"{lora.path}: {_made_for(lora, target)}: {layer} has shape {method.shape}, "
                f"this model {wanted}; choose a LoRA made for it"
            )
        for rows in pieces:
            piece = rows.layer
            if piece in fitted:
                raise InputError(
                    f"{lora.path}: has {piece.removesuffix('.weight')} twice ({layer}), expected "
                    "one LoRA in a file"
                )
            try:
                fitted[piece] = method if rows.whole else method.cut(rows.cut)
            except ValueError as error:
                raise InputError(f"{lora.path}: {layer} {error}") from None
        used.add(place)
    if lacking and (not fitted or _of_others(lora, target)):
        part, name = first = lacking[0]
        others = f"{len(lacking) - 1} other" if fitted else "all other"
        raise InputError(
            f"{lora.path}: {_made_for(lora, target)}: {name_of(lora, target, first)} (shape "
            f"{lora.parts[part][name].shape}) and {others} layers of the LoRA do not exist in "
            "this model; choose a LoRA made for it"
        )
    return Fitted(fitted, frozenset(used))


def name_of(lora: LoraFile, target: Target, place: Place) -> str:
    """Returns the display name of a layer. Network layers are prefixed with the pipeline part; text
    encoder layers are named as in the file.
    """
    part, name = place
    if isinstance(target, ModelFamily):
        return f"{target.network.part}.{name.removesuffix('.weight')}"
    return lora.layers[part][name]


def _joined(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Returns the shape of the weights concatenated along the first axis."""
    return [sum(shape[0] for shape in shapes), *shapes[0][1:]]


def _of_others(lora: LoraFile, target: Target) -> bool:
    """Returns whether a file for networks matches only other families by name."""
    if not isinstance(target, ModelFamily):
        return False
    families = matching_families(lora.parts[NETWORK])
    return bool(families) and target not in families


def _made_for(lora: LoraFile, target: Target) -> str:
    """Describes in a message the families that a misfit file matches by name."""
    if not isinstance(target, ModelFamily) or not _of_others(lora, target):
        return "made for another architecture"
    families = matching_families(lora.parts[NETWORK])
    return f"made for {' or '.join(one.title for one in families)}, not for {target.title}"


def fit(lora: LoraFile, target: Target, parameters: Mapping[str, Tensor]) -> Mapping[str, Method]:
    """Returns the methods for a module by parameter name. Raises the errors of `check_fits`."""
    shapes = {name: value.shape for name, value in parameters.items()}
    return check_fits(lora, target, shapes).methods


@dataclass(slots=True)
class _Uses:
    """Collects the places of one file that the modules of recipes use."""

    network: str = ""  # pipeline part of the network with the LoRA, if any
    texts: set[str] = field(default_factory=set)  # parts for one of the text encoders
    any_text: bool = False
    used: set[Place] = field(default_factory=set)


def check_loras(*recipes: ModelRecipe | ClipRecipe) -> Iterator[str]:
    """Checks that the LoRAs of a request's recipes fit their modules, including merged modules.
    Loads nothing. Yields a warning for each file's unused tensors: of text encoders only if a text
    encoder recipe has the file, of networks only if a model recipe has it.

    Raises InputError for a LoRA that does not fit, and for unused tensors if KATZ_LORA_KEYS=strict.
    """
    uses: dict[FileIdentity, _Uses] = {}
    for lora, module, parts in dict.fromkeys(use for one in recipes for use in _uses(one)):
        if not lora.strength:
            continue
        found = uses.setdefault(lora.file, _Uses())
        if parts is None:
            found.network = family_of(module).network.part
        else:
            found.any_text = True
            found.texts.update(parts)
        found.used |= _used(lora.file, module, parts)
    for file, found in uses.items():
        for warning in _left_out(_described(file), found):
            if lora_keys() == "strict":
                raise InputError(f"{shown(file.path)}: has {warning}")
            yield f"{shown(file.path)}: used without {warning}"


def takes_loras(recipe: ModelRecipe | ClipRecipe) -> bool:
    """Returns whether a recipe merges any LoRA of non-zero strength into its modules."""
    return any(lora.strength for lora, _, _ in _uses(recipe))


def _left_out(lora: LoraFile, uses: _Uses) -> Iterator[str]:
    """Yields, for messages, why tensors of a file are unused, with the first few names."""
    if lora.extras:
        yield f"tensors of unknown names: {_first(lora.extras)}"
    lacking = []
    for part, names in lora.layers.items():
        unused = [name for name in names if (part, name) not in uses.used]
        if part == NETWORK:
            layers = [f"{uses.network}.{name.removesuffix('.weight')}" for name in unused]
            lacking += layers if uses.network else []
        elif part in uses.texts:
            lacking += [names[name] for name in unused]
        elif uses.any_text and unused:
            yield (
                f"{len(unused)} of its {lora.count} layers, for a text encoder that the model does "
                f"not have ({TITLES.get(part, part)}): {_first([names[name] for name in unused])}"
            )
    if lacking:
        yield (
            f"{len(lacking)} of its {lora.count} layers that the model does not have: "
            f"{_first(lacking)}"
        )


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


@lru_cache(maxsize=FITS_KNOWN)
def _used(file: FileIdentity, module: Component, parts: TextParts | None) -> frozenset[Place]:
    target: Target = family_of(module) if parts is None else parts
    return check_fits(_described(file), target, parameter_shapes(module)).used


# cached because a model's network and text encoders are checked in turn
_described = lru_cache(maxsize=FILES_DESCRIBED)(describe)


Use = tuple[Lora, Component, TextParts | None]
"""A LoRA, its module, and the parts of the file for the module (None: the network part)."""


def _uses(recipe: ModelRecipe | ClipRecipe) -> Iterator[Use]:
    if isinstance(recipe, ModelRecipe):
        yield from _uses_in(recipe.network, recipe.loras, None)
    else:
        encoders = [one.encoder for one in recipe.encoders]
        for encoder, parts in zip(encoders, text_parts(encoders), strict=True):
            yield from _uses_in(encoder, recipe.loras, parts)


def _uses_in(module: Component, loras: Iterable[Lora], parts: TextParts | None) -> Iterator[Use]:
    yield from ((lora, module, parts) for lora in loras)
    for source, merged in module.sources if isinstance(module, MergedComponent) else ():
        yield from _uses_in(source, merged, parts)
