"""Tests calculating nodes, and native nodes with input groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import pytest

from katz_graph.core.errors import InputError, RunError
from katz_graph.node import Grows, Node
from katz_graph.node.wires import Socket
from katz_graph.packs import load_registry

TYPES = load_registry()[0]
Pair = Annotated[Mapping[str, int], Socket("INT"), Grows(("a", "b"))]


def call(name: str, **inputs: Any) -> Any:
    return TYPES[name].run(None, inputs)  # type: ignore[arg-type]


def calculated(expression: str, **values: Any) -> Any:
    given = {f"values.{name}": value for name, value in values.items()}
    return call("ComfyMathExpression", expression=expression, **given)


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ("a + b", {"a": 2, "b": 0.5}, (2.5, 2, True)),
        ("(a // 32) * 32", {"a": 100}, (96.0, 96, True)),
        ("a % b if b > 0 else 0", {"a": 7, "b": 0}, (0.0, 0, False)),
        ("(a % 4 == 1) and ((b - 1) % 4 == 0)", {"a": 5, "b": 9}, (1.0, 1, True)),
        ("a & -8", {"a": 77}, (72.0, 72, True)),
        ("sum(values) + sum(a, b)", {"a": 1, "b": 2, "d": 10}, (16.0, 16, True)),
        ("round (sqrt(a) * 24)", {"a": 4}, (48.0, 48, True)),
        ("floor(-a)", {"a": 1.5}, (-2.0, -2, True)),
        ("a ** 2 + pow(2, -1)", {"a": 10**10}, (1e20 + 0.5, 10**20, True)),
        (" a\n", {"a": True}, (1.0, 1, True)),
    ],
)
def test_an_expression_gives_three_kinds(
    expression: str, values: dict[str, Any], expected: tuple[float, int, bool]
) -> None:
    found = calculated(expression, **values)
    assert found == expected and [type(one) for one in found] == [float, int, bool]


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "a +",
        "c",
        "a / 0",
        "'a' * 3",
        "pow(9, 99999)",
        "9 ** 9 ** 9",
        "4000000 ** 4000000",
        "pow(pow(pow(9, 4000), 4000), 4000)",
        "9 << 99999999",
        "'x'.ljust(100000000)",
        "'%300000000d' % 1",
        "f'{1:300000000d}'",
        "a.to_bytes(20000000, 'big')",
        "values.extend(values)",
        "x = 5",
        "a; a",
        "a + " * 2000 + "a",
        "(" * 8 + "pow(9, 3000)" + "*pow(9, 3000))" * 8,
        "round(1, -10**9) / 0",
        "lambda: 1",
        "{1: 2}",
        "(a, a)",
        "a.__class__",
        "().__class__.__bases__",
        "__import__('os').system('true')",
        "open('/etc/passwd')",
        "[x for x in values]",
        "float('inf')",
        "values",
        "(" * 500 + "1" + ")" * 500,
    ],
)
def test_non_numbers_give_one_line(expression: str) -> None:
    began = time.perf_counter()
    with pytest.raises(InputError, match="expression") as raised:
        calculated(expression, a=1)
    assert len(str(raised.value).splitlines()) == 1
    assert time.perf_counter() - began < 1.0


def test_linked_values_must_be_numbers() -> None:
    with pytest.raises(InputError, match=r"a is .*expected a number"):
        calculated("a.numpy().tofile('written') or 1", a=[1.0])
    with pytest.raises(InputError, match=r"b is .*expected a number"):
        calculated("a", a=1, b="text")


def test_members_count_in_the_order_of_their_names() -> None:
    kind = TYPES["ComfyMathExpression"]
    given = {"values.b": 7, "values.a": 5, "expression": "values[0]"}
    assert kind.run(None, given) == (5.0, 5, True)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"input values\.a: .*returned nothing"):
        kind.run(None, {"expression": "1", "values.a": None})  # type: ignore[arg-type]


def test_a_group_has_neither_default_nor_lazy_members() -> None:
    class Lazy(Node, category="test", lazy=("numbers",)):
        def run(self, numbers: Pair) -> int:
            return len(numbers)

    class Defaulted(Node, category="test"):
        def run(self, numbers: Pair | None = None) -> int:
            return len(numbers or ())

    for kind in (Lazy, Defaulted):
        with pytest.raises(TypeError, match="numbers"):
            kind.describe()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, (1.0, 1)),
        (7, (7.0, 7)),
        (-2.5, (-2.5, -2)),
        (" 3.9 ", (3.9, 3)),
        (str(2**60 + 1), (float(2**60), 2**60 + 1)),
    ],
)
def test_numbers_convert_to_both_kinds(value: Any, expected: tuple[float, int]) -> None:
    assert call("ComfyNumberConvert", value=value) == expected


@pytest.mark.parametrize("value", ["", "seven", "nan", float("inf"), [1]])
def test_non_numbers_are_reported(value: Any) -> None:
    with pytest.raises(InputError, match="expected a number"):
        call("ComfyNumberConvert", value=value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"mu": 5}', "5"),
        ('{"mu": "a"}', "a"),
        ('{"mu": null}', ""),
        ("{}", ""),
        ("[1]", ""),
        ("{", ""),
        ("[" * 100_000, ""),
    ],
)
def test_a_key_of_an_object_in_json(text: str, expected: str) -> None:
    assert call("JsonExtractString", json_string=text, key="mu") == (expected,)


def test_a_group_of_a_native_node_is_described_as_growing() -> None:
    kind = TYPES["BatchImagesNode"]
    assert [port.required for port in kind.inputs.values()] == [True] + [False] * 49
    assert list(kind.inputs)[:2] == ["images.image0", "images.image1"]
    grows = {port.grows for port in kind.inputs.values()}
    assert [(one.group, one.prefix, one.least) for one in grows if one] == [("images", "image", 1)]
