"""Reads the configurations of components: classes, and the sizes of text encoders and VAEs.

Knows no family of models. Never imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    Component,
    ControlNetRecipe,
    FileIdentity,
    MissingComponent,
    ModelRecipe,
)
from katz_graph.models.loading.identity import read_configuration

# classes that values of a configuration may have instead
KINDS: Mapping[type, Any] = MappingProxyType({float: (int, float), list: (list, tuple)})


def config(part: Component) -> Mapping[str, Any]:
    """Returns a component's configuration as of the recipe's creation. Raises InputError if the
    file has changed since, and for a component missing from its checkpoint.
    """
    if isinstance(part, MissingComponent):
        raise InputError(part.reason)
    if part.configuration is not None:
        return _parsed(part.configuration)
    return _config(_configuration_file(part))


@lru_cache(maxsize=1024)
def _configuration_file(part: Component) -> FileIdentity:
    return next(
        file
        for file in part.files
        if Path(file.path).name in ("config.json", "scheduler_config.json")
    )


def config_value(part: Component, name: str, kind: type, default: Any = None) -> Any:
    """Returns a value of a component's configuration. Raises InputError unless it is a `kind`."""
    try:
        return value_in(config(part), name, kind, default)
    except ValueError as problem:
        raise InputError(f"{part.folder}: config.json: {problem}") from None


def value_in(values: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Returns a value of a configuration. Raises ValueError unless it is a `kind`."""
    value = values.get(name, default)
    if not isinstance(value, KINDS.get(kind, kind)):
        expected = "a list" if kind is list else "a number"
        raise ValueError(f"{name} is {value!r}, expected {expected}")
    return value


def expect_class(part: Component, *names: str) -> None:
    """Raises InputError if the configuration's class is not one of `names`."""
    got = config(part).get("_class_name")
    if got not in names:
        raise InputError(
            f"{part.folder}: config.json describes {got or 'no class'}, expected "
            f"{' or '.join(names)}"
        )


def scheduler_config(model: ModelRecipe) -> dict[str, Any]:
    """Returns the saved configuration of the model's scheduler: noise table and prediction type."""
    return dict(config(model.scheduler))


def prediction_type(model: ModelRecipe) -> Literal["epsilon", "v_prediction"]:
    kind = config(model.scheduler).get("prediction_type", "epsilon")
    if kind not in ("epsilon", "v_prediction"):
        raise InputError(
            f"{model.scheduler.folder}: prediction_type is {kind!r}, expected 'epsilon' or "
            "'v_prediction'"
        )
    return kind  # type: ignore[no-any-return]


def union_types(control: ControlNetRecipe) -> int:
    """Counts the reference kinds of a union ControlNet; 0 for a ControlNet of a single kind."""
    values = config(control.control_net)
    return int(values.get("num_control_type") or values.get("num_mode") or 0)


@lru_cache(maxsize=1024)
def _parsed(configuration: str) -> Mapping[str, Any]:
    values: Mapping[str, Any] = json.loads(configuration)
    return values


@lru_cache(maxsize=1024)
def _config(file: FileIdentity) -> Mapping[str, Any]:
    return read_configuration(file)
