"""Draws line charts as SVG. Must not know the meaning of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 460, 320  # of a panel, in pixels
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 48  # margins
TICKS = 5
COLOURS = ("#1f6fb4", "#e8801a", "#3a923a", "#c03d3e", "#8a6bb1")  # of curves in one panel


@dataclass(frozen=True, slots=True)
class Curve:
    """Holds `points` (x, y), ordered by x, and `dashes` for SVG's stroke-dasharray, in pixels."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashes: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. The y axis begins at `bottom` or slightly below."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    logarithmic: bool = True  # the x axis
    bottom: float = 0.0


def line_chart(panels: Sequence[Panel]) -> str:
    """Draws an SVG document with the panels side by side."""
    body = "\n".join(
        f'<g transform="translate({number * WIDTH},0)">{_panel(panel)}</g>'
        for number, panel in enumerate(panels)
    )
    width = len(panels) * WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" '
        f'height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" '
        f'fill="#fff"/>\n{body}\n</svg>\n'
    )


def _panel(panel: Panel) -> str:
    xs = sorted({x for curve in panel.curves for x, _ in curve.points})
    highest = max(y for curve in panel.curves for _, y in curve.points)
    step = _round_step((highest - panel.bottom or 1.0) / TICKS)
    bottom = math.floor(panel.bottom / step + 1e-9) * step
    top = math.ceil(highest / step - 1e-9) * step or step
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    scale = math.log if panel.logarithmic else float
    span = scale(xs[-1]) - scale(xs[0]) or 1.0

    def across(x: float) -> float:
        return LEFT + (scale(x) - scale(xs[0])) / span * inner_width

    def up(y: float) -> float:
        return TOP + (top - y) / (top - bottom) * inner_height

    parts = [f'<text x="{LEFT}" y="18" font-size="14">{escape(panel.title)}</text>']
    parts.append(
        f'<text x="{LEFT + inner_width / 2}" y="{HEIGHT - 10}" '
        f'text-anchor="middle">{escape(panel.x_label)}</text>'
    )
    parts.append(
        f'<text transform="translate(14,{TOP + inner_height / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(panel.y_label)}</text>'
    )
    for number in range(round((top - bottom) / step) + 1):
        y = round(bottom + number * step, 12)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(y):.1f}" y2="{up(y):.1f}" '
            'stroke="#ddd"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{up(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    taken = -math.inf
    for x in xs:
        if across(x) - taken > 22:
            parts.append(
                f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 16}" '
                f'text-anchor="middle">{x:g}</text>'
            )
            taken = across(x)
    ends = [up(curve.points[-1][1]) for curve in panel.curves]
    # where no curves end
    legend = HEIGHT - BOTTOM - 15 * len(ends) if sum(ends) / len(ends) < HEIGHT / 2 else TOP + 8
    for number, curve in enumerate(panel.curves):
        line = (
            f'fill="none" stroke="{curve.colour}" stroke-width="1.8" '
            f'stroke-dasharray="{curve.dashes}"'
        )
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in curve.points)
        y = legend + 15 * number
        parts.append(
            f'<polyline {line} points="{points}"><title>{escape(curve.name)}</title></polyline>'
        )
        parts.append(f'<line {line} x1="{WIDTH - 172}" x2="{WIDTH - 144}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{WIDTH - 138}" y="{y + 4}">{escape(curve.name)}</text>')
    return "\n".join(parts)


def _round_step(least: float) -> float:
    """Returns the smallest of 1, 2, 5, 10, ... that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9)
    )
