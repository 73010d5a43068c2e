"""Stages as recorded calls: replays without Python code, over poisoned storages, paint the same
bytes.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy
import pytest
import torch
from hand_drawn import unet
from torch import Tensor

from katz_graph.core.errors import Cancelled
from katz_graph.core.events import Progress
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.patches import FreeU
from katz_graph.core.recipe import (
    Area,
    ClipRecipe,
    Concatenated,
    ConditioningEntry,
    Lora,
    ModelRecipe,
    Picture,
    Prompt,
)
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.recorded.recorder import (
    NO_ROOM,
    NOT_DECLARED,
    TOO_LARGE,
    Recorder,
)
from katz_graph.executor.worker import host
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.region import Region
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.node import Node
from katz_graph.node.wires import Mask, Socket, Step
from katz_graph.packs import builtin_types
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.region import bind_region, region_nodes, stage_of
from katz_graph.sampling.names import SAMPLER_NAMES
from katz_graph.testing.model_files import Models
from katz_graph.testing.parity import cases
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample, sampler_region
from katz_graph.testing.tapes import Tapes
from katz_graph.testing.worker_threads import WorkerThreads

Real = Annotated[float, Socket("FLOAT")]


@pytest.fixture(scope="module", params=[False, True], ids=["apart", "batched"])
def pair(
    request: pytest.FixtureRequest, costs: Path
) -> Iterator[tuple[DeviceEngine, DeviceEngine]]:
    """Yields an eager engine and a recording one."""
    batching = request.param
    with (
        local_engine(batching=batching, cache=costs) as plain,
        local_engine(batching=batching, cache=costs) as recorded,
    ):
        yield plain, recorded


@pytest.fixture
def engines(pair: tuple[DeviceEngine, DeviceEngine]) -> tuple[DeviceEngine, DeviceEngine]:
    """Gives the second engine a new, strict recorder."""
    pair[1].models.compute = strict()
    return pair


@pytest.fixture(scope="module")
def shared(costs: Path) -> Iterator[tuple[DeviceEngine, DeviceEngine]]:
    """Like `engines`, but batched, and tests share the recordings."""
    with (
        local_engine(batching=True, cache=costs) as plain,
        local_engine(batching=True, cache=costs) as recorded,
    ):
        recorded.models.compute = strict()
        yield plain, recorded


def strict() -> Recorder:
    """Records every call at its first use."""
    return Recorder(Tapes(strict=True), eager=0)


def recorder(engine: DeviceEngine) -> Recorder:
    assert isinstance(engine.models.compute, Recorder)
    return engine.models.compute


def same(engines: tuple[DeviceEngine, DeviceEngine], region: Region) -> bool:
    plain, recorded = engines
    equal = torch.equal(sample(recorded, region), sample(plain, region))
    assert recorder(recorded).use.eager.keys() <= {NOT_DECLARED}
    return equal


def case(models: Models, **changes: Any) -> Case:
    return replace(Case("test", models.pipeline, "euler", 3), **changes)


@pytest.mark.parametrize(("family", "every"), [("sd1", 11), ("sdxl", 33)])
def test_replayed_calls_paint_the_same_bytes(
    family: str,
    every: int,
    request: pytest.FixtureRequest,
    engines: tuple[DeviceEngine, DeviceEngine],
) -> None:
    """Every eleventh case of the parity bench, with four steps: ControlNets with windows, LoRAs,
    pictures, masks, batches, LoRA switches. For SDXL the first case, and one with all parts.
    """
    for one in list(cases(request.getfixturevalue(family)))[::every]:
        assert same(engines, sampler_region(replace(one, steps=4))), one.name
    assert recorder(engines[1]).use.replays > 2 * recorder(engines[1]).use.captures


@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
def test_every_sampler_is_replayed(
    sampler: str, sd1: Models, shared: tuple[DeviceEngine, DeviceEngine]
) -> None:
    before = recorder(shared[1]).use.replays
    assert same(shared, sampler_region(case(sd1, sampler=sampler)))
    assert recorder(shared[1]).use.replays > before


def test_loras_strengths_prompts_and_seeds_cause_no_new_recording(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    controls = (ControlCase(sd1.controls[0], 0.8, 0.0, 1.0),)
    assert same(engines, sampler_region(case(sd1, controls=controls)))
    captures = recorder(engines[1]).use.captures
    for change in (
        {"seed": 7, "prompt": "another"},
        {"loras": ((sd1.loras[0], 0.7),)},
        {"loras": ((sd1.loras[1], 0.4), (sd1.loras[0], -0.2))},
        {"controls": (ControlCase(sd1.controls[0], 0.3, 0.0, 1.0),)},
        {"sampler": "heun", "steps": 4, "guidance": 3.0},
    ):
        assert same(engines, sampler_region(replace(case(sd1, controls=controls), **change))), (
            change
        )
    assert recorder(engines[1]).use.captures == captures


def test_four_pictures_of_an_odd_size_by_a_text_of_three_rows(
    sdxl: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    text = " ".join(f"word{number}" for number in range(30))
    wanted = case(sdxl, prompt=text, latent=torch.zeros(4, 4, 9, 7))
    assert same(engines, sampler_region(wanted))
    assert same(engines, sampler_region(replace(wanted, seed=5)))
    assert recorder(engines[1]).use.replays > recorder(engines[1]).use.captures


def test_a_request_that_is_cancelled_on_the_way_leaves_nothing(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    _, recorded = engines
    context = bare_context(recorded)
    reached = []

    def listen(event: object) -> None:
        if isinstance(event, Progress):
            reached.append(event.value)
            if event.value == 2:
                context.cancel()

    context.listener = listen
    with pytest.raises(Cancelled):
        recorded.sample(sampler_region(case(sd1, seed=3, steps=8)), context)
    assert reached[-1] == 2
    assert same(engines, sampler_region(case(sd1, loras=((sd1.loras[0], 0.5),))))


def test_two_requests_in_turn(sdxl: Models, engines: tuple[DeviceEngine, DeviceEngine]) -> None:
    plain, recorded = engines
    regions = [
        sampler_region(case(sdxl, seed=1)),
        sampler_region(
            case(sdxl, seed=2, prompt="other", loras=((sdxl.loras[0], 0.5),), sampler="dpmpp_2m")
        ),
    ]
    expected = [sample(plain, region) for region in regions]
    with ThreadPoolExecutor(len(regions)) as pool:
        made = list(pool.map(lambda region: sample(recorded, region), regions))
    assert all(map(torch.equal, made, expected))


def test_two_requests_in_turn_on_two_devices(
    sd1: Models, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices wait for each other several times per evaluation, and then run the other request:
    other LoRAs, ControlNets, prompts, samplers.
    """
    controls = tuple(ControlCase(one, 0.8, 0.0, 1.0) for one in sd1.controls)
    asked = [
        case(sd1, seed=1, controls=controls[:1], steps=4),
        case(sd1, seed=2, prompt="other", loras=((sd1.loras[0], 0.5),), sampler="dpmpp_2m"),
        case(sd1, seed=3, controls=controls, loras=((sd1.loras[1], -0.5),), sampler="heun"),
        case(sd1, seed=4, latent=torch.zeros(1, 4, 9, 7), steps=5),  # odd sides
    ]
    regions = [sampler_region(one) for one in asked]
    with local_engine(batching=False, cache=costs) as plain:
        expected = [sample(plain, region) for region in regions]
    made: list[Recorder] = []
    monkeypatch.setattr(host, "computing_of", lambda *_: made.append(strict()) or made[-1])
    workers = [WorkerConfig("cpu:0"), WorkerConfig("cpu:1")]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as cluster:
        programs = [
            plan_region(
                region,
                Target(
                    cluster.cluster.devices,
                    cluster.cluster.links,
                    dict.fromkeys(alternate(region, number), ("cpu:1",)),
                    batching=False,
                ),
            )
            for number, region in enumerate(regions)
        ]
        for _ in range(2):
            with ThreadPoolExecutor(len(programs)) as pool:
                found = pool.map(
                    lambda one: cluster.cluster.run(one, bare_context(cluster)).samples, programs
                )
                assert all(map(torch.equal, found, expected))
    assert len(made) == 2 and all(one.use.replays > one.use.captures for one in made)
    assert all(one.use.eager.keys() <= {NOT_DECLARED} for one in made)


def alternate(region: Region, first: int) -> list[str]:
    """Lists every second operation that has a cost."""
    costed = [one.id for one in region.operations if stage_of(one).costed]
    return costed[first % 2 :: 2]


def test_switches_cause_no_new_recording(sd1: Models, costs: Path) -> None:
    """Random LoRAs, strengths, ControlNets, prompts and guidance. `katz bench recorded` switches a
    hundred times.
    """
    chance = random.Random(1)

    def drawn() -> Case:
        controls = tuple(
            ControlCase(one, chance.random(), 0.0, 1.0)
            for one in chance.sample(sd1.controls, chance.randint(0, 2))
        )
        loras = tuple(
            (one, chance.uniform(-1, 1)) for one in chance.sample(sd1.loras, chance.randint(0, 2))
        )
        return case(
            sd1,
            steps=1,
            controls=controls,
            loras=loras,
            guidance=chance.uniform(2, 9),
            prompt=str(chance.random()),
        )

    with (
        local_engine(batching=True, cache=costs) as plain,
        local_engine(batching=True, cache=costs) as recorded,
    ):
        compute = recorded.models.compute = strict()
        for number in range(16):
            assert same((plain, recorded), sampler_region(drawn())), number
            if number == 8:
                captures = compute.use.captures
        assert compute.use.captures == captures


def test_areas_and_changed_skips(sd1: Models, engines: tuple[DeviceEngine, DeviceEngine]) -> None:
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    areas = (Area(0, 0, 8, 8), Area(0, 8, 8, 8), None)
    positive = tuple(
        ConditioningEntry(Prompt(clip, f"part {number}"), area=area)
        for number, area in enumerate(areas)
    )
    patched = replace(model, patches=(FreeU(1, 1.3, 1.4, 0.9, 0.2), FreeU(2, 1.1, 1.2, 0.9, 0.2)))
    for one in (model, patched):
        assert same(engines, region(one, positive, (ConditioningEntry(Prompt(clip, "")),)))


def region(
    model: ModelRecipe,
    positive: tuple[ConditioningEntry, ...],
    negative: tuple[ConditioningEntry, ...],
) -> Region:
    values: dict[str, Any] = {
        "steps": 3,
        "seed": 1,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
    }
    latent = {"samples": torch.zeros(1, 4, 8, 16)}
    expansion = expand_sampling(
        "StepBegin",
        {**values, "model": model, "latent_image": latent},
        model,
        positive,
        negative,
        5.0,
    )
    return bind(expansion.graph, expansion.outputs[0].node)


def test_extra_channels_of_an_inpainting_model(
    engines: tuple[DeviceEngine, DeviceEngine], tmp_path: Path
) -> None:
    make_pipeline(tmp_path / "seeing", "sd1", seed=1, extra=5)
    model, clip, _ = pipeline_recipes(tmp_path / "seeing")
    mask, picture = torch.rand(1, 64, 128), torch.randn(1, 4, 8, 16)
    seen = Concatenated(Picture.of(picture), Picture.of(mask))
    areas = (Area(0, 0, 8, 8), None)
    positive = tuple(
        ConditioningEntry(Prompt(clip, "a"), area=area, concatenated=seen) for area in areas
    )
    assert same(
        engines, region(model, positive, (ConditioningEntry(Prompt(clip, ""), concatenated=seen),))
    )


def test_a_model_that_is_evicted_takes_all_recordings_along(sd1: Models, costs: Path) -> None:
    with local_engine(batching=True, cache=costs) as engine:
        asked = sampler_region(case(sd1))
        expected = sample(engine, asked)
        compute = engine.models.compute = strict()
        assert torch.equal(sample(engine, asked), expected)
        before = compute.use.captures
        engine.models.unload()
        assert (compute.use.drops, compute.use.bytes) == (1, 0)
        assert torch.equal(sample(engine, asked), expected)
        assert compute.use.captures == 2 * before and compute.use.bytes > 0


def test_recordings_keep_within_their_budget(sd1: Models, costs: Path) -> None:
    """They are dropped together, made again, and change no picture; one too large alone is not
    recorded.
    """
    first, second = (sampler_region(case(sd1, prompt=prompt)) for prompt in ("one", "two"))
    with local_engine(batching=True, cache=costs) as engine:
        expected = [sample(engine, region) for region in (first, second)]
        engine.models.compute = whole = strict()
        sample(engine, first)
        size = whole.use.bytes
        engine.models.compute = compute = Recorder(Tapes(strict=True, room=0.8 * size), eager=0)
        made = [sample(engine, region) for region in (first, second)]
        assert all(map(torch.equal, made, expected))
        assert compute.use.drops > 0 and compute.use.eager[NO_ROOM] == compute.use.drops
        assert compute.use.replays > 0 and compute.use.bytes <= 0.8 * size
        engine.models.compute = compute = Recorder(Tapes(strict=True, room=1000), eager=0)
        assert torch.equal(sample(engine, first), expected[0])
        assert any(TOO_LARGE in reason for reason in compute.use.eager)


def test_branches_with_other_loras_on_one_unet_are_patched_in_turn(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine], tmp_path: Path, costs: Path
) -> None:
    """The bytes equal those with the negative prediction's weights in a separate UNet, from a copy
    of the folder.
    """
    shutil.copytree(sd1.pipeline, tmp_path / "copy")
    here, there = pipeline_recipes(sd1.pipeline), pipeline_recipes(tmp_path / "copy")
    lora = Lora(file_identity(sd1.loras[0]), 0.8)
    patched, (shared, clip, _), (other, _, _) = here[0].with_lora(lora), here, there
    expected = sample(engines[0], two_models(patched, other, clip))
    program = engines[0].plan(two_models(patched, shared, clip))
    (instructions,) = program.instructions.values()
    assert (
        sum(one.kind == "patch" and one.evaluation is not None for one in instructions)
        >= 2 * len(program.schedule) - 1
    )
    for engine in engines:
        assert torch.equal(sample(engine, two_models(patched, shared, clip)), expected)
    assert not torch.equal(sample(engines[0], two_models(shared, shared, clip)), expected)
    drawn = two_models(patched, shared, clip)
    apart = {
        name: ("cpu:1" if name.startswith("uncond") else "cpu:0",)
        for name in (op.id for op in drawn.operations)
    }
    workers = [WorkerConfig("cpu:0"), WorkerConfig("cpu:1")]
    with DeviceEngine(
        workers,
        cache=costs,
        link=NetworkLink(1e9),
        launchers={one.name: WorkerThreads() for one in workers},
    ) as cluster:
        scattered = plan_region(
            drawn, Target(cluster.cluster.devices, cluster.cluster.links, apart, batching=False)
        )
        assert {scattered.placement[name] for name in ("cond.mid", "uncond.mid")} == {
            "cpu:0",
            "cpu:1",
        }
        assert torch.equal(cluster.cluster.run(scattered, bare_context(cluster)).samples, expected)


def two_models(cond: ModelRecipe, uncond: ModelRecipe, clip: ClipRecipe) -> Region:
    """Returns guidance of two models."""
    nodes = {
        "begin": NodeCall(
            "StepBegin",
            {"model": cond, "latent_image": {"samples": torch.zeros(1, 4, 8, 8)}, "steps": 3},
        )
    }
    sides = {
        side: unet(nodes, side, model, (ConditioningEntry(Prompt(clip, side)),), Link("begin", 0))
        for side, model in (("cond", cond), ("uncond", uncond))
    }
    nodes["guidance"] = NodeCall("CFGCombine", sides)
    nodes["end"] = NodeCall(
        "StepEnd", {"step": Link("begin", 0), "prediction": Link("guidance", 0)}
    )
    return bind(Graph(nodes), "end")


def test_a_number_that_a_switch_chooses_is_that_of_each_evaluation(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    """A ControlNet whose strength changes per step equals a switch between two ControlNets."""
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    text, step = (ConditioningEntry(Prompt(clip, "a")),), Link("begin", 0)
    image = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(1))
    common = {
        "control_net": controlnet_recipe(sd1.controls[0]),
        "step": step,
        "conditioning": text,
        "image": image,
    }

    def drawn(strength: dict[str, NodeCall], residuals: Link) -> Region:
        latent = {"samples": torch.zeros(1, 4, 8, 8)}
        nodes = {
            "begin": NodeCall("StepBegin", {"model": model, "latent_image": latent, "steps": 4})
        }
        nodes["odd"] = NodeCall("StepPattern", {"step": step, "every": 2, "offset": 1})
        prediction = unet(nodes, "x", model, text, step)
        nodes["x.decoder"].inputs["residuals_1"] = residuals  # type: ignore[index]
        nodes |= strength
        nodes["end"] = NodeCall("StepEnd", {"step": step, "prediction": prediction})
        return bind(Graph(nodes), "end")

    def choice(on_true: Any, on_false: Any) -> NodeCall:
        return NodeCall(
            "Switch", {"condition": Link("odd", 0), "on_true": on_true, "on_false": on_false}
        )

    one = drawn(
        {
            "strength": choice(0.9, 0.1),
            "control": NodeCall("ControlNet", {**common, "strength": Link("strength", 0)}),
        },
        Link("control", 0),
    )
    strong, weak = (
        NodeCall("ControlNet", {**common, "strength": strength}) for strength in (0.9, 0.1)
    )
    two = drawn(
        {"strong": strong, "weak": weak, "which": choice(Link("strong", 0), Link("weak", 0))},
        Link("which", 0),
    )
    for engine in engines:
        assert torch.equal(sample(engine, one), sample(engine, two))


class Number(Node, category="test"):
    """Returns a number in a step region, as packs' nodes may per step."""

    value: float = 0.0

    def run(self, step: Step) -> Real:
        return numpy.float32(self.value)  # type: ignore[return-value]


def test_a_number_that_a_node_of_the_region_computes(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    text, step = (ConditioningEntry(Prompt(clip, "a")),), Link("begin", 0)
    image = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(1))
    common = {
        "control_net": controlnet_recipe(sd1.controls[0]),
        "step": step,
        "conditioning": text,
        "image": image,
    }
    types = {"Number": Number.describe()}

    def painted(engine: DeviceEngine, strength: Any) -> Tensor:
        latent = {"samples": torch.zeros(1, 4, 8, 8)}
        nodes = {
            "begin": NodeCall("StepBegin", {"model": model, "latent_image": latent, "steps": 2})
        }
        nodes["number"] = NodeCall("Number", {"step": step, "value": 0.5})
        nodes["control"] = NodeCall("ControlNet", {**common, "strength": strength})
        prediction = unet(nodes, "x", model, text, step)
        nodes["x.decoder"].inputs["residuals_1"] = Link("control", 0)  # type: ignore[index]
        nodes["end"] = NodeCall("StepEnd", {"step": step, "prediction": prediction})
        graph = Graph(nodes)
        drawn = bind_region(graph, {**builtin_types(), **types}, region_nodes(graph, "end"), {})
        return sample(engine, drawn, bare_context(engine, **types))

    for engine in engines:
        expected = painted(engine, 0.5)
        assert torch.equal(painted(engine, Link("number", 0)), expected)
        assert torch.equal(painted(engine, numpy.float32(0.5)), expected)


class Half(Node, category="test"):
    """Returns a mask in a step region."""

    def run(self, step: Step) -> Mask:
        mask = torch.zeros(1, 32, 64)
        mask[..., :32] = 1.0
        return mask


def test_a_mask_and_a_strength_that_nodes_of_the_region_make(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    step = Link("begin", 0)
    types = {"Number": Number.describe(), "Half": Half.describe()}

    def painted(engine: DeviceEngine, **weight: Any) -> Tensor:
        latent = {"samples": torch.zeros(2, 4, 8, 16)}
        nodes = {
            "begin": NodeCall("StepBegin", {"model": model, "latent_image": latent, "steps": 2}),
            "number": NodeCall("Number", {"step": step, "value": 0.3}),
            "half": NodeCall("Half", {"step": step}),
        }
        parts = [
            unet(nodes, name, model, (ConditioningEntry(Prompt(clip, name)),), step)
            for name in ("a", "b")
        ]
        nodes["x"] = NodeCall("WeighPrediction", {"step": step, "prediction": parts[0], **weight})
        nodes["y"] = NodeCall("WeighPrediction", {"step": step, "prediction": parts[1]})
        weighted = {"weighted_1": Link("x", 0), "weighted_2": Link("y", 0)}
        nodes["blend"] = NodeCall("BlendPredictions", {"step": step, **weighted})
        nodes["end"] = NodeCall("StepEnd", {"step": step, "prediction": Link("blend", 0)})
        graph = Graph(nodes)
        drawn = bind_region(graph, {**builtin_types(), **types}, region_nodes(graph, "end"), {})
        return sample(engine, drawn, bare_context(engine, **types))

    mask = Half().run(None)  # type: ignore[arg-type]
    for engine in engines:
        expected = painted(engine, mask=mask, strength=0.3)
        assert torch.equal(
            painted(engine, mask=Link("half", 0), strength=Link("number", 0)), expected
        )
        assert not torch.equal(painted(engine, mask=mask, strength=0.6), expected)
        assert not torch.equal(painted(engine, strength=0.3), expected)
