"""Executes one worker's part of a request. Stores the values of this and later evaluations, and on
one device advances the sampler. Offers its calls one by one, so requests can share them, and stops
at the end of an evaluation, or at a wait for another device, so requests can alternate.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LinearMap
from katz_graph.core.recipe import Component, FileIdentity, ModelRecipe, digest
from katz_graph.executor.calls.batching import received
from katz_graph.executor.calls.bound_calls import BoundCalls
from katz_graph.executor.calls.computing import Offer
from katz_graph.executor.calls.stage_calls import StageCalls
from katz_graph.executor.calls.values import Values
from katz_graph.executor.graph.region_calls import RegionCalls
from katz_graph.executor.messages import Timing
from katz_graph.executor.turns.loop import WeightSetKey
from katz_graph.executor.weights.weight_versions import WeightVersions
from katz_graph.executor.worker.device_program import DeviceProgram
from katz_graph.executor.worker.holding import Holding
from katz_graph.executor.worker.lora_check import LoraCheck
from katz_graph.executor.worker.models import DeviceModels, network_loras
from katz_graph.executor.worker.outlook import Outlook
from katz_graph.executor.worker.run_ahead import RunAhead
from katz_graph.executor.worker.spans import SpanRecorder
from katz_graph.executor.worker.stream import Reading, StreamEvent
from katz_graph.files.urls import shown
from katz_graph.ir.program import PRESENT, Call, Instance, Instances, Instruction, Segment
from katz_graph.ir.region import Operation, Ref
from katz_graph.ir.values import Step
from katz_graph.models.family import linear_map
from katz_graph.models.stages import NODE, Outputs
from katz_graph.node.scope import running
from katz_graph.node.types import Context
from katz_graph.picture.preview import latent_picture
from katz_graph.planner.queries import adapters, reading_key
from katz_graph.planner.region import stage_of
from katz_graph.planner.sampling import loop_of, sampling_of
from katz_graph.sampling.process import Process, start_process


class Exchange(Protocol):
    """Sends values of this worker's operations to other workers, and receives theirs."""

    def send(self, peer: str, instance: Instance, value: Any) -> None: ...

    def has(self, instance: Instance) -> bool: ...

    def take(self, instance: Instance) -> Any: ...


Work = Generator[Offer | None, Sequence[Outputs], None]
"""Yields each call to compute and is sent its outputs; yields None at the end of a unit."""


class Execution:
    """Executes the instruction list of a device program.

    The first step loads the models and then calls `on_loaded`; with `hold`, execution then waits
    for `go`. LoRA files are read concurrently: the task is ready when all but the deferred files
    are read, and each file read calls `wake`. `exchange`: None if no other device takes part.
    `measure`: time every call separately. `stage_calls` computes this request's calls.
    """

    def __init__(
        self,
        share: DeviceProgram,
        models: DeviceModels,
        context: Context,
        exchange: Exchange | None = None,
        measure: bool = False,
        hold: bool = False,
        on_loaded: Callable[[], None] | None = None,
        wake: Callable[[], None] = lambda: None,
        stage_calls: StageCalls | None = None,
    ) -> None:
        self.program = program = share.program
        self.timing = Timing()
        self._models, self._context, self._exchange = models, context, exchange
        self._measure, self._held, self._on_loaded = measure, hold, on_loaded
        self._model: ModelRecipe = program.region.begin.inputs["model"]
        self._owns = share.owns
        self._process: Process | None = None  # state of the sampler
        self._colours: LinearMap | None = None  # latent -> RGB, for previews
        self._dtype = models.dtype_of(program.region.begin.inputs["model"].network)
        loop = loop_of(program.region.begin, program.shape, self._dtype)
        self._calls = BoundCalls(models, loop, RegionCalls(context))
        self._stage_calls = stage_calls or StageCalls(models)
        self.offer: Offer | None = None  # the call that `advance` continues with
        self.paired = True  # independent calls are offered in pairs
        self.by_row = False  # its LoRAs apply to its rows only, at the original weights
        self._may_apply_by_row = False
        self._left: Sequence[str] = ()  # share keys of the running segment's remaining calls
        self._instances = Instances(program)
        self._before = Values()
        self._values: Values | None = None  # of the current evaluation
        self._carried: Mapping[Instance, Any] = {}  # carried to later evaluations
        self._networks: dict[Component, Any] = {}  # live modules, by recipe
        self._evaluation = -1
        self._ended_early = False  # because its template cannot be stored
        self._computed: Counter[str] = Counter()  # stage calls, by kind of execution
        # created in the request's first unit, because it starts the device's clock
        self._spans: SpanRecorder | None = None
        self._ahead = RunAhead(program, models.stream, context, self._dtype)
        # start of the first evaluation, or of its wait for loads, on the clock of time.perf_counter
        self._opened = 0.0
        self._device = share.device
        self._instructions = list(program.instructions[share.device])
        self.alone = not any(instruction.peer for instruction in self._instructions)
        self._segments = {
            segment.name: (number, segment)
            for number, run in enumerate(program.segments)
            for segment in run
        }
        self._next, self._done = 0, False
        self._work = self._carry_out_all()
        self._loaded = False
        self._holding = Holding(program, models)
        # seconds of the last unit for merging LoRAs into the network or removing them
        self.switched = 0.0
        self._preparations = {call.operations[0]: call for call in program.before_calls}
        self._outlook = Outlook(share)
        for key, seconds in self._outlook.expected.items():
            self._stage_calls.expect(key, seconds)
        for run in self._outlook.runs:
            self._stage_calls.expect_evaluations(run)
        self._versions = WeightVersions(program, share.device)
        self._go_on_with(self._versions.deferred.everything)
        self._made_before = {*(op.id for op in program.before), PRESENT}
        self._check = LoraCheck(self.models, models, wake)
        files = adapters(program, share.device)
        # files that must be read before the start
        self._needed = [file for file in files if file not in self._versions.deferred.files]
        self._adapters = models.adapters.want(files, wake)  # the list's `fetch` instructions
        self._activations = models.activations(program, wake)

    def _start(self) -> Process:
        begin = self.program.region.begin
        spec, table = sampling_of(begin)
        latent: Tensor = begin.inputs["latent_image"]["samples"]
        scaled = self._model.latent.starting(latent)
        return start_process(spec, scaled, table, self._models.device, self._dtype)

    def _go_on_with(self, present: int) -> None:
        """Switches to the operations for this set of available deferred LoRAs."""
        self._present, self._version = present, self._versions.of(present)
        model = next(iter(self._version.models), None)
        self._wanted = None if model is None else model.weights

    @property
    def weight_set(self) -> WeightSetKey | None:
        """Returns the weight set that must be resident for the next unit: the loop's network and
        LoRAs; None for loading.
        """
        return self._wanted if self._loaded else None

    @property
    def original_set(self) -> WeightSetKey | None:
        """Returns the loop's network without LoRAs if these may apply to its rows only, else
        None.
        """
        return (self._wanted[0], ()) if self._wanted and self._may_apply_by_row else None

    @property
    def models(self) -> Sequence[Any]:
        """Returns the recipes of its models, in the order of loading."""
        return self._holding.models

    @property
    def rows(self) -> int:
        """Returns the rows of the largest call of the loop on this device."""
        return self._outlook.rows

    @property
    def remaining(self) -> float:
        """Returns the seconds from the current evaluation to the end of the loop: those planned, at
        the device's pace.
        """
        return self._outlook.seconds(max(self._evaluation, 0)) * self._stage_calls.pace

    @property
    def loads(self) -> bool:
        """Returns whether the next unit has to load models."""
        return not (self._loaded or self._models.has(self.models))

    def go(self) -> None:
        """Starts execution: all workers are ready."""
        self._held = False

    @property
    def ready(self) -> bool:
        """Returns whether a unit can run now: it is not held, and the next instruction's inputs
        have arrived.
        """
        if not self._loaded:
            # with deferred LoRAs, the first evaluations may run during the check
            checked = self._versions.deferred.files or self._check.done
            return bool(checked) and self._adapters.have(self._needed)
        if self._held:
            return False
        if self._next < len(self._instructions):
            return not self._waits_for(self._instructions[self._next])
        return self._activations is None or self._activations.completed

    def _waits_for(self, instruction: Instruction) -> bool:
        match instruction.kind:
            case "receive":
                return not self._partners.has(_instance(instruction))
            case "weights":
                return not self._adapters.have(self._due(instruction.evaluation))
            case "begin" if self._activations is not None and self.alone:
                # so that a unit that begins an evaluation also ends it
                later = islice(self._instructions, self._next, None)
                first = next(one for one in later if one.kind in ("run", "end"))
                return first.kind == "run" and self._lacks_activations(first)
            case "run" if self._activations is not None:
                return self._lacks_activations(instruction)
        return False

    def _lacks_activations(self, instruction: Instruction) -> bool:
        assert self._activations is not None
        where = self._loaded_by(instruction)
        return not self._activations.has(*where, self._stage_calls.pace)

    def _loaded_by(self, instruction: Instruction) -> tuple[Segment, int]:
        """Returns the segment and the evaluation of a `load` or `run` instruction."""
        assert instruction.evaluation is not None
        return self._segments[instruction.target][1], instruction.evaluation

    def _due(self, evaluation: int | None) -> Sequence[FileIdentity]:
        """Returns the deferred LoRAs that must be available now. The sampler's device waits for
        those that the evaluation requires; other devices for those that the sampler's device
        published.
        """
        deferred = self._versions.deferred
        if self._owns:
            return deferred.due(evaluation)
        absent = deferred.absent(self._before.resolve(Ref(PRESENT)))
        return [
            file for file in self._adapters.files if file in deferred.files and file not in absent
        ]

    @property
    def _partners(self) -> Exchange:
        assert self._exchange is not None  # only workers get sends and receives
        return self._exchange

    @property
    def prepares(self) -> Collection[str]:
        """Returns the share keys of all calls of the loop while the next unit is one before the
        first evaluation; later none.
        """
        if self._evaluation >= 0 or self._measure or self.upcoming:
            return ()
        return self._outlook.keys

    @property
    def upcoming(self) -> Sequence[str]:
        """Returns the share keys of the calls from here to the end of the evaluation; none if the
        next unit has to do other work than one evaluation.
        """
        if not self._loaded or self._measure:
            return ()
        later = self._outlook.upcoming(islice(self._instructions, self._next, None))
        return () if later is None else [*self._left, *later]

    def step(self) -> bool:
        """Runs one unit without other requests: loads models on the first call; later executes
        instructions to the end of an evaluation, or to a missing input.

        Returns true when the request is done. Raises NoRoom, before computing anything, if models
        in use by other requests leave too little memory; the call may be repeated later.
        """
        started, before = time.perf_counter(), self._evaluation
        done = self.advance()
        while self.offer is not None:
            done = self.advance(self._stage_calls.alone(self.offer))
        if self.alone and before < self._evaluation and self._values is None:  # to its end
            planned = self._outlook.seconds(before + 1, self._evaluation + 1)
            seconds = time.perf_counter() - started
            self._stage_calls.ran(planned, seconds)
            run = self._outlook.run(self._evaluation)
            if run is not None and not self.switched:
                self._stage_calls.ran_evaluation(run.key, self.rows, seconds)
        return done

    def advance(self, outputs: Sequence[Outputs] | None = None) -> bool:
        """Continues with the outputs of the offer, if there was one, to the next offer or the end
        of the unit. Returns true when the request is done.
        """
        return self._models.residents.with_room(
            self._what, partial(self._advance_on, outputs), again=False
        )

    def _advance_on(self, outputs: Sequence[Outputs] | None) -> bool:
        before = self._models.network_seconds
        if outputs is None:
            self._check.raise_problems(self._context)
            self._adapters.check()
            self.switched = 0.0
        if not self._loaded:
            self._load()
            return False
        try:
            self.offer = next(self._work) if outputs is None else self._work.send(outputs)
        except StopIteration:
            self.offer = None
        self.switched += self._models.network_seconds - before
        return self._done

    @property
    def _fills_in_vain(self) -> bool:
        return self._activations is not None and self._activations.abandoned

    def _carry_out_all(self) -> Work:
        prepared = False
        while self._next < len(self._instructions):
            instruction = self._instructions[self._next]
            if instruction.kind == "begin" and self._fills_in_vain:
                self._ended_early = True
                del self._instructions[self._next :]
                break
            if instruction.kind == "begin" and self._opened == 0.0:
                self._opened = time.perf_counter()
            if instruction.kind == "begin" and prepared:
                prepared = False
                yield None  # the first evaluation is a unit by itself, which requests may share
            if self._waits_for(instruction):
                yield None
                continue
            self._next += 1
            yield from self._carry_out(instruction)
            prepared |= instruction.kind == "prepare"
            if instruction.kind == "end" and self._next < len(self._instructions):
                yield None
        while self._activations is not None and not self._activations.completed:
            yield None
        self._done = True
        self._recorder.emit(last=True)
        self.timing.calls = dict(self._computed)
        if self._activations is not None:
            self.timing.activations = self._activations.use
        self.timing.evaluations = {
            run.key: self._stage_calls.evaluation_seconds(run.key)
            for run in self._outlook.runs
            if run.key
        }
        self.timing.reads = {
            reading_key(file): took for file, took in self._adapters.seconds.items()
        }

    def _carry_out(self, instruction: Instruction) -> Work:
        index, spans, started = instruction.evaluation, self._recorder, time.perf_counter()
        began = spans.clock()
        match instruction.kind:
            case "load":
                if self._activations is not None:
                    self._activations.load(*self._loaded_by(instruction))
            case "weights":
                self._update_available_loras(index)
            case "patch":
                model = self._version.weight_sets[instruction.target]
                self._make_resident([model], index, began)
                self.timing.prepare += time.perf_counter() - started if index is None else 0.0
            case "prepare":
                call = self._preparations[instruction.target]
                networks = self._version.networks[instruction.target]
                began = self._make_resident(networks, index, began)
                yield from self._compute([call], self._version.before, self._before)
                spans.add("prepare", instruction.target, began, index)
                self.timing.prepare += time.perf_counter() - started
            case "begin":
                assert index is not None
                if self._present == self._versions.deferred.everything:
                    self._holding.release_texts()  # no later operation encodes text
                self._begin(index)
            case "receive":
                self._receive(_instance(instruction))
            case "send":
                self._send(_instance(instruction), instruction.peer or "")
                spans.add("send", instruction.target, began, index, instruction.peer)
            case "run":
                networks = self._version.networks[instruction.target]
                began = self._make_resident(networks, index, began)
                yield from self._run_segment(instruction.target)
                spans.add("segment", instruction.target, began, index)
            case "advance":
                self._advance()
            case "end":
                self._carried = self._now.keep(instruction.keeps, self._evaluation)
                self._values = None
                self._ahead.wait(last=self._next == len(self._instructions))
                spans.emit()
                self.timing.denoise = time.perf_counter() - self._opened

    def _update_available_loras(self, evaluation: int | None) -> None:
        """Updates the set of available deferred LoRAs. The sampler's device publishes the set of
        files read; other devices use the published set. Inserts the calls before the loop to repeat
        with the new weights.
        """
        deferred, before = self._versions.deferred, self._present
        if self._owns:
            there = [self._adapters.have([file]) for file in deferred.files]
            self._before.put((PRESENT,), (sum(here << bit for bit, here in enumerate(there)),))
        self._go_on_with(self._before.resolve(Ref(PRESENT)))
        if evaluation is None:
            before = 0
        elif before != self._present:
            again = self._versions.again(before, self._present, evaluation)
            self._instructions[self._next : self._next] = again
        for bit, file in enumerate(deferred.files):
            if (before ^ self._present) >> bit & 1:
                self.timing.arrivals[shown(file.path)] = evaluation or 0

    def _make_resident(
        self, models: Iterable[ModelRecipe], evaluation: int | None, began: StreamEvent
    ) -> StreamEvent:
        """Makes the weight sets of the next calls resident, because other requests, other segments
        and deferred LoRAs may have replaced them. Returns the start of the calls on the device's
        clock.
        """
        for model in models:
            loras = () if self.by_row else network_loras(model)
            network = self._networks.get(model.network)
            if network is not None and self._models.resident_in(network) == loras:
                continue
            before = self._models.network_seconds
            wanted = replace(model, loras=()) if self.by_row else model
            self._networks[model.network] = self._models.residents.with_room(
                f"{self._what}, its LoRAs", partial(self._models.patch, wanted)
            )
            if (switched := self._models.network_seconds - before) > 0:
                name = self._version.names.get(model.weights)
                if name is not None:
                    self.timing.switches[name] = switched
                self._recorder.add("patch", name or digest(model)[:12], began, evaluation)
                began = self._recorder.clock()
        return began

    def _begin(self, evaluation: int) -> None:
        """Prepares the values of an evaluation: the sampler's current step, and the values carried
        from earlier evaluations.
        """
        self._evaluation = evaluation
        self._values = Values(
            self._before, lambda value: self._instances.of(value, evaluation), self._carried
        )
        if self._process is not None:
            self._values.put((self.program.region.begin.id,), (self._step(self._process),))

    def _receive(self, instance: Instance) -> None:
        came = self._partners.take(instance)
        value = received(came, self._models.device)
        self._models.stream.hold(came)  # the sender reuses this memory after its release
        if instance.ref.operation in self._made_before:
            self._before.arrive(instance, value, instance.evaluation)
        else:
            self._now.arrive(instance, value, self._evaluation)

    def _send(self, instance: Instance, peer: str) -> None:
        values = self._before if instance.ref.operation in self._made_before else self._now
        self._partners.send(peer, instance, values.resolve(instance.ref))

    @property
    def _now(self) -> Values:
        assert self._values is not None  # `begin` opened an evaluation
        return self._values

    @property
    def result(self) -> tuple[Tensor, Tensor] | None:
        """Returns, on the sampler's device, the final latent [B, C, h, w], unscaled, float32 on the
        CPU, and the denoised latent from the start of the last step; its own latent if the request
        ended because its template cannot be stored.
        """
        if (process := self._process) is None:
            return None
        if self._ended_early:
            latent: Tensor = self.program.region.begin.inputs["latent_image"]["samples"]
            return latent, latent
        what = f"{self._what}, its result"
        samples, denoised = self._models.residents.with_room(
            what, lambda: (self._unscaled(process.result), self._unscaled(process.denoised))
        )
        return samples(), denoised()

    def _unscaled(self, latent: Tensor) -> Reading:
        return self._models.stream.read(self._model.latent.restored(latent).float())

    def close(self) -> None:
        """Releases the request's models and values, which an error's traceback would keep alive.
        Waits until the device has read all received values, because senders wait to reuse the
        memory.
        """
        self._holding.release()
        self._work.close()
        self.offer = None
        self._before, self._values, self._carried, self._process = Values(), None, {}, None
        self._calls.clear()
        self._networks.clear()
        self._adapters.release()
        if self._activations is not None:
            self._activations.close()
        self._models.stream.drain()

    def _load(self) -> None:
        """Loads models before their operations, so that loading is not charged to operations. While
        the files of missing models are read, encodes texts. With deferred LoRAs texts must wait for
        the instructions that determine the weights.
        """
        if self.loads and not self._versions.deferred.files:
            self._timed_load(self._holding.load_texts)
            self._encode_texts()
        self._timed_load(self._holding.load)
        self._colours = linear_map(self._model.latent) if self._context.previews else None
        if self._owns:
            self._process = self._start()
        self._may_apply_by_row = (
            self._stage_calls.shares
            and not self._versions.deferred.files
            and len({model.weights for model in self._version.models}) == 1
            and all(map(self._models.applies_by_row, self._version.models))
        )
        self._loaded = True
        if self._on_loaded is not None:
            self._on_loaded()

    def _timed_load(self, load: Callable[[], None]) -> None:
        began, started = self._recorder.clock(), time.perf_counter()
        load()
        self.timing.load += time.perf_counter() - started
        self._recorder.add("load", "load", began)

    def _encode_texts(self) -> None:
        """Executes the instructions that need text encoders only, and no value of another
        device.
        """
        made: set[str] = set()
        for instruction in list(self._instructions):
            call = self._preparations.get(instruction.target)
            if instruction.kind != "prepare" or call is None or not self._encodes_text(call):
                continue
            reads = (self._version.before[name].references() for name in call.operations)
            if made.issuperset(ref.operation for one in reads for _, ref in one):
                self._run_alone(self._carry_out(instruction))
                self._instructions.remove(instruction)
                made |= {*call.operations}

    def _run_alone(self, work: Work) -> None:
        """Computes the calls of some work at once."""
        with suppress(StopIteration):
            offer = next(work)
            while offer is not None:
                offer = work.send(self._stage_calls.alone(offer))

    def _encodes_text(self, call: Call) -> bool:
        return stage_of(self._version.before[call.operations[0]]).encodes_text

    @cached_property
    def _what(self) -> str:
        return f"sampler {self.program.name} ({' x '.join(map(str, self.program.shape))})"

    def _step(self, process: Process) -> Step:
        step = process.next_step()
        if step is None:
            raise RuntimeError("the program has more evaluations than the sampler")
        return step

    def _run_segment(self, name: str) -> Work:
        number, segment = self._segments[name]
        # timed and shared calls run one at a time
        one_by_one = self._measure or not self.paired
        turns = [*(zip(segment.calls, strict=True) if one_by_one else segment.turns)]
        for turn, calls in enumerate(turns):
            self._left = [call.shares for rest in turns[turn:] for call in rest]
            yield from self._compute(calls, self._version.variants[number], self._now)
        self._left = []

    def _advance(self) -> None:
        """Passes the prediction to the sampler. Progress and preview are reported later."""
        process = self._process
        assert process is not None  # only the sampler's device has this instruction
        prediction = self._now.resolve(self._instances.variant(self._evaluation).prediction)
        if not isinstance(prediction, Tensor):
            raise InputError(
                f"node {self.program.name}: StepEnd's prediction is a {type(prediction).__name__}, "
                "expected a tensor"
            )
        preview = None
        if self._colours is not None and self._context.wants_preview(self.program.name):
            preview = latent_picture(process.estimate(prediction), self._colours)
        self._ahead.add(self._evaluation, prediction, preview)
        process.advance(prediction)

    def _compute(
        self, calls: Sequence[Call], operations: Mapping[str, Operation], values: Values
    ) -> Work:
        """Executes one call, or two independent calls."""
        members = [self._calls.members(call, operations) for call in calls]
        given = [
            {name: values.gather(reading) for name, reading in some.reads.items()}
            | self._reused(call)
            for some, call in zip(members, calls, strict=True)
        ]
        started = self._measured_from()
        if calls[0].stage == NODE:
            (node,), (taken,) = members[0].operations, given
            with running(self._context, self.program.name):  # for pack code
                made: Sequence[Outputs] = [self._calls.node(node, taken)]
        else:
            made = yield self._calls.offer(
                members, given, self._what, calls[0].shares, self._computed.update, self.by_row
            )
        for call, outputs in zip(calls, made, strict=True):
            values.put(call.operations, outputs)
            self._collect(call, outputs)
        first = calls[0].operations
        if self._measure and (key := self.program.keys.get(first[0])):
            rows = sum(self.program.rows[name] for name in first)
            self.timing.samples.setdefault((key, rows), []).append(
                (self._evaluation, self._measured_from() - started)
            )

    def _reused(self, call: Call) -> dict[str, Any]:
        """Returns a call's inputs from or for a template."""
        if self._activations is None or call.operations[0] not in self.program.reused:
            return {}
        if self._activations.fills:
            return {"collects": True} if self._activations.covers(self._evaluation) else {}
        found = self._activations.taken(call, self._evaluation)
        return {} if found is None else {"activations": found}

    def _collect(self, call: Call, outputs: Outputs) -> None:
        """Passes the outputs of a call that collects to the template that the request fills."""
        activations = self._activations
        if activations is None or not (activations.fills and activations.covers(self._evaluation)):
            return
        for name in call.operations:
            if name in self.program.reused:
                found = self._now.resolve(Ref(name, len(outputs) - 1))
                activations.collect(name, self._evaluation, found)

    def _measured_from(self) -> float:
        """Returns the current time; synchronizes the device first if calls are timed separately."""
        if self._measure and self._models.device.type == "cuda":
            torch.cuda.synchronize(self._models.device)
        return time.perf_counter()

    @property
    def _recorder(self) -> SpanRecorder:
        if self._spans is None:
            clock = self._models.stream.clock()
            self._spans = SpanRecorder(self._device, self.program.name, clock, self._context.report)
            self.timing.spans = self._spans.emitted
        return self._spans


def _instance(instruction: Instruction) -> Instance:
    return Instance(Ref(instruction.target, instruction.output), instruction.evaluation)
