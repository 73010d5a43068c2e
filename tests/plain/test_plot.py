"""Charts place points, axes and names correctly."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from katz_graph.planner.report.line_chart import Curve, Panel, line_chart

NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(panel: Panel) -> tuple[list[tuple[float, float]], list[str], float]:
    """Returns the first curve's points in pixels, all texts, and the vertical position of the
    curve's name.
    """
    tree = ElementTree.fromstring(line_chart([panel]))
    line = tree.find(f".//{NAMESPACE}polyline")
    assert line is not None
    points = [
        (float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", line.attrib["points"])
    ]
    texts = list(tree.iter(f"{NAMESPACE}text"))
    return points, [text.text or "" for text in texts], float(texts[-1].attrib["y"])


def panel(*points: tuple[float, float], **options: object) -> Panel:
    return Panel("a title", "x", "y", [Curve("a curve", points, "#000")], **options)  # type: ignore[arg-type]


def test_axes() -> None:
    equal_factors, _, _ = drawn(panel((1, 1), (10, 2), (100, 3)))
    equal_steps, _, _ = drawn(panel((1, 1), (2, 2), (3, 3), logarithmic=False))
    for points in (equal_factors, equal_steps):
        (first, _), (second, _), (third, _) = points
        assert third - second == pytest.approx(second - first, abs=0.11)
    assert [y for _, y in equal_steps] == sorted((y for _, y in equal_steps), reverse=True)


def test_the_vertical_axis_begins_at_the_given_value() -> None:
    _, words, _ = drawn(panel((1, 0.98), (2, 0.97), bottom=0.97, logarithmic=False))
    assert {"0.97", "0.98"} <= set(words) and "0" not in words
    _, words, _ = drawn(panel((1, 0.98), (2, 0.97)))
    assert "0" in words


def test_names_stand_where_the_curves_do_not_end() -> None:
    high, _, below = drawn(panel((1, 1), (2, 9)))
    low, _, above = drawn(panel((1, 9), (2, 1)))
    assert below > high[-1][1] + 50 and above < low[-1][1] - 50
