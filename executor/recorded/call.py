"""Computes stages by recorded calls: a call is recorded once for a module and the form of its
inputs, then replayed.

The form is all that is no tensor, and of tensors shape, strides, dtype and device. Weights, LoRAs,
strengths, noise levels and prompts are no part of it, so nothing is recorded anew when they change.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from katz_graph.executor.recorded.tape import Tape
from katz_graph.models.stages import Outputs, Stage

Tapes = dict[Hashable, Tape]


class Recorder:
    """Implements `katz_graph.executor.worker.models.Computing`. `strict`: see `Tape`. Used by one
    thread at a time.
    """

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        # a module that goes takes its tapes along
        self._of_modules: WeakKeyDictionary[Any, Tapes] = WeakKeyDictionary()
        self._of_none: Tapes = {}  # of stages without weights
        self.captures, self.replays, self.eager = 0, 0, 0

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        if not stage.recorded:
            self.eager += 1
            return stage.computed(module, given)
        tapes = self._of_none if module is None else self._of_modules.setdefault(module, {})
        key = stage.name, form_of(given)
        if key not in tapes:
            tapes[key] = Tape(
                lambda static: stage.computed(module, static), given, module, self._strict
            )
            self.captures += 1
        self.replays += 1
        outputs: Outputs = tapes[key].replay(given)
        return outputs


def form_of(value: Any) -> Hashable:
    """Returns the form of a value: tensors of values of equal form may take each other's places."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(form_of(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, (tuple, list)):
        return tuple(map(form_of, value))
    if isinstance(value, Mapping):
        return tuple((key, form_of(part)) for key, part in value.items())
    return type(value), value
