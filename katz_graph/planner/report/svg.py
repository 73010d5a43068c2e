"""Draws a Gantt chart of two steady evaluations as SVG: a row per device and per used direction of
a link.

Uses the simulation that timed the plan. Must not know how the plan was found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from katz_graph.ir.program import Program
from katz_graph.models.stage_registry import stages
from katz_graph.models.stages import Stage
from katz_graph.planner.report.timeline import PlannedTimeline, planned_timeline
from katz_graph.planner.simulation.simulate import SimulatedSpan, simulate

WIDTH, ROW, BAR, LEFT, TOP = 1100, 44, 30, 170, 64  # pixels
LETTER = 6.6  # width of a letter, in pixels


@dataclass(frozen=True, slots=True)
class DrawnKind:
    """An entry of the legend."""

    label: str
    colour: str


LINK, OTHER = DrawnKind("sent over a link", "#b279a2"), DrawnKind("other", "#9d9893")


def as_svg(program: Program) -> str:
    """Draws a program. Requires its calls."""
    timeline = planned_timeline(program, simulate(program))
    start, end = timeline.start, timeline.end
    scale = (WIDTH - LEFT - 20) / ((end - start) or 1.0)
    height = TOP + ROW * len(timeline.rows) + 70
    title = (
        f"{program.name}: evaluations {timeline.first} and {timeline.first + 1}, "
        f"{(end - start) * 1e3:.2f} ms"
    )
    parts = [f'<text x="10" y="22" font-size="15">{escape(title)}</text>']
    for number, row in enumerate(timeline.rows):
        mine = [span for span in timeline.spans if span.resource == row]
        parts += _row(row, TOP + number * ROW, mine, start, end, scale)
    bottom = TOP + ROW * len(timeline.rows)
    parts += _boundaries(timeline, bottom, scale)
    parts += _legend(timeline.spans, bottom + 34)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" '
        'font-family="sans-serif">\n<rect width="100%" height="100%" '
        f'fill="#fff"/>\n{body}\n</svg>\n'
    )


def _row(
    name: str, top: int, spans: Sequence[SimulatedSpan], start: float, end: float, scale: float
) -> Iterator[str]:
    link = " -> " in name
    busy = sum(min(span.start + span.seconds, end) - max(span.start, start) for span in spans) / (
        (end - start) or 1.0
    )
    shown = name.replace(" -> ", " \u2192 ")
    yield (
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - 20}" height="{BAR}" '
        f'fill="{"#faf7fb" if link else "#f2f2f2"}"/>'
    )
    weight = "normal" if link else "bold"
    yield (
        f'<text x="10" y="{top + 13}" font-size="12" font-weight="{weight}">{escape(shown)}</text>'
    )
    yield f'<text x="10" y="{top + 27}" font-size="11" fill="#666">{busy:.0%} busy</text>'
    for span in spans:
        left, right = max(span.start, start), min(span.start + span.seconds, end)
        x, width = LEFT + (left - start) * scale, max((right - left) * scale, 0.6)
        yield (
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" rx="3" '
            f'fill="{_kind(span).colour}" stroke="#fff">'
            f"<title>{escape(span.what)}, evaluation {span.evaluation}: {span.seconds * 1e3:.3f} "
            "ms</title></rect>"
        )
        text = _label(span, width)
        if text:
            yield (
                f'<text x="{x + 4:.1f}" y="{top + 19}" font-size="11" '
                f'fill="#fff">{escape(text)}</text>'
            )


def _label(span: SimulatedSpan, width: float) -> str:
    """Returns the longest label of a span's operation and evaluation that fits the width."""
    which = "" if span.evaluation is None else f" #{span.evaluation}"
    branch, _, stage = span.what.rpartition(".")[2].rpartition("-")
    for text in (
        f"{branch[:3]}. {stage}{which}" if branch else f"{stage}{which}",
        f"{stage}{which}",
        which.strip(),
    ):
        if len(text) * LETTER + 8 <= width:
            return text
    return ""


def _boundaries(timeline: PlannedTimeline, bottom: int, scale: float) -> Iterator[str]:
    """Marks the times at which the sampler advances."""
    for number, (begin, end) in enumerate(pairwise(timeline.boundaries), timeline.first):
        for at in (begin, end):
            x = LEFT + (at - timeline.start) * scale
            yield (
                f'<line x1="{x:.1f}" y1="{TOP - 22}" x2="{x:.1f}" y2="{bottom}" stroke="#333" '
                'stroke-dasharray="4 3"/>'
            )
        x = LEFT + (begin - timeline.start) * scale + 6
        yield (
            f'<text x="{x:.1f}" y="{TOP - 10}" font-size="12" fill="#333">evaluation '
            f"{number}</text>"
        )


def _legend(spans: Sequence[SimulatedSpan], top: int) -> Iterator[str]:
    x = 10
    drawn = set(map(_kind, spans))
    for kind in (*(_kind_of(one) for one in stages().values() if one.costed), LINK, OTHER):
        if kind in drawn:
            yield f'<rect x="{x}" y="{top}" width="14" height="14" rx="3" fill="{kind.colour}"/>'
            yield f'<text x="{x + 20}" y="{top + 12}" font-size="12">{kind.label}</text>'
            x += 40 + int(len(kind.label) * 7)
    yield (
        f'<text x="{x}" y="{top + 12}" font-size="12" fill="#666">dashed: the sampler advances; '
        "#: evaluation that it belongs to</text>"
    )


def _kind(span: SimulatedSpan) -> DrawnKind:
    return LINK if " -> " in span.resource else _kind_of(stages().get(span.stage))


def _kind_of(stage: Stage | None) -> DrawnKind:
    return OTHER if stage is None or not stage.costed else DrawnKind(stage.label, stage.colour)
