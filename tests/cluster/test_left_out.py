"""A server omits devices that earlier runners lost. The others serve; requests for a lost device
get an error that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from katz_graph.core.devices import check_present, parse_devices
from katz_graph.core.errors import InputError, RunError
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.planning import Choices
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, sample, sampler_region
from katz_graph.testing.worker_threads import WorkerThreads
from katz_graph.web.options import RunnerStart, ServeOptions
from katz_graph.web.runner_client.process import RunnerProcess

PINS = {"controlnet": ("cuda:7",), "vae_decode": ("cuda:7",), "vae_encode": ("cuda:7", "cpu:0")}


@pytest.fixture(scope="module")
def models(sd1: Models) -> Models:
    torch.set_num_threads(1)
    return sd1


@pytest.fixture
def engine(costs: Path) -> Iterator[DeviceEngine]:
    choices = Choices(PINS, lost=frozenset({"cuda:7"}))
    with DeviceEngine(
        [WorkerConfig("cpu:0")], choices, costs, launchers={"cpu:0": WorkerThreads()}
    ) as engine:
        yield engine


def test_stages_without_a_device_are_refused_in_one_line_and_the_rest_runs(
    engine: DeviceEngine, models: Models
) -> None:
    why = (
        r"^{} may only run on cuda:7 \(--place\), which failed and is left out; restart "
        r"the server to use it again$"
    )
    plain = Case("plain", models.pipeline, "euler", 2)
    latent = sample(engine, sampler_region(plain))
    controlled = Case(
        "controlled",
        models.pipeline,
        "euler",
        2,
        controls=(ControlCase(models.controls[0], 0.8, 0.0, 1.0),),
    )
    with pytest.raises(RunError, match=why.format("controlnet")):
        sample(engine, sampler_region(controlled))
    _, _, vae = pipeline_recipes(models.pipeline)
    with pytest.raises(RunError, match=why.format("vae_decode")):
        engine.decode_latent(vae, latent, bare_context(engine))
    assert (
        engine.encode_image(vae, torch.zeros(1, 64, 64, 3), bare_context(engine)).shape
        == latent.shape
    )


def test_devices_that_are_absent_are_all_named() -> None:
    with pytest.raises(InputError) as error:
        check_present(parse_devices("cpu:0,cuda:77,cuda:78*2"))
    assert error.value.devices == ("cuda:77", "cuda:78#0", "cuda:78#1")


def test_a_runner_serves_remaining_devices_and_names_lost_ones(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    options = ServeOptions(
        data=tmp_path / "data",
        output=tmp_path / "output",
        devices="cpu:0,cuda:78",
        place=("controlnet=cuda:78",),
        spare=False,
    )

    async def start() -> None:
        child = await RunnerProcess.spawn(lambda message: None, workers=fork_server.begin())
        child.begin(RunnerStart(options, ("cuda:78",)))
        facts = await child.ready
        await child.close()
        assert [device.name for device in facts.devices] == ["cpu:0"]
        assert (facts.excluded, facts.unplaceable) == (("cuda:78",), ("controlnet",))

    asyncio.run(start())
