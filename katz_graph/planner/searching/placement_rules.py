"""Decides where operations may run: pins, memory, and interchangeable devices. Raises InputError if
nothing fits.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ControlNetRecipe, ModelRecipe, SeenPicture
from katz_graph.ir.device import Device
from katz_graph.ir.program import Program
from katz_graph.ir.region import Operation
from katz_graph.models.family import family_of
from katz_graph.models.loading.identity import stored_share
from katz_graph.models.text.recipe import prompts
from katz_graph.planner.passes.cost import EXACT
from katz_graph.planner.region import stage_of

MEASURING_NOISE = 0.1
"""Relative difference up to which two rates or latencies are equal."""
MAX_ENUMERATED_MODULES = 12
"""Maximum number of modules whose subsets are enumerated to find devices of equal capacity."""


class DoesNotFit(InputError):
    """Reports that no placement satisfies pins and memory."""


class PlacementRules:
    """Answers where the operations of a program may run."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.devices = tuple(device.name for device in program.target.devices)
        loop = {op.id: op for variant in program.variants for op in variant.operations}
        self.costed = tuple(op.id for op in loop.values() if stage_of(op).costed)
        self._texts = tuple(op for op in program.before if stage_of(op).encodes_text)
        self._check_pins(loop.values())
        modules = {op.id: _module(op) for op in (*loop.values(), *program.before)}
        numbers = {module: number for number, module in enumerate(dict.fromkeys(modules.values()))}
        self._module = {name: numbers[module] for name, module in modules.items()}
        self._bytes = _module_bytes(program, [*loop.values(), *program.before], self._module)
        self._memory = {device.name: device.memory_bytes for device in program.target.devices}
        self._rooms = {device.name: device.room_bytes for device in program.target.devices}
        self._endless = all(math.isinf(size) for size in self._memory.values()) and (
            not program.held or all(math.isinf(size) for size in self._rooms.values())
        )
        # operation of the loop -> operations before it whose outputs its device holds
        self._held = {
            op.id: {ref.operation for _, ref in op.references()} & program.held.keys()
            for op in loop.values()
        }
        self._sums = _subset_sums(tuple(self._bytes.values()))
        self.allowed: Mapping[str, tuple[str, ...]] = {
            name: self._allowed(loop[name]) for name in self.costed
        }
        self._check_memory(loop)

    def fits(self, placement: Mapping[str, str], sampler_device: str = "") -> bool:
        """Returns whether every device can hold the whole modules of its operations. Includes text
        encoders if `sampler_device` is given.
        """
        if self._endless:
            return True
        held: dict[str, set[int]] = {}
        values: dict[str, set[str]] = {}
        for name, device in placement.items():
            held.setdefault(device, set()).add(self._module[name])
            values.setdefault(device, set()).update(self._held.get(name, ()))
        if sampler_device:
            for name, device in self.texts(sampler_device).items():
                held.setdefault(device, set()).add(self._module[name])
        models = {
            device: sum(self._bytes.get(part, 0.0) for part in parts)
            for device, parts in held.items()
        }
        size = self.program.held
        more = {device: sum(map(size.__getitem__, names)) for device, names in values.items()}
        return all(
            models[device] + more.get(device, 0.0) <= self._memory[device]
            and (not more.get(device) or models[device] + more[device] <= self._rooms[device])
            for device in held
        )

    @property
    def is_short(self) -> bool:
        """Returns whether some device cannot hold all modules."""
        return sum(self._bytes.values()) > min(self._memory.values())

    def copies(self, placement: Mapping[str, str]) -> int:
        """Counts the modules that the devices hold, including replicas."""
        return len({(device, self._module[name]) for name, device in placement.items()})

    def texts(self, sampler_device: str) -> dict[str, str]:
        """Returns text encoder operation -> the sampler's device if allowed, else a pinned one."""
        return {
            operation.id: self._text_device(operation, sampler_device) for operation in self._texts
        }

    def _text_device(self, operation: Operation, sampler_device: str) -> str:
        pinned = self.program.target.pins.get(operation.stage, ())
        return sampler_device if not pinned or sampler_device in pinned else pinned[0]

    def classes(self) -> dict[str, int]:
        """Maps devices to class numbers. Devices of one class are interchangeable."""
        found: list[list[Device]] = []
        for device in self.program.target.devices:
            group = next((group for group in found if self._alike(group[0], device)), None)
            if group is None:
                found.append([device])
            else:
                group.append(device)
        return {device.name: number for number, group in enumerate(found) for device in group}

    def nothing_fits(self) -> DoesNotFit:
        """Returns an InputError that explains that no placement satisfies pins and memory."""
        texts = [operation.id for operation in self._texts]
        names = {self._module[name]: name for name in reversed([*self.costed, *texts])}
        sizes = ", ".join(
            f"{name} {self._bytes[part] / 1e9:.2f} GB" for part, name in names.items()
        )
        rooms = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in self._memory.items())
        pins = "".join(
            f"; --place {stage}={','.join(devices)}"
            for stage, devices in self.program.target.pins.items()
        )
        return DoesNotFit(
            f"no placement fits: models need {sizes}; devices have {rooms}{pins}; use larger or "
            "more devices, or fewer pins"
        )

    def _allowed(self, operation: Operation) -> tuple[str, ...]:
        pins = self.program.target.pins
        pinned = pins.get(operation.id) or pins.get(operation.stage, self.devices)
        return tuple(name for name in self.devices if name in pinned)

    def _check_pins(self, operations: Iterable[Operation]) -> None:
        for stage, devices in self.program.target.pins.items():
            for device in devices:
                if device not in self.devices:
                    raise InputError(
                        f"--place {stage}={device}: this plan has the devices "
                        f"{', '.join(self.devices)}"
                    )
        for operation in operations:
            pinned = [
                stage
                for stage in self.program.target.pins
                if stage in stage_of(operation).stands_for
            ]
            if pinned and operation.stage not in self.program.target.pins:
                noun = family_of(operation.inputs["model"].network).network.noun
                raise InputError(
                    f"--place {pinned[0]}: a patch of the model wraps the whole {noun}, which has "
                    "no stages to place; leave it out"
                )

    def _check_memory(self, loop: Mapping[str, Operation]) -> None:
        for name in self.costed:
            size = self._bytes[self._module[name]]
            if all(size > self._memory[device] for device in self.allowed[name]):
                rooms = ", ".join(
                    f"{device} {self._memory[device] / 1e9:.2f} GB" for device in self.allowed[name]
                )
                stage = loop[name].stage
                pinned = (
                    f" (--place {stage}={','.join(self.program.target.pins[stage])})"
                    if stage in self.program.target.pins
                    else ""
                )
                raise InputError(
                    f"operation {name}: its model needs {size / 1e9:.2f} GB, more than any "
                    f"allowed device{pinned} has: {rooms}; use a larger device or a smaller model"
                )

    def _alike(self, one: Device, other: Device) -> bool:
        first, second = (
            replace(each, name="", host="", memory_bytes=0.0, room_bytes=0.0)
            for each in (one, other)
        )
        if first != second:
            return False
        if self.program.held and one.room_bytes != other.room_bytes:
            return False
        if not self._hold_the_same(one.memory_bytes, other.memory_bytes):
            return False
        if any(
            (one.name in pinned) != (other.name in pinned)
            for pinned in self.program.target.pins.values()
        ):
            return False
        hosts = [device.host for device in self.program.target.devices]
        if one.host != other.host and (hosts.count(one.host), hosts.count(other.host)) != (1, 1):
            return False
        alike = self._links_alike
        others = [name for name in self.devices if name not in (one.name, other.name)]
        same = all(
            alike((one.name, name), (other.name, name))
            and alike((name, one.name), (name, other.name))
            for name in others
        )
        return same and alike((one.name, other.name), (other.name, one.name))

    def _hold_the_same(self, one: float, other: float) -> bool:
        """Returns whether the same sets of modules fit both memories."""
        if self._sums is None or self.program.held:
            return one == other or sum(self._bytes.values()) <= min(one, other)
        less, more = sorted((one, other))
        return not any(less < size <= more for size in self._sums)

    def _links_alike(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        first, second = self.program.target.link(*one), self.program.target.link(*other)
        if first is None or second is None:
            return first is second
        return _near(first.bytes_per_second, second.bytes_per_second) and _near(
            first.latency, second.latency
        )


def _subset_sums(sizes: tuple[float, ...]) -> frozenset[float] | None:
    """Returns the bytes of every set of modules; None for too many modules."""
    if len(sizes) > MAX_ENUMERATED_MODULES:
        return None
    sums = {0.0}
    for size in sizes:
        sums |= {known + size for known in sums}
    return frozenset(sums)


def _near(one: float, other: float) -> bool:
    """Returns whether two measured rates or latencies differ by at most the measuring noise."""
    return one == other or abs(one - other) <= MEASURING_NOISE * max(one, other)


def _module(operation: Operation) -> Hashable:
    """Returns the module that an operation needs whole; None for an operation without weights."""
    if stage_of(operation).encodes_text:
        encoding = operation.inputs["encoding"]
        if isinstance(encoding, SeenPicture):
            return operation.stage, encoding.tower
        return operation.stage, tuple(
            encoder for prompt in prompts(encoding) for encoder in prompt.clip.encoders
        )
    model = operation.inputs.get(stage_of(operation).module)
    return model.network if isinstance(model, ModelRecipe) else getattr(model, "control_net", None)


def _module_bytes(
    program: Program, operations: Iterable[Operation], modules: Mapping[str, int]
) -> dict[int, float]:
    """Maps each module number to its weight bytes in memory, counting each range of blocks once; 0
    without weights.
    """
    value_bytes = max((one.value_bytes for one in program.target.devices), default=EXACT)
    parts: dict[int, dict[Hashable, float]] = {module: {} for module in modules.values()}
    for operation in operations:
        if stage_of(operation).holds_weights:
            blocks = (
                operation.stage,
                operation.inputs.get("first_block"),
                operation.inputs.get("last_block"),
            )
            known, size = parts[modules[operation.id]], program.work[operation.id].weight_bytes
            size *= _stored_share(operation, value_bytes)
            known[blocks] = max(known.get(blocks, 0.0), size)  # an operation may skip some blocks
    return {module: sum(sizes.values()) for module, sizes in parts.items()}


def _stored_share(operation: Operation, value_bytes: int) -> float:
    """Returns the share of an operation's wide weights that they take in memory: less than 1 for
    8-bit weights without LoRAs.
    """
    if stage_of(operation).encodes_text:
        encoding = operation.inputs["encoding"]
        if isinstance(encoding, SeenPicture):
            return stored_share(encoding.tower, value_bytes)
        clips = [prompt.clip for prompt in prompts(encoding)]
        if any(clip.loras for clip in clips):
            return 1.0
        found = {one.encoder for clip in clips for one in clip.encoders}
        return max((stored_share(part, value_bytes) for part in found), default=1.0)
    model = operation.inputs.get(stage_of(operation).module)
    if isinstance(model, ModelRecipe):
        return 1.0 if model.loras else stored_share(model.network, value_bytes)
    if isinstance(model, ControlNetRecipe) and model.base is None:
        return stored_share(model.control_net, value_bytes)
    return 1.0
