"""The picture does not depend on placement: final latents of any placement on several workers equal
those of one device bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.base import Launcher
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.launch.spawn import Spawn
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.stage_registry import stages
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region
from katz_graph.testing.worker_threads import WorkerThreads

COSTED = frozenset(name for name, one in stages().items() if one.costed)
WINDOWS = ((0.8, 0.0, 1.0), (1.0, 0.0, 0.55), (0.5, 0.25, 1.0))
LINK = NetworkLink(1e9, 1e-4)


@pytest.fixture(scope="module")
def models(sdxl: Models) -> Models:
    torch.set_num_threads(1)
    return sdxl


def cases(models: Models) -> list[Region]:
    """Returns regions with 0 to 3 ControlNets, each with guidance on and off, alternating Euler and
    Heun; the last ones with a LoRA.
    """
    regions = []
    for number in range(4):
        controls = tuple(ControlCase(models.controls[i], *WINDOWS[i]) for i in range(number))
        samplers = ("euler", "heun") if number % 2 == 0 else ("heun", "euler")
        for guidance, sampler in zip((1.0, 5.0), samplers, strict=True):
            loras = ((models.loras[0], 0.7),) if number == 3 else ()
            name = f"{number} ControlNets, guidance {guidance}, {sampler}"
            case = Case(
                name,
                models.pipeline,
                sampler,
                3,
                guidance=guidance,
                controls=controls,
                loras=loras,
            )
            regions.append(sampler_region(case))
    return regions


@pytest.fixture(scope="module")
def expected(models: Models, costs: Path) -> list[Tensor]:
    with local_engine(batching=False, cache=costs) as engine:
        return [sample(engine, region) for region in cases(models)]


def engine_of(number: int, launcher: Launcher, costs: Path) -> DeviceEngine:
    assignments = [WorkerConfig(f"cpu:{index}") for index in range(number)]
    return DeviceEngine(
        assignments, cache=costs, link=LINK, launchers={one.name: launcher for one in assignments}
    )


@pytest.fixture(scope="module", params=[1, 4])
def threads(request: pytest.FixtureRequest, costs: Path) -> Iterator[DeviceEngine]:
    """Yields an engine with one or four workers. A test below covers two processes."""
    with engine_of(request.param, WorkerThreads(), costs) as engine:
        yield engine


def scattered(engine: DeviceEngine, region: Region, seed: int) -> Program:
    """Plans a program with every stage of every branch on a random device."""
    draw = random.Random(seed)
    names = [device.name for device in engine.cluster.devices]
    pins = {
        operation.id: (draw.choice(names),)
        for operation in region.operations
        if operation.stage in COSTED
    }
    target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
    return plan_region(region, target, engine.counts)


def made(engine: DeviceEngine, program: Program) -> Tensor:
    return engine.cluster.run(program, bare_context(engine)).samples


def test_placements_by_chance_give_the_same_bits(
    threads: DeviceEngine, models: Models, expected: list[Tensor]
) -> None:
    for number, (region, latent) in enumerate(zip(cases(models), expected, strict=True)):
        program = scattered(threads, region, number)
        assert torch.equal(made(threads, program), latent), program.placement


def test_the_planner_s_own_choice_gives_the_same_picture(
    threads: DeviceEngine, models: Models, expected: list[Tensor]
) -> None:
    for region, latent in list(zip(cases(models), expected, strict=True))[::2]:
        # equal stages may share a call, which changes float rounding
        assert difference(made(threads, threads.plan(region)), latent) <= 1e-5


def test_worker_processes_give_the_same_bits(
    models: Models, expected: list[Tensor], costs: Path, fork_server: ForkServer
) -> None:
    with engine_of(2, Spawn(fork_server), costs) as engine:
        for region, latent in list(zip(cases(models), expected, strict=True))[::3]:
            assert torch.equal(made(engine, scattered(engine, region, 100)), latent)
