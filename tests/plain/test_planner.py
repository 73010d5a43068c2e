"""Tests the planner's passes on regions that need no weights."""

from __future__ import annotations

from dataclasses import replace

import networkx
import pytest
from planner_graphs import (
    MODEL,
    REGISTRY,
    bound,
    compiled,
    deep_features,
    prompt,
    sampler_region,
    use,
    work_of,
)

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.planner.passes.decompose import tree
from katz_graph.planner.region import bind_region, region_nodes, region_problems


def stages(program, variant=0):
    return [operation.id for operation in program.variants[variant].operations]


def test_guidance_gives_two_branches_and_none_for_uncond_at_guidance_one() -> None:
    two = compiled(sampler_region((prompt("a"),), (prompt("b"),)), after="variants")
    assert {name.split("-")[0] for name in stages(two)} == {"negative", "positive", "guidance"}
    one = compiled(sampler_region((prompt("a"),), (prompt("b"),), guidance=1.0), after="variants")
    assert stages(one) == ["positive-encoder", "positive-mid", "positive-decoder"]


def test_papers_parallelism_is_derived_from_the_graph() -> None:
    control = use("edges")
    program = compiled(
        sampler_region((prompt("a", control),), (prompt("b", control),)), after="decompose"
    )
    kinds = {child.kind for child in program.trees[0].children}
    assert program.trees[0].kind == "P" and kinds == {"S"}
    for child in program.trees[0].children:
        parallel, decoder = child.children
        assert decoder.leaf.endswith("decoder")
        assert parallel.kind == "P" and {
            str(part).split("(")[0].split("-")[-1] for part in parallel.children
        } == {"S", "controlnet1"}


def test_a_graph_in_the_shape_of_an_n_stays_prime() -> None:
    graph = networkx.DiGraph([("a", "c"), ("b", "c"), ("b", "d")])
    found = tree(graph)
    assert found.kind == "prime" and sorted(found.leaves()) == ["a", "b", "c", "d"]


def test_a_transitive_link_does_not_hide_a_series() -> None:
    assert str(tree(networkx.DiGraph([("a", "b"), ("b", "c"), ("a", "c")]))) == "S(a, b, c)"


def test_outside_its_window_a_controlnet_is_not_invoked() -> None:
    program = compiled(
        sampler_region((prompt("a", use("edges", 0.0, 0.5)),), (), guidance=1.0),
        evaluations=4,
        after="variants",
    )
    with_control, without = program.variants
    assert "positive-controlnet1" in [
        op.id for op in with_control.operations
    ] and with_control.evaluations == (0, 1)
    assert "positive-controlnet1" not in [
        op.id for op in without.operations
    ] and without.evaluations == (2, 3)


def test_every_branch_reads_its_own_text_and_equal_texts_are_encoded_once() -> None:
    program = compiled(sampler_region((prompt("a"),), (prompt("b"),)), after="hoist")
    assert [op.stage for op in program.before].count("text_encoder") == 2
    same = compiled(sampler_region((prompt("a"),), (prompt("a"),)), after="hoist")
    assert [op.stage for op in same.before].count("text_encoder") == 1


def test_a_controlnet_of_a_conditioning_inside_a_region_is_refused_with_the_way_out() -> None:
    region = sampler_region((prompt("a"),), (prompt("b"),))
    controlled = {"conditioning": (prompt("a", use("edges")),)}
    carrying = tuple(
        replace(one, inputs={**one.inputs, **controlled}) if "conditioning" in one.inputs else one
        for one in region.operations
    )
    with pytest.raises(InputError, match="link a ControlNet node to the UNetDecoder instead"):
        compiled(replace(region, operations=carrying), after="hoist")


def test_a_reference_image_is_embedded_once_for_both_branches() -> None:
    control = use("edges")
    program = compiled(
        sampler_region((prompt("a", control),), (prompt("b", control),)), after="hoist"
    )
    assert [op.stage for op in program.before].count("controlnet_reference") == 1


def test_heavy_weights_are_read_once_by_batching_the_branches() -> None:
    region = sampler_region((prompt("a"),), (prompt("b"),))
    heavy = work_of({"unet_encoder": 1e3, "unet_mid": 1e3, "unet_decoder": 1e3}, weights=1e6)
    program = compiled(region, after="search", count=heavy)
    assert [call.operations for call in program.calls[0][:3]] == [
        ("negative-encoder", "positive-encoder"),
        ("negative-mid", "positive-mid"),
        ("negative-decoder", "positive-decoder"),
    ]
    batched, split = sorted(program.alternatives.values())
    assert split == pytest.approx(2 * batched)


def test_prompts_of_different_length_are_not_batched() -> None:
    calls = compiled(
        sampler_region((prompt("a" * 80),), (prompt("b"),)), after="search", batching=True
    ).calls[0]
    assert all(len(call.operations) == 1 for call in calls)


def test_controlnets_of_different_strength_are_not_batched() -> None:
    region = sampler_region(
        (prompt("a", use("edges", strength=1.0)),), (prompt("b", use("edges", strength=0.5)),)
    )
    calls = compiled(region, after="search", batching=True).calls[0]
    assert [len(call.operations) for call in calls if call.stage == "controlnet"] == [1, 1]


def test_a_value_of_an_unknown_stage_is_refused() -> None:
    nodes = dict(deep_features().nodes)
    nodes["odd"] = NodeCall("Odd", {"cond": Link("last", 1), "uncond": Link("last", 1)})
    nodes["guided"] = NodeCall("CFGCombine", {"cond": Link("odd", 0), "uncond": Link("last", 1)})
    nodes["end"] = NodeCall(
        "StepEnd", dict(nodes["end"].inputs) | {"prediction": Link("guided", 0)}
    )
    graph = Graph(nodes)
    registry = {**REGISTRY, "Odd": replace(REGISTRY["CFGCombine"], name="Odd", stage="odd")}
    with pytest.raises(
        InputError, match=r"node odd \(Odd\): its stage 'odd' is unknown, so it cannot be planned"
    ):
        compiled(bind_region(graph, registry, region_nodes(graph, "end"), {}))


def test_features_of_different_evaluations_are_not_batched() -> None:
    """A decoder's output depends on the noise level, which differs between evaluations."""
    nodes = dict(deep_features().nodes)
    common = {name: nodes["last"].inputs[name] for name in ("model", "conditioning")}
    nodes["begin"] = NodeCall(
        "StepBegin",
        dict(nodes["begin"].inputs) | {"initial_1": "features", "initial_2": "features"},
    )
    for name, features in (
        ("last", Link("begin", 1)),
        ("older", Link("begin", 2)),
        ("same", Link("begin", 1)),
    ):
        nodes[name] = NodeCall("UNetDecoder", {"features": features, **common})
    nodes["guidance"] = NodeCall(
        "CFGCombine", {"cond": Link("last", 1), "uncond": Link("older", 1), "base": Link("same", 1)}
    )
    carried = {"next_1": Link("up", 0), "next_2": Link("begin", 1)}
    nodes["end"] = NodeCall(
        "StepEnd", {"step": Link("begin", 0), "prediction": Link("guidance", 0), **carried}
    )
    for calls in compiled(bound(Graph(nodes), "end"), after="search", batching=True).calls:
        together = [
            set(call.operations)
            for call in calls
            if call.stage == "unet_decoder" and len(call.operations) > 1
        ]
        assert together == [{"last", "same"}]


def test_the_prediction_adds_up() -> None:
    program = compiled(
        sampler_region((prompt("a", use("edges")),), (prompt("b"),)), evaluations=10, batching=False
    )
    assert program.prediction is not None
    # 11 MFLOP a branch and 5 for the ControlNet at 1 GFLOP/s; the longest path is encoder + mid (or
    # ControlNet), then decoder
    assert program.prediction.sequential == pytest.approx(10 * (11e-3 + 16e-3))
    assert program.prediction.ideal == pytest.approx(10 * 11e-3)
    assert program.prediction.planned == pytest.approx(program.prediction.sequential)


def test_instructions_run_every_evaluation_in_order() -> None:
    program = compiled(
        sampler_region((prompt("a", use("edges", 0.0, 0.5)),), (), guidance=1.0), evaluations=4
    )
    runs = [
        (entry.target, entry.evaluation)
        for entry in program.instructions["cpu"]
        if entry.kind == "run"
    ]
    assert runs == [("v0.0", 0), ("v0.0", 1), ("v1.0", 2), ("v1.0", 3)]


def test_deep_blocks_run_only_in_steps_of_the_pattern() -> None:
    program = compiled(bound(deep_features(), "end"), evaluations=4)
    kinds = {
        index: {op.id for op in variant.operations}
        for variant in program.variants
        for index in variant.evaluations
    }
    assert all(kinds[index] == {"shallow", "deep", "mid", "up", "last"} for index in (0, 2))
    assert all(kinds[index] == {"shallow", "last"} for index in (1, 3))


def test_a_slot_read_before_it_was_written_is_named() -> None:
    with pytest.raises(
        InputError,
        match="evaluation 0 reads previous_1 before any evaluation wrote next_1; link initial_1",
    ):
        compiled(bound(deep_features(offset=1), "end"), evaluations=4)
    compiled(bound(deep_features(offset=1, initial=True), "end"), evaluations=4)


def test_reading_an_unwritten_slot_is_a_problem() -> None:
    graph = deep_features()
    nodes = dict(graph.nodes)
    nodes["end"] = NodeCall(
        "StepEnd", {name: value for name, value in nodes["end"].inputs.items() if name != "next_1"}
    )
    problems = list(region_problems(Graph(nodes), REGISTRY))
    assert problems == [
        ("switch", "on_false", "reads previous_1 of begin, but next_1 of end is not linked")
    ]


def test_links_leave_a_region_only_from_its_end() -> None:
    graph = deep_features()
    spy = Graph({**graph.nodes, "spy": NodeCall("PreviewImage", {"images": Link("shallow", 0)})})
    assert [(node, name) for node, name, _ in region_problems(spy, REGISTRY)] == [("spy", "images")]


def test_a_stage_outside_any_region_is_a_problem() -> None:
    stray = Graph(
        {
            **deep_features().nodes,
            "stray": NodeCall("UNetMid", {"features": Link("shallow", 0), "model": MODEL}),
        }
    )
    assert (
        "stray",
        "",
        "is in no step region: it needs a StepBegin upstream and a StepEnd downstream",
    ) in list(region_problems(stray, REGISTRY))


def test_a_region_holds_only_nodes_between_begin_and_end() -> None:
    graph = Graph({"clip": NodeCall("Loader", {}), **deep_features().nodes})
    region = region_nodes(graph, "end")
    assert set(region.members) == set(graph.nodes) - {"clip"}
    assert (
        region.members.index("shallow")
        < region.members.index("deep")
        < region.members.index("last")
    )


def test_two_prompts_of_one_side_are_blended_and_ranges_switch_them() -> None:
    late = replace(prompt("late"), start_percent=0.5)
    program = compiled(
        sampler_region((prompt("early"), late), (), guidance=1.0), evaluations=4, after="variants"
    )
    first, second = program.variants
    assert {op.id.split("-")[0] for op in first.operations} == {"positive1", "positive"}
    assert {op.id.split("-")[0] for op in second.operations} == {
        "positive1",
        "positive2",
        "positive",
    }


def test_a_condition_that_only_a_step_knows_is_refused() -> None:
    nodes = dict(deep_features().nodes)
    nodes["switch"] = NodeCall(
        "Switch", dict(nodes["switch"].inputs) | {"condition": Link("begin", 1)}
    )
    with pytest.raises(
        InputError, match=r"node switch \(Switch\), condition: not known before the run"
    ):
        compiled(bound(Graph(nodes), "end"), evaluations=4)


def test_a_switch_without_the_side_that_is_needed_is_named() -> None:
    nodes = dict(deep_features().nodes)
    nodes["switch"] = NodeCall(
        "Switch", {"condition": Link("pattern", 0), "on_true": Link("up", 0)}
    )
    nodes["end"] = NodeCall("StepEnd", {"step": Link("begin", 0), "prediction": Link("last", 1)})
    with pytest.raises(InputError, match=r"node last \(UNetDecoder\), features: is empty"):
        compiled(bound(Graph(nodes), "end"), evaluations=4)


def test_a_slot_that_begins_as_something_else_than_its_reader_takes_is_a_problem() -> None:
    nodes = dict(deep_features().nodes)
    nodes["latent"] = NodeCall("KSampler", {})
    nodes["begin"] = NodeCall(
        "StepBegin", dict(nodes["begin"].inputs) | {"initial_1": Link("latent", 0)}
    )
    nodes["last"] = NodeCall(
        "UNetDecoder", dict(nodes["last"].inputs) | {"features": Link("begin", 1)}
    )
    found = [
        message
        for node, name, message in region_problems(Graph(nodes), REGISTRY)
        if (node, name) == ("last", "features")
    ]
    assert found == ["takes FEATURES, but previous_1 of begin carries LATENT"]
