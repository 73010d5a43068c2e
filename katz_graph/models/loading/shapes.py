"""Derives the shapes of a module's weights from its configuration alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from katz_graph.core.recipe import Component
from katz_graph.models.configuration import config
from katz_graph.models.costs.stage_cost import module_on_meta
from katz_graph.models.loading.fill import stored_tensors

Shapes = Mapping[str, Sequence[int]]
"""Maps the names of a module's parameters, and of buffers stored in files, to their shapes."""
MODULES_KNOWN = 16


@lru_cache(maxsize=MODULES_KNOWN)
def parameter_shapes(module: Component) -> Shapes:
    """Returns the shapes of a module's weights, without loading."""
    empty = module_on_meta(json.dumps(dict(config(module)), sort_keys=True))
    return {name: tuple(value.shape) for name, value in stored_tensors(empty).items()}
