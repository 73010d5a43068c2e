"""Declares the inputs of V3 schemas that editors unfold: groups that grow, choices that bring
inputs, and inputs of one type together. A prompt has them flat, as `group.name`; a node gets an
object for each group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from katz_graph.comfy.v3.inputs import (
    ComboInput,
    ComfyType,
    Input,
    Output,
    WidgetInput,
    wire_type,
)
from katz_graph.errors import InputError
from katz_graph.messages import show
from katz_graph.node import Growing, ShownFor

MOST = 100  # inputs of a group, as ComfyUI has it


class _MatchTemplate:
    """Names inputs and outputs that have one type together, whichever of the allowed ones."""

    def __init__(self, template_id: str, allowed_types: Any = ComfyType) -> None:
        several = isinstance(allowed_types, (list, tuple, set))
        kinds = allowed_types if several else (allowed_types,)
        self.template_id = template_id
        self.union = ",".join(dict.fromkeys(kind.io_type for kind in kinds))


class _MatchInput(Input):
    """Takes what its template allows. That all have one type is not checked."""

    def __init__(self, id: str, template: _MatchTemplate, *positional: Any, **named: Any) -> None:
        super().__init__(id, *positional, **named)
        self.template = template

    def get_io_type(self) -> str:
        return self.template.union


class _MatchOutput(Output):
    """Gives what its template allows."""

    def __init__(self, template: _MatchTemplate, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.template = template

    def get_io_type(self) -> str:
        return self.template.union


class _GrowTemplate:
    """Describes the inputs of a group, which are equal: one of them, the names, and how many are
    there at least. Widgets are wires there.
    """

    def __init__(self, input: Input, names: Sequence[str], least: int, prefix: str | None) -> None:
        self.input, self.least, self.prefix = copy(input), least, prefix
        self.names = list(names)[:MOST]
        if isinstance(self.input, WidgetInput):
            self.input.force_input = True


class _TemplatePrefix(_GrowTemplate):
    def __init__(self, input: Input, prefix: str, min: int = 1, max: int = 10) -> None:
        super().__init__(input, [f"{prefix}{number}" for number in range(max)], min, prefix)


class _TemplateNames(_GrowTemplate):
    def __init__(self, input: Input, names: Sequence[str], min: int = 1) -> None:
        super().__init__(input, names, min, None)


class _GrowInput(Input):
    """A group of equal inputs, as many as are linked."""

    def __init__(self, id: str, template: _GrowTemplate, *positional: Any, **named: Any) -> None:
        super().__init__(id, *positional, **named)
        self.template = template


class _Option:
    """A value of a choice, and the inputs that it brings."""

    def __init__(self, key: str, inputs: Sequence[Input]) -> None:
        self.key, self.inputs = key, list(inputs)


class _ChoiceInput(Input):
    """A choice that brings further inputs."""

    def __init__(self, id: str, options: Sequence[_Option], *positional: Any, **named: Any) -> None:
        super().__init__(id, *positional, **named)
        self.choices = list(options)


class _SlotInput(Input):
    """A wire that brings further inputs once it is linked. Not unfolded here."""

    def __init__(self, slot: Input, *_: Any, **__: Any) -> None:
        super().__init__(slot.id)


MatchType = wire_type("MatchType", "*", _MatchInput, _MatchOutput)
Autogrow = wire_type("Autogrow", "COMFY_AUTOGROW_V3", _GrowInput)
DynamicCombo = wire_type("DynamicCombo", "COMFY_DYNAMICCOMBO_V3", _ChoiceInput)
DynamicSlot = wire_type("DynamicSlot", "COMFY_DYNAMICSLOT_V3", _SlotInput)
MatchType.Template = _MatchTemplate  # type: ignore[attr-defined]
Autogrow.TemplatePrefix = _TemplatePrefix  # type: ignore[attr-defined]
Autogrow.TemplateNames = _TemplateNames  # type: ignore[attr-defined]
DynamicCombo.Option = _Option  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Flat:
    """One input of a prompt, under its whole name, and what it belongs to."""

    port: Input
    shown_for: ShownFor | None = None
    grows: Growing | None = None


def flat(inputs: Sequence[Input], within: str = "") -> Iterator[Flat]:
    """Unfolds the inputs of a schema. TypeError names one that cannot be unfolded, or what two
    values of a choice bring under one name with different types.
    """
    for port in inputs:
        name = f"{within}{port.id}"
        if isinstance(port, _SlotInput):
            raise TypeError(f"{name} (io.DynamicSlot) is not supported")
        if isinstance(port, _GrowInput):
            yield from _grown(name, port)
        elif isinstance(port, _ChoiceInput):
            keys = [option.key for option in port.choices]
            yield Flat(ComboInput(name, keys, optional=port.optional, tooltip=port.tooltip))
            yield from _brought(name, port.choices)
        else:
            yield Flat(_named(port, name))


def _grown(name: str, group: _GrowInput) -> Iterator[Flat]:
    template = group.template
    if isinstance(template.input, (_GrowInput, _ChoiceInput, _SlotInput)):
        raise TypeError(f"{name} (io.Autogrow) is a group of inputs that are dynamic themselves")
    grows = Growing(name, template.prefix, template.least)
    for number, one in enumerate(template.names):
        port = _named(template.input, f"{name}.{one}")
        port.optional = port.optional or number >= template.least
        yield Flat(port, grows=grows)


def _brought(name: str, options: Sequence[_Option]) -> Iterator[Flat]:
    """Yields the inputs of all values: of equal names the first, for all that bring it."""
    found: dict[str, tuple[Flat, list[str]]] = {}
    for option in options:
        for one in flat(option.inputs, f"{name}."):
            known, keys = found.setdefault(one.port.id, (one, []))
            if known.port.get_io_type() != one.port.get_io_type():
                raise TypeError(f"{one.port.id} is of several types, by what is chosen at {name}")
            keys.append(option.key)
    for one, keys in found.values():
        one.port.optional = True  # while something else is chosen; `gathered` says if it is missing
        # what belongs to a choice inside of this one is shown for that
        yield one if one.shown_for else Flat(one.port, ShownFor(name, tuple(keys)), one.grows)


def _named(port: Input, name: str) -> Input:
    made = copy(port)
    made.id = name
    return made


def gathered(
    inputs: Sequence[Input], values: Mapping[str, Any], with_names: bool = False
) -> dict[str, Any]:
    """Returns the arguments of a node: the values of a group as an object, which has the value of a
    choice under the choice's own name. Names that are in no group stay. `with_names`: what is in a
    group is a pair with its whole name, as `check_lazy_status` expects.
    """
    grouped = [port for port in inputs if isinstance(port, (_GrowInput, _ChoiceInput))]
    names = tuple(f"{port.id}." for port in grouped)
    chosen = {port.id for port in grouped}
    plain = {
        name: value
        for name, value in values.items()
        if name not in chosen and not name.startswith(names)
    }
    return plain | _objects(inputs, values, "", with_names)


def _objects(
    inputs: Sequence[Input], values: Mapping[str, Any], within: str, with_names: bool
) -> dict[str, Any]:
    def told(name: str) -> Any:
        return (values[name], name) if with_names else values[name]

    made: dict[str, Any] = {}
    for port in inputs:
        name = f"{within}{port.id}"
        if isinstance(port, _GrowInput):
            members = ((one, f"{name}.{one}") for one in port.template.names)
            made[port.id] = {one: told(whole) for one, whole in members if whole in values}
        elif isinstance(port, _ChoiceInput) and name in values:
            made[port.id] = {port.id: told(name)} | _of_choice(port, values, name, with_names)
        elif within and name in values:
            made[port.id] = told(name)
        elif within and not (port.optional or with_names):
            if getattr(port, "default", None) is None:
                raise InputError(f"{name} is missing")
            made[port.id] = getattr(port, "default")  # noqa: B009
    return made


def _of_choice(
    port: _ChoiceInput, values: Mapping[str, Any], name: str, with_names: bool
) -> dict[str, Any]:
    value = values[name]
    key = value[0] if isinstance(value, list) and value else value  # of a node that takes lists
    for option in port.choices:
        if option.key == key:
            return _objects(option.inputs, values, f"{name}.", with_names)
    raise InputError(f"{name} is {show(key)}, which is none of its choices")
