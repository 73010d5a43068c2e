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
from katz_graph.adapters.naming import TEXT_PARTS, parameter_names
from katz_graph.errors import InputError
from katz_graph.files.settings import lora_keys
from katz_graph.files.urls import shown
from katz_graph.models.configuration import config
from katz_graph.models.costs.stage_cost import module_on_meta
from katz_graph.models.family import families, family_of
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


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Holds a part of a LoRA file by the names of a module's parameters. `lacking` are the layers,
    as the file names them, that the module does not have.
    """

    methods: Mapping[str, Method]
    lacking: tuple[str, ...]


def check_fits(lora: LoraFile, part: str, shapes: Shapes) -> Fitted:
    """Returns the part's methods by the parameters of a module. A described file will do.

    InputError naming the first that does not fit, and both shapes, or that stands for the same
    parameter as another; and when there is something for the part, but no layer of the module.
    """
    _check_part(lora, part)
    names = parameter_names(tuple(shapes), part)
    fitted: dict[str, Method] = {}
    lacking: dict[str, Method] = {}
    for given, method in lora.parts[part].items():
        shown = f"{part}.{given.removesuffix('.weight')}"
        if given not in names:
            lacking[shown] = method
            continue
        name = names[given]
        if not method.fits(shapes[name]):
            raise InputError(
                f"{lora.path}: made for another architecture: {shown} has shape {method.shape}, "
                f"this model {list(shapes[name])}; choose a LoRA made for it"
            )
        if name in fitted:
            raise InputError(
                f"{lora.path}: says {name.removesuffix('.weight')} twice ({shown}), "
                "expected one LoRA in a file"
            )
        fitted[name] = method
    if lacking and not fitted:
        first = next(iter(lacking))
        raise InputError(
            f"{lora.path}: made for another architecture: {first} (shape {lacking[first].shape}) "
            "does not exist in this model, nor does any other of its layers; choose a LoRA made "
            "for it"
        )
    return Fitted(fitted, tuple(lacking))


def _check_part(lora: LoraFile, part: str) -> None:
    """Raises InputError for a network when the file has layers of another kind of network alone."""
    networks = {family.network.part: family.network.noun for family in families()}
    others = [noun for other, noun in networks.items() if other != part and lora.parts.get(other)]
    if part in networks and not lora.parts[part] and others:
        raise InputError(
            f"{lora.path}: made for another architecture: its layers are of a {others[0]}, this "
            f"model is a {networks[part]}; choose a LoRA made for it"
        )


def fit(lora: LoraFile, part: str, parameters: Mapping[str, Tensor]) -> Mapping[str, Method]:
    """Returns the part's methods by the names of a module's parameters. Raises what `check_fits`
    raises.
    """
    return check_fits(lora, part, {name: value.shape for name, value in parameters.items()}).methods


def check_loras(recipe: ModelRecipe | ClipRecipe) -> Iterator[str]:
    """Checks that a recipe's LoRAs fit its modules, merged ones too; loads nothing. Yields warnings
    about what is left out of them.

    InputError for a LoRA that does not fit, and for one of which something would be left out where
    that is refused (KATZ_LORA_KEYS=strict).
    """
    for lora, module, part in dict.fromkeys(_uses(recipe)):
        if not lora.strength:
            continue
        extras, lacking = _left_out(lora.file, module, part)
        for keys, what in (
            (extras, "tensors of unknown names"),
            (lacking, "layers that the model does not have"),
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
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    lora = _described(file)
    return lora.extras, check_fits(lora, part, parameter_shapes(module)).lacking


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
