"""Declares the dynamic inputs of V3 schemas: growing groups, choices that add inputs, and inputs
with a common type. Prompts name such inputs `group.name`; a node receives one object per group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from katz_graph.comfy.v3.inputs import (
    Combo,
    ComfyType,
    Input,
    Output,
    WidgetInput,
    wire_type,
)
from katz_graph.core.errors import InputError
from katz_graph.core.messages import show
from katz_graph.node import ShownFor
from katz_graph.node.types import Growing

MAX_GROUP_INPUTS = 100  # inputs of a group; ComfyUI's limit


class _MatchTemplate:
    """Identifies inputs and outputs that share one type, any of the allowed ones."""

    def __init__(self, template_id: str, allowed_types: Any = ComfyType) -> None:
        several = isinstance(allowed_types, (list, tuple, set))
        kinds = allowed_types if several else (allowed_types,)
        self.template_id = template_id
        self.union = ",".join(dict.fromkeys(kind.io_type for kind in kinds))


class _MatchInput(Input):
    """Accepts the types of its template. Equality of the types is not checked."""

    def __init__(self, id: str, template: _MatchTemplate, *positional: Any, **named: Any) -> None:
        super().__init__(id, *positional, **named)
        self.template = template

    def get_io_type(self) -> str:
        return self.template.union


class _MatchOutput(Output):
    """Produces a type of its template."""

    def __init__(self, template: _MatchTemplate, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.template = template

    def get_io_type(self) -> str:
        return self.template.union


class _GrowTemplate:
    """Describes the equal inputs of a group: a prototype, their names, and their minimum number.
    Its inputs have no widgets.
    """

    def __init__(self, input: Input, names: Sequence[str], least: int, prefix: str | None) -> None:
        self.input, self.least, self.prefix = copy(input), least, prefix
        self.names = list(names)[:MAX_GROUP_INPUTS]
        if isinstance(self.input, WidgetInput):
            self.input.force_input = True
        if hasattr(self.input, "widget"):  # an input of several types, drawn as one of them
            self.input.widget = None


class _TemplatePrefix(_GrowTemplate):
    def __init__(self, input: Input, prefix: str, min: int = 1, max: int = 10) -> None:
        super().__init__(input, [f"{prefix}{number}" for number in range(max)], min, prefix)


class _TemplateNames(_GrowTemplate):
    def __init__(self, input: Input, names: Sequence[str], min: int = 1) -> None:
        super().__init__(input, names, min, None)


class _GrowInput(Input):
    """A group of equal inputs, one per link."""

    def __init__(self, id: str, template: _GrowTemplate, *positional: Any, **named: Any) -> None:
        super().__init__(id, *positional, **named)
        self.template = template


class _Option:
    """A value of a choice, and the inputs that it adds."""

    def __init__(self, key: str, inputs: Sequence[Input]) -> None:
        self.key, self.inputs = key, list(inputs)


class _ChoiceInput(Input):
    """A choice that adds inputs."""

    def __init__(self, id: str, options: Sequence[_Option], *positional: Any, **named: Any) -> None:
        super().__init__(id, *positional, **named)
        self.choices = list(options)


class _SlotInput(Input):
    """An input that adds inputs when it is linked. Not supported."""

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
    """One input of a prompt, under its full name, and the choice or group that it belongs to."""

    port: Input
    shown_for: ShownFor | None = None
    grows: Growing | None = None


def flat(inputs: Sequence[Input], within: str = "") -> Iterator[Flat]:
    """Flattens the inputs of a schema. A name is repeated for each value of a choice that adds it.
    TypeError names an unsupported input.
    """
    for port in inputs:
        name = f"{within}{port.id}"
        if isinstance(port, _SlotInput):
            raise TypeError(f"{name} (io.DynamicSlot) is not supported")
        if isinstance(port, _GrowInput):
            yield from _grown(name, port)
        elif isinstance(port, _ChoiceInput):
            yield Flat(
                Combo.Input(
                    name,
                    options=[option.key for option in port.choices],
                    display_name=port.display_name,
                    optional=port.optional,
                    tooltip=port.tooltip,
                    lazy=port.lazy,
                    extra_dict=port.options,
                )
            )
            for option in port.choices:
                for one in flat(option.inputs, f"{name}."):
                    # inputs of a nested choice already belong to that choice
                    yield (
                        one
                        if one.shown_for
                        else replace(one, shown_for=ShownFor(name, (option.key,)))
                    )
        else:
            yield Flat(_named(port, name))


def _grown(name: str, group: _GrowInput) -> Iterator[Flat]:
    template = group.template
    if isinstance(template.input, (_GrowInput, _ChoiceInput, _SlotInput)):
        raise TypeError(f"{name} (io.Autogrow) of dynamic inputs is not supported")
    grows = Growing(name, template.prefix, template.least)
    for number, one in enumerate(template.names):
        port = _named(template.input, f"{name}.{one}")
        port.optional = port.optional or number >= template.least
        yield Flat(port, grows=grows)


def _named(port: Input, name: str) -> Input:
    made = copy(port)
    made.id = name
    return made


def gathers(inputs: Sequence[Input]) -> bool:
    """Returns whether any input gathers several values in one object."""
    return any(isinstance(port, (_GrowInput, _ChoiceInput)) for port in inputs)


@dataclass(frozen=True, slots=True)
class Gathering:
    """Converts a prompt's values to a node's arguments. The values of a group become an object; the
    value of a choice is under the choice's own name. Other names are unchanged.

    `pairs`: values inside a group are paired with their full names, as `check_lazy_status` expects.
    `lists`: each value is a list.
    """

    inputs: Sequence[Input]
    lists: bool = False
    pairs: bool = False

    def of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments. InputError for a missing input of the selected choice, and for an
        invalid choice.
        """
        grouped = [port for port in self.inputs if isinstance(port, (_GrowInput, _ChoiceInput))]
        names = tuple(f"{port.id}." for port in grouped)
        chosen = {port.id for port in grouped}
        plain = {
            name: value
            for name, value in values.items()
            if name not in chosen and not name.startswith(names)
        }
        return plain | self._objects(grouped, values, "")

    def _objects(
        self, inputs: Sequence[Input], values: Mapping[str, Any], within: str
    ) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for port in inputs:
            name = f"{within}{port.id}"
            if isinstance(port, _GrowInput):
                made[port.id] = self._group(port, values, name, bool(within))
            elif isinstance(port, _ChoiceInput):
                if name in values or within:
                    made[port.id] = self._choice(port, values, name)
            elif name in values:
                made[port.id] = self._converted(values[name], name)
            else:
                made[port.id] = self._converted(self._absent(port, name), name)
        return made

    def _group(
        self, port: _GrowInput, values: Mapping[str, Any], name: str, unchecked: bool
    ) -> dict[str, Any]:
        """Collects a group's values. `unchecked`: the group is inside a choice, so its required
        members are checked here.
        """
        template = port.template
        members = [(one, f"{name}.{one}") for one in template.names]
        if unchecked and not (self.pairs or port.optional or template.input.optional):
            for _, whole in members[: template.least]:
                if whole not in values:
                    raise InputError(f"{whole} is missing")
        return {
            one: self._converted(values[whole], whole) for one, whole in members if whole in values
        }

    def _choice(self, port: _ChoiceInput, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        value = values.get(name, port.choices[0].key if port.choices else None)
        key = value[0] if isinstance(value, list) and value else value
        made = {port.id: self._converted(value, name)}
        for option in port.choices:
            if option.key == key:
                return made | self._objects(option.inputs, values, f"{name}.")
        if key is None:  # linked: its value is not known yet
            return made
        raise InputError(f"{name} is {show(key)}, which is not one of its choices")

    def _converted(self, value: Any, name: str) -> Any:
        return (value, name) if self.pairs else value

    def _absent(self, port: Input, name: str) -> Any:
        """Returns the value of a choice's input that the prompt omits. InputError if it has no
        default and is required.
        """
        default = getattr(port, "default", None)
        if self.pairs or (port.optional and default is None):
            return None
        if default is None:
            raise InputError(f"{name} is missing")
        return [default] if self.lists else default
