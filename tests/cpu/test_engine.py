"""Sampling through planner and worker on random weights gives the expected pictures and errors."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import eventually

from katz_graph.core.errors import Cancelled, InputError, RunError
from katz_graph.core.events import Progress
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import ConditioningEntry, Prompt, Zeroed
from katz_graph.executor.cluster.worker_handle import WorkerPatience
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.launch.in_process import InProcess
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.ir.region import Region
from katz_graph.ir.values import TextEncoding
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.text import encoder
from katz_graph.testing.model_files import Models, difference, mini_models
from katz_graph.testing.parity import against_plain_loop, cases, unchanged_weights
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, bind, local_engine, sample, sampler_region


@pytest.fixture
def engine(costs: Path) -> DeviceEngine:
    with local_engine(batching=False, cache=costs) as engine:
        yield engine


def request(models: Models, **changes: object) -> Case:
    return Case("test", models.pipeline, "euler", 4, **changes)  # type: ignore[arg-type]


def controls(models: Models, number: int) -> tuple[ControlCase, ...]:
    windows = ((0.8, 0.0, 1.0), (1.0, 0.0, 0.55), (0.5, 0.25, 1.0))
    return tuple(ControlCase(models.controls[i], *windows[i]) for i in range(number))


# every eleventh case of the bench covers all kinds and numbers of ControlNets, with and without
# LoRAs; SDXL, which differs by text and layers, has the first and one with all parts
@pytest.mark.parametrize(("family", "every"), [("sd1", 11), ("sdxl", 33)])
def test_regions_equal_plain_loops_over_diffusers_modules(
    family: str, every: int, request: pytest.FixtureRequest, engine: DeviceEngine
) -> None:
    for case in list(cases(request.getfixturevalue(family)))[::every]:
        shared, loaded = against_plain_loop(case, engine)
        assert shared == 0.0, case.name
        assert loaded <= 1e-5, case.name  # float rounding; the bound of the fidelity rules


def test_weights_with_loras_are_those_that_diffusers_merges(engine: DeviceEngine) -> None:
    """The models are trained, so the last bit of a weight moves latents by more than the bound."""
    wanted = [case for case in cases(mini_models()) if case.name.endswith("2 LoRAs, mask")]
    assert against_plain_loop(wanted[0], engine) == (0.0, 0.0)


def test_batching_the_branches_moves_the_latent_by_rounding_only(
    sdxl: Models, engine: DeviceEngine, costs: Path
) -> None:
    region = sampler_region(request(sdxl, controls=controls(sdxl, 3)))
    with local_engine(batching=True, cache=costs) as batched:
        assert difference(sample(batched, region), sample(engine, region)) <= 1e-5


def test_loras_leave_no_trace(sd1: Models, sdxl: Models) -> None:
    assert unchanged_weights(request(sd1, loras=((sd1.loras[0], 0.7), (sd1.loras[1], -0.4))))
    assert unchanged_weights(request(sdxl, loras=((sdxl.loras[1], 1.0),)))


def test_a_lora_with_a_text_part_changes_the_conditioning(
    sd1: Models, engine: DeviceEngine
) -> None:
    _, clip, _ = pipeline_recipes(sd1.pipeline)
    region = sampler_region(request(sd1, loras=((sd1.loras[1], 1.0),)))
    entry = next(op for op in region.operations if op.stage == "unet_encoder").inputs[
        "conditioning"
    ][0]
    with torch.no_grad():
        plain, patched = (
            engine.models.encode_text(Prompt(clip, "a star")),
            engine.models.encode_text(entry.encoding),
        )
        again = engine.models.encode_text(Prompt(clip, "a moon"))
        fresh = DeviceModels().encode_text(Prompt(clip, "a moon"))
    assert not torch.equal(plain.hidden, patched.hidden)
    assert torch.equal(again.hidden, fresh.hidden)


def test_a_prompt_is_encoded_once_until_models_are_unloaded(
    sd1: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, models, encoded = Prompt(pipeline_recipes(sd1.pipeline)[1], "a star"), DeviceModels(), 0
    encode = encoder.encode

    def counting(*given: Any) -> TextEncoding:
        nonlocal encoded
        encoded += 1
        return encode(*given)

    monkeypatch.setattr(encoder, "encode", counting)
    with torch.no_grad():
        hidden = models.encode_text(prompt).hidden
        expected = hidden.clone()
        for _ in range(2):
            hidden.zero_()  # as code of packs may do
            hidden = models.encode_text(Zeroed(prompt)).hidden
            hidden = models.encode_text(prompt).hidden
            assert torch.equal(hidden, expected)
        assert encoded == 1
        models.unload()
        assert torch.equal(models.encode_text(prompt).hidden, expected) and encoded == 2


def test_requests_with_different_loras_interleave_and_each_gets_its_own_picture(
    sdxl: Models, engine: DeviceEngine
) -> None:
    wanted = [
        request(sdxl, seed=1),
        request(sdxl, seed=2, loras=((sdxl.loras[0], 0.5),)),
        request(sdxl, seed=3, loras=((sdxl.loras[1], 0.5),), controls=controls(sdxl, 1)),
        request(sdxl, seed=4, prompt="something else"),
    ]
    alone = [sample(engine, sampler_region(case)) for case in wanted]
    with ThreadPoolExecutor(len(wanted)) as pool:
        together = list(pool.map(lambda case: sample(engine, sampler_region(case)), wanted))
    assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize("by", ["arrival", "due"])
def test_a_worker_serves_the_run_that_arrived_first_or_is_due_first(
    sd1: Models, engine: DeviceEngine, by: str
) -> None:
    order: list[int] = []
    both_submitted = threading.Event()

    def context(number: int) -> RunContext:
        def listen(event: object) -> None:
            both_submitted.wait(10)
            if isinstance(event, Progress):
                order.append(number)

        context = bare_context(engine)
        context.listener, context.arrival = listen, 10.0 - number  # the last one arrived first
        if by == "due":  # or is due first
            context.arrival = 10.0 + number
            context.due = time.monotonic() + 1000.0 - number
        return context

    regions = [sampler_region(replace(request(sd1, seed=seed), steps=12)) for seed in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(engine.cluster.run, engine.plan(region), context(number))
            for number, region in enumerate(regions)
        ]
        eventually(lambda: len(engine.cluster.launchers["cpu"].host._parts) == 3, 10)  # type: ignore[attr-defined]
        both_submitted.set()
        for run in runs:
            run.result()
    # the first one to be submitted may have taken steps before the others arrived
    after = order[order.index(2) :] if 2 in order else order
    assert [number for number in after if number != 0] == [2] * 12 + [1] * 12
    assert after[:12] == [2] * 12


def test_a_run_may_ask_for_fewer_reports_than_evaluations(
    sd1: Models, engine: DeviceEngine
) -> None:
    program = engine.plan(sampler_region(request(sd1)))
    reported: dict[float, list[int]] = {}
    for interval in (0.0, 1000.0):
        context, seen = bare_context(engine), reported.setdefault(interval, [])
        context.progress_interval = interval
        context.listener = lambda event, seen=seen: (
            seen.append(event.value) if isinstance(event, Progress) else None
        )
        engine.cluster.run(program, context)
    assert reported == {0.0: [1, 2, 3, 4], 1000.0: [1, 4]}


def test_cancelling_stops_between_evaluations_and_leaves_the_worker_usable(
    sd1: Models, engine: DeviceEngine
) -> None:
    region = sampler_region(replace(request(sd1), steps=500))
    context = bare_context(engine)
    started = threading.Event()
    seen: list[int] = []

    def listen(event: object) -> None:
        if isinstance(event, Progress):
            seen.append(event.value)
            started.set()

    context.listener = listen  # type: ignore[assignment]
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(engine.cluster.run, engine.plan(region), context)
        assert started.wait(30)
        context.cancel()
        with pytest.raises(Cancelled):
            run.result()
    assert len(seen) < 500
    assert torch.isfinite(sample(engine, sampler_region(request(sd1)))).all()


def test_nan_is_an_error_that_names_node_and_step(sd1: Models, engine: DeviceEngine) -> None:
    broken = torch.full((1, 4, 8, 8), float("nan"))
    with pytest.raises(RunError, match=r"node end: .* NaN .* step 1 \(evaluation 1 of 4\)"):
        sample(engine, sampler_region(request(sd1, latent=broken)))


def test_a_controlnet_of_another_width_is_refused_before_the_run(
    sd1: Models, sdxl: Models, engine: DeviceEngine
) -> None:
    with pytest.raises(InputError, match="does not fit the UNet"):
        sample(engine, sampler_region(request(sd1, controls=controls(sdxl, 1))))


def drawn_loop(models: Models, every: int | None) -> Region:
    """Draws the loop with deep blocks every `every`-th evaluation; None: whole evaluations without
    slots.
    """
    model, clip, _ = pipeline_recipes(models.pipeline)
    begin = {
        "model": model,
        "latent_image": {"samples": torch.zeros(1, 4, 8, 8)},
        "seed": 7,
        "steps": 4,
    }
    nodes = {"begin": NodeCall("StepBegin", begin)}
    if every is not None:
        nodes["pattern"] = NodeCall("StepPattern", {"step": Link("begin", 0), "every": every})
    sides = {}
    for slot, (side, text) in enumerate(
        (("negative", "grey, blurred"), ("positive", "a red circle above sand")), start=1
    ):
        common = {"model": model, "conditioning": (ConditioningEntry(Prompt(clip, text)),)}
        if every is None:
            nodes[f"{side}.enc"] = NodeCall("UNetEncoder", {"step": Link("begin", 0), **common})
            nodes[f"{side}.mid"] = NodeCall(
                "UNetMid", {"features": Link(f"{side}.enc", 0), **common}
            )
            nodes[f"{side}.dec"] = NodeCall(
                "UNetDecoder", {"features": Link(f"{side}.mid", 0), **common}
            )
        else:
            nodes[f"{side}.shallow"] = NodeCall(
                "UNetEncoder", {"step": Link("begin", 0), "last_block": 0, **common}
            )
            nodes[f"{side}.deep"] = NodeCall(
                "UNetEncoder", {"features": Link(f"{side}.shallow", 0), "first_block": 1, **common}
            )
            nodes[f"{side}.mid"] = NodeCall(
                "UNetMid", {"features": Link(f"{side}.deep", 0), **common}
            )
            nodes[f"{side}.up"] = NodeCall(
                "UNetDecoder", {"features": Link(f"{side}.mid", 0), "last_block": 1, **common}
            )
            chosen = {
                "condition": Link("pattern", 0),
                "on_true": Link(f"{side}.up", 0),
                "on_false": Link("begin", slot),
            }
            nodes[f"{side}.switch"] = NodeCall("Switch", chosen)
            last = {
                "features": Link(f"{side}.switch", 0),
                "skips": Link(f"{side}.shallow", 0),
                "first_block": 2,
                **common,
            }
            nodes[f"{side}.dec"] = NodeCall("UNetDecoder", last)
        sides[side] = Link(f"{side}.dec", 1)
    nodes["guidance"] = NodeCall(
        "CFGCombine", {"cond": sides["positive"], "uncond": sides["negative"], "guidance": 5.0}
    )
    slots = (
        {}
        if every is None
        else {"next_1": Link("negative.switch", 0), "next_2": Link("positive.switch", 0)}
    )
    nodes["end"] = NodeCall(
        "StepEnd", {"step": Link("begin", 0), "prediction": Link("guidance", 0), **slots}
    )
    return bind(Graph(nodes), "end")


def test_a_loop_drawn_by_hand_is_the_sampler_bit_for_bit(sd1: Models, engine: DeviceEngine) -> None:
    sampler = sample(engine, sampler_region(request(sd1)))
    assert torch.equal(sample(engine, drawn_loop(sd1, None)), sampler)
    # fresh deep features, through slots
    assert torch.equal(sample(engine, drawn_loop(sd1, every=1)), sampler)


def test_keeping_deep_features_for_a_step_changes_the_picture_a_little(
    sd1: Models, engine: DeviceEngine
) -> None:
    sampler, reused = (
        sample(engine, sampler_region(request(sd1))),
        sample(engine, drawn_loop(sd1, every=2)),
    )
    assert 0.0 < difference(reused, sampler) < 0.5


def test_an_engine_of_this_process_ends_at_once(costs: Path) -> None:
    patience = WorkerPatience(stop=60.0)  # seconds to wait if the worker never answers
    engine = DeviceEngine(
        [WorkerConfig("cpu")], cache=costs, launchers={"cpu": InProcess()}, patience=patience
    )
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < patience.stop / 2
