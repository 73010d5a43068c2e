"""Builds programs on several devices for planner tests, with given links, placements and seconds
per stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner_graphs import compiled, prompt, sampler_region, use

from katz_graph.ir.device import Device, NetworkLink, Work
from katz_graph.ir.program import Call, Program
from katz_graph.ir.region import Region
from katz_graph.planner.passes.stale_controlnets import make_stale

MS = 1e-3
# encoder and mid together 15, decoder 19, ControlNet 15
SECONDS = {
    "unet_encoder": 12 * MS,
    "unet_mid": 3 * MS,
    "unet_decoder": 19 * MS,
    "controlnet": 15 * MS,
}
RATE = 1e9  # link rate in bytes per second
STEP = 4 * 16 * 16 * (4 + 4) / RATE  # seconds to send a step of the tests' latent at RATE


def region(controls: int = 1, branches: int = 1) -> Region:
    uses = tuple(use(f"control {number}") for number in range(controls))
    return sampler_region(
        (prompt("a", *uses),), (prompt("b", *uses),), guidance=7.0 if branches == 2 else 1.0
    )


def work(
    seconds: Mapping[str, float],
    sizes: Mapping[str, float],
    weights: float = 0.0,
    kernels: float = 0.0,
) -> Any:
    """Returns a counting function: an operation's stage determines its seconds on a device of 1
    FLOP/s and its output bytes.
    """

    def count(operation: Any, shape: tuple[int, ...], tokens: int) -> Work:
        heavy = operation.stage in seconds
        return Work(
            flops=seconds.get(operation.stage, 0.0),
            weight_bytes=weights if heavy else 0.0,
            output_bytes=sizes.get(operation.stage, 0.0),
            kernels=kernels if heavy else 0.0,
        )

    return count


def devices(*speeds: float, **more: Any) -> tuple[Device, ...]:
    return tuple(
        Device(f"cpu:{number}", speed, 1e30, **more) for number, speed in enumerate(speeds)
    )


def linked(
    among: Iterable[Device], rate: float = RATE, latency: float = 0.0
) -> dict[tuple[str, str], NetworkLink]:
    names = [device.name for device in among]
    return {(a, b): NetworkLink(rate, latency) for a in names for b in names if a != b}


def several(
    of: Region,
    speeds: Sequence[float] = (1.0, 1.0),
    transfer: float = 4 * MS,
    after: str = "emit",
    seconds: Mapping[str, float] = SECONDS,
    evaluations: int = 10,
    **known: Any,
) -> Program:
    """Compiles for devices of these speeds. The residuals of a ControlNet and the skips of a UNet
    take `transfer` seconds on every link.
    """
    size = transfer * RATE
    sizes = {"controlnet": size, "unet_encoder": size}
    given = {
        "devices": devices(*speeds),
        "links": linked(devices(*speeds)),
        "count": work(seconds, sizes),
    } | known
    return compiled(of, evaluations=evaluations, after=after, **given)


def laid(
    program: Program,
    homes: Mapping[str, str],
    sampler_device: str = "cpu:0",
    stale: Sequence[str] = (),
) -> Program:
    """Places every operation by the end of its name in `homes`, others on `sampler_device`. Each
    operation becomes a separate call.
    """
    program = make_stale(program, stale) if stale else program
    operations = [operation for variant in program.variants for operation in variant.operations]
    placement = {
        op.id: next((home for end, home in homes.items() if op.id.endswith(end)), sampler_device)
        for op in operations
    }
    costs = {device.name: device for device in program.target.devices}

    def call(name: str, stage: str, device: str) -> Call:
        return Call((name,), stage, device, costs[device].cost("", 1, program.work[name]))

    calls = tuple(
        tuple(call(op.id, op.stage, placement[op.id]) for op in variant.operations)
        for variant in program.variants
    )
    before = []
    for op in program.before:
        readers = {
            placement[other.id]
            for other in operations
            for _, ref in other.references()
            if ref.operation == op.id
        }
        where = [sampler_device] if op.stage == "text_encoder" else sorted(readers)
        before += [call(op.id, op.stage, device) for device in where]
    return replace(
        program,
        placement=placement,
        sampler_device=sampler_device,
        calls=calls,
        before_calls=tuple(before),
    )
