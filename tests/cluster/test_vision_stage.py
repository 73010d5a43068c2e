"""A vision tower is a stage before the text encoder: planned, counted, placed on another device, and
computed once for equal pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from katz_graph.core.recipe import ConditioningEntry, Picture, Prompt
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import Choices, plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.planner.changes import parse_places
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.report.text import as_text
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import bind, local_engine, sample
from katz_graph.testing.worker_threads import WorkerThreads

PICTURES = tuple(Picture.of(torch.rand(1, 56, side, 3)) for side in (84, 112))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline whose text encoder sees pictures."""
    folder = tmp_path_factory.mktemp("seeing")
    make_pipeline(folder, "qwen_image", 1, blocks=1)
    return folder


def region(pipeline: Path, positive: Sequence[Picture], negative: Sequence[Picture]) -> Region:
    model, clip, _ = pipeline_recipes(pipeline)
    sides = [
        (ConditioningEntry(Prompt(clip, text, pictures=tuple(seen))),)
        for text, seen in (("a cube", positive), ("sand", negative))
    ]
    latent = {"samples": torch.zeros(1, 16, 8, 8)}
    inputs = {"model": model, "latent_image": latent, "steps": 2}
    drawn = expand_sampling("StepBegin", inputs, model, *sides, 3.0)
    return bind(drawn.graph, drawn.outputs[0].node)


def made_by(program: Program, stage: str) -> list[str]:
    return [one.device for one in program.before_calls if one.stage == stage]


def test_a_picture_of_both_sides_is_seen_once_and_counted(pipeline: Path) -> None:
    program, blind = (
        plan_region(region(pipeline, *sides), Target((Device("cpu", 1e10, 1e10),)))
        for sides in ((PICTURES, PICTURES[:1]), ((), ()))
    )
    assert len(made_by(program, "vision_encoder")) == len(made_by(program, "text_encoder")) == 2
    assert not made_by(blind, "vision_encoder")
    one = next(call for call in program.before_calls if call.stage == "vision_encoder")
    # counted as 4 x 4 merged patches: 64 of 1176 values, two blocks of width 32, the second without
    # windows of 16, and 16 rows of four patches to 128 and to 96
    products = 64 * 1176 * 32 + 2 * 64 * (4 * 32 * 32 + 3 * 32 * 48) + 16 * 128 * (128 + 96)
    attention = 2 * 64 * 16 * 32 + 2 * 64 * 64 * 32
    assert program.work[one.operations[0]].flops == 2 * (products + attention)
    assert program.prediction and blind.prediction
    assert program.prediction.planned > blind.prediction.planned + one.seconds
    assert "2 vision encoder, 2 text encoder" in as_text(program)


def test_a_vision_tower_is_placed_by_name_with_the_same_bits(pipeline: Path, costs: Path) -> None:
    asked = region(pipeline, PICTURES, PICTURES[:1])
    with local_engine(cache=costs) as engine:
        expected = sample(engine, asked)
        assert not torch.equal(expected, sample(engine, region(pipeline, PICTURES[1:], ())))
    workers = [WorkerConfig("cpu:0"), WorkerConfig("cpu:1")]
    places = ["vision_encoder=cpu:1", "text_encoder=cpu:0"]
    choices = Choices({**parse_places(places, ["cpu:0", "cpu:1"])})
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, choices, cache=costs, link=link, launchers=launchers) as cluster:
        program = cluster.plan(asked)
        assert made_by(program, "vision_encoder") == ["cpu:1"] * 2
        assert made_by(program, "text_encoder") == ["cpu:0"] * 2
        assert torch.equal(sample(cluster, asked), expected)
