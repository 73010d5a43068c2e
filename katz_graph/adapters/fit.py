"""Fits LoRA files to modules, and checks by headers and configurations alone, before anything is
loaded, that those of recipes fit. Every tensor of a file is used by some module, or named in a
warning.
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
from katz_graph.adapters.naming import NETWORK, families_told
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
FITS_KNOWN = 256  # of files and modules, told without reading headers again
FILES_DESCRIBED = 4

Target = ModelFamily | TextParts
"""What a module is to its model: the network of a family, or a text encoder, by the parts of files
that are for it.
"""
Place = tuple[str, str]
"""A part of a file, and the name of a weight or bias in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Holds the parts of a LoRA file for a module, by the names of the module's parameters. `used`
    are the places in the file that the module takes.
    """

    methods: Mapping[str, Method]
    used: frozenset[Place]


def check_fits(lora: LoraFile, target: Target, shapes: Shapes) -> Fitted:
    """Returns the methods for a module by its parameters; one over fused rows comes apart. A
    described file will do.

    InputError naming the first that does not fit, and both shapes, or that stands for the same
    parameter as another; and when there is something for the module, but no layer of it.
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
                    f"{lora.path}: says {piece.removesuffix('.weight')} twice ({layer}), "
                    "expected one LoRA in a file"
                )
            try:
                fitted[piece] = method if rows.whole else method.cut(rows.cut)
            except ValueError as error:
                raise InputError(f"{lora.path}: {layer} {error}") from None
        used.add(place)
    if lacking and not fitted:
        part, name = first = lacking[0]
        raise InputError(
            f"{lora.path}: {_made_for(lora, target)}: {name_of(lora, target, first)} "
            f"(shape {lora.parts[part][name].shape}) does not exist in this model, nor does any "
            "other of its layers; choose a LoRA made for it"
        )
    return Fitted(fitted, frozenset(used))


def name_of(lora: LoraFile, target: Target, place: Place) -> str:
    """Returns the display name of a layer: that of the network's with its part of a pipeline, that
    of a text encoder's as the file has it.
    """
    part, name = place
    if isinstance(target, ModelFamily):
        return f"{target.network.part}.{name.removesuffix('.weight')}"
    return lora.layers[part][name]


def _joined(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Returns the shape of weights one over the other."""
    return [sum(shape[0] for shape in shapes), *shapes[0][1:]]


def _made_for(lora: LoraFile, target: Target) -> str:
    """Returns what a file that does not fit was made for, as far as its names tell."""
    told = families_told(lora.parts[NETWORK]) if isinstance(target, ModelFamily) else ()
    if not isinstance(target, ModelFamily) or not told or target in told:
        return "made for another architecture"
    return f"made for {' or '.join(one.title for one in told)}, not for {target.title}"


def fit(lora: LoraFile, target: Target, parameters: Mapping[str, Tensor]) -> Mapping[str, Method]:
    """Returns the methods for a module by its parameters. Raises what `check_fits` raises."""
    shapes = {name: value.shape for name, value in parameters.items()}
    return check_fits(lora, target, shapes).methods


@dataclass(slots=True)
class _Uses:
    """Collects what the modules of recipes use of one file."""

    network: str = ""  # the part of a pipeline that it is for, if any is
    texts: set[str] = field(default_factory=set)  # parts that are for one of the text encoders
    any_text: bool = False
    used: set[Place] = field(default_factory=set)


def check_loras(*recipes: ModelRecipe | ClipRecipe) -> Iterator[str]:
    """Checks that the LoRAs of a request's recipes fit their modules, merged ones too; loads
    nothing. Yields warnings about what no module uses of each file. The part for text encoders
    counts if a recipe of text encoders has the file, that for networks likewise.

    InputError for a LoRA that does not fit, and for one of which something would be left out where
    that is refused (KATZ_LORA_KEYS=strict).
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
    """Returns whether any LoRA is merged into a recipe's modules, so that there is one to check."""
    return any(lora.strength for lora, _, _ in _uses(recipe))


def _left_out(lora: LoraFile, uses: _Uses) -> Iterator[str]:
    """Yields what a file has that nobody uses, with the reason and some names of each."""
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


# a model's network and its text encoders are checked one after the other
_described = lru_cache(maxsize=FILES_DESCRIBED)(describe)


Use = tuple[Lora, Component, TextParts | None]
"""A LoRA, the module that it is for, and the parts of the file that are meant; None: a network."""


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
