"""Stages as recorded calls: what is replayed without any Python, over poisoned storages, paints the
same bytes.

And stages of two requests as one call, which the same convention makes possible.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy
import pytest
import torch
from hand_drawn import unet
from torch import Tensor, nn

from katz_graph.bench.parity import Models, cases
from katz_graph.bench.parity_reference import Case, ControlCase
from katz_graph.bench.random_models import make_pipeline
from katz_graph.bench.requests import bare_context, bind, local_engine, sample, sampler_region
from katz_graph.bench.worker_threads import WorkerThreads
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.recorded.call import Recorder, form_of
from katz_graph.executor.recorded.tape import NotRecordable, Tape
from katz_graph.executor.worker.batching import merge, split, tensors_of
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.models import computed
from katz_graph.graph import Graph, Link, NodeCall
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.region import Region
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.models.stages import Outputs, Stage, stages
from katz_graph.node import Node
from katz_graph.packs import builtin_types
from katz_graph.patches import FreeU
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.region import bind_region, region_nodes
from katz_graph.recipe import (
    Area,
    ClipRecipe,
    Concatenated,
    ConditioningEntry,
    Lora,
    ModelRecipe,
    Picture,
    Prompt,
)
from katz_graph.sampling.names import SAMPLER_NAMES
from katz_graph.wires import Mask, Socket, Step

Real = Annotated[float, Socket("FLOAT")]

BOUND = 1e-5  # of the range: float rounding, the bound of the fidelity rules
OUTSIDE = torch.ones(3)
Called = tuple[Stage, Any, Mapping[str, Any], Outputs]


@pytest.fixture(params=[False, True], ids=["apart", "batched"])
def engines(
    request: pytest.FixtureRequest, costs: Path
) -> Iterator[tuple[DeviceEngine, DeviceEngine]]:
    """One that computes call by call, and one that records strictly."""
    batching = request.param
    with (
        local_engine(batching=batching, cache=costs) as plain,
        local_engine(batching=batching, cache=costs) as recorded,
    ):
        recorded.models.compute = Recorder(strict=True)
        yield plain, recorded


def recorder(engine: DeviceEngine) -> Recorder:
    assert isinstance(engine.models.compute, Recorder)
    return engine.models.compute


def same(engines: tuple[DeviceEngine, DeviceEngine], region: Region) -> bool:
    plain, recorded = engines
    return torch.equal(sample(recorded, region), sample(plain, region))


def case(models: Models, **changes: Any) -> Case:
    return replace(Case("test", models.pipeline, models.xl, "euler", 3), **changes)


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_replayed_calls_paint_the_same_bytes(
    family: str, request: pytest.FixtureRequest, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    """Every eleventh case of the parity bench: ControlNets with windows, LoRAs, pictures, masks,
    batches, LoRAs switched between.
    """
    for one in list(cases(request.getfixturevalue(family)))[::11]:
        assert same(engines, sampler_region(one)), one.name
    assert recorder(engines[1]).replays > 2 * recorder(engines[1]).captures


@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
def test_every_sampler_is_replayed(sampler: str, sd1: Models, costs: Path) -> None:
    with (
        local_engine(batching=True, cache=costs) as plain,
        local_engine(batching=True, cache=costs) as recorded,
    ):
        recorded.models.compute = Recorder(strict=True)
        assert same((plain, recorded), sampler_region(case(sd1, sampler=sampler)))


def test_loras_strengths_prompts_and_seeds_record_nothing_anew(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    controls = (ControlCase(sd1.controls[0], 0.8, 0.0, 1.0),)
    assert same(engines, sampler_region(case(sd1, controls=controls)))
    captures = recorder(engines[1]).captures
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
    assert recorder(engines[1]).captures == captures


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


def test_what_an_inpainting_model_sees_beside_the_latent(
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


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda given: given["x"] * float(given["x"].sum()), "waits for the device"),
        (
            lambda given: given["x"] if bool(given["x"].sum() > 0) else -given["x"],
            "waits for the device",
        ),
        (
            lambda given: given["x"] * torch.tensor([1.0, 2.0, 3.0]),
            "makes a tensor of Python values",
        ),
        (lambda given: given["x"] + OUTSIDE, "neither an input, nor a weight"),
    ],
)
def test_what_no_graph_could_hold_is_refused(call: Callable[[Any], Tensor], reason: str) -> None:
    with torch.no_grad(), pytest.raises(NotRecordable, match=reason):
        Tape(call, {"x": torch.ones(3)}, Scale())


def test_a_value_of_an_earlier_replay_is_seen() -> None:
    """A call that writes only a part of what it gives: eagerly the rest is by chance what it was."""
    kept = []

    def call(given: Mapping[str, Tensor]) -> Tensor:
        made = torch.empty_like(given["x"])
        made[0] = given["x"][0]
        kept.append(made)
        return made

    with torch.no_grad():
        tape = Tape(call, {"x": torch.ones(3)}, Scale(), strict=True)
        assert torch.isnan(tape.replay({"x": torch.ones(3)})[1:]).all()


def test_rows_of_two_requests_share_a_call(sd1: Models, sdxl: Models, costs: Path) -> None:
    """Every stage of a request merged with the same stage of another one, whose noise level,
    timestep, prompt, strength, guidance, sampler and seed are others, gives each what it gets
    alone.
    """
    for models in (sd1, sdxl):
        controls = (ControlCase(models.controls[0], 0.9, 0.0, 1.0),)
        first = calls_of(case(models, controls=controls), costs)
        second = calls_of(
            case(
                models,
                controls=(ControlCase(models.controls[0], 0.4, 0.0, 1.0),),
                seed=9,
                prompt="something else",
                sampler="dpmpp_2m",
                steps=5,
                guidance=2.0,
            ),
            costs,
        )
        shared = set()
        for stage, module, given, outputs in first:
            other = next(
                (one for one in reversed(second) if alike(one, (stage, module, given, outputs))),
                None,
            )
            if other is None or not stage.recorded:
                continue
            together = split(stage.computed(module, merge([given, other[2]])), 2)
            for alone, part in zip((outputs, other[3]), together, strict=True):
                for expected, found in zip(tensors_of(alone), tensors_of(part), strict=True):
                    scale = float(expected.max() - expected.min()) or 1.0
                    assert float((expected - found).abs().max()) <= BOUND * scale, stage.name
            shared.add(stage.name)
        assert shared == {
            name for name, stage in stages().items() if stage.recorded and stage.module
        }


def alike(one: Called, other: Called) -> bool:
    """Whether two calls may be one, on the module of either."""
    return (
        one[0] is other[0]
        and type(one[1]) is type(other[1])
        and form_of(one[2]) == form_of(other[2])
    )


def calls_of(wanted: Case, costs: Path) -> list[Called]:
    """What the stages of a request are given, and what they give."""
    found: list[Called] = []

    def noted(stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        outputs = computed(stage, module, given)
        found.append((stage, module, given, outputs))
        return outputs

    with local_engine(batching=False, cache=costs) as engine, torch.no_grad():
        engine.models.compute = noted
        sample(engine, sampler_region(wanted))
    return found


def test_branches_with_other_loras_on_one_unet_are_patched_in_turn(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine], tmp_path: Path, costs: Path
) -> None:
    """The weights of the negative side from a copy of the folder, whose UNet is another one, give
    the same bytes.
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
    """Guidance whose sides have a model each."""
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
    """A ControlNet whose strength changes from step to step, as two ControlNets between which a
    switch chooses.
    """
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
    """Gives a number from inside of a region, as nodes of packs may compute one in each step."""

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
    """Gives a mask from inside of a region."""

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
