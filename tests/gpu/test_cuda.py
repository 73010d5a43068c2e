"""A GPU gives the CPU's pictures, with one worker or several. Skipped without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_same_picture import cases, scattered

from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.testing.model_files import Models, difference, random_models
from katz_graph.testing.requests import bare_context, local_engine, sample

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return random_models(tmp_path_factory.mktemp("sdxl"), "sdxl")


def test_a_gpu_gives_the_picture_of_the_cpu_within_its_arithmetic(models: Models) -> None:
    region = cases(models)[-1]
    with local_engine(batching=False) as cpu, local_engine("cuda:0", batching=False) as gpu:
        # TF32 and other orders of summation, over a few steps
        assert difference(sample(gpu, region), sample(cpu, region)) <= 1e-2


def test_two_workers_on_one_gpu_give_the_bits_of_one_device(models: Models, tmp_path: Path) -> None:
    assignments = [WorkerConfig(f"cuda:0#{number}", "cuda:0") for number in range(2)]
    with (
        local_engine("cuda:0", batching=False) as one,
        DeviceEngine(assignments, cache=tmp_path) as two,
    ):
        assert two.cluster.transport(*(one.name for one in assignments)) == "CUDA IPC"
        # faster than any copy through the host
        assert min(link.bytes_per_second for link in two.cluster.links.values()) > 1e11
        for number, region in enumerate(cases(models)[::5]):
            made = two.cluster.run(scattered(two, region, number), bare_context(two)).samples
            assert torch.equal(made, sample(one, region))
