"""Simulates a program on a virtual clock: devices run their calls in a fixed order, and links
transfer values in the order of creation.

Must not know how a program's calls and placement were found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from katz_graph.core.errors import RunError
from katz_graph.ir.program import Call, Program
from katz_graph.ir.reuse import STORE
from katz_graph.planner.queries import commonest_variant
from katz_graph.planner.simulation.flow import Flow


@dataclass(frozen=True, slots=True)
class SimulatedSpan:
    """Records one task of a device, or one transfer in a direction of a link ("cpu:1 -> cpu:0"), in
    seconds on the virtual clock.

    Includes the sampler: `step` begins an evaluation and `advance` ends it, both in zero time.
    """

    resource: str
    what: str
    stage: str  # "" on a link
    evaluation: int | None
    start: float
    seconds: float
    after: int | None  # index of the span that it waited for last


@dataclass(frozen=True, slots=True)
class Simulation:
    """Holds the simulated times. `ends` are the times at which the sampler got each prediction."""

    seconds: float
    ends: tuple[float, ...] = ()
    period: float = 0.0  # of an evaluation of the commonest variant, in steady state
    steady: int | None = None  # an evaluation in the middle of the variant's longest run
    spans: tuple[SimulatedSpan, ...] = ()
    busy: Mapping[str, float] = field(default_factory=dict)  # seconds by resource, when steady


def simulate(program: Program) -> Simulation:
    """Simulates the whole request. Raises RunError for a deadlock; the error names the waiting
    devices and the missing values.
    """
    flow = Flow(program)
    spans: list[SimulatedSpan] = []
    ends = run_clock(flow, program, spans)
    seconds = max((span.start + span.seconds for span in spans), default=0.0)
    spans += _loads(program, spans)
    first, last = _longest_run(program)
    if first is None:
        return Simulation(max(seconds, *ends, 0.0), tuple(ends), spans=tuple(spans))
    middle = (first + last + 1) // 2
    period = (ends[last] - ends[middle - 1]) / (last - middle + 1) if middle else ends[0]
    busy: dict[str, float] = {}
    for span in spans:
        if span.evaluation == middle and span.seconds:
            busy[span.resource] = busy.get(span.resource, 0.0) + span.seconds
    return Simulation(max(seconds, *ends), tuple(ends), period, middle, tuple(spans), busy)


def _loads(program: Program, spans: Sequence[SimulatedSpan]) -> list[SimulatedSpan]:
    """Returns the loads from a template: as early as the link is free, but at most the lead and one
    evaluation ahead. Calls already include the waits for them.
    """
    if program.reuse is None:
        return []
    sampler = program.sampler_device
    begins = [span.start for span in spans if (span.what, span.resource) == (STEP, sampler)]
    found: list[SimulatedSpan] = []
    for device, loads in program.reuse.loads.items():
        free, resource = 0.0, f"{STORE} -> {device}"
        for evaluation, begin in enumerate(begins):
            earliest = max(begin - program.reuse.ahead, begins[evaluation - 1])
            free = max(free, earliest) if evaluation else 0.0
            for name, seconds in loads:
                found.append(SimulatedSpan(resource, name, "", evaluation, free, seconds, None))
                free += seconds
    return found


def _longest_run(program: Program) -> tuple[int, int] | tuple[None, int]:
    """Returns the first and last evaluation of the commonest variant's longest run. If several runs
    are equally long, takes the middle one.
    """
    number = commonest_variant(program)
    if number is None:
        return None, 0
    runs: list[tuple[int, int]] = []
    for index in program.variants[number].evaluations:
        if runs and index == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    most = max(last - first for first, last in runs)
    longest = [run for run in runs if run[1] - run[0] == most]
    return longest[len(longest) // 2]


def run_clock(
    flow: Flow, program: Program, spans: list[SimulatedSpan] | None = None
) -> list[float]:
    """Returns the time of each evaluation's prediction in `flow`; appends the activity of resources
    to `spans`.

    `program` gives the calls of each variant of the flow, the placement and the sampler's device.
    Raises RunError for a deadlock.
    """
    return _Clock(flow, program, spans).run()


class _Clock:
    def __init__(self, flow: Flow, program: Program, spans: list[SimulatedSpan] | None) -> None:
        self._flow, self._program, self._spans = flow, program, spans
        lists = device_tasks(flow, program)
        self._names = list(lists)
        self._lists = list(lists.values())
        self._receivers = self._who_receives()
        links = {
            (a, b): program.target.link(self._names[a], self._names[b])
            for a in range(len(self._names))
            for b in range(len(self._names))
        }
        self._links = {
            pair: (link.bytes_per_second, link.latency)
            for pair, link in links.items()
            if link is not None
        }

    def run(self) -> list[float]:
        lists, receivers, links, sizes = self._lists, self._receivers, self._links, self._flow.sizes
        arrived: list[dict[int, float]] = [{} for _ in lists]
        head, started, free = [0] * len(lists), [-1] * len(lists), [0.0] * len(lists)
        link_free = dict.fromkeys(links, 0.0)
        trace = None if self._spans is None else _Trace(self._spans, self._names, self._flow)
        ends: list[float] = []
        events: list[tuple[float, int, int]] = []
        count = 0
        changed = list(range(len(lists)))
        while True:
            for device in changed:
                place = head[device]
                if place == len(lists[device]) or started[device] == place:
                    continue
                task, here, start = lists[device][place], arrived[device], free[device]
                last = None
                for need in task.needs:
                    at = here.get(need)
                    if at is None:
                        break
                    if at > start:
                        start, last = at, need
                else:
                    started[device] = place
                    count += 1
                    heappush(events, (start + task.seconds, count, device))
                    if trace is not None:
                        trace.task(device, task, start, last)
            if not events:
                break
            now, _, device = heappop(events)
            task = lists[device][head[device]]
            head[device] += 1
            free[device] = now
            changed = [device]
            if task.name == ADVANCE:
                ends.append(now)
            for made in task.makes:
                arrived[device][made] = now
                if trace is not None:
                    trace.made(device, made)
                for receiver in receivers.get((made, device), ()):
                    pair, at = (device, receiver), now
                    if pair in links:
                        rate, latency = links[pair]
                        begin, seconds = max(link_free[pair], now), sizes[made] / rate
                        link_free[pair] = begin + seconds
                        at = begin + seconds + latency
                        if trace is not None:
                            trace.transfer(pair, made, begin, seconds, waited=begin > now)
                    elif trace is not None:
                        trace.shared(pair, made)
                    arrived[receiver][made] = at
                    changed.append(receiver)
        if any(place < len(tasks) for place, tasks in zip(head, lists, strict=True)):
            raise RunError(self._deadlock(head, arrived))
        return ends

    def _who_receives(self) -> dict[tuple[int, int], list[int]]:
        """Returns (instance, sending device) -> devices that read the instance and do not make it,
        in the order of devices.
        """
        makers: dict[int, list[int]] = {}
        for device, entries in enumerate(self._lists):
            for task in entries:
                for made in task.makes:
                    makers.setdefault(made, []).append(device)
        found: dict[tuple[int, int], list[int]] = {}
        for device, entries in enumerate(self._lists):
            seen: set[int] = set()
            for task in entries:
                for need in task.needs:
                    if need not in seen:
                        seen.add(need)
                        sources = makers.get(need)
                        if sources and device not in sources:
                            found.setdefault((need, sources[0]), []).append(device)
        return found

    def _deadlock(self, head: list[int], arrived: list[dict[int, float]]) -> str:
        waiting = []
        for device, place in enumerate(head):
            if place < len(self._lists[device]):
                task = self._lists[device][place]
                missing = [
                    self._flow.instances[need] for need in task.needs if need not in arrived[device]
                ]
                wanted = ", ".join(
                    f"{one.ref.operation} of evaluation {one.evaluation}" for one in missing
                )
                waiting.append(
                    f"{self._names[device]} waits with {task.name} of evaluation {task.evaluation} "
                    f"for {wanted}"
                )
        return f"the plan cannot proceed: {'; '.join(waiting)}"


class _Trace:
    """Records the activity of resources, and the span that each span waited for."""

    def __init__(self, spans: list[SimulatedSpan], names: Sequence[str], flow: Flow) -> None:
        self._spans, self._names, self._flow = spans, names, flow
        self._begin = flow.program.region.begin.id
        self._last: dict[object, int] = {}  # resource -> its latest span
        # (device, instance) -> the span that made or transferred it
        self._origins: dict[tuple[int, int], int] = {}

    def task(self, device: int, task: DeviceTask, start: float, waited_for: int | None) -> None:
        after = self._last.get(device) if waited_for is None else self._origins[device, waited_for]
        stage = task.call.stage if task.call else ""
        self._add(
            device,
            SimulatedSpan(
                self._names[device], task.name, stage, task.evaluation, start, task.seconds, after
            ),
        )

    def made(self, device: int, instance: int) -> None:
        self._origins[device, instance] = self._last[device]

    def transfer(
        self, pair: tuple[int, int], instance: int, start: float, seconds: float, waited: bool
    ) -> None:
        after = self._last[pair] if waited else self._origins[pair[0], instance]
        one = self._flow.instances[instance]
        what = STEP if one.ref.operation == self._begin else one.ref.operation
        resource = f"{self._names[pair[0]]} -> {self._names[pair[1]]}"
        self._add(pair, SimulatedSpan(resource, what, "", one.evaluation, start, seconds, after))
        self._origins[pair[1], instance] = self._last[pair]

    def shared(self, pair: tuple[int, int], instance: int) -> None:
        self._origins[pair[1], instance] = self._origins[pair[0], instance]

    def _add(self, resource: object, span: SimulatedSpan) -> None:
        self._last[resource] = len(self._spans)
        self._spans.append(span)


STEP, ADVANCE = "step", "advance"  # the sampler's output and input
LOADS = "loads"  # wait of the first evaluation for a template's activations


@dataclass(frozen=True, slots=True)
class DeviceTask:
    """A task of a device, with the numbers of the instances that it needs and makes."""

    seconds: float
    needs: Sequence[int]
    makes: Sequence[int]
    evaluation: int | None
    # None: a sampler task (step, advance), or a patch of weights
    call: Call | None = None
    name: str = ""


def device_tasks(flow: Flow, program: Program) -> dict[str, list[DeviceTask]]:
    """Returns the task list of every device that has work."""
    lists: dict[str, list[DeviceTask]] = {}
    for name, task in _all_tasks(flow, program):
        if name in lists:
            lists[name].append(task)
        else:
            lists[name] = [task]
    return lists


def _all_tasks(flow: Flow, program: Program) -> Iterator[tuple[str, DeviceTask]]:
    yield from _patches(flow, program)
    for call in program.before_calls:
        yield call.device, _task(call, flow.before_reads, flow.before_makes, None)
    for device, seconds in program.reuse.first_waits.items() if program.reuse else ():
        yield device, DeviceTask(seconds, (), (), None, name=LOADS)
    sampler_device = program.sampler_device
    for moment in flow.moments:
        yield sampler_device, DeviceTask(0.0, (), moment.step, moment.evaluation, name=STEP)
        for call in program.calls[moment.variant]:
            yield call.device, _task(call, moment.reads, moment.makes, moment.evaluation)
        yield (
            sampler_device,
            DeviceTask(0.0, (moment.prediction,), (), moment.evaluation, name=ADVANCE),
        )


def _task(
    call: Call,
    reads: Mapping[str, Sequence[int]],
    makes: Mapping[str, Sequence[int]],
    evaluation: int | None,
) -> DeviceTask:
    operations = call.operations
    if len(operations) == 1:
        return DeviceTask(
            call.seconds,
            reads[operations[0]],
            makes[operations[0]],
            evaluation,
            call,
            operations[0],
        )
    needs = [need for name in operations for need in reads[name]]
    made = [one for name in operations for one in makes[name]]
    return DeviceTask(
        call.seconds, needs, made, evaluation, call, f"{operations[0]} ×{len(operations)}"
    )


def _patches(flow: Flow, program: Program) -> Iterator[tuple[str, DeviceTask]]:
    """Yields the task of patching all weights of a model with LoRAs, on each device that has a part
    of the model.

    Uses the measured time, else an estimate: originals are copied over the bus, and weights are
    read and written.
    """
    for device, weights in dict.fromkeys(
        (program.placement[name], weights) for name, weights in flow.patched.items()
    ):
        switch, known = flow.switches[weights], program.target.device(device)
        estimate = (
            switch.size / known.bus_bytes_per_second + 2 * switch.size / known.bytes_per_second
        )
        seconds = known.measured.get((switch.key, switch.loras, False), estimate)
        yield device, DeviceTask(seconds, (), (), None, name=f"patch {weights}")
