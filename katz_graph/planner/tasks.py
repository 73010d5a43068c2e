"""What every device does, one entry after the other, in a program whose calls are known: what the simulator's clock runs through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from katz_graph.planner.flow import Flow
from katz_graph.planner.program import Call, Program

STEP, ADVANCE = "step", "advance"  # what the sampler gives and takes


@dataclass(frozen=True, slots=True)
class Task:
    """An entry of a device's list, with the numbers of the instances that it needs and makes."""

    seconds: float
    needs: Sequence[int]
    makes: Sequence[int]
    evaluation: int | None
    call: Call | None = None  # None: the sampler begins or ends an evaluation, or weights are patched
    name: str = ""


def device_tasks(flow: Flow, program: Program) -> dict[str, list[Task]]:
    """Every device's list, for the devices that have something to do."""
    lists: dict[str, list[Task]] = {}
    for name, task in _all_tasks(flow, program):
        if name in lists:
            lists[name].append(task)
        else:
            lists[name] = [task]
    return lists


def _all_tasks(flow: Flow, program: Program) -> Iterator[tuple[str, Task]]:
    yield from _patches(flow, program)
    for call in program.before_calls:
        yield call.device, _task(call, flow.before_reads, flow.before_makes, None)
    owner = program.owner
    for moment in flow.moments:
        yield owner, Task(0.0, (), moment.step, moment.evaluation, name=STEP)
        for call in program.calls[moment.variant]:
            yield call.device, _task(call, moment.reads, moment.makes, moment.evaluation)
        yield owner, Task(0.0, (moment.prediction,), (), moment.evaluation, name=ADVANCE)


def _task(call: Call, reads: Mapping[str, Sequence[int]], makes: Mapping[str, Sequence[int]], evaluation: int | None) -> Task:
    operations = call.operations
    if len(operations) == 1:
        return Task(call.seconds, reads[operations[0]], makes[operations[0]], evaluation, call, operations[0])
    needs = [need for name in operations for need in reads[name]]
    made = [one for name in operations for one in makes[name]]
    return Task(call.seconds, needs, made, evaluation, call, f"{operations[0]} ×{len(operations)}")


def _patches(flow: Flow, program: Program) -> Iterator[tuple[str, Task]]:
    """All weights of a model with LoRAs, on each device that has a part of it.

    As measured; else originals come over the bus, and are read and written.
    """
    for device, weights in dict.fromkeys((program.placement[name], weights) for name, weights in flow.patched.items()):
        switch, known = flow.switches[weights], program.device(device)
        estimate = switch.size / known.bus_bytes_per_second + 2 * switch.size / known.bytes_per_second
        seconds = known.measured.get((switch.key, switch.loras, False), estimate)
        yield device, Task(seconds, (), (), None, name=f"patch {weights}")
