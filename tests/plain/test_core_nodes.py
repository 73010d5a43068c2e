"""Core nodes have ComfyUI's inputs in the same order, with the same defaults, ranges and choices,
and the same outputs.

The editor's files store widget values by position and links by slot, so the order of widgets and
links is part of the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from katz_graph.node.types import Input
from katz_graph.packs import Registry, load_registry

TABLE = Path(__file__).with_name("core_nodes.txt")
LITERALS: Mapping[str, Callable[[str], object]] = {
    "INT": int,
    "FLOAT": float,
    "STRING": str,
    "BOOLEAN": "True".__eq__,
    "COMBO": str,
}
INPUT = re.compile(
    r"(?P<name>[\w.]+):(?P<socket>[\w*,]+)(?:\[(?P<choices>[^\]]*)\])?(?:=(?P<default>.*?))?"
    r"(?: \[(?P<low>[^\]]*?)\.\.(?P<high>[^\]]*)\])?(?: step (?P<step>\S+))?"
    r"(?: round (?P<round>\S+))?(?P<multiline> multiline)?"
)
WITH_STEPS = "# The same of "  # start of the line that precedes nodes with steps

# no samplers of other model families, and no picture formats besides PNG
FEWER_CHOICES = ("sampler_name", "format", "format.bit_depth")


@dataclass(frozen=True)
class Expected:
    name: str
    socket: str
    optional: bool
    default: str | None = None
    low: str | None = None
    high: str | None = None
    choices: str | None = None
    step: str | None = None
    round: str | None = None
    multiline: str | None = None


@dataclass(frozen=True)
class Signature:
    """`with_steps`: the table has steps, rounding, and multi-line texts."""

    name: str
    inputs: tuple[Expected, ...]
    outputs: tuple[str, ...]
    is_output: bool
    with_steps: bool


def signatures() -> list[Signature]:
    found, with_steps = [], False
    for line in TABLE.read_text().splitlines():
        if line.startswith("#"):
            with_steps = line.startswith(WITH_STEPS)
        else:
            found.append(parse(line, with_steps))
    return found


def parse(line: str, with_steps: bool) -> Signature:
    """`Name`: a:INT=1 [0..5] step 2 round 1, b:COMBO[x|y] | optional: c:MASK | hidden: d -> IMAGE, MASK
    (OUTPUT_NODE)
    """
    name, rest = re.fullmatch(r"`(\w+)`: ?(.*)", line).groups()  # type: ignore[union-attr]
    inputs, _, outputs = rest.partition("->")
    required, *others = inputs.split(" | ")
    optional = next(
        (part.removeprefix("optional:") for part in others if part.startswith("optional:")), ""
    )
    found = [*expected_inputs(required, False), *expected_inputs(optional, True)]
    sockets = outputs.replace("(OUTPUT_NODE)", "").replace("(none)", "").strip()
    return Signature(
        name,
        tuple(found),
        tuple(sockets.split(", ")) if sockets else (),
        "(OUTPUT_NODE)" in outputs,
        with_steps,
    )


def expected_inputs(text: str, optional: bool) -> list[Expected]:
    parts = [part for part in re.split(r", (?=[\w.]+:[A-Z*])", text.strip()) if part]
    found = []
    for part in parts:
        match = INPUT.fullmatch(part)
        assert match, part
        found.append(Expected(optional=optional, **match.groupdict()))
    return found


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()[0]


def test_the_table_is_read_whole() -> None:
    table = {signature.name: signature for signature in signatures()}
    assert len(table) == 171
    assert sum(one.with_steps for one in table.values()) == 51
    scale = table["ImageScale"]
    assert [one.name for one in scale.inputs] == [
        "image",
        "upscale_method",
        "width",
        "height",
        "crop",
    ]
    assert (scale.inputs[2].default, scale.inputs[2].low, scale.inputs[2].high) == (
        "512",
        "0",
        "16384",
    )
    assert table["ManualSigmas"].inputs[0].default == "1, 0.5"
    assert table["ControlNetApplyAdvanced"].inputs[-1].optional


@pytest.mark.parametrize("expected", signatures(), ids=lambda one: one.name)
def test_a_core_node_is_as_the_ecosystem_knows_it(registry: Registry, expected: Signature) -> None:
    assert expected.name in registry
    kind = registry[expected.name]
    for are_knobs in (False, True):
        ours = [name for name, port in kind.inputs.items() if port.knob == are_knobs]
        theirs = [one.name for one in expected.inputs if (one.socket in LITERALS) == are_knobs]
        assert ours == theirs
    for one in expected.inputs:
        mine = kind.inputs[one.name]
        assert differences(mine, one) == {}
        if expected.with_steps:
            assert step_of(mine) == step_of(one)
            assert mine.widget.round == (None if one.round is None else float(one.round))
            assert mine.widget.multiline == (one.multiline is not None)
    assert tuple(output.socket for output in kind.outputs) == expected.outputs
    assert kind.is_output == expected.is_output


def step_of(one: Input | Expected) -> float | None:
    """Returns a number's step; by default 1 for integers."""
    step = one.widget.step if isinstance(one, Input) else one.step
    return (1.0 if one.socket == "INT" else None) if step is None else float(step)


def differences(ours: Input, theirs: Expected) -> dict[str, tuple[object, object]]:
    found: dict[str, tuple[object, object]] = {}
    if ours.socket != theirs.socket:
        found["socket"] = (ours.socket, theirs.socket)
    if theirs.optional and ours.required:
        found["optional"] = (ours.required, theirs.optional)
    for name, mine, bound in (
        ("minimum", ours.minimum, theirs.low),
        ("maximum", ours.maximum, theirs.high),
    ):
        if (None if mine is None else float(mine)) != (None if bound is None else float(bound)):
            found[name] = (mine, bound)
    if theirs.default is not None and ours.default != LITERALS[theirs.socket](theirs.default):
        found["default"] = (ours.default, theirs.default)
    if theirs.choices is not None and ours.choices is not None:
        if theirs.choices.isdigit():
            same = len(ours.choices) == int(theirs.choices) or (
                theirs.name in FEWER_CHOICES and len(ours.choices) < int(theirs.choices)
            )
            if not same:
                found["choices"] = (ours.choices, theirs.choices)
        elif theirs.name in FEWER_CHOICES:
            if not set(ours.choices) <= set(theirs.choices.split("|")):
                found["choices"] = (ours.choices, theirs.choices)
        elif list(ours.choices) != list(dict.fromkeys(theirs.choices.split("|"))):
            found["choices"] = (ours.choices, theirs.choices)
    return found
