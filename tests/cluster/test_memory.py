"""Workers have little memory: requests wait for each other; work that does not fit runs in parts,
or fails alone with a clear error.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from katz_graph.core.errors import OutOfMemory
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.launch.spawn import Spawn
from katz_graph.executor.planning import Choices
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import bare_context, sample, sampler_region
from katz_graph.testing.worker_threads import WorkerThreads

ROOM = 300_000_000  # bytes in addition to the worker's use with its models


@pytest.fixture(scope="module")
def models(sd1: Models) -> Models:
    torch.set_num_threads(1)
    return sd1


@pytest.fixture
def engine(costs: Path, fork_server: ForkServer) -> Iterator[DeviceEngine]:
    launchers = {"cpu:0": Spawn(fork_server)}
    with DeviceEngine([WorkerConfig("cpu:0")], cache=costs, launchers=launchers) as engine:
        yield engine


def test_requests_on_two_workers_keep_nothing_while_they_wait(
    models: Models, tmp_path: Path, costs: Path
) -> None:
    """One worker has two UNets, the other has two ControlNets. No request holds a model while it
    waits for another.
    """
    make_pipeline(tmp_path / "other", "sd1", seed=5, layers=1)
    pairs = [
        (pipeline, control)
        for pipeline in (models.pipeline, tmp_path / "other")
        for control in models.controls[:2]
    ]
    regions = [
        sampler_region(
            Case(
                "x",
                pipeline,
                "euler",
                3,
                guidance=1.0,
                controls=(ControlCase(control, 0.8, 0.0, 1.0),),
            )
        )
        for pipeline, control in pairs
    ]
    model, clip, _ = pipeline_recipes(models.pipeline)
    control = controlnet_recipe(models.controls[0]).control_net
    rooms = {"cpu:0": (model.network, clip.encoders[0].encoder), "cpu:1": (control,)}
    assignments = [
        WorkerConfig(name, model_bytes=4 * sum(map(count_values, parts)) + 1000)
        for name, parts in rooms.items()
    ]
    pins = {
        **dict.fromkeys(("text_encoder", "unet_encoder", "unet_mid", "unet_decoder"), ("cpu:0",)),
        "controlnet": ("cpu:1",),
    }
    launchers = dict.fromkeys(rooms, WorkerThreads())
    with DeviceEngine(
        assignments,
        Choices(pins, batching=False),
        costs,
        NetworkLink(1e10, 1e-5),
        launchers=launchers,
    ) as engine:
        one_by_one = [sample(engine, region) for region in regions]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda region: sample(engine, region), regions))
        assert engine.cluster.call("cpu:0", "model_use").value.evictions >= 3
    assert all(torch.equal(one, other) for one, other in zip(together, one_by_one, strict=True))


def painted(engine: DeviceEngine, models: Models) -> tuple[Tensor, Tensor]:
    latent = sample(engine, sampler_region(Case("x", models.pipeline, "euler", 3)))
    return latent, engine.decode_latent(
        pipeline_recipes(models.pipeline)[2], latent, bare_context(engine)
    )


def limit(pid: int, room: int) -> None:
    taken = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (taken + room, taken + room))


def test_a_limited_worker_does_its_best_and_survives_the_rest(
    engine: DeviceEngine, models: Models
) -> None:
    fresh = painted(engine, models)
    (pid,) = engine.cluster.pids().values()
    assert pid is not None
    limit(pid, ROOM)
    context = bare_context(engine)
    # 1280 x 1280 pixels, 0.4 GB if decoded in one piece
    large = torch.randn(1, 4, 160, 160, generator=torch.Generator().manual_seed(0))
    picture = engine.decode_latent(pipeline_recipes(models.pipeline)[2], large, context)
    assert picture.shape == (1, 1280, 1280, 3) and picture.isfinite().all()
    assert context.warnings == [
        "vae decode: the whole picture does not fit into memory, so it was processed in tiles"
    ]
    crowd = Case("x", models.pipeline, "euler", 3, latent=torch.zeros(32, 4, 256, 256))
    with pytest.raises(
        OutOfMemory,
        match=r"sampler .* \(32 x 4 x 256 x 256\).*: out of memory.* of cpu are "
        r"free.*smaller picture",
    ):
        sample(engine, sampler_region(crowd))
    with pytest.raises(OutOfMemory, match="VAE decode of 1 x 4096 x 4096 pixels: needs"):
        engine.decode_latent(
            pipeline_recipes(models.pipeline)[2], torch.zeros(1, 4, 512, 512), bare_context(engine)
        )
    again = painted(engine, models)
    assert all(torch.equal(one, other) for one, other in zip(again, fresh, strict=True))
    assert list(engine.cluster.pids().values()) == [pid]
