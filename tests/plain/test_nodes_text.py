"""Tests nodes for plain values and text."""

from __future__ import annotations

import time
from math import hypot
from typing import Any

import pytest

from katz_graph.core.errors import InputError
from katz_graph.nodes import text_search
from katz_graph.packs import load_registry

TYPES = load_registry()[0]


def call(name: str, **inputs: Any) -> Any:
    (value,) = TYPES[name].run(None, inputs)  # type: ignore[arg-type]
    return value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PrimitiveInt", -(2**63) + 1),
        ("PrimitiveFloat", 0.1),
        ("PrimitiveBoolean", True),
        ("PrimitiveString", "a"),
        ("PrimitiveStringMultiline", "a\nb"),
    ],
)
def test_primitives_give_their_value(name: str, value: object) -> None:
    assert call(name, value=value) == value and type(call(name, value=value)) is type(value)


CASES: list[tuple[str, dict[str, Any], object]] = [
    ("StringConcatenate", {"string_a": "a", "string_b": "b", "delimiter": ", "}, "a, b"),
    ("StringSubstring", {"string": "painting", "start": 1, "end": -1}, "aintin"),
    ("StringSubstring", {"string": "ab", "start": 5, "end": 9}, ""),
    ("StringLength", {"string": "añ\n"}, 3),
    ("CaseConverter", {"string": "a Red moon", "mode": "UPPERCASE"}, "A RED MOON"),
    ("CaseConverter", {"string": "a Red moon", "mode": "lowercase"}, "a red moon"),
    ("CaseConverter", {"string": "a Red moon", "mode": "Capitalize"}, "A red moon"),
    ("CaseConverter", {"string": "a Red moon", "mode": "Title Case"}, "A Red Moon"),
    ("StringTrim", {"string": " \ta \n", "mode": "Both"}, "a"),
    ("StringTrim", {"string": " a ", "mode": "Left"}, "a "),
    ("StringTrim", {"string": " a ", "mode": "Right"}, " a"),
    ("StringReplace", {"string": "a.b.c", "find": ".", "replace": "-"}, "a-b-c"),
    ("StringContains", {"string": "Red", "substring": "re"}, False),
    ("StringContains", {"string": "Red", "substring": "re", "case_sensitive": False}, True),
    ("StringCompare", {"string_a": "Red", "string_b": "Re"}, True),
    ("StringCompare", {"string_a": "Red", "string_b": "D", "mode": "Ends With"}, False),
    (
        "StringCompare",
        {"string_a": "Red", "string_b": "rED", "mode": "Equal", "case_sensitive": False},
        True,
    ),
    ("RegexMatch", {"string": "a\nB", "regex_pattern": "^b$", "multiline": True}, True),
    ("RegexMatch", {"string": "a\nB", "regex_pattern": "^b$"}, False),
    ("RegexMatch", {"string": "B", "regex_pattern": "b", "case_insensitive": False}, False),
    ("RegexMatch", {"string": "a\nb", "regex_pattern": "a.b", "dotall": True}, True),
    ("RegexExtract", {"string": "a1 b2", "regex_pattern": r"\w\d"}, "a1"),
    (
        "RegexExtract",
        {"string": "a1 b2", "regex_pattern": r"\w\d", "mode": "All Matches"},
        "a1\nb2",
    ),
    (
        "RegexExtract",
        {"string": "a1 b2", "regex_pattern": r"(\w)(\d)", "mode": "First Group", "group_index": 2},
        "1",
    ),
    (
        "RegexExtract",
        {"string": "a1 b2", "regex_pattern": r"(\w)(\d)", "mode": "All Groups"},
        "a\nb",
    ),
    ("RegexExtract", {"string": "a", "regex_pattern": "b"}, ""),
    (
        "RegexReplace",
        {"string": "a1 b2 c3", "regex_pattern": r"(\w)(\d)", "replace": r"\2\1", "count": 2},
        "1a 2b c3",
    ),
    ("RegexReplace", {"string": "a1 b2", "regex_pattern": r"\d", "replace": ""}, "a b"),
]


@pytest.mark.parametrize(("name", "inputs", "wanted"), CASES)
def test_text_nodes(name: str, inputs: dict[str, Any], wanted: object) -> None:
    assert call(name, **inputs) == wanted


@pytest.mark.parametrize(
    ("angles", "words"),
    [
        ((0, 0, 5.0), "front view eye-level shot medium shot"),
        ((333, 17, 6.0), "front-left quarter view elevated shot close-up"),
        ((360, -30, 1.9), "front view low-angle shot wide shot"),
        ((23, 45, 2.0), "front-right quarter view high-angle shot medium shot"),
        ((180, -15, 10.0), "back view eye-level shot close-up"),
    ],
)
def test_a_camera_angle_is_described(angles: tuple[int, int, float], words: str) -> None:
    given = dict(zip(("horizontal_angle", "vertical_angle", "zoom"), angles, strict=True))
    camera, prompt = TYPES["CameraAngle"].run(None, given)  # type: ignore[arg-type]
    assert prompt == words
    assert hypot(*camera["position"].values()) == pytest.approx(6)
    assert camera["zoom"] == pytest.approx(1 + 0.875 * angles[2] / 10)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("RegexMatch", {"regex_pattern": "("}, "is not a regular expression"),
        (
            "RegexExtract",
            {"regex_pattern": "(a)", "mode": "First Group", "group_index": 2},
            "the expression has 1 groups",
        ),
        (
            "RegexReplace",
            {"string": "a", "regex_pattern": "a", "replace": r"\7"},
            "does not fit the expression",
        ),
        (
            "StringReplace",
            {"string": "a" * 10**5, "find": "a", "replace": "b" * 10**5},
            "more than 4,194,304 characters",
        ),
        (
            "StringReplace",
            {"string": "a" * 10**5, "find": "", "replace": "b" * 10**5},
            "more than 4,194,304 characters",
        ),
        (
            "RegexReplace",
            {"string": "a" * 10**5, "regex_pattern": "a", "replace": "b" * 10**5},
            "more than 4,194,304 characters",
        ),
        (
            "RegexReplace",
            {"string": "a" * 10**5, "regex_pattern": "(.*)", "replace": r"\1" * 10**4},
            "more than 4,194,304 characters",
        ),
        (
            "RegexReplace",
            {"string": "a" * 10**5, "regex_pattern": "(?=(.*))", "replace": r"\g<1>"},
            "more than 4,194,304 characters",
        ),
        (
            "RegexExtract",
            {"string": "a" * 10**5, "regex_pattern": "(?=(.*))", "mode": "All Groups"},
            "more than 4,194,304 characters",
        ),
    ],
)
def test_impossible_operations_give_one_line(
    name: str, inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call(name, **inputs)


@pytest.mark.parametrize("name", ["RegexMatch", "RegexExtract", "RegexReplace"])
def test_an_expression_that_would_take_years_is_stopped(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_search, "SEARCH_TIMEOUT_S", 0.2)
    began = time.monotonic()
    with pytest.raises(InputError, match=r"took longer than 0\.2 s"):
        call(name, string="a" * 60 + "!", regex_pattern=r"^(a|aa|a?a)+$(?<=b)")
    assert time.monotonic() - began < 5
