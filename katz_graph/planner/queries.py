"""Answers queries of passes, drawings and workers about a program."""

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
    """Describes making a weight set resident: the `key` of its measured seconds, and the bytes of
    the model's weights, which a LoRA may all change. Equal for models of one size with equally many
    LoRAs, whatever their strengths.
    """

    key: str
    loras: int
    size: float


def unprofiled(program: Program) -> tuple[int, int]:
    """Returns how many kinds of model calls are predicted from the devices' rates alone because no
    profile has measured them, and how many kinds there are.
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
    """Returns the loop's models whose networks are patched (on one device, or all), by a name for
    each set, in order of first use. These carry LoRAs, or share a network there with a model that
    does.
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
    """Returns the switch to each weight set of the loop. Needs the work of operations."""
    found = {}
    operations = [op for variant in program.variants for op in variant.operations]
    for name, model in weight_sets(program).items():
        own = [op for op in operations if op.inputs.get("model") == model]
        parts: dict[tuple[Any, ...], float] = {}
        for op in own:
            blocks = op.stage, op.inputs.get("first_block"), op.inputs.get("last_block")
            held = program.work[op.id].weight_bytes
            parts[blocks] = max(parts.get(blocks, 0.0), held)  # one may pass over some of them
        size = sum(parts.values())
        found[name] = WeightSwitch(
            f"patch:{size:.0f}", sum(lora.strength != 0 for lora in model.loras), size
        )
    return found


def adapters(program: Program, device: str | None = None) -> tuple[FileIdentity, ...]:
    """Returns the LoRA files that a program's networks and text encoders take (on one device, or
    all); on the sampler's device also those that may come late, for it says when they are there.
    """
    late = program.late.files if program.late and device in (None, program.owner) else ()
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
    return tuple(dict.fromkeys((*used, *late)))


def lora_strengths(program: Program) -> dict[FileIdentity, LoraUse]:
    """Returns how strong the LoRA files are that a program's networks and text encoders take."""
    looped = (op for variant in program.variants for op in variant.operations)
    return lora_uses(value for op in (*looped, *program.before) for value in op.inputs.values())


def reading_key(file: FileIdentity) -> str:
    """Names what the seconds of reading a file are kept under: where it lies, and its size to a
    factor of two.
    """
    scheme, _, rest = file.path.partition("://")
    place = f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}" if rest else "disk"
    return f"read:{place}:{max(file.size, 1).bit_length()}"


def opaque_functions(region: Region) -> tuple[str, ...]:
    """Returns packs' functions in a region's models: they cannot be sent or captured in a graph."""
    bound = (op.inputs.get("model") for op in (region.begin, *region.operations))
    patches = (
        patch
        for model in bound
        if isinstance(model, ModelRecipe)
        for patch in opaque_patches(model.patches)
    )
    return tuple(dict.fromkeys(f"{patch.kind} {patch.identity}" for patch in patches))


def commonest_variant(program: Program) -> int | None:
    """Returns the number of the variant with most evaluations; None without any (denoise 0)."""
    return max(
        range(len(program.variants)),
        key=lambda number: len(program.variants[number].evaluations),
        default=None,
    )
