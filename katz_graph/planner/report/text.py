"""Renders a program as text for users."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from katz_graph.ir.program import Call, Program
from katz_graph.ir.reuse import active_share, shown_template
from katz_graph.models.stage_registry import stages
from katz_graph.models.stages import Stage
from katz_graph.planner.queries import commonest_variant, opaque_functions, weight_sets


def as_text(program: Program) -> str:
    """Renders the results of the passes that have run so far, one pass after the other."""
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    region = program.region
    yield (
        f"sampler {program.name}: {_count(program.schedule, 'evaluation')} of "
        f"{_count(region.operations, 'operation')}"
    )
    if not program.variants:
        yield from (f"  {operation.id}: {operation.type}" for operation in region.operations)
    for number, variant in enumerate(program.variants):
        yield f"variant {variant.name}: evaluations {_ranges(variant.evaluations)}"
        if program.trees:
            yield f"  series-parallel tree: {program.trees[number]}"
        else:
            yield f"  operations: {', '.join(operation.id for operation in variant.operations)}"
        if variant.carried:
            yield (
                "  carried to the next evaluation: "
                f"{', '.join(f'slot {slot}' for slot in variant.carried)}"
            )
        for segment in program.segments[number] if program.segments else ():
            yield (
                f"  segment {segment.name} on {segment.device}: "
                f"{' -> '.join(map(_call, segment.calls))}"
            )
        if program.calls and not program.segments:
            yield f"  calls: {' -> '.join(map(_call, program.calls[number]))}"
    if program.before:
        yield f"hoisted, once per request: {', '.join(_hoisted(program))}"
    if program.held:
        held = sum(program.held.values())
        yield f"held until the end: {_si(held)}B of keys and values of text and references"
    if program.work:
        total = _loop_total(program)
        yield (
            f"work: {_si(total[0])}FLOP and {_si(total[1])}B in the most common evaluation, "
            f"latent {'x'.join(map(str, program.shape))}"
        )
    yield f"computed in {program.target.devices[0].dtype}"
    if len(program.target.devices) > 1:
        yield from _where(program)
    yield from _on_gpus(program)
    if program.alternatives:
        taken, *others = (
            f"{name} {seconds:.3f} s"
            for name, seconds in sorted(
                program.alternatives.items(), key=lambda e: (e[0] != program.chosen, e[1])
            )
        )
        yield f"choice: {taken}" + (f"; in place of: {'; '.join(others)}" if others else "")
    yield from _reuse(program)
    yield from (f"why: {note}" for note in program.notes)
    if weight_sets(program):
        yield f"weight sets (LoRA): {', '.join(weight_sets(program))}"
    if opaque_functions(program.region):
        yield (
            "pinned to one device of this process, without graphs: "
            f"{', '.join(opaque_functions(program.region))}"
        )
    for device, instructions in program.instructions.items():
        yield f"instructions for {device}: {len(instructions)}"
    if program.prediction is not None:
        prediction = program.prediction
        yield (
            f"predicted {prediction.planned:.3f} s; ideal {prediction.ideal:.3f} s; sequential "
            f"{prediction.sequential:.3f} s"
        )
        yield f"bound by {prediction.binding}"


def _reuse(program: Program) -> Iterator[str]:
    """Renders the layers that read a template, or the reason why none does."""
    found = program.reuse
    if found is None:
        return
    share = f"edit of {active_share(found.active):.0%} of the tokens"
    ways = f"evaluation in full {_ms(found.full)}"
    if found.cached:
        ways += f", all layers cached {_ms(found.cached)}"
    if found.why_not:
        yield f"{share}: {ways}; computed in full: {found.why_not}"
        return
    binding = f"its loads, {_ms(found.load_seconds)}" if found.link_binds else "computation"
    yield f"{share}: {ways}, as chosen {_ms(found.chosen)}, bound by {binding}"
    yield (
        f"cached layers: {found.cached_layers} of {found.layers}, loads "
        f"{_si(found.bytes_loaded)}B per evaluation"
    )
    for name, layers in program.reused.items():
        yield f"  {name}: {', '.join(_numbered(layers))}"


def edit_line(program: Program) -> str | None:
    """Says in one line which activations a sampler read from a template, or why none; None if it
    did not ask for a template.
    """
    found = program.reuse
    if found is None:
        return None
    if found.why_not:
        return f"sampler {program.name}: computed in full: {found.why_not}"
    use = program.template
    template = "a template" if use is None else f"template {shown_template(use.key)}"
    return (
        f"sampler {program.name}: {found.cached_layers} of {found.layers} layers computed "
        f"{active_share(found.active):.0%} of the tokens and read the others from {template}"
    )


def start_line(program: Program) -> str | None:
    """Says in one line from which picture a sampler began, or why from none; None if it did not
    ask for one.
    """
    found = program.region.similar
    if found is None:
        return None
    if found.why_not:
        return f"sampler {program.name}: began without a similar picture: {found.why_not}"
    return (
        f"sampler {program.name}: began from picture {found.picture}, whose prompt has similarity "
        f"{found.similarity:.3f}, and saved {found.saved} of {found.evaluations} evaluations"
    )


def _numbered(names: Collection[str]) -> Iterator[str]:
    """Joins names that differ in their last number only: a.0, a.1, b.3 -> a.0-1, b.3."""
    numbers: dict[str, list[int]] = {}
    for name in names:
        prefix, dot, number = name.rpartition(".")
        numbers.setdefault(prefix + dot, []).append(int(number))
    return (f"{prefix}{_ranges(tuple(found))}" for prefix, found in numbers.items())


def _where(program: Program) -> Iterator[str]:
    """Renders devices with their operations, stale ControlNets, and links in use."""
    yield from (
        f"pinned: {stage} on {' or '.join(devices)}"
        for stage, devices in program.target.pins.items()
    )
    for device in program.target.devices if program.placement else ():
        names = [name for name, home in program.placement.items() if home == device.name]
        note = " (advances the sampler)" if device.name == program.sampler_device else ""
        yield f"{device.name}{note}: {', '.join(names) or 'nothing'}"
    used = (
        {*program.placement.values(), program.sampler_device}
        if program.placement
        else {device.name for device in program.target.devices}
    )
    for (source, target), link in program.target.links.items():
        if source in used and target in used:
            yield (
                f"link {source} -> {target}: {_si(link.bytes_per_second)}B/s, latency "
                f"{link.latency * 1e3:.3g} ms"
            )
    if program.stale:
        yield f"one evaluation stale (the first is not): {', '.join(program.stale)}"


def _on_gpus(program: Program) -> Iterator[str]:
    """Renders stages that GPUs record, stages that may run concurrently, and blocks that run their
    library's forward.
    """
    for device in program.target.devices:
        here = [name for name, home in program.placement.items() if home == device.name]
        for recorded, what in ((True, "recorded as CUDA graphs"), (False, "not recorded")):
            names = _labels(program, here, recorded) if device.is_gpu else []
            if names:
                yield f"{device.name}, {what}: {', '.join(names)}"
        pairs = _concurrent(program, device.name) if device.is_gpu else []
        if pairs:
            yield f"{device.name}, at the same time if faster: {', '.join(pairs)}"
    for blocks in dict.fromkeys(program.unprepared.values()):
        yield f"blocks that use their library's forward: {'; '.join(blocks)}"


def _concurrent(program: Program, device: str) -> list[str]:
    """Returns the pairs of stages that a device may run concurrently."""
    turns = (
        turn
        for segments in program.segments
        for segment in segments
        if segment.device == device
        for turn in segment.turns
        if len(turn) > 1
    )
    pairs = ([_label(stages()[call.stage]) for call in turn] for turn in turns)
    return list(dict.fromkeys(" and ".join(pair) for pair in pairs))


def _label(stage: Stage) -> str:
    return stage.label or stage.name.replace("_", " ")


def _labels(program: Program, names: Collection[str], recorded: bool) -> list[str]:
    """Returns the labels of the operations' costed stages, either recorded ones or others."""
    operations = (op for variant in program.variants for op in variant.operations)
    found = (stages()[one.stage] for one in operations if one.id in names)
    return list(
        dict.fromkeys(
            _label(stage)
            for stage in found
            if stage.compute and stage.costed and stage.recorded is recorded
        )
    )


def _hoisted(program: Program) -> Iterator[str]:
    stages = [operation.stage for operation in program.before]
    return (f"{stages.count(stage)} {stage.replace('_', ' ')}" for stage in dict.fromkeys(stages))


def _loop_total(program: Program) -> tuple[float, float]:
    number = commonest_variant(program)
    operations = (
        []
        if number is None
        else [operation.id for operation in program.variants[number].operations]
    )
    return sum(program.work[name].flops for name in operations), sum(
        program.work[name].weight_bytes for name in operations
    )


def _call(call: Call) -> str:
    return call.operations[0] if len(call.operations) == 1 else f"[{' + '.join(call.operations)}]"


def _count(items: Any, noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Formats numbers as ranges: 0-3, 6, 8-9."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _si(value: float) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} "
