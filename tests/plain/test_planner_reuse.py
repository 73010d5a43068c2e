"""Pass *reuse*: layers that read a template, the seconds of their calls, and reasons against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from planner_devices import MS, SECONDS, devices, linked, region, work
from planner_graphs import MODEL, compiled, prompt, sampler_region, use

from katz_graph.core.patches import OpaquePatch
from katz_graph.core.recipe import Area
from katz_graph.ir.device import ROW_BUCKETS, Work
from katz_graph.ir.program import Program
from katz_graph.ir.region import Operation, Region
from katz_graph.ir.reuse import OfferedTemplate
from katz_graph.models.costs.layers import LayeredWork, LayerWork
from katz_graph.planner.report.describe import as_json
from katz_graph.planner.report.svg import as_svg
from katz_graph.planner.report.text import as_text
from katz_graph.planner.simulation.simulate import simulate

EVALUATIONS, TOKENS, WIDTH = 10, 64, 32
SIZE = TOKENS * WIDTH * 4  # bytes of a layer's tensor, for one branch
LAYERS = {"unet_encoder": 4, "unet_mid": 1, "unet_decoder": 6}
# by stage: a layer in full takes 2 ms and cached 0.5 ms, at 1 FLOP/s
FULL, CACHED = 2 * MS, 0.5 * MS


def counted(
    operation: Operation, shape: tuple[int, ...], tokens: int, active: Mapping[int, int]
) -> LayeredWork:
    number = LAYERS[operation.stage]
    rest = (SECONDS[operation.stage] - number * FULL) / (number + 1)
    layers = [
        LayerWork(f"{operation.stage}.{place}", TOKENS, WIDTH, *map(Work, (rest, FULL, CACHED)))
        for place in range(number)
    ]
    return LayeredWork(tuple(layers), Work(rest))


def offered(load: float = 0.0, **more: Any) -> OfferedTemplate:
    """Offers a template from which a layer's tensor takes `load` seconds."""
    rate = SIZE / load if load else 1e30
    return replace(
        OfferedTemplate(frozenset(range(EVALUATIONS)), {TOKENS: 16, 16: 4}, rate), **more
    )


def planned(
    template: OfferedTemplate | None,
    branches: int = 1,
    number: int = 1,
    of: Region | None = None,
    **more: Any,
) -> Program:
    among = devices(*(1.0,) * number)
    facts = {"count": work(SECONDS, {}), "devices": among, "links": linked(among, 1e12)}
    return compiled(
        of or region(controls=0, branches=branches),
        evaluations=EVALUATIONS,
        **facts | {"template": template, "count_layers": counted} | more,
    )


def seconds(program: Program) -> float:
    assert program.prediction is not None
    return program.prediction.planned


def test_fast_loads_cache_every_layer() -> None:
    program = planned(offered())
    assert {name: len(layers) for name, layers in program.reused.items()} == {
        "positive-encoder": 4,
        "positive-mid": 1,
        "positive-decoder": 6,
    }
    evaluation = sum(SECONDS[stage] for stage in LAYERS) - 11 * (FULL - CACHED)
    (calls,) = program.calls
    assert sum(call.seconds for call in calls) == pytest.approx(evaluation)
    assert seconds(program) == pytest.approx(EVALUATIONS * evaluation)
    assert program.prediction is not None
    assert program.prediction.ideal == pytest.approx(EVALUATIONS * evaluation)
    assert "cached layers: 11 of 11, loads 90.1 kB per evaluation" in as_text(program)
    assert "  positive-decoder: unet_decoder.0-5\n" in as_text(program)
    assert "bound by computation" in as_text(program)
    data = as_json(program)["reuse"]
    assert data["chosen_seconds"] == pytest.approx(evaluation)
    assert data["layers"]["positive-mid"] == ["unet_mid.0"]
    assert as_json(planned(None))["reuse"] is None


@pytest.mark.parametrize("load", [2 * MS, 3 * MS])
def test_slow_loads_cache_the_layers_that_gain(load: float) -> None:
    program = planned(offered(load))
    report = program.reuse
    assert report is not None and 0 < report.cached_layers < report.layers == 11
    assert report.chosen < 0.95 * min(report.full, report.cached)
    assert report.bytes_loaded == report.cached_layers * SIZE
    assert report.load_seconds == pytest.approx(report.cached_layers * load)
    assert sum(call.seconds for call in program.calls[0]) == pytest.approx(report.chosen)


def test_all_evaluations_but_the_first_begin_with_loads_ahead() -> None:
    template = offered(1 * MS)
    program = planned(template)
    assert program.prediction is not None and program.reuse is not None
    assert program.reuse.cached_layers == 11
    first, *later = program.prediction.evaluations
    assert later == pytest.approx([program.reuse.chosen] * (EVALUATIONS - 1))
    assert first > 1.01 * program.reuse.chosen
    without = planned(replace(template, ahead_bytes=0.0)).reuse
    assert without is not None and without.chosen > program.reuse.chosen
    # a recorded call waits for all of its tensors
    gpu = tuple(replace(device, torch_name="cuda:0") for device in devices(1.0))
    recorded = planned(template, devices=gpu)
    assert recorded.prediction is not None and recorded.reused == program.reused
    assert recorded.prediction.evaluations[0] > first + MS
    assert recorded.prediction.evaluations[1:] == pytest.approx(later)


def test_pictures_and_the_binding_term_have_the_loads() -> None:
    program = planned(offered(2 * MS))
    text = as_text(program)
    assert "bound by its loads, 20.00 ms" in text
    assert text.endswith(
        "templates -> cpu:0: 0.0819 MB per evaluation at 0.0041 GB/s = 20.00 ms of 20.00 ms"
    )
    assert "templates \u2192 cpu:0" in as_svg(program)
    (first, *_) = (span for span in simulate(program).spans if span.resource.startswith("templ"))
    assert (first.start, first.evaluation) == (0.0, 0)


def test_branches_of_one_call_load_both_tensors() -> None:
    program = planned(offered(1 * MS), branches=2, batching=True)
    assert program.reuse is not None and program.reuse.cached_layers == 22
    assert program.reuse.bytes_loaded == 22 * SIZE
    assert program.reused["negative-encoder"] == program.reused["positive-encoder"]


def test_devices_load_over_their_own_links() -> None:
    one, two = (planned(offered(2 * MS), branches=2, number=number) for number in (1, 2))
    assert len({call.device for call in two.calls[0] if call.seconds}) == 2
    assert seconds(two) == pytest.approx(seconds(one) / 2, rel=0.1)


def test_evaluations_that_the_template_lacks_are_computed_in_full() -> None:
    plain, every, some = (
        planned(template)
        for template in (None, offered(), offered(evaluations=frozenset(range(2, EVALUATIONS))))
    )
    covered, full = some.variants
    assert full.evaluations == (0, 1) and covered.evaluations == tuple(range(2, EVALUATIONS))
    full_seconds = [call.seconds for call in some.calls[1]]
    assert full_seconds == pytest.approx([call.seconds for call in plain.calls[0]])
    assert sum(call.seconds for call in some.calls[0]) == pytest.approx(
        sum(call.seconds for call in every.calls[0])
    )
    assert plain.prediction and every.prediction and some.prediction
    assert every.prediction.planned < some.prediction.planned < plain.prediction.planned
    # as requests that share calls predict them
    assert [run.seconds[0] for run in some.runs] == pytest.approx([run.alone for run in some.runs])
    assert [run.alone for run in some.runs] == pytest.approx(
        [run.runs[0].alone for run in (plain, every)]
    )
    # with slow loads each request waits for those of all
    (run,) = planned(offered(2 * MS)).runs
    assert run.seconds == pytest.approx([rows * run.alone for rows in ROW_BUCKETS])


def test_evaluations_with_and_without_a_controlnet_cache_the_same_layers() -> None:
    entry = prompt("a", use("half", end=0.6))
    program = planned(offered(2 * MS), of=sampler_region((entry,), (), guidance=1.0))
    assert len(program.variants) == 2 and program.reuse is not None
    assert program.reuse.cached_layers == program.reuse.layers == 11
    with_control, without = (sum(call.seconds for call in calls) for calls in program.calls)
    assert without == pytest.approx(11 * 2 * MS)  # bound by its loads
    assert with_control == pytest.approx(program.reuse.chosen) and with_control > without


def test_only_edits_of_one_choice_share_calls() -> None:
    programs = [
        planned(template)
        for template in (
            None,
            offered(),
            offered(active={TOKENS: 16, 16: 8}),
            offered(2 * MS),
            offered(1.0),
        )
    ]
    keys = [tuple(call.shares for call in program.calls[0]) for program in programs]
    assert len(set(keys)) == 4 and keys[0] == keys[4]  # the last computes in full


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (offered(active={TOKENS: 33, 16: 4}), "52% of the tokens are active, more than half"),
        (offered(60 * MS), "less than 2%"),
        (offered(layers=frozenset()), "the template has none of the network's layers"),
    ],
)
def test_plans_name_the_reason_for_full_computation(template: OfferedTemplate, why: str) -> None:
    program, plain = planned(template), planned(None)
    assert program.reuse is not None and why in program.reuse.why_not
    assert f"computed in full: {program.reuse.why_not}" in as_text(program)
    assert replace(program, reuse=None) == plain


def test_areas_and_functions_around_the_network_compute_in_full() -> None:
    half = replace(prompt("a"), area=Area(0, 0, 16, 8))
    wrapped = replace(MODEL, patches=(OpaquePatch("network_wrapper", "a pack", print),))
    for of, why in (
        (sampler_region((half,), (prompt("b"),), guidance=1.0), "the conditioning has areas"),
        (
            sampler_region((prompt("a"),), (), 1.0, wrapped),
            "the stages cannot compute active tokens only: UNet wrapped",
        ),
    ):
        program = planned(offered(), of=of)
        assert program.reuse is not None and program.reuse.why_not == why
