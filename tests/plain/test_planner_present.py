"""`katz plan` shows a program for several devices as text, JSON and a picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest
from planner_devices import MS, region, several
from planner_graphs import DEVICE, compiled

from katz_graph.ir.device import ROW_BUCKETS
from katz_graph.planner.compile import PASSES
from katz_graph.planner.report.describe import as_json
from katz_graph.planner.report.svg import as_svg
from katz_graph.planner.report.text import as_text

STALE = frozenset({"stale-controlnet"})
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("after", PASSES)
def test_every_pass_can_be_looked_at(after: str) -> None:
    program = several(
        region(branches=2), after=after, allowed=STALE, pins={"controlnet": ("cpu:1",)}
    )
    assert as_text(program).startswith("sampler end")
    assert json.loads(json.dumps(as_json(program)))["devices"] == ["cpu:0", "cpu:1"]


def test_text_names_placement_and_reasons() -> None:
    text = as_text(several(region(), transfer=20 * MS, evaluations=30, allowed=STALE))
    assert (
        "cpu:0 (advances the sampler): positive-encoder, positive-mid, positive-decoder\n" in text
    )
    assert "cpu:1: positive-controlnet1\n" in text
    assert "link cpu:1 -> cpu:0: 1 GB/s, latency 0 ms\n" in text
    assert "one evaluation stale (the first is not): positive-controlnet1\n" in text
    assert (
        "choice: controlnet on cpu:1, one evaluation stale 1.040 s; in place of: one device 1.470 s"
        in text
    )
    assert "why: one device was not chosen: 1.470 s, 41.3% more" in text
    assert text.endswith("bound by work on cpu:0: 34.00 ms of 34.00 ms per evaluation")


def test_json_has_two_steady_evaluations_as_they_are_drawn() -> None:
    program = several(
        region(), transfer=20 * MS, evaluations=30, allowed=STALE, pins={"unet_mid": ("cpu:0",)}
    )
    plan = json.loads(json.dumps(as_json(program)))
    data = plan["timeline"]
    period = plan["prediction"]["period_seconds"]
    assert data["seconds"] == pytest.approx(2 * period)
    assert data["boundaries"] == pytest.approx([0.0, period, 2 * period])
    assert {span["resource"] for span in data["spans"]} <= set(data["rows"])
    for number, span in enumerate(data["spans"]):
        assert span["start"] < data["seconds"] and span["start"] + span["seconds"] > 0
        if span["after"] is not None:  # began when the other span ended
            before = data["spans"][span["after"]]
            assert span["after"] != number
            assert before["start"] + before["seconds"] <= span["start"] + 1e-9
    assert any(span["after"] is not None for span in data["spans"])
    drawn = list(ElementTree.fromstring(as_svg(program)).iter(f"{SVG}title"))
    assert len(drawn) == len(data["spans"])


def test_gpu_plans_name_recordings_and_unprepared_blocks() -> None:
    def unprepared(operation: Any) -> tuple[str, ...]:
        return ("3 ResnetBlock2D, scaled output",) if operation.stage == "controlnet" else ()

    gpu = replace(DEVICE, name="cuda:0", torch_name="cuda:0")
    for devices in ((gpu,), (DEVICE,)):
        program = compiled(region(), devices=devices, unprepared=unprepared)
        lines = as_text(program).splitlines()
        of_gpus = [
            "cuda:0, recorded as CUDA graphs: ControlNet, UNet encoder, UNet mid, UNet decoder",
            "cuda:0, at the same time if faster: ControlNet and UNet encoder",
            "blocks that use their library's forward: 3 ResnetBlock2D, scaled output",
        ]
        assert [line for line in of_gpus if line in lines] == (of_gpus if gpu in devices else [])
        (segment,) = as_json(program)["variants"][0]["segments"]
        assert segment["beside"] == ([0] if gpu in devices else [])
        reasons = {one["id"]: one["unprepared"] for one in as_json(program)["operations"]}
        data = ["3 ResnetBlock2D, scaled output"] if gpu in devices else []
        assert reasons["positive-controlnet1"] == data and reasons["positive-encoder"] == []


def test_json_describes_the_same_plan() -> None:
    plan = as_json(
        several(
            region(),
            transfer=20 * MS,
            evaluations=30,
            allowed=STALE,
            pins={"unet_decoder": ("cpu:1",)},
        )
    )
    assert plan["owner"] == "cpu:1" and plan["placement"]["positive-controlnet1"] == "cpu:0"
    assert plan["delayed"] == ["positive-controlnet1"] and plan["pins"] == {
        "unet_decoder": ["cpu:1"]
    }
    assert {
        "from": "cpu:0",
        "to": "cpu:1",
        "bytes_per_second": 1e9,
        "latency_seconds": 0.0,
    } in plan["links"]
    assert plan["prediction"]["period_seconds"] == pytest.approx(34 * MS)
    seconds = plan["prediction"]["evaluation_seconds"]
    assert seconds[5] == pytest.approx(34 * MS)
    assert len(seconds) == plan["evaluations"]
    assert 0 < sum(seconds) <= plan["prediction"]["planned_seconds"] * (1 + 1e-9)
    # two devices compute those with a ControlNet, which no other request shares
    runs = plan["prediction"]["evaluations"]
    assert sum(run["number"] for run in runs) == plan["evaluations"]
    assert [run for run in runs if not run["key"] and not run["seconds_by_rows"]]


def test_json_has_the_seconds_of_evaluations_that_requests_may_share() -> None:
    plan = as_json(compiled(region(), evaluations=20))
    runs = plan["prediction"]["evaluations"]
    assert sum(run["number"] for run in runs) == 20
    for run in runs:
        by_rows = dict(zip(ROW_BUCKETS, run["seconds_by_rows"], strict=True))
        assert by_rows[run["rows"]] == pytest.approx(run["alone_seconds"], rel=0.01)
        assert 0 < by_rows[1] < by_rows[16] and run["key"]


def drawn(program):
    """Returns texts, and bars as (left, right, tooltip)."""
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
    assert len(lines) == 3  # starts of two evaluations, end of the first
    decoders = [bar for bar in bars if bar[2].startswith("positive-decoder")]
    controls = [
        bar for bar in bars if bar[2].startswith("positive-controlnet1") and "15.000 ms" in bar[2]
    ]
    assert len(decoders) == len(controls) == 2
    # the decoder waits for the ControlNet
    assert decoders[0][1] == pytest.approx(lines[1], abs=0.2) and decoders[0][0] > controls[0][1]


def test_the_picture_of_a_stale_plan_shows_residuals_crossing_into_the_next_evaluation() -> None:
    _, bars, lines = drawn(several(region(), transfer=20 * MS, evaluations=30, allowed=STALE))
    sent = next(bar for bar in bars if bar[2] == "positive-controlnet1, evaluation 15: 20.000 ms")
    assert sent[0] < lines[1] < sent[1]


def test_a_sampler_without_evaluations_can_be_drawn() -> None:
    program = several(region(), evaluations=0)
    assert as_svg(program).endswith("</svg>\n") and program.sampler_device == "cpu:0"
    assert program.prediction is not None and program.prediction.planned == 0.0


def by_id(plan):
    return {operation["id"]: operation for operation in plan["operations"]}


def test_json_has_readable_operation_names() -> None:
    named = by_id(as_json(several(region(controls=2, branches=2))))
    data = {name: (one["branch"], one["label"], one["stage"]) for name, one in named.items()}
    assert data["positive-controlnet2"] == ("positive", "ControlNet 2", "controlnet")
    assert data["negative-encoder"] == ("negative", "UNet encoder", "unet_encoder")
    assert data["guidance"][0] == ""
    assert named["positive-mid"]["recorded"] and named["positive-mid"]["node"] == "end"


def test_json_has_every_edge_with_its_bytes() -> None:
    program = several(region(branches=2), transfer=20 * MS)
    plan = as_json(program)
    named = by_id(plan)
    for variant, data in zip(program.variants, plan["variants"], strict=True):
        found = {
            (edge["from"], edge["output"], edge["to"], edge["input"]) for edge in data["edges"]
        }
        assert len(found) == len(data["edges"])
        assert found >= {
            (ref.operation, ref.output, operation.id, name)
            for operation in variant.operations
            for name, ref in operation.references()
        }
        known = {plan["begin"], plan["end"], *named}
        assert {end for edge in data["edges"] for end in (edge["from"], edge["to"])} <= known
        (residuals,) = (one for one in data["edges"] if one["from"] == "positive-controlnet1")
        assert residuals["bytes"] == pytest.approx(20 * MS * 1e9)
        assert (residuals["delay"], residuals["stale"]) == (0, False)
        assert ("guidance", plan["end"]) in {(edge["from"], edge["to"]) for edge in data["edges"]}
    hoisted = {name for name, one in named.items() if one["hoisted"]}
    assert hoisted == set(plan["hoisted"]) and hoisted >= {e["to"] for e in plan["before_edges"]}
    for call in plan["before"]:
        assert call["device"] in plan["devices"] and hoisted.issuperset(call["operations"])


def test_json_names_the_stale_values_of_a_plan() -> None:
    plan = as_json(several(region(), transfer=20 * MS, evaluations=30, allowed=STALE))
    ages = {
        variant["name"]: {
            (edge["delay"], edge["stale"])
            for edge in variant["edges"]
            if edge["from"] == "positive-controlnet1"
        }
        for variant in plan["variants"]
    }
    assert ages == {"v0": {(0, False)}, "v1": {(1, True)}, "v2": {(1, True)}}


def test_json_has_the_fields_before_the_first_prediction() -> None:
    plan = as_json(several(region(branches=2)))
    prologue = plan["prologue"]
    assert prologue["boundaries"] == [prologue["seconds"]]
    assert {span["evaluation"] for span in prologue["spans"]} >= {0}
    mids = [span for span in prologue["spans"] if span["stage"] == "unet_mid"]
    assert mids and all("encoder" in prologue["spans"][mid["after"]]["what"] for mid in mids)
