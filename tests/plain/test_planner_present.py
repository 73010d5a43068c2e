"""What `katz plan` shows of a program for several devices: text, JSON and the picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
from planner_devices import MS, region, several

from katz_graph.planner.compile import PASSES
from katz_graph.planner.report.svg import as_svg
from katz_graph.planner.report.text import as_json, as_text

STALE = frozenset({"stale-controlnet"})
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("after", PASSES)
def test_every_pass_can_be_looked_at(after: str) -> None:
    program = several(
        region(branches=2), after=after, allowed=STALE, pins={"controlnet": ("cpu:1",)}
    )
    assert as_text(program).startswith("sampler end")
    assert json.loads(json.dumps(as_json(program)))["devices"] == ["cpu:0", "cpu:1"]


def test_text_says_what_stands_where_and_why() -> None:
    text = as_text(several(region(), transfer=20 * MS, evaluations=30, allowed=STALE))
    assert (
        "cpu:0 (advances the sampler): positive.encoder, positive.mid, positive.decoder\n" in text
    )
    assert "cpu:1: positive.controlnet1\n" in text
    assert "link cpu:1 -> cpu:0: 1 GB/s, latency 0 ms\n" in text
    assert "one evaluation stale (the first is not): positive.controlnet1\n" in text
    assert "choice: controlnet on cpu:1, one evaluation stale 1.040 s; one device 1.470 s" in text
    assert "why: one device lost: 1.470 s, 41.3% more" in text
    assert text.endswith("bound by work on cpu:0: 34.00 ms of 34.00 ms an evaluation")


def test_json_has_two_steady_evaluations_as_they_are_drawn() -> None:
    program = several(
        region(), transfer=20 * MS, evaluations=30, allowed=STALE, pins={"unet_mid": ("cpu:0",)}
    )
    plan = json.loads(json.dumps(as_json(program)))
    told = plan["timeline"]
    period = plan["prediction"]["period_seconds"]
    assert told["seconds"] == pytest.approx(2 * period)
    assert told["boundaries"] == pytest.approx([0.0, period, 2 * period])
    assert {span["resource"] for span in told["spans"]} <= set(told["rows"])
    for number, span in enumerate(told["spans"]):
        assert span["start"] < told["seconds"] and span["start"] + span["seconds"] > 0
        if span["after"] is not None:  # it began when that one had ended
            before = told["spans"][span["after"]]
            assert span["after"] != number
            assert before["start"] + before["seconds"] <= span["start"] + 1e-9
    assert any(span["after"] is not None for span in told["spans"])
    drawn = list(ElementTree.fromstring(as_svg(program)).iter(f"{SVG}title"))
    assert len(drawn) == len(told["spans"])


def test_json_says_the_same() -> None:
    plan = as_json(
        several(
            region(),
            transfer=20 * MS,
            evaluations=30,
            allowed=STALE,
            pins={"unet_decoder": ("cpu:1",)},
        )
    )
    assert plan["owner"] == "cpu:1" and plan["placement"]["positive.controlnet1"] == "cpu:0"
    assert plan["delayed"] == ["positive.controlnet1"] and plan["pins"] == {
        "unet_decoder": ["cpu:1"]
    }
    assert {
        "from": "cpu:0",
        "to": "cpu:1",
        "bytes_per_second": 1e9,
        "latency_seconds": 0.0,
    } in plan["links"]
    assert plan["prediction"]["period_seconds"] == pytest.approx(34 * MS)


def drawn(program):
    """Texts, and bars as (left, right, what it says when pointed at)."""
    root = ElementTree.fromstring(as_svg(program))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    bars = [
        (float(bar.get("x")), float(bar.get("x")) + float(bar.get("width")), bar[0].text)
        for bar in root.iter(f"{SVG}rect")
        if len(bar)
    ]
    lines = sorted({float(line.get("x1")) for line in root.iter(f"{SVG}line")})
    return texts, bars, lines


def test_the_picture_shows_two_evaluations_of_every_device_and_link() -> None:
    texts, bars, lines = drawn(several(region(), evaluations=30))
    assert {
        "cpu:0",
        "cpu:1",
        "cpu:1 → cpu:0",
        "evaluation 15",
        "evaluation 16",
        "ControlNet",
        "sent over a link",
    } <= set(texts)
    assert len(lines) == 3  # an evaluation begins, the next does, and that one ends
    decoders = [bar for bar in bars if bar[2].startswith("positive.decoder")]
    controls = [
        bar for bar in bars if bar[2].startswith("positive.controlnet1") and "15.000 ms" in bar[2]
    ]
    assert len(decoders) == len(controls) == 2
    # waited for
    assert decoders[0][1] == pytest.approx(lines[1], abs=0.2) and decoders[0][0] > controls[0][1]


def test_the_picture_of_a_stale_plan_shows_residuals_crossing_into_the_next_evaluation() -> None:
    _, bars, lines = drawn(several(region(), transfer=20 * MS, evaluations=30, allowed=STALE))
    sent = next(bar for bar in bars if bar[2] == "positive.controlnet1, evaluation 15: 20.000 ms")
    assert sent[0] < lines[1] < sent[1]


def test_a_sampler_without_evaluations_can_be_drawn() -> None:
    program = several(region(), evaluations=0)
    assert as_svg(program).endswith("</svg>\n") and program.owner == "cpu:0"
    assert program.prediction is not None and program.prediction.planned == 0.0
