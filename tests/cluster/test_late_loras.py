"""LoRAs arrive during sampling. Every device changes its weights at the same evaluation: the
picture is made without them until then, and with them from then on.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copy

import pytest
import torch
from lora_shelf import Shelf, when
from torch import Tensor

from katz_graph.core.errors import Cancelled, InputError
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.models.stage_registry import stages
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import (
    bare_context,
    local_engine,
    region_of,
    sample,
    sampler_region,
)
from katz_graph.testing.worker_threads import WorkerThreads

COSTED = [name for name, one in stages().items() if one.costed]
LINK = NetworkLink(1e9, 1e-4)
STEPS = 4
STRENGTHS = (0.7, -0.4)


@pytest.fixture
def models(sd1: Models, tmp_path: Path) -> Models:
    """Returns models with new LoRA files that no engine has read."""
    return replace(sd1, loras=tuple(Path(copy(path, tmp_path)) for path in sd1.loras))


@pytest.fixture(scope="module")
def alone(costs: Path) -> Iterator[DeviceEngine]:
    """Yields the engine that computes the expected pictures."""
    torch.set_num_threads(1)
    with local_engine(batching=False, cache=costs) as engine:
        yield engine


@pytest.fixture(scope="module")
def without(alone: DeviceEngine, sd1: Models) -> Tensor:
    """Returns the picture without any LoRA."""
    return by_parts(alone, sd1, [(STEPS, [])])


@pytest.fixture(scope="module", params=[1, 3])
def engine(request: pytest.FixtureRequest, costs: Path) -> Iterator[DeviceEngine]:
    configs = [WorkerConfig(f"cpu:{index}") for index in range(request.param)]
    launchers = {one.name: WorkerThreads() for one in configs}
    with DeviceEngine(configs, cache=costs, link=LINK, launchers=launchers) as engine:
        yield engine


def case_of(models: Models, loras: int, sampler: str = "euler", **changes: object) -> Case:
    return Case(
        "late",
        models.pipeline,
        sampler,
        STEPS,
        controls=(ControlCase(models.controls[0], 0.8, 0.0, 1.0),),
        loras=tuple(zip(models.loras[:loras], STRENGTHS, strict=False)),
        **changes,  # type: ignore[arg-type]
    )


def scattered(engine: DeviceEngine, case: Case, allowed: str, seed: int = 0) -> Program:
    """Plans a program with every kind of stage on a random device."""
    draw, devices = random.Random(seed), engine.cluster.devices
    pins = {stage: (draw.choice(devices).name,) for stage in COSTED}
    return plan_region(
        sampler_region(case),
        Target(devices, engine.cluster.links, pins, frozenset({allowed}), batching=False),
        engine.counts,
    )


def by_parts(
    engine: DeviceEngine,
    models: Models,
    parts: Sequence[tuple[int, Sequence[tuple[Path, float]]]],
) -> Tensor:
    """Samples with Euler in parts, each with an `end_at_step` and LoRAs."""
    latent, first = torch.zeros(1, 4, 8, 8), 0
    for last, loras in parts:
        case = replace(case_of(models, 0), loras=tuple(loras), latent=latent)
        region = region_of(
            "StepBegin",
            {
                "sampler_name": "euler",
                "scheduler": "normal",
                "steps": STEPS,
                "seed": case.seed,
                "add_noise": first == 0,
                "start_at_step": first,
                "end_at_step": last,
                "return_with_leftover_noise": last < STEPS,
            },
            case,
        )
        latent, first = sample(engine, region), last
    return latent


@pytest.mark.parametrize("arrives", [1, 2])
def test_the_lora_acts_from_its_first_evaluation_on(
    models: Models,
    engine: DeviceEngine,
    alone: DeviceEngine,
    without: Tensor,
    shelf: Shelf,
    arrives: int,
) -> None:
    case = case_of(models, 1)
    path = models.loras[0]
    program = scattered(engine, case, f"async-lora={arrives}", seed=arrives)
    gate = shelf.hold(path)
    outcome = engine.cluster.run(program, when(bare_context(engine), arrives, gate.set))
    assert outcome.timings[program.sampler_device].arrivals == {str(path): arrives}
    expected = by_parts(alone, models, [(arrives, []), (STEPS, case.loras)])
    assert difference(outcome.samples, expected) <= 1e-5
    assert 1e-3 < difference(outcome.samples, without) < torch.inf  # the LoRA changed the picture


def test_two_arrive_each_in_its_time(
    models: Models, engine: DeviceEngine, alone: DeviceEngine, shelf: Shelf
) -> None:
    case = case_of(models, 2)
    program = scattered(engine, case, "async-lora=3", seed=5)
    first, second = (shelf.hold(path) for path in models.loras[:2])
    second.set()
    outcome = engine.cluster.run(program, when(bare_context(engine), 3, first.set))
    arrivals = outcome.timings[program.sampler_device].arrivals
    early, late = arrivals[str(models.loras[1])], arrivals[str(models.loras[0])]
    assert early < late == 3
    expected = by_parts(
        alone, models, [(early, []), (late, case.loras[1:]), (STEPS, case.loras)][early == 0 :]
    )
    assert difference(outcome.samples, expected) <= 1e-5


@pytest.mark.parametrize("sampler", ["dpmpp_2m", "heun"])
def test_loras_that_arrive_in_time_change_nothing(
    models: Models, engine: DeviceEngine, alone: DeviceEngine, shelf: Shelf, sampler: str
) -> None:
    """In the second run the LoRA is cached and loaded before the first step."""
    case = case_of(models, 2, sampler)
    expected = sample(alone, sampler_region(case))
    strict = scattered(engine, case, "async-lora=0", seed=7)
    assert strict.deferred_loras is None
    assert torch.equal(engine.cluster.run(strict, bare_context(engine)).samples, expected)
    program = scattered(engine, case, "async-lora=3", seed=7)
    outcome = engine.cluster.run(program, bare_context(engine))
    assert set(outcome.timings[program.sampler_device].arrivals.values()) == {0}
    assert torch.equal(outcome.samples, expected)


def test_a_run_never_ends_without_a_lora(
    models: Models, engine: DeviceEngine, shelf: Shelf
) -> None:
    program = scattered(engine, case_of(models, 1), "async-lora=1000")
    gate = shelf.hold(models.loras[0])
    outcome = engine.cluster.run(program, when(bare_context(engine), STEPS - 1, gate.set))
    assert outcome.timings[program.sampler_device].arrivals == {str(models.loras[0]): STEPS - 1}


@pytest.mark.parametrize("allowed", ["async-lora=3", "async-lora=0"])
def test_a_lora_that_fails_fails_its_request_alone(
    models: Models, engine: DeviceEngine, without: Tensor, shelf: Shelf, allowed: str
) -> None:
    broken, good = case_of(models, 1), case_of(models, 0)
    path = models.loras[0]
    gate = shelf.hold(path)
    shelf.failures[str(path)] = InputError(f"{path}: has no tensors")
    program = scattered(engine, broken, allowed)
    threading.Timer(0.3, gate.set).start()
    with pytest.raises(InputError, match="has no tensors"):
        engine.cluster.run(program, bare_context(engine))
    after = engine.cluster.run(scattered(engine, good, allowed), bare_context(engine))
    assert difference(after.samples, without) <= 1e-5


def test_cancelling_does_not_wait_for_a_lora(
    models: Models, engine: DeviceEngine, without: Tensor, shelf: Shelf
) -> None:
    program = scattered(engine, case_of(models, 1), "async-lora=2")
    shelf.hold(models.loras[0])
    context = when(bare_context(engine), 2, lambda: context.cancel())
    with pytest.raises(Cancelled):
        engine.cluster.run(program, context)
    after = engine.cluster.run(
        scattered(engine, case_of(models, 0), "async-lora=2"), bare_context(engine)
    )
    assert difference(after.samples, without) <= 1e-5
