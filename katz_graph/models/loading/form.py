"""Computes the form of a module: modules of equal form differ only by their weights."""

from __future__ import annotations

import inspect
import json
from collections.abc import Hashable, Mapping
from typing import Any

import torch
import transformers

from katz_graph.core.recipe import Component
from katz_graph.models.configuration import config
from katz_graph.models.loading.convert import library_class
from katz_graph.models.quantised_weight import Format
from katz_graph.models.text.kinds import EncoderKind, kind_of
from katz_graph.models.vae.halves import halves
from katz_graph.models.vae.kinds import kind_named as vae_kind

# configuration keys about files rather than the module
OF_FILES = ("_name_or_path", "architectures", "dtype", "transformers_version")


def form_of(
    part: Component, place: torch.device, dtype: torch.dtype, formats: Mapping[str, Format]
) -> Hashable:
    """Returns the form of a component's module: class, configuration with defaults, device, dtype,
    and the weights that are stored as 8-bit numbers.
    """
    values = config(part)
    name = values.get("_class_name")
    form = (
        _of_text(values, kind_of(part)) if name is None else _of_class(library_class(name), values)
    )
    if vae_kind(name) is not None:
        form["halves"] = halves(part)
    described = json.dumps(form, sort_keys=True, default=str)
    return name, described, str(place), dtype, frozenset(formats.items())


def _of_class(model: Any, values: Any) -> dict[str, Any]:
    known = list(inspect.signature(model.__init__).parameters.values())[1:]
    return {one.name: values.get(one.name, one.default) for one in known}


def _of_text(values: Any, kind: EncoderKind) -> dict[str, Any]:
    form = getattr(transformers, kind.configuration)(**values).to_dict()
    return {
        "architectures": values.get("architectures"),
        **{name: value for name, value in form.items() if name not in OF_FILES},
    }
