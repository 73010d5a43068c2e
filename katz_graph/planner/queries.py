"""Answers queries about a program for passes, reports and workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from katz_graph.adapters.recipes import LoraUse, lora_uses, loras_of
from katz_graph.core.patches import opaque_patches
from katz_graph.core.recipe import FileIdentity, ModelRecipe, digest
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region


@dataclass(frozen=True, slots=True)
class WeightSwitch:
    """Describes the switch to a weight set: the `key` of the measured time, and the bytes (`size`)
    of the model's weights, all of which LoRAs may change. Models of equal size with equally many
    LoRAs share measurements, regardless of strengths.
    """

    key: str
    loras: int
    size: float


def unprofiled(program: Program) -> tuple[int, int]:
    """Counts kinds of model calls: those without a profile, whose times are estimated from the
    devices' rates, and all.
    """
    kinds = {
        (program.keys[call.operations[0]], call.device)
        for calls in (program.before_calls, *program.calls)
        for call in calls
        if program.keys.get(call.operations[0])
    }
    profiled = {
        (key, device.name) for device in program.target.devices for key, *_ in device.measured
    }
    return len(kinds - profiled), len(kinds)


def weight_sets(program: Program, device: str | None = None) -> dict[str, ModelRecipe]:
    """Returns the loop's models whose networks are patched (on one device, or all), by the name of
    their weight set, in order of first use. These models have LoRAs, or share a network with a
    model that has LoRAs.
    """
    operations = (op for variant in program.variants for op in variant.operations)
    used = [
        op.inputs.get("model")
        for op in operations
        if device in (None, program.placement.get(op.id))
    ]
    models = [model for model in used if isinstance(model, ModelRecipe)]
    patched = {model.network for model in models if model.loras}
    return {digest(model)[:12]: model for model in models if model.network in patched}


def switches(program: Program) -> dict[str, WeightSwitch]:
    """Returns the switch to each weight set of the loop. Requires the work of operations."""
    found = {}
    operations = [op for variant in program.variants for op in variant.operations]
    for name, model in weight_sets(program).items():
        own = [op for op in operations if op.inputs.get("model") == model]
        parts: dict[tuple[Any, ...], float] = {}
        for op in own:
            blocks = op.stage, op.inputs.get("first_block"), op.inputs.get("last_block")
            held = program.work[op.id].weight_bytes
            parts[blocks] = max(parts.get(blocks, 0.0), held)  # an operation may skip some blocks
        size = sum(parts.values())
        found[name] = WeightSwitch(
            f"patch:{size:.0f}", sum(lora.strength != 0 for lora in model.loras), size
        )
    return found


def adapters(program: Program, device: str | None = None) -> tuple[FileIdentity, ...]:
    """Returns the LoRA files that a program's networks and text encoders use (on one device, or
    all). Adds all deferred files for the sampler's device, which decides when they are available.
    """
    deferred = (
        program.deferred_loras.files
        if program.deferred_loras and device in (None, program.sampler_device)
        else ()
    )
    prepared = {
        name
        for call in program.before_calls
        if device in (None, call.device)
        for name in call.operations
    }
    looped = (op for variant in program.variants for op in variant.operations)
    operations = [op for op in looped if device in (None, program.placement.get(op.id))]
    operations += [op for op in program.before if device is None or op.id in prepared]
    used = (
        lora.file for op in operations for value in op.inputs.values() for lora in loras_of(value)
    )
    return tuple(dict.fromkeys((*used, *deferred)))


def lora_strengths(program: Program) -> dict[FileIdentity, LoraUse]:
    """Returns the strengths of the LoRA files that a program's networks and text encoders use."""
    looped = (op for variant in program.variants for op in variant.operations)
    return lora_uses(value for op in (*looped, *program.before) for value in op.inputs.values())


def reading_key(file: FileIdentity) -> str:
    """Returns the key of a file's measured read time: its storage, and its size rounded to a power
    of two.
    """
    scheme, _, rest = file.path.partition("://")
    place = f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}" if rest else "disk"
    return f"read:{place}:{max(file.size, 1).bit_length()}"


def opaque_functions(region: Region) -> tuple[str, ...]:
    """Returns the pack functions in a region's models. These cannot be sent or captured."""
    bound = (op.inputs.get("model") for op in (region.begin, *region.operations))
    patches = (
        patch
        for model in bound
        if isinstance(model, ModelRecipe)
        for patch in opaque_patches(model.patches)
    )
    return tuple(dict.fromkeys(f"{patch.kind} {patch.identity}" for patch in patches))


def commonest_variant(program: Program) -> int | None:
    """Returns the index of the variant with most evaluations; None without any (denoise 0)."""
    return max(
        range(len(program.variants)),
        key=lambda number: len(program.variants[number].evaluations),
        default=None,
    )
