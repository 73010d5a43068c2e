"""Tests the search over several devices: known cases, and effects of pins, memory and links."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from pace import pace
from planner_devices import MS, SECONDS, STEP, devices, linked, region, several, work
from planner_graphs import compiled

from katz_graph.core.errors import InputError
from katz_graph.ir.device import Device
from katz_graph.ir.program import Program
from katz_graph.planner.searching.placement_rules import PlacementRules
from katz_graph.planner.searching.search import search
from katz_graph.planner.simulation.simulate import simulate

STALE = frozenset({"stale-controlnet"})


def period(program: Program) -> float:
    assert program.prediction is not None
    return program.prediction.period


@pytest.mark.parametrize(
    ("transfer", "synchronous", "stale"),
    [(0.24, 34.24, 34.24), (4, 38, 34), (34, 49, 34), (41, 49, 41), (60, 49, 49)],
)
def test_one_branch_on_two_devices_over_links_of_several_speeds(
    transfer: float, synchronous: float, stale: float
) -> None:
    """Links: NVLink, 100 GbE, two too slow for waiting, one too slow even for stale residuals."""
    exact = several(region(), transfer=transfer * MS, evaluations=30)
    assert period(exact) == pytest.approx(synchronous * MS, abs=2 * STEP) and not exact.stale
    allowed = several(region(), transfer=transfer * MS, evaluations=30, allowed=STALE)
    assert period(allowed) == pytest.approx(stale * MS, abs=2 * STEP)
    assert bool(allowed.stale) == (stale < synchronous)


@pytest.mark.parametrize("transfer", [0.24, 8.6, 86])
def test_two_branches_on_two_devices_are_split_at_any_link(transfer: float) -> None:
    program = several(region(branches=2), transfer=transfer * MS, evaluations=30, allowed=STALE)
    assert period(program) == pytest.approx(49 * MS, abs=4 * STEP) and not program.stale
    for branch in ("negative", "positive"):
        assert (
            len({device for name, device in program.placement.items() if name.startswith(branch)})
            == 1
        )
    assert next(iter(program.alternatives)).startswith("branches on 2 devices")
    assert program.chosen.startswith("branches on 2 devices")
    assert program.placement["guidance"] == program.sampler_device


@pytest.mark.parametrize("allowed", [frozenset(), STALE])
@pytest.mark.parametrize("speeds", [(1.0,) * 8, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)])
def test_eight_devices_three_controlnets_two_branches_in_a_second(
    speeds: tuple[float, ...], allowed: frozenset[str]
) -> None:
    program = several(
        region(controls=3, branches=2), speeds=speeds, after="cost", evaluations=30, allowed=allowed
    )
    began = time.process_time()
    found = search(program)
    took = time.process_time() - began
    assert took < 2.0 * pace()  # one second, doubled because runs differ
    one = several(region(controls=3, branches=2), speeds=(1.0,), evaluations=30, links={})
    # 15 + 4 + 19 ms if every ControlNet of a branch has a device, against 2 · (15 + 3 · 15 + 19)
    assert simulate(found).period < (0.25 if len(set(speeds)) == 1 else 0.45) * period(one)


def test_a_pinned_pool_takes_all_controlnets() -> None:
    pins = {"controlnet": ("cpu:2", "cpu:3"), "unet_decoder": ("cpu:0", "cpu:1")}
    program = several(region(controls=2, branches=2), speeds=(1, 1, 1, 1), pins=pins)
    homes = {device for name, device in program.placement.items() if "-controlnet" in name}
    assert homes == {"cpu:2", "cpu:3"}
    assert program.sampler_device in ("cpu:0", "cpu:1")


def test_pins_hold_although_they_cost_time() -> None:
    pins = {
        "controlnet": ("cpu:1",),
        "unet_encoder": ("cpu:0",),
        "unet_mid": ("cpu:0",),
        "unet_decoder": ("cpu:0",),
    }
    program = several(region(), transfer=60 * MS, pins=pins)
    assert (
        program.placement["positive-controlnet1"] == "cpu:1" and program.sampler_device == "cpu:0"
    )
    assert period(program) == pytest.approx((15 + 60 + 19) * MS + STEP)
    apart = several(region(), pins={"unet_encoder": ("cpu:0",), "unet_decoder": ("cpu:1",)})
    assert (
        apart.placement["positive-encoder"] == "cpu:0"
        and apart.placement["positive-decoder"] == apart.sampler_device == "cpu:1"
    )


def test_texts_are_encoded_on_their_pinned_device_else_on_the_sampler_s() -> None:
    where = {call.device for call in several(region()).before_calls if call.stage == "text_encoder"}
    assert where == {"cpu:0"}
    pinned = several(region(), pins={"text_encoder": ("cpu:1",)})
    assert {call.device for call in pinned.before_calls if call.stage == "text_encoder"} == {
        "cpu:1"
    }


def test_hoisted_operations_run_on_the_device_that_reads_them() -> None:
    program = several(region())
    assert program.placement["positive-controlnet1"] != program.placement["positive-encoder"]
    for stage in ("keys_values", "added_embedding"):  # of the UNet and of the ControlNet
        assert sorted(call.device for call in program.before_calls if call.stage == stage) == [
            "cpu:0",
            "cpu:1",
        ]
    assert [
        call.device for call in program.before_calls if call.stage == "controlnet_reference"
    ] == ["cpu:1"]


def test_a_pin_to_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(
        InputError, match="--place controlnet=cuda:7: this plan has the devices cpu:0, cpu:1"
    ):
        several(region(), pins={"controlnet": ("cuda:7",)})


def weighing(memory: tuple[float, ...], **known) -> Program:
    """Plans UNet stages of 2 GB each and ControlNets of 3 GB, on devices of `memory` GB."""
    among = tuple(
        Device(f"cpu:{number}", 1.0, 1e30, memory_bytes=size * 1e9)
        for number, size in enumerate(memory)
    )

    def count(operation, shape, tokens):
        stage = work(SECONDS, {"controlnet": 4e6})(operation, shape, tokens)
        return replace(
            stage,
            weight_bytes=3e9
            if operation.stage == "controlnet"
            else 2e9
            if operation.stage in SECONDS
            else 0.0,
        )

    return compiled(region(**known), devices=among, links=linked(among), count=count)


def test_a_device_holds_whole_modules_of_its_stages() -> None:
    # only the first fits the UNet's three stages, and no ControlNet with them
    program = weighing((6.5, 3.5))
    assert program.placement["positive-controlnet1"] == "cpu:1"
    assert {program.placement[f"positive-{stage}"] for stage in ("encoder", "mid", "decoder")} == {
        "cpu:0"
    }
    both = weighing((9.5, 3.5), branches=2)  # the second cannot hold a branch
    assert {device for name, device in both.placement.items() if "controlnet" not in name} == {
        "cpu:0"
    }


@pytest.mark.defect(40)
@pytest.mark.parametrize("memory", [(5.9, 6.1), (6.1, 5.9)])
def test_devices_that_do_not_hold_the_same_models_are_not_interchangeable(
    memory: tuple[float, ...],
) -> None:
    program = weighing(memory, controls=0)  # the UNet needs 6 GB
    assert {memory[int(home[-1])] for home in program.placement.values()} == {6.1}


@pytest.mark.defect(40)
@pytest.mark.parametrize("memory", [(8.9, 9.1), (9.1, 8.9)])
def test_a_pair_of_models_is_placed_on_the_one_device_of_a_class_that_holds_both(
    memory: tuple[float, ...],
) -> None:
    # 6 GB of the UNet and 3 GB of its ControlNet stay together, because links are slow
    program = weighing(memory)
    slow = {
        pair: replace(link, bytes_per_second=1.0) for pair, link in program.target.links.items()
    }
    again = search(replace(program, target=replace(program.target, links=slow)))
    assert {memory[int(home[-1])] for home in again.placement.values()} == {9.1}


def test_devices_that_hold_the_same_models_are_interchangeable() -> None:
    program = weighing((9.5, 9.6))
    assert set(PlacementRules(program).classes().values()) == {0}


def test_models_that_no_device_holds_are_refused_in_a_line() -> None:
    with pytest.raises(
        InputError,
        match=r"operation positive-encoder: its model needs 6.00 GB, .* cpu:0 5.00 GB, "
        r"cpu:1 5.00 GB",
    ) as refused:
        weighing((5, 5))
    assert "\n" not in str(refused.value)
    with pytest.raises(
        InputError,
        match=r"no placement fits: models need .*positive-encoder 6.00 GB.*; devices have "
        r"cpu:0 7.00 GB",
    ):
        weighing((7, 2, 2.5), controls=1)


def test_the_faster_of_two_devices_has_more_to_do() -> None:
    program = several(region(branches=2), speeds=(0.5, 1.0), transfer=0.1 * MS)
    busy = simulate(program).busy
    alone = several(region(branches=2), speeds=(1.0,), links={})
    assert (
        sum(
            name.startswith(("negative", "positive"))
            for name, device in program.placement.items()
            if device == "cpu:1"
        )
        > 4
    )
    assert period(program) < 0.8 * period(alone) and busy["cpu:1"] > 0.8 * period(program)


def test_neighbours_of_one_host_count_with_their_contention() -> None:
    crowded = devices(1, 1, host="here", contention=1.2)
    program = several(region(branches=2), devices=crowded, links=linked(crowded))
    assert period(program) == pytest.approx(1.2 * 49 * MS, abs=4 * STEP)
    hopeless = devices(1, 1, host="here", contention=2.5)
    assert {
        *several(region(branches=2), devices=hopeless, links=linked(hopeless)).placement.values()
    } == {"cpu:0"}


def test_equal_stages_of_one_device_are_batched_where_that_is_faster() -> None:
    among = devices(1, 1, seconds_per_kernel=1.0)
    count = work(dict.fromkeys(SECONDS, 1 * MS), {}, kernels=20 * MS)
    program = compiled(
        region(controls=1, branches=2), devices=among, links=linked(among, rate=1e3), count=count
    )
    assert {*program.placement.values()} == {"cpu:0"}  # the link is too slow for anything else
    assert all(len(call.operations) == 2 for call in program.calls[0] if call.stage in SECONDS)


def test_one_device_is_planned_as_ever() -> None:
    program = several(region(branches=2), speeds=(1.0,), links={})
    assert set(program.alternatives) == {"equal stages batched", "one call per branch"}
    assert (
        program.sampler_device == "cpu:0"
        and {*program.placement.values()} == {"cpu:0"}
        and all("katz profile" in note for note in program.notes)
    )


def test_measured_times_count_before_counted_ones() -> None:
    base = several(region(), after="cost")
    key = base.keys["positive-controlnet1"]
    slow = tuple(
        replace(device, measured={(key, 1, False): 100 * MS, (key, 1, True): 100 * MS})
        for device in base.target.devices
    )
    pins = {"controlnet": ("cpu:1",), "unet_encoder": ("cpu:0",), "unet_decoder": ("cpu:0",)}
    program = several(region(), devices=slow, pins=pins)
    assert period(program) == pytest.approx((100 + 4 + 19) * MS + STEP)


def test_equal_work_has_one_key_and_other_work_another() -> None:
    keys = several(region(controls=2, branches=2), after="cost").keys
    assert keys["positive-encoder"] == keys["negative-encoder"] != keys["positive-mid"]
    assert keys["guidance"] == ""
    without = several(region(controls=1), after="cost").keys
    assert without["positive-decoder"] != keys["positive-decoder"]  # one more residual is added


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (
            {"transfer": 4 * MS},
            "the path positive-controlnet1 on cpu:1 15.00 ms + positive-controlnet1 on cpu:1 -> "
            "cpu:0 4.00 ms",
        ),
        (
            {"transfer": 41 * MS, "allowed": STALE},
            "the link cpu:1 -> cpu:0: 41 MB per evaluation at 1 GB/s = 41.00 ms of 41.0",
        ),
        (
            {"transfer": 20 * MS, "allowed": STALE},
            "work on cpu:0: 34.00 ms of 34.00 ms per evaluation",
        ),
    ],
)
def test_the_binding_term_is_named_with_figures(known, expected) -> None:
    program = several(region(), evaluations=30, **known)
    assert program.prediction is not None and expected in program.prediction.binding


def test_notes_give_the_reasons_against() -> None:
    alone = several(region(), transfer=60 * MS, evaluations=30, allowed=STALE)
    text = "\n".join(alone.notes)
    assert (
        "one of 2 devices is used: controlnet on cpu:1, one evaluation stale was not chosen:"
        in text
    )
    assert (
        "does not help: the link cpu:1 -> cpu:0: 60 MB per evaluation at 1 GB/s = 60.00 ms, more "
        "than the 49.00 ms" in text
    )
    nothing = several(region(controls=0), allowed=STALE)
    assert any("the plan has no ControlNet" in note for note in nothing.notes)
    assert any(
        "one of 2 devices is used: UNet split over 2 devices was not chosen" in note
        for note in nothing.notes
    )
    split = several(region(branches=2), evaluations=30, allowed=STALE)
    assert any("not worth its error" in note or "no ControlNet" in note for note in split.notes)
    assert any(
        "more would not be faster" in note
        for note in several(region(controls=0, branches=2), speeds=(1, 1, 1)).notes
    )


def test_every_alternative_has_a_descriptive_name() -> None:
    program = several(region(), evaluations=30, allowed=STALE)
    assert {
        "one device",
        "controlnet on cpu:1, synchronous",
        "controlnet on cpu:1, one evaluation stale",
    } <= set(program.alternatives)
    assert program.alternatives["controlnet on cpu:1, synchronous"] == pytest.approx(
        30 * (38 * MS + STEP)
    )
    assert program.alternatives["one device"] == pytest.approx(30 * 49 * MS)
    assert program.alone == pytest.approx(30 * 49 * MS / program.alternatives[program.chosen])


def test_segments_mark_calls_that_may_overlap_the_next_one() -> None:
    """Two such calls do not read each other's output; both are long and can be recorded."""
    stages = []
    for branches in (1, 2):
        program = compiled(region(branches=branches, controls=branches), batching=False)
        ((segment,),), (variant,) = program.segments, program.variants
        turns = list(segment.turns)
        assert tuple(call for turn in turns for call in turn) == segment.calls
        reads = {op.id: {ref.operation for _, ref in op.references()} for op in variant.operations}
        for first, second in (turn for turn in turns if len(turn) == 2):
            assert reads[second.operations[0]].isdisjoint(first.operations)
        stages.append([" ".join(call.stage for call in turn) for turn in turns])
    assert stages[0] == ["controlnet unet_encoder", "unet_mid", "unet_decoder"]
    assert stages[1] == [  # two ControlNets per branch
        "controlnet controlnet",
        "unet_encoder controlnet",
        "controlnet unet_encoder",
        "unet_mid unet_mid",
        "unet_decoder unet_decoder",
        "node",
    ]


def test_segments_list_reads_and_writes() -> None:
    """Segments read only the step, values from before the loop, and writes of other segments."""
    pins = {
        "controlnet": ("cpu:1",),
        "unet_encoder": ("cpu:0",),
        "unet_mid": ("cpu:0",),
        "unet_decoder": ("cpu:0",),
    }
    program = several(region(), pins=pins)
    (segments,), (variant,) = program.segments, program.variants
    before = {operation.id for operation in program.before} | {program.region.begin.id}
    written = {ref for segment in segments for ref in segment.writes}
    inputs = {
        operation.id: {ref for _, ref in operation.references()} for operation in variant.operations
    }
    assert len({segment.device for segment in segments}) == 2
    for segment in segments:
        inside = {name for call in segment.calls for name in call.operations}
        read = set().union(*(inputs[name] for name in inside))
        assert set(segment.reads) == {ref for ref in read if ref.operation not in inside}
        assert all(ref.operation in before or ref in written for ref in segment.reads)
        assert all(ref.operation in inside for ref in segment.writes)
    elsewhere = {ref for segment in segments for ref in segment.reads} | {
        variant.prediction,
        *variant.carried.values(),
    }
    assert written <= elsewhere  # every write has a reader


@pytest.mark.defect(46)
def test_a_prediction_reports_whether_its_stages_are_measured() -> None:
    rough = several(region())
    (note,) = [note for note in rough.notes if "katz profile" in note]
    keys = {key for key in rough.keys.values() if key}
    assert note.startswith(f"{len(keys)} of {len(keys)} kinds of calls") and len(keys) > 1
    for number in (1, len(keys)):
        measured = {(key, 1, False): 1 * MS for key in sorted(keys)[:number]}
        known = tuple(replace(device, measured=measured) for device in rough.target.devices)
        found = [note for note in several(region(), devices=known).notes if "profile" in note]
        left = len(keys) - number
        assert found == [] if left == 0 else found[0].startswith(f"{left} of")
