"""Computes stages by recorded calls: a call is recorded once for a module and the form of its
inputs, then replayed.

The form is all that is no tensor, and of tensors shape, strides, dtype and device. Weights, LoRAs,
strengths, noise levels and prompts are no part of it, so nothing is recorded anew when they change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from katz_graph.executor.recorded.inputs import Home, StaticInputs, form_of
from katz_graph.executor.recorded.recording import Backend, Recording, poison
from katz_graph.executor.worker.batching import mapped, tensors_of
from katz_graph.executor.worker.computing import ComputeUse
from katz_graph.host.memory import is_out_of_memory
from katz_graph.messages import first_line
from katz_graph.models.stages import Outputs, Stage

EAGER = 2  # calls of a form before it is recorded: libraries set themselves up in them
NOT_DECLARED = "the stage computes with more than tensors"
WARMING_UP = "the first calls of their form"
NO_ROOM = "no room for another recording, all were dropped"
TOO_LARGE = "its recording alone exceeds the budget"


@dataclass(slots=True)
class _Form:
    """Knows of calls of one form how many came, and their recording with the homes of its inputs
    and the addresses of the weights that it reads, or why there is none.
    """

    calls: int = 0
    recording: Recording | None = None
    homes: Sequence[Home] = ()
    addresses: tuple[int, ...] = ()
    refused: str = ""


@dataclass(slots=True)
class _Recordings:
    """Holds those of one module's calls, by stage and form."""

    inputs: StaticInputs = field(default_factory=StaticInputs)
    forms: defaultdict[Hashable, _Form] = field(default_factory=lambda: defaultdict(_Form))
    size: int = 0  # in bytes, without inputs


class Recorder:
    """Implements `katz_graph.executor.worker.computing.Computing`. Used by one thread at a time.

    A recording for which the backend has no room drops all of them. None goes alone, for those of
    one stream share memory of libraries (pytorch#193402). `eager`: calls of a form before it is
    recorded. Over a strict backend inputs are overwritten, too, once a call has read them, and a
    weight that does not lie where it was recorded is an error (RuntimeError).
    """

    def __init__(self, backend: Backend, eager: int = EAGER) -> None:
        self.use = ComputeUse()
        self._backend, self._eager = backend, eager
        # None: stages without weights
        self._of_modules: dict[Any, _Recordings] = defaultdict(_Recordings)

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        if not stage.recorded:
            return self._eagerly(NOT_DECLARED, stage, module, given)
        recordings = self._of_modules[module]
        form = recordings.forms[stage.name, form_of(given)]
        form.calls += 1
        if form.recording is None:
            reason = form.refused
            if not reason and form.calls <= self._eager:
                reason = WARMING_UP
            reason = reason or self._record(form, recordings, stage, module, given)
            if reason:
                return self._eagerly(reason, stage, module, given)
        return self._replayed(form, stage, module, given)

    def drop(self) -> None:
        """Forgets all recordings; they come back as their calls do."""
        self._of_modules.clear()
        self._backend.drop()
        self.use.drops += 1
        self.use.bytes = 0

    def forget(self, module: Any) -> None:
        """Drops all recordings if there are any of this module: none may go alone."""
        if module in self._of_modules and self._of_modules.pop(module).size:
            self.drop()

    def _eagerly(self, reason: str, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        self.use.count_eager(reason)
        return stage.computed(module, given)

    def _record(
        self,
        form: _Form,
        recordings: _Recordings,
        stage: Stage,
        module: nn.Module | None,
        given: Mapping[str, Any],
    ) -> str:
        """Records a call; returns why not, or nothing."""
        static, homes = recordings.inputs.homes(given, stage.hoists)
        _fill(homes, given)
        read = (*(home.tensor for home in homes), *_weights(module))
        try:
            recording = self._backend.record(lambda: stage.computed(module, static), read)
        except RuntimeError as error:
            what = "out of memory" if is_out_of_memory(error) else first_line(error)
            form.refused = f"{stage.name}: {what}"
            return form.refused
        if recording.size > self._backend.room:
            form.refused = f"{stage.name}: {TOO_LARGE}"
            return form.refused
        recordings.size += recording.size
        self.use.bytes = sum(one.size + one.inputs.size for one in self._of_modules.values())
        if self.use.bytes > self._backend.room:
            self.drop()
            return NO_ROOM
        self.use.captures += 1
        form.recording, form.homes, form.addresses = recording, homes, _addresses(module)
        return ""

    def _replayed(
        self, form: _Form, stage: Stage, module: nn.Module | None, given: Mapping[str, Any]
    ) -> Outputs:
        assert form.recording is not None  # it was there, or was just made
        strict = self._backend.strict
        if strict and _addresses(module) != form.addresses:
            raise RuntimeError(f"{stage.name}: a weight was replaced since its call was recorded")
        _fill(form.homes, given)
        form.recording.replay()
        outputs: Outputs = mapped(form.recording.outputs, torch.clone)
        form.recording.taken()
        if strict:
            poison(home.tensor for home in form.homes if not home.lasting)
        self.use.replays += 1
        return outputs


def _fill(homes: Sequence[Home], given: Mapping[str, Any]) -> None:
    for home, tensor in zip(homes, tensors_of(given), strict=True):
        home.take(tensor)


def _weights(module: nn.Module | None) -> list[Tensor]:
    return [] if module is None else [*module.parameters(), *module.buffers()]


def _addresses(module: nn.Module | None) -> tuple[int, ...]:
    return tuple(weight.data_ptr() for weight in _weights(module))
