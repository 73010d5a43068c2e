"""Computes stages by recorded calls: records a call once per module and form of its inputs, then
replays it.

The form consists of all non-tensor values and of each tensor's shape, strides, dtype and device.
The form excludes weights, LoRAs, strengths, noise levels and prompts, which may change without a
new recording.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from katz_graph.core.messages import first_line
from katz_graph.executor.calls.batching import mapped, tensors_of
from katz_graph.executor.calls.computing import ComputeUse, StageCall
from katz_graph.executor.recorded.inputs import Home, StaticInputs, form_of
from katz_graph.executor.recorded.recording import Backend, Recording, poison
from katz_graph.executor.recorded.trial import Trial
from katz_graph.executor.worker.stream import HostStream, Stream
from katz_graph.host.memory import is_out_of_memory
from katz_graph.models.loading.fill import memory_of
from katz_graph.models.stages import Outputs, Stage

ON_HOST = HostStream()
EAGER = 2  # calls of a form before it is recorded, which initialize libraries
NOT_DECLARED = "the stage takes arguments other than tensors"
WARMING_UP = "the first calls with their shapes"
NO_ROOM = "no memory for another recording; all were dropped"
TOO_LARGE = "its recording alone exceeds the budget"
NO_MEMORY = "out of memory during recording; a later call tries again"
MAX_DOUBLINGS = 10  # doublings of the calls before an out-of-memory recording is retried


@dataclass(slots=True)
class _Form:
    """Counts the calls of one form, and holds their recording or the reason it was refused."""

    calls: int = 0
    short: int = 0  # recordings that ran out of memory
    waits: int = 0  # value of `calls` above which to retry such a recording
    recording: Recording | None = None
    homes: Sequence[Home] = ()  # of the inputs
    addresses: tuple[int, ...] = ()  # of the weights that the recording reads
    refused: str = ""  # reason this form cannot be recorded


@dataclass(slots=True)
class _Recordings:
    """Holds the recordings of one module, by stage and form."""

    inputs: StaticInputs = field(default_factory=StaticInputs)
    forms: defaultdict[Hashable, _Form] = field(default_factory=lambda: defaultdict(_Form))
    size: int = 0  # in bytes, without inputs

    def drop(self) -> None:
        """Drops recordings and inputs. Remembers the forms that cannot be recorded."""
        self.inputs, self.size = StaticInputs(), 0
        refused = {name: form for name, form in self.forms.items() if form.refused}
        self.forms = defaultdict(_Form, refused)

    @property
    def recorded(self) -> bool:
        """Returns whether a recording exists, even one of zero bytes."""
        return any(form.recording is not None for form in self.forms.values())


@dataclass(frozen=True, slots=True)
class _Kind:
    """Key of calls with equal durations: stage, input form and module."""

    stage: str
    form: Hashable
    module: ReferenceType[Any] | None

    @classmethod
    def of_call(cls, call: StageCall) -> _Kind:
        module = None if call.module is None else ref(call.module)
        return cls(call.stage.name, form_of(call.given), module)

    def of(self, module: Any) -> bool:
        return self.module is not None and self.module() is module


@dataclass(slots=True)
class _Lane:
    """Holds the recordings that one stream replays, by module (None: stages without weights), with
    their pool and static inputs.
    """

    backend: Backend
    of_modules: defaultdict[Any, _Recordings] = field(
        default_factory=lambda: defaultdict(_Recordings)
    )

    @property
    def size(self) -> int:
        """Returns the bytes of recordings and inputs."""
        return sum(one.size + one.inputs.size for one in self.of_modules.values())

    def drop(self) -> None:
        for recordings in self.of_modules.values():
            recordings.drop()
        for module in [module for module, one in self.of_modules.items() if not one.forms]:
            del self.of_modules[module]
        self.backend.drop()


class Recorder:
    """Implements `katz_graph.executor.calls.computing.Computing`. Used by one thread at a time.

    `backends`: one for the current stream and, for concurrent calls, one for the second stream that
    `stream` adds. If a recording exceeds the budget, all are dropped together, because those of one
    stream share library memory (pytorch#193402). `eager`: eager calls of a form before it is
    recorded. With a strict backend, inputs are also overwritten after each call, and a weight that
    has moved since the recording raises RuntimeError.
    """

    records = True

    def __init__(self, *backends: Backend, stream: Stream = ON_HOST, eager: int = EAGER) -> None:
        self.use = ComputeUse()
        self._lanes, self._stream, self._eager = list(map(_Lane, backends)), stream, eager
        self._trials: defaultdict[tuple[_Kind, ...], Trial] = defaultdict(Trial)

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        return self._computed(self._lanes[0], StageCall(stage, module, given))

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        """Computes one call, or two calls on two streams if trials showed that to be faster."""
        if len(calls) == 1 or len(self._lanes) == 1:
            return [self(*call) for call in calls]
        trial = self._trials[tuple(map(_Kind.of_call, calls))]
        concurrent, drops = trial.concurrent, self.use.drops
        made = self._pair(calls, concurrent) if trial.settled else self._tried(trial, calls)
        if concurrent and self.use.drops > drops:  # the recordings of two streams do not fit
            trial.settle(concurrent=False)
        if concurrent and not any(one.concurrent for one in self._trials.values()):
            self._lanes[1].drop()
            self.use.bytes = self._size
        return made

    def _tried(self, trial: Trial, calls: Sequence[StageCall]) -> list[Outputs]:
        known, ends = self.use.calls, self._stream.timing()
        made = self._pair(calls, trial.concurrent)
        new = self.use.calls_since(known)
        trial.add(ends(), counts=new.get("replayed") == len(calls) and "recorded" not in new)
        return made

    def _pair(self, calls: Sequence[StageCall], concurrent: bool) -> list[Outputs]:
        if not concurrent:
            return [self(*call) for call in calls]
        (here, aside), (first, second) = self._lanes, calls
        self.use.concurrent += len(calls)
        return list(
            self._stream.concurrently(
                partial(self._computed, aside, first), partial(self._computed, here, second)
            )
        )

    @property
    def tried(self) -> dict[str, tuple[float, float]]:
        """Maps each tried pair of stages to its seconds on one stream and on two."""
        found = {
            " and ".join(kind.stage for kind in kinds): trial.seconds
            for kinds, trial in self._trials.items()
        }
        return {name: seconds for name, seconds in found.items() if seconds is not None}

    def drop(self) -> None:
        """Drops all recordings; later calls are recorded again."""
        for lane in self._lanes:
            lane.drop()
        self.use.drops += 1
        self.use.bytes = 0

    def forget(self, module: Any) -> None:
        """Drops all recordings if this module has any, because none may be dropped separately."""
        for kinds in [kinds for kinds in self._trials if any(one.of(module) for one in kinds)]:
            del self._trials[kinds]
        known = [lane for lane in self._lanes if module in lane.of_modules]
        removed = [lane.of_modules.pop(module) for lane in known]
        if any(recordings.recorded for recordings in removed):
            self.drop()
        self.use.bytes = self._size
        self._try_again()

    def _try_again(self) -> None:
        """Allows retries of recordings that ran out of memory, because memory may be free now."""
        for lane in self._lanes:
            for recordings in lane.of_modules.values():
                for form in recordings.forms.values():
                    form.short = form.waits = 0

    @property
    def _recorded(self) -> bool:
        return any(one.recorded for lane in self._lanes for one in lane.of_modules.values())

    @property
    def _size(self) -> int:
        return sum(lane.size for lane in self._lanes)

    def _computed(self, lane: _Lane, call: StageCall) -> Outputs:
        stage, module, given = call
        if not stage.recorded:
            return self._eagerly(NOT_DECLARED, stage, module, given)
        recordings = lane.of_modules[module]
        form = recordings.forms[stage.name, form_of(given)]
        form.calls += 1
        if form.recording is None:
            reason = form.refused
            if not reason and form.calls <= self._eager:
                reason = WARMING_UP
            elif not reason and form.calls <= form.waits:
                reason = NO_MEMORY
            reason = reason or self._record(form, recordings, lane.backend, call)
            if reason:
                return self._eagerly(reason, stage, module, given)
        return self._replayed(form, lane.backend.strict, call)

    def _eagerly(self, reason: str, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        self.use.count_eager(reason)
        return stage.computed(module, given)

    def _record(
        self, form: _Form, recordings: _Recordings, backend: Backend, call: StageCall
    ) -> str:
        """Records a call; returns the reason if it cannot be recorded, or an empty string."""
        stage, module, given = call
        known = recordings.inputs.known
        try:
            static, homes = recordings.inputs.homes(given, set(filter(stage.lasting, given)))
            _fill(homes, given)
            read = (*(home.tensor for home in homes), *_weights(module))
            recording = backend.record(lambda: stage.computed(module, static), read)
        except RuntimeError as error:
            recordings.inputs.keep(known)
            if is_out_of_memory(error):
                form.waits = form.calls + 2 ** min(form.short, MAX_DOUBLINGS)
                form.short += 1
                if not self._recorded:
                    backend.drop()  # frees the memory that the attempt took
                return NO_MEMORY
            form.refused = f"{stage.name}: {first_line(error)}"
            return form.refused
        inputs = sum({id(home): home.tensor.nbytes for home in homes}.values())
        if recording.size + inputs > backend.room:
            form.refused = f"{stage.name}: {TOO_LARGE}"
            self.drop()  # none may be dropped separately
            return form.refused
        recordings.size += recording.size
        self.use.bytes = self._size
        if self.use.bytes > backend.room:
            self.drop()
            return NO_ROOM
        self.use.captures += 1
        form.recording, form.homes, form.addresses = recording, homes, _addresses(module)
        return ""

    def _replayed(self, form: _Form, strict: bool, call: StageCall) -> Outputs:
        assert form.recording is not None  # it existed, or was just made
        if strict and _addresses(call.module) != form.addresses:
            raise RuntimeError(
                f"{call.stage.name}: a weight was replaced since its call was recorded"
            )
        _fill(form.homes, call.given)
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
    return [] if module is None else list(memory_of(module).values())


def _addresses(module: nn.Module | None) -> tuple[int, ...]:
    return tuple(weight.data_ptr() for weight in _weights(module))
