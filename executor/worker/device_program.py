"""Extracts one worker's part of a program: its device's instructions and all objects that they
name. A worker gets its part once and requests nothing while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from katz_graph.ir.device import ROW_BUCKETS, Target
from katz_graph.ir.program import Program, Variant
from katz_graph.ir.region import SLOTS, Operation, Region
from katz_graph.planner.sharing import call_seconds


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Holds one worker's part of a program: the operations, segments and instructions of `device`.
    Operations of other devices keep only their ids.
    """

    device: str
    program: Program
    # by share key: predicted seconds of the loop's calls with each of ROW_BUCKETS
    seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def owns(self) -> bool:
        """Returns whether this device advances the sampler."""
        return self.device == self.program.sampler_device


def device_program(program: Program, device: str) -> DeviceProgram:
    """Returns the part of `device` from a program that went through all passes."""
    prepared = {
        name for call in program.before_calls if call.device == device for name in call.operations
    }
    begin, end = program.region.begin, program.region.end
    needed = {"model", *(f"initial_{slot}" for slot in range(1, SLOTS + 1))}
    if device != program.sampler_device:
        begin = replace(
            begin, inputs={name: value for name, value in begin.inputs.items() if name in needed}
        )
    return DeviceProgram(
        device,
        Program(
            region=Region(begin, (), replace(end, inputs={}), program.region.name),
            schedule=program.schedule,
            # only planning reads measured times, of which there may be thousands
            target=Target((replace(program.target.device(device), measured={}),)),
            name=program.name,
            before=tuple(
                operation if operation.id in prepared else _named(operation)
                for operation in program.before
            ),
            deferred_loras=program.deferred_loras,
            variants=tuple(_of_device(program, variant, device) for variant in program.variants),
            keys=program.keys,
            rows=program.rows,
            shape=program.shape,
            placement={name: where for name, where in program.placement.items() if where == device},
            sampler_device=program.sampler_device,
            template=program.template,
            reused={
                name: layers
                for name, layers in program.reused.items()
                if program.placement[name] == device
            },
            before_calls=tuple(call for call in program.before_calls if call.device == device),
            segments=tuple(
                tuple(segment for segment in segments if segment.device == device)
                for segments in program.segments
            ),
            instructions={device: program.instructions.get(device, ())},
            prediction=program.prediction,
            runs=program.runs,
        ),
        _seconds(program, device),
    )


def _seconds(program: Program, device: str) -> dict[str, tuple[float, ...]]:
    found: dict[str, tuple[float, ...]] = {}
    for segment in chain.from_iterable(program.segments):
        for call in segment.calls:
            if segment.device == device and call.shares and call.shares not in found:
                found[call.shares] = tuple(call_seconds(program, call, one) for one in ROW_BUCKETS)
    return found


def _of_device(program: Program, variant: Variant, device: str) -> Variant:
    return replace(
        variant,
        operations=tuple(op for op in variant.operations if program.placement[op.id] == device),
    )


def _named(operation: Operation) -> Operation:
    return Operation(operation.id, operation.stage, operation.type, {})
