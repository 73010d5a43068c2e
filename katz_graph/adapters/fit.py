"""Checks that LoRA files fit the modules of recipes, by headers and configurations alone, before
anything is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from katz_graph.adapters.lora import LoraFile, describe
from katz_graph.adapters.methods import Method
from katz_graph.adapters.naming import NETWORK, TEXT_PARTS, families_told, layer_names
from katz_graph.errors import InputError
from katz_graph.files.settings import lora_keys
from katz_graph.files.urls import shown
from katz_graph.models.configuration import config
from katz_graph.models.costs.stage_cost import module_on_meta
from katz_graph.models.family import ModelFamily, family_of
from katz_graph.models.renaming import Rows
from katz_graph.recipe import (
    ClipRecipe,
    Component,
    FileIdentity,
    Lora,
    MergedComponent,
    ModelRecipe,
)

SHOWN = 3  # names that a message has
FITS_KNOWN = 256  # of files and modules, told without reading headers again
MODULES_KNOWN = 16
FILES_DESCRIBED = 4

Shapes = Mapping[str, Sequence[int]]
"""Maps the names of a module's parameters to their shapes."""
Target = ModelFamily | str
"""What a module is to its model: the network of a family, or which text encoder."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Holds a part of a LoRA file by the names of a module's parameters. `lacking` are the layers,
    as the file names them, that the module does not have, of the `count` that the part has.
    """

    methods: Mapping[str, Method]
    lacking: tuple[str, ...]
    count: int


def check_fits(lora: LoraFile, target: Target, shapes: Shapes) -> Fitted:
    """Returns the methods for a module by its parameters; one over fused rows comes apart. A
    described file will do.

    InputError naming the first that does not fit, and both shapes, or that stands for the same
    parameter as another; and when there is something for the module, but no layer of it.
    """
    part = target if isinstance(target, str) else target.network.part
    layers = layer_names(tuple(shapes), None if isinstance(target, str) else target.lora)
    given = _given(lora, target, layers)
    fitted: dict[str, Method] = {}
    lacking: dict[str, Method] = {}
    for name, method in given.items():
        layer, _, parameter = name.rpartition(".")
        shown = f"{part}.{name.removesuffix('.weight')}"
        pieces = {f"{one.layer}.{parameter}": one for one in layers.get(layer, ())}
        if not pieces or not pieces.keys() <= shapes.keys():
            lacking[shown] = method
            continue
        wanted = _joined([shapes[piece] for piece in pieces])
        if not method.fits(wanted):
            raise InputError(
                f"{lora.path}: {_made_for(lora, target)}: {shown} has shape {method.shape}, "
                f"this model {wanted}; choose a LoRA made for it"
            )
        for piece, rows in pieces.items():
            if piece in fitted:
                raise InputError(
                    f"{lora.path}: says {piece.removesuffix('.weight')} twice ({shown}), "
                    "expected one LoRA in a file"
                )
            try:
                fitted[piece] = method if rows.whole else method.cut(rows.cut)
            except ValueError as error:
                raise InputError(f"{lora.path}: {shown} {error}") from None
    if lacking and not fitted:
        first = next(iter(lacking))
        raise InputError(
            f"{lora.path}: {_made_for(lora, target)}: {first} (shape {lacking[first].shape}) "
            "does not exist in this model, nor does any other of its layers; choose a LoRA made "
            "for it"
        )
    return Fitted(fitted, tuple(lacking), len(given))


def _given(
    lora: LoraFile, target: Target, layers: Mapping[str, tuple[Rows, ...]]
) -> Mapping[str, Method]:
    """Returns the part of a file that is for a module. Trainers may call T5 the third text encoder
    of a model where it is the second.
    """
    if not isinstance(target, str):
        return lora.parts[NETWORK]
    _, second, third = TEXT_PARTS
    own, further = lora.parts[target], lora.parts[third]
    takes = any(name.rpartition(".")[0] in layers for name in further)
    return further if target == second and not own and takes else own


def _joined(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Returns the shape of weights one over the other."""
    return [sum(shape[0] for shape in shapes), *shapes[0][1:]]


def _made_for(lora: LoraFile, target: Target) -> str:
    """Returns what a file that does not fit was made for, as far as its names tell."""
    told = () if isinstance(target, str) else families_told(lora.parts[NETWORK])
    if isinstance(target, str) or not told or target in told:
        return "made for another architecture"
    return f"made for {' or '.join(one.title for one in told)}, not for {target.title}"


def fit(lora: LoraFile, target: Target, parameters: Mapping[str, Tensor]) -> Mapping[str, Method]:
    """Returns the methods for a module by its parameters. Raises what `check_fits` raises."""
    shapes = {name: value.shape for name, value in parameters.items()}
    return check_fits(lora, target, shapes).methods


def check_loras(recipe: ModelRecipe | ClipRecipe) -> Iterator[str]:
    """Checks that a recipe's LoRAs fit its modules, merged ones too; loads nothing. Yields warnings
    about what is left out of them.

    InputError for a LoRA that does not fit, and for one of which something would be left out where
    that is refused (KATZ_LORA_KEYS=strict).
    """
    for lora, module, part in dict.fromkeys(_uses(recipe)):
        if not lora.strength:
            continue
        extras, lacking, count = _left_out(lora.file, module, part)
        for keys, what in (
            (extras, "tensors of unknown names"),
            (lacking, f"{len(lacking)} of its {count} layers that the model does not have"),
        ):
            if keys and lora_keys() == "strict":
                raise InputError(f"{shown(lora.file.path)}: has {what}: {_first(keys)}")
            if keys:
                yield f"{shown(lora.file.path)}: used without {what}: {_first(keys)}"


def takes_loras(recipe: ModelRecipe | ClipRecipe) -> bool:
    """Returns whether any LoRA is merged into a recipe's modules, so that there is one to check."""
    return any(lora.strength for lora, _, _ in _uses(recipe))


def _first(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return f"{', '.join(keys[:SHOWN])}{more}"


@lru_cache(maxsize=FITS_KNOWN)
def _left_out(
    file: FileIdentity, module: Component, part: str
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    lora, target = _described(file), part if part in TEXT_PARTS else family_of(module)
    fitted = check_fits(lora, target, parameter_shapes(module))
    return lora.extras, fitted.lacking, fitted.count


# a model's network and its text encoders are checked one after the other
_described = lru_cache(maxsize=FILES_DESCRIBED)(describe)


@lru_cache(maxsize=MODULES_KNOWN)
def parameter_shapes(module: Component) -> Shapes:
    """Returns the shapes of a module's parameters, by its configuration alone."""
    empty = module_on_meta(json.dumps(dict(config(module)), sort_keys=True))
    return {name: tuple(value.shape) for name, value in empty.named_parameters()}


Use = tuple[Lora, Component, str]
"""A LoRA, the module that it is for, and the part of the file that is meant."""


def _uses(recipe: ModelRecipe | ClipRecipe) -> Iterator[Use]:
    if isinstance(recipe, ModelRecipe):
        part = family_of(recipe.network).network.part
        yield from _uses_in(recipe.network, recipe.loras, part)
    else:
        for encoder, part in zip(recipe.encoders, TEXT_PARTS, strict=False):
            yield from _uses_in(encoder.encoder, recipe.loras, part)


def _uses_in(module: Component, loras: Iterable[Lora], part: str) -> Iterator[Use]:
    yield from ((lora, module, part) for lora in loras)
    for source, merged in module.sources if isinstance(module, MergedComponent) else ():
        yield from _uses_in(source, merged, part)
