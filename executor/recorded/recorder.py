"""Computes stages by recorded calls: a call is recorded once for a module and the form of its
inputs, then replayed.

The form is all that is no tensor, and of tensors shape, strides, dtype and device. Weights, LoRAs,
strengths, noise levels and prompts are no part of it, so nothing is recorded anew when they change.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from katz_graph.executor.recorded.inputs import StaticInputs, form_of
from katz_graph.executor.recorded.recording import Backend, Recording
from katz_graph.executor.recorded.tape import poison
from katz_graph.executor.worker.batching import mapped, tensors_of
from katz_graph.executor.worker.computing import ComputeUse
from katz_graph.host.memory import is_out_of_memory
from katz_graph.messages import first_line
from katz_graph.models.stages import Outputs, Stage

EAGER = 2  # calls of a key before it is recorded: libraries set themselves up in them
NOT_DECLARED = "the stage computes with more than tensors"
WARMING_UP = "the first calls of their form"
NO_ROOM = "no room for another recording, all were dropped"
TOO_LARGE = "its recording alone exceeds the budget"


@dataclass(slots=True)
class _Known:
    """Knows of one key how often it was called, and its recording or why there is none."""

    calls: int = 0
    recording: Recording | None = None
    weights: tuple[int, ...] = ()  # where they lay
    refused: str = ""


@dataclass(slots=True)
class _OfModule:
    inputs: StaticInputs = field(default_factory=StaticInputs)
    known: dict[Hashable, _Known] = field(default_factory=dict)


class Recorder:
    """Implements `katz_graph.executor.worker.computing.Computing`. Used by one thread at a time.

    A recording for which the backend has no room drops all of them. None goes alone, for those of
    one stream share memory of libraries (pytorch#193402). `eager`: calls of a
    key before it is recorded. `strict`: inputs are overwritten with NaN once a call has read them,
    and a weight that does not lie where it was recorded is an error (RuntimeError).
    """

    def __init__(self, backend: Backend, eager: int = EAGER, strict: bool = False) -> None:
        self.use = ComputeUse()
        self._backend, self._eager, self._strict = backend, eager, strict
        self._of_modules: WeakKeyDictionary[Any, _OfModule] = WeakKeyDictionary()
        self._of_none = _OfModule()  # of stages without weights

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        if not stage.recorded:
            return self._eagerly(NOT_DECLARED, stage, module, given)
        of_module = (
            self._of_none if module is None else self._of_modules.setdefault(module, _OfModule())
        )
        known = of_module.known.setdefault((stage.name, form_of(given)), _Known())
        known.calls += 1
        if known.recording is None:
            reason = known.refused or (
                WARMING_UP
                if known.calls <= self._eager
                else self._record(known, of_module, stage, module, given)
            )
            if reason:
                return self._eagerly(reason, stage, module, given)
        assert known.recording is not None
        if self._strict and _places(module) != known.weights:
            raise RuntimeError(f"{stage.name}: a weight was replaced since its call was recorded")
        return self._replayed(known.recording, of_module.inputs.copied(given, stage.hoists), stage)

    def drop(self) -> None:
        """Forgets all recordings; they come back as their calls do."""
        for of_module in (self._of_none, *self._of_modules.values()):
            of_module.inputs = StaticInputs()
            of_module.known.clear()
        self._backend.drop()
        self.use.drops += 1
        self.use.bytes = 0

    def forget(self, module: Any) -> None:
        """Drops all recordings if there are any of this module: none may go alone."""
        of_module = self._of_modules.pop(module, None)
        if of_module is not None and any(one.recording for one in of_module.known.values()):
            self.drop()

    def _eagerly(self, reason: str, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        self.use.count_eager(reason)
        return stage.computed(module, given)

    def _record(
        self,
        known: _Known,
        of_module: _OfModule,
        stage: Stage,
        module: nn.Module | None,
        given: Mapping[str, Any],
    ) -> str:
        """Records a call; returns why not, or nothing."""
        before = of_module.inputs.size
        static = of_module.inputs.copied(given, stage.hoists)
        self.use.bytes += of_module.inputs.size - before
        try:
            recording = self._backend.record(
                lambda: stage.computed(module, static), (*tensors_of(static), *_weights(module))
            )
        except RuntimeError as error:
            what = "out of memory" if is_out_of_memory(error) else first_line(error)
            known.refused = f"{stage.name}: {what}"
            return known.refused
        if recording.size > self._backend.room:
            known.refused = f"{stage.name}: {TOO_LARGE}"
            return known.refused
        self.use.bytes += recording.size
        if self.use.bytes > self._backend.room:
            self.drop()
            return NO_ROOM
        self.use.captures += 1
        known.recording, known.weights = recording, _places(module)
        return ""

    def _replayed(self, recording: Recording, static: Mapping[str, Any], stage: Stage) -> Outputs:
        recording.replay()
        outputs: Outputs = mapped(recording.outputs, torch.clone)
        recording.taken()
        if self._strict:
            poison(_fleeting(static, stage))
        self.use.replays += 1
        return outputs


def _weights(module: nn.Module | None) -> list[Tensor]:
    return [] if module is None else [*module.parameters(), *module.buffers()]


def _places(module: nn.Module | None) -> tuple[int, ...]:
    return tuple(weight.data_ptr() for weight in _weights(module))


def _fleeting(static: Mapping[str, Any], stage: Stage) -> list[Tensor]:
    """Returns the static tensors that every call copies its inputs into."""
    return tensors_of({name: one for name, one in static.items() if name not in stage.hoists})
