"""A program as people and scripts read it: text, JSON, and a picture of one evaluation on the devices' time axis."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from katz_graph.planner.emit import commonest_variant, pinned_by, weight_sets
from katz_graph.planner.program import Call, Program

WIDTH, ROW, LEFT = 1000, 34, 110  # pixels of the drawing
COLOURS = {"unet_encoder": "#4c78a8", "unet_mid": "#72b7b2", "unet_decoder": "#54a24b", "controlnet": "#f58518"}
OTHER = "#bab0ac"


def as_text(program: Program) -> str:
    """What the passes that have run so far found, one pass after the other."""
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    region = program.region
    yield f"sampler {program.name}: {_count(program.schedule, 'evaluation')} of {_count(region.operations, 'operation')}"
    if not program.variants:
        yield from (f"  {operation.id}: {operation.type}" for operation in region.operations)
    for number, variant in enumerate(program.variants):
        yield f"variant {variant.name}: evaluations {_ranges(variant.evaluations)}"
        if program.trees:
            yield f"  series-parallel tree: {program.trees[number]}"
        else:
            yield f"  operations: {', '.join(operation.id for operation in variant.operations)}"
        if variant.carried:
            yield f"  carried to the next evaluation: {', '.join(f'slot {slot}' for slot in variant.carried)}"
        for segment in program.segments[number] if program.segments else ():
            yield f"  segment {segment.name} on {segment.device}: {' -> '.join(map(_call, segment.calls))}"
        if program.calls and not program.segments:
            yield f"  calls: {' -> '.join(map(_call, program.calls[number]))}"
    if program.before:
        yield f"hoisted, once per request: {', '.join(_hoisted(program))}"
    if program.work:
        total = _loop_total(program)
        yield f"work: {_si(total[0])}FLOP and {_si(total[1])}B in the commonest evaluation, latent {'x'.join(map(str, program.shape))}"
    if program.alternatives:
        yield "choice: " + "; ".join(
            f"{name} {seconds:.3f} s" for name, seconds in sorted(program.alternatives.items(), key=lambda e: e[1])
        )
    if weight_sets(program):
        yield f"weight sets (LoRA): {', '.join(weight_sets(program))}"
    if pinned_by(program):
        yield f"pinned to one device of this process, without graphs: {', '.join(pinned_by(program))}"
    for device, instructions in program.instructions.items():
        yield f"instructions for {device}: {len(instructions)}"
    if program.prediction is not None:
        prediction = program.prediction
        yield f"predicted {prediction.planned:.3f} s; ideal {prediction.ideal:.3f} s; sequential {prediction.sequential:.3f} s"
        yield f"bound by {prediction.binding}"


def as_json(program: Program) -> dict[str, Any]:
    """The same as plain data."""
    prediction = program.prediction
    return {
        "sampler": program.name,
        "evaluations": len(program.schedule),
        "latent": list(program.shape),
        "devices": [device.name for device in program.devices],
        "pinned_by": list(pinned_by(program)),
        "hoisted": [operation.id for operation in program.before],
        "variants": [
            {
                "name": variant.name,
                "evaluations": list(variant.evaluations),
                "tree": str(program.trees[number]) if program.trees else None,
                "operations": [operation.id for operation in variant.operations],
                "carried": list(variant.carried),
                "segments": [
                    {"name": segment.name, "device": segment.device, "calls": [_call_json(call) for call in segment.calls]}
                    for segment in (program.segments[number] if program.segments else ())
                ],
            }
            for number, variant in enumerate(program.variants)
        ],
        "work": {name: {"flops": work.flops, "weight_bytes": work.weight_bytes} for name, work in program.work.items()},
        "alternatives": dict(program.alternatives),
        "instructions": {
            device: [[entry.kind, entry.target, entry.evaluation] for entry in entries] for device, entries in program.instructions.items()
        },
        "prediction": None
        if prediction is None
        else {
            "planned_seconds": prediction.planned,
            "ideal_seconds": prediction.ideal,
            "sequential_seconds": prediction.sequential,
            "period_seconds": prediction.period,
            "binding": prediction.binding,
        },
    }


def as_svg(program: Program) -> str:
    """A Gantt picture of two evaluations in a row of the commonest variant, a row per device."""
    number = commonest_variant(program)
    segments = () if number is None else program.segments[number]
    calls = [call for segment in segments for call in segment.calls if call.seconds]
    devices = [device.name for device in program.devices]
    period = sum(call.seconds for call in calls) or 1.0
    scale = (WIDTH - LEFT - 20) / (2 * period)
    height = ROW * len(devices) + 60
    parts = [f'<text x="10" y="20" font-size="14">{escape(program.name)}: two evaluations, {2 * period * 1e3:.2f} ms</text>']
    for row, device in enumerate(devices):
        top = 34 + row * ROW
        parts.append(f'<text x="10" y="{top + 20}" font-size="12">{escape(device)}</text>')
        clock = 0.0
        for call in (call for _ in range(2) for call in calls if call.device == device):
            x, width = LEFT + clock * scale, max(call.seconds * scale, 0.5)
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 8}" rx="3" fill="{COLOURS.get(call.stage, OTHER)}">'
                f"<title>{escape(_call(call))}: {call.seconds * 1e3:.3f} ms</title></rect>"
            )
            if width > 60:
                parts.append(f'<text x="{x + 4:.1f}" y="{top + 17}" font-size="11" fill="#fff">{escape(_short(call, width))}</text>')
            clock += call.seconds
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _hoisted(program: Program) -> Iterator[str]:
    stages = [operation.stage for operation in program.before]
    return (f"{stages.count(stage)} {stage.replace('_', ' ')}" for stage in dict.fromkeys(stages))


def _loop_total(program: Program) -> tuple[float, float]:
    number = commonest_variant(program)
    operations = [] if number is None else [operation.id for operation in program.variants[number].operations]
    return sum(program.work[name].flops for name in operations), sum(program.work[name].weight_bytes for name in operations)


def _call(call: Call) -> str:
    return call.operations[0] if len(call.operations) == 1 else f"[{' + '.join(call.operations)}]"


def _short(call: Call, width: float) -> str:
    text = call.operations[0].rsplit(".", 1)[-1] + (f" ×{len(call.operations)}" if len(call.operations) > 1 else "")
    return text[: int(width / 7)]


def _call_json(call: Call) -> dict[str, Any]:
    return {"operations": list(call.operations), "stage": call.stage, "seconds": call.seconds}


def _count(items: Any, noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """0-3, 6, 8-9."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _si(value: float) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} "
