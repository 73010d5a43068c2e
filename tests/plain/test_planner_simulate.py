"""The simulator matches schedules computed by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from planner_devices import MS, RATE, SECONDS, STEP, devices, laid, linked, region, several, work
from planner_graphs import MODEL, bound, compiled, deep_features, prompt, sampler_region

from katz_graph.core.errors import RunError
from katz_graph.core.recipe import FileIdentity, Lora
from katz_graph.ir.device import Device
from katz_graph.planner.simulation.simulate import simulate

CONTROL = "positive-controlnet1"
ON_SECOND_DEVICE = {"controlnet1": "cpu:1"}


def increments(ends):
    return [after - before for before, after in zip((0.0, *ends), ends, strict=False)]


def spans(simulation, resource, evaluation=None):
    return [
        span
        for span in simulation.spans
        if span.resource == resource
        and span.seconds > STEP * 2
        and (evaluation is None or span.evaluation == evaluation)
    ]


def test_a_controlnet_elsewhere_is_waited_for() -> None:
    simulation = simulate(laid(several(region(), after="cost"), ON_SECOND_DEVICE))
    # sending the step, 15 ms of ControlNet, 4 ms of link, 19 ms of decoder; encoder and mid end
    # earlier
    assert increments(simulation.ends) == pytest.approx([STEP + 38 * MS] * 10)
    assert simulation.period == pytest.approx(
        STEP + 38 * MS
    ) and simulation.seconds == pytest.approx(10 * (STEP + 38 * MS))
    steady = simulation.steady
    (sent,) = spans(simulation, "cpu:1 -> cpu:0", steady)
    assert sent.seconds == pytest.approx(4 * MS)
    assert simulation.busy["cpu:0"] == pytest.approx(34 * MS) and simulation.busy[
        "cpu:1"
    ] == pytest.approx(15 * MS)
    assert simulation.busy["cpu:1 -> cpu:0"] == pytest.approx(4 * MS)


def test_one_evaluation_behind_it_is_waited_for_once() -> None:
    program = laid(several(region(), after="cost"), ON_SECOND_DEVICE, stale=[CONTROL])
    simulation = simulate(program)
    assert increments(simulation.ends) == pytest.approx([STEP + 38 * MS] + [34 * MS] * 9)
    assert simulation.period == pytest.approx(34 * MS)
    # the last evaluation's residuals have no reader and are not computed
    assert len(spans(simulation, "cpu:1")) == 9


def test_a_slow_link_paces_the_stale_plan() -> None:
    program = laid(
        several(region(), transfer=41 * MS, after="cost", evaluations=30),
        ON_SECOND_DEVICE,
        stale=[CONTROL],
    )
    assert simulate(program).period == pytest.approx(41 * MS, rel=1e-3)


def test_latency_delays_and_does_not_occupy() -> None:
    slow = linked(devices(1, 1), latency=30 * MS)
    base = several(region(), after="cost", evaluations=30, links=slow)
    assert simulate(laid(base, ON_SECOND_DEVICE)).period == pytest.approx(
        STEP + 30 * MS + 15 * MS + 4 * MS + 30 * MS + 19 * MS
    )
    stale = simulate(laid(base, ON_SECOND_DEVICE, stale=[CONTROL]))
    # the loop over both links and both models takes two evaluations: (30 + 15 + 4 + 30 + 19) / 2 =
    # 49 ms
    assert stale.period == pytest.approx((STEP + 98 * MS) / 2, rel=1e-3)
    assert stale.busy["cpu:1 -> cpu:0"] == pytest.approx(4 * MS)


@pytest.mark.parametrize(
    ("transfer", "synchronous", "stale"), [(0.0, 34, 34), (4, 38, 34), (34, 68, 34), (41, 75, 41)]
)
def test_the_periods_of_the_table(transfer: float, synchronous: float, stale: float) -> None:
    base = several(region(), transfer=transfer * MS, after="cost", evaluations=30)
    assert simulate(laid(base, ON_SECOND_DEVICE)).period == pytest.approx(
        synchronous * MS, abs=2 * STEP
    )
    assert simulate(laid(base, ON_SECOND_DEVICE, stale=[CONTROL])).period == pytest.approx(
        stale * MS, abs=2 * STEP
    )
    assert simulate(laid(base, {})).period == pytest.approx(49 * MS)


def test_values_of_one_link_wait_for_each_other_in_the_order_of_making() -> None:
    base = several(region(controls=2), transfer=20 * MS, after="cost", evaluations=4)
    simulation = simulate(laid(base, {"controlnet1": "cpu:1", "controlnet2": "cpu:1"}))
    first, second = spans(simulation, "cpu:1 -> cpu:0", 0)
    assert [first.what, second.what] == ["positive-controlnet1", "positive-controlnet2"]
    # the second is ready at 30 ms
    assert (first.start, second.start) == pytest.approx((STEP + 15 * MS, STEP + 35 * MS))
    assert simulation.ends[0] == pytest.approx(STEP + (55 + 19) * MS)


def test_two_links_work_at_the_same_time() -> None:
    base = several(
        region(controls=2), speeds=(1, 1, 0.5), transfer=20 * MS, after="cost", evaluations=4
    )
    simulation = simulate(laid(base, {"controlnet1": "cpu:1", "controlnet2": "cpu:2"}))
    # the slower device needs 30 ms for the same ControlNet
    assert simulation.ends[0] == pytest.approx(STEP + (30 + 20 + 19) * MS)


def test_a_value_that_two_operations_of_a_device_read_is_sent_once() -> None:
    base = several(region(branches=2), after="cost", evaluations=4)
    simulation = simulate(
        laid(
            base,
            {
                "negative-encoder": "cpu:1",
                "negative-controlnet1": "cpu:1",
                "positive-controlnet1": "cpu:1",
            },
        )
    )
    steps = [
        span
        for span in simulation.spans
        if span.resource == "cpu:0 -> cpu:1" and span.evaluation == 2
    ]
    assert [span.what for span in steps] == ["step"]


def test_branches_apart_send_a_step_and_a_prediction() -> None:
    base = several(region(controls=0, branches=2), after="cost", evaluations=4)
    simulation = simulate(
        laid(base, dict.fromkeys(("negative-encoder", "negative-mid", "negative-decoder"), "cpu:1"))
    )
    prediction = 4 * 16 * 16 * 4 / RATE
    assert simulation.period == pytest.approx(STEP + 34 * MS + prediction)


def test_two_kinds_of_evaluation_in_turn_and_a_carried_value_from_elsewhere() -> None:
    seconds = {"unet_encoder": 2 * MS, "unet_mid": 1 * MS, "unet_decoder": 5 * MS}
    base = compiled(
        bound(deep_features(), "end"),
        evaluations=6,
        after="cost",
        devices=devices(1, 1),
        links=linked(devices(1, 1)),
        count=work(seconds, {"unet_encoder": 3 * MS * RATE}),
    )
    simulation = simulate(laid(base, {"deep": "cpu:1", "mid": "cpu:1", "up": "cpu:1"}))
    # full: shallow 2, its features 3 over, deep 2 + mid 1 + up 5, both encoders' features 6 back,
    # last 5; shallow only: 2 + 5
    assert increments(simulation.ends) == pytest.approx([24 * MS, 7 * MS] * 3, abs=3 * STEP)
    back = [span.evaluation for span in spans(simulation, "cpu:1 -> cpu:0")]
    assert back == [0, 2, 4]  # values that a later evaluation reads again are not sent again


def test_texts_go_to_the_devices_that_read_them_before_the_loop() -> None:
    seconds = {**SECONDS, "text_encoder": 7 * MS}
    sizes = {"text_encoder": 2 * MS * RATE}
    base = several(region(), after="cost", count=work(seconds, sizes))
    simulation = simulate(laid(base, ON_SECOND_DEVICE))
    (text,) = spans(simulation, "cpu:0 -> cpu:1")
    assert text.evaluation is None and (text.start, text.seconds) == pytest.approx((7 * MS, 2 * MS))
    assert simulation.ends[0] == pytest.approx(9 * MS + STEP + (15 + 19) * MS)


def test_weights_with_loras_are_patched_before_the_loop() -> None:
    lora = MODEL.with_lora(Lora(FileIdentity("/lora.safetensors", 1, 1, "header"), 1.0))
    plain = sampler_region((prompt("a"),), (), guidance=1.0)
    carrying = (
        replace(op, inputs={**op.inputs, "model": lora}) if "model" in op.inputs else op
        for op in plain.operations
    )
    patched = replace(plain, operations=tuple(carrying))
    known = {
        "devices": (Device("cpu:0", 1.0, 1e9),),
        "count": work(SECONDS, {}, weights=5e6),
        "links": {},
    }
    without, with_one = (
        simulate(laid(several(one, after="cost", **known), {})) for one in (plain, patched)
    )
    # 3 stages of 5 MB read and written at 1 GB/s
    assert with_one.seconds - without.seconds == pytest.approx(30 * MS)
    known |= {"devices": (Device("cpu:0", 1.0, 1e9, bus_bytes_per_second=0.5e9),)}
    over_a_bus = simulate(laid(several(patched, after="cost", **known), {}))
    # the originals are read at half the rate
    assert over_a_bus.seconds - without.seconds == pytest.approx(60 * MS)


def test_an_order_that_cannot_be_carried_out_is_named() -> None:
    program = laid(several(region(), after="cost"), ON_SECOND_DEVICE)
    reversed_calls = tuple(tuple(reversed(calls)) for calls in program.calls)
    with pytest.raises(
        RunError,
        match=r"cpu:0 waits with positive-decoder of evaluation 0 for positive-mid of evaluation "
        r"0; cpu:1 waits",
    ):
        simulate(replace(program, calls=reversed_calls))


@pytest.mark.parametrize(
    ("of", "known"),
    [
        (region(), {}),
        (region(), {"allowed": frozenset({"stale-controlnet"}), "transfer": 20 * MS}),
        (region(controls=2, branches=2), {"speeds": (1, 1, 1)}),
        (
            bound(deep_features(), "end"),
            {"pins": {"unet_mid": ("cpu:1",), "unet_decoder": ("cpu:0",)}, "evaluations": 6},
        ),
        (region(controls=0, branches=2), {"pins": {"text_encoder": ("cpu:1",)}}),
    ],
)
def test_simulated_transfers_match_the_instructions(of, known) -> None:
    program = several(of, **known)
    simulated = Counter(
        (span.resource, span.what, span.evaluation)
        for span in simulate(program).spans
        if " -> " in span.resource
    )
    begin = program.region.begin.id
    instructed = Counter(
        (
            f"{device} -> {entry.peer}",
            "step" if entry.target == begin else entry.target,
            entry.evaluation,
        )
        for device, entries in program.instructions.items()
        for entry in entries
        if entry.kind == "send"
    )
    assert simulated == instructed and instructed
