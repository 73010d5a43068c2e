"""A worker process whose address space is limited: what does not fit is done in parts, or fails alone and says so; the worker goes on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from katz_graph.bench.parity import Models, random_models
from katz_graph.bench.parity_reference import Case
from katz_graph.bench.requests import bare_context, sample, sampler_region
from katz_graph.errors import OutOfMemory
from katz_graph.executor.assignment import Assignment
from katz_graph.executor.cluster_engine import ClusterEngine
from katz_graph.models.sources import pipeline_recipes

ROOM = 300_000_000  # bytes besides what the worker takes with its models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    torch.set_num_threads(1)
    return random_models(tmp_path_factory.mktemp("sd1"), "sd1")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ClusterEngine]:
    with ClusterEngine([Assignment("cpu:0")], cache=tmp_path) as engine:
        yield engine


def painted(engine: ClusterEngine, models: Models) -> tuple[Tensor, Tensor]:
    latent = sample(engine, sampler_region(Case("x", models.pipeline, False, "euler", 3)))
    return latent, engine.decode_latent(pipeline_recipes(models.pipeline)[2], latent, bare_context(engine))


def limit(pid: int, room: int) -> None:
    taken = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (taken + room, taken + room))


def test_a_limited_worker_does_what_it_can_and_survives_the_rest(engine: ClusterEngine, models: Models) -> None:
    fresh = painted(engine, models)
    (pid,) = engine.cluster.pids().values()
    assert pid is not None
    limit(pid, ROOM)
    context = bare_context(engine)
    large = torch.randn(1, 4, 160, 160, generator=torch.Generator().manual_seed(0))  # 1280 x 1280 pixels, 0.4 GB at once
    picture = engine.decode_latent(pipeline_recipes(models.pipeline)[2], large, context)
    assert picture.shape == (1, 1280, 1280, 3) and picture.isfinite().all()
    assert context.warnings == ["vae decode: the whole picture does not fit into memory, so it was done in tiles"]
    crowd = Case("x", models.pipeline, False, "euler", 3, latent=torch.zeros(32, 4, 256, 256))
    with pytest.raises(OutOfMemory, match=r"sampler .* \(32 x 4 x 256 x 256\).*: out of memory.* of cpu are free.*smaller picture"):
        sample(engine, sampler_region(crowd))
    with pytest.raises(OutOfMemory, match="VAE decode of 1 x 4096 x 4096 pixels: needs"):
        engine.decode_latent(pipeline_recipes(models.pipeline)[2], torch.zeros(1, 4, 512, 512), bare_context(engine))
    again = painted(engine, models)
    assert all(torch.equal(one, other) for one, other in zip(again, fresh, strict=True))
    assert list(engine.cluster.pids().values()) == [pid]
