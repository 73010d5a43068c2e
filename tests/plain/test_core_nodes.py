"""The ecosystem's core nodes, one by one: same inputs in the same order, same defaults, ranges and
choices, same outputs.

Files of the editor store widget values by position and links by slot, so the order of knobs and of
wires is part of the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from katz_graph.node import Input
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
    r"(?P<name>\w+):(?P<socket>[\w*]+)(?:\[(?P<choices>[^\]]*)\])?(?:=(?P<default>.*?))?"
    r"(?: \[(?P<low>[^\]]*?)\.\.(?P<high>[^\]]*)\])?"
)

OTHER_FAMILIES = frozenset({"FluxGuidance"})
"""Nodes of the table that have no meaning for Stable Diffusion 1, 2 and XL."""

FEWER_CHOICES = ("sampler_name",)  # samplers of other model families are not there


@dataclass(frozen=True)
class Expected:
    name: str
    socket: str
    optional: bool
    default: str | None = None
    low: str | None = None
    high: str | None = None
    choices: str | None = None


@dataclass(frozen=True)
class Signature:
    name: str
    inputs: tuple[Expected, ...]
    outputs: tuple[str, ...]
    is_output: bool


def signatures() -> list[Signature]:
    return [parse(line) for line in TABLE.read_text().splitlines() if not line.startswith("#")]


def parse(line: str) -> Signature:
    """`Name`: a:INT=1 [0..5], b:COMBO[x|y] | optional: c:MASK | hidden: d -> IMAGE, MASK
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
    )


def expected_inputs(text: str, optional: bool) -> list[Expected]:
    parts = [part for part in re.split(r", (?=\w+:[A-Z*])", text.strip()) if part]
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
    assert len(table) == 154
    assert set(table) >= OTHER_FAMILIES
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


@pytest.mark.parametrize(
    "expected",
    [signature for signature in signatures() if signature.name not in OTHER_FAMILIES],
    ids=lambda one: one.name,
)
def test_a_core_node_is_as_the_ecosystem_knows_it(registry: Registry, expected: Signature) -> None:
    assert expected.name in registry
    kind = registry[expected.name]
    for are_knobs in (False, True):
        ours = [name for name, port in kind.inputs.items() if port.knob == are_knobs]
        theirs = [one.name for one in expected.inputs if (one.socket in LITERALS) == are_knobs]
        assert ours == theirs
    for one in expected.inputs:
        assert differences(kind.inputs[one.name], one) == {}
    assert tuple(output.socket for output in kind.outputs) == expected.outputs
    assert kind.is_output == expected.is_output


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
        elif list(ours.choices) != list(dict.fromkeys(theirs.choices.split("|"))):
            found["choices"] = (ours.choices, theirs.choices)
    return found
