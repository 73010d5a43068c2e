"""A sampler's previews are rare, sent only on request, and similar to the final picture. They do
not change it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d

from katz_graph.comfy.running import ProgressBar
from katz_graph.core.events import Event, Previewed, Progress
from katz_graph.core.latent_space import LatentSpace, LinearMap
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.files.folders import MINI, Folders
from katz_graph.files.images import preview_as_jpeg
from katz_graph.ir.region import Region
from katz_graph.mini.evaluate import held_out_scenes
from katz_graph.mini.world import caption
from katz_graph.models.family import linear_map
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.node.scope import running
from katz_graph.picture.preview import latent_picture
from katz_graph.sampling.diffusers_process import DiffusersProcess
from katz_graph.sampling.spec import DiffusersSpec
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, local_engine, sampler_region
from katz_graph.testing.worker_threads import WorkerThreads

CAPTIONS = [caption(scene) for scene in held_out_scenes(3, 1, 1)]


@pytest.fixture(scope="module")
def engine(costs: Path) -> Iterator[DeviceEngine]:
    with local_engine(cache=costs) as opened:
        yield opened


class Watched(RunContext):
    """Records previews. Each query of its clock adds `tick` seconds."""

    def __init__(
        self, engine: DeviceEngine | None, tick: float = 1.0, previews: bool = True
    ) -> None:
        self.seen: list[Tensor] = []
        self.now = 0.0
        self.tick = tick
        super().__init__(
            engine, Folders(), Path(), listener=self.keep, previews=previews, clock=self.time
        )  # type: ignore[arg-type]

    def keep(self, event: Event) -> None:
        if isinstance(event, Previewed):
            self.seen.append(event.picture)

    def time(self) -> float:
        self.now += self.tick
        return self.now


def mini(prompt: str = CAPTIONS[0], **changes: Any) -> Region:
    case = Case(
        "mini",
        MINI / "pipeline",
        "euler",
        20,
        guidance=4.0,
        latent=torch.zeros(1, 4, 16, 16),
        prompt=prompt,
        negative="",
    )
    return sampler_region(replace(case, **changes))


def correlation(one: Tensor, other: Tensor) -> float:
    return float(
        torch.corrcoef(torch.stack([one.flatten().double(), other.flatten().double()]))[0, 1]
    )


@pytest.mark.parametrize("prompt", CAPTIONS)
def test_the_last_preview_is_like_the_picture(engine: DeviceEngine, prompt: str) -> None:
    """The bound of 0.8 allows for one linear map to colours. Measured: at least 0.88; after the
    first evaluation, 0.4 to 0.8.
    """
    context = Watched(engine)
    latent, _ = engine.sample(mini(prompt), context)
    _, _, vae = pipeline_recipes(MINI / "pipeline")
    picture = engine.decode_latent(vae, latent["samples"], context)
    cells = avg_pool2d(picture.movedim(-1, 1), 8)[0].movedim(0, -1)
    assert (
        len(context.seen) == 20
        and context.seen[-1].shape == (16, 16, 3)
        and context.seen[-1].dtype == torch.uint8
    )
    alike = [correlation(seen, cells) for seen in context.seen]
    assert alike[-1] > 0.8
    assert alike[-1] > alike[0]  # it shows the prediction, not the noise


def test_previews_leave_the_picture_as_it_is_and_are_made_only_when_asked_for(
    engine: DeviceEngine,
) -> None:
    region = mini(steps=4)
    silent, watched = Watched(engine, previews=False), Watched(engine)
    plain, shown = (engine.sample(region, context)[0]["samples"] for context in (silent, watched))
    assert torch.equal(plain, shown)
    assert silent.seen == [] and len(watched.seen) == 4


def test_four_a_second_at_most(engine: DeviceEngine) -> None:
    """Ten evaluations a second for two seconds: the clock is queried once for each, and again for a
    preview.
    """
    context = RunContext(engine, Folders(), Path(), previews=True)
    now = [0.0]
    seen: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, Previewed):
            seen.append(now[0])
        elif isinstance(event, Progress):
            now[0] += 0.1

    context.clock, context.listener = (lambda: now[0]), listen
    engine.sample(mini(), context)
    assert [round(moment, 1) for moment in seen] == [0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8]


def test_a_worker_sends_them_when_the_run_asks(costs: Path) -> None:
    with DeviceEngine(
        [WorkerConfig("cpu:0")], cache=costs, launchers={"cpu:0": WorkerThreads()}
    ) as cluster:
        region = mini(steps=3)
        asked, silent = Watched(cluster), Watched(cluster, previews=False)
        samples = [cluster.sample(region, context)[0]["samples"] for context in (asked, silent)]
    assert torch.equal(*samples)
    # the worker has a separate clock: the count depends on its speed
    assert asked.seen and asked.seen[0].shape == (16, 16, 3)
    assert silent.seen == []


def test_a_latent_space_that_is_not_known_is_not_shown() -> None:
    unknown = LatentSpace(4, 8, 0.5), LatentSpace(16, 8, 0.18215), LatentSpace(16, 8, 0.3611)
    assert not any(map(linear_map, unknown))
    spaces = (
        LatentSpace(4, 8, 0.18215),
        LatentSpace(4, 8, 0.13025),
        LatentSpace(16, 8, 1.5305, 0.0609),
        LatentSpace(16, 8, 0.3611, 0.1159),
    )
    known = [linear_map(space) for space in spaces]
    assert None not in known and len(set(known)) == len(spaces)
    for space, colours in zip(spaces, known, strict=True):
        assert colours is not None
        assert latent_picture(torch.zeros(1, space.channels, 2, 3), colours).shape == (2, 3, 3)


@pytest.mark.parametrize(
    "scheduler", ["EulerDiscreteScheduler", "DDIMScheduler", "DPMSolverMultistepScheduler"]
)
@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
def test_a_scheduler_of_diffusers_reports_its_denoised_latent(scheduler: str, kind: str) -> None:
    """If the model always predicts the noise towards one latent, every estimate is that latent."""
    goal = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(1))
    config = {
        "prediction_type": kind,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "beta_end": 0.012,
    }
    process = DiffusersProcess(
        DiffusersSpec(scheduler, 5, 0, config), torch.zeros(1, 4, 4, 4), "cpu", torch.float32
    )
    while (step := process.next_step()) is not None:
        sigma = float(step.sigma[0])
        signal = 1 / (sigma**2 + 1) ** 0.5
        noise = (step.model_input - signal * goal) / (sigma * signal)
        prediction = noise if kind == "epsilon" else signal * noise - sigma * signal * goal
        assert torch.allclose(process.estimate(prediction), goal, atol=1e-3)
        process.advance(prediction)


def test_the_colours_of_a_latent() -> None:
    colours = LinearMap(
        ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.0, 0.0, 0.0)), (-1.0, 0.0, 1.0)
    )
    latent = torch.zeros(2, 4, 1, 2)
    latent[0, :, 0, 1] = torch.tensor([1.0, -1.0, 5.0, 9.0])
    assert latent_picture(latent, colours).tolist() == [[[0, 127, 255], [127, 0, 255]]]
    assert torch.equal(latent_picture(latent[:, :, None], colours), latent_picture(latent, colours))
    packed = torch.nn.functional.pixel_unshuffle(latent.repeat(1, 1, 2, 1), 2)  # 16 channels
    unpacked = latent_picture(packed, replace(colours, patch=2))
    assert torch.equal(unpacked, latent_picture(latent, colours).repeat(2, 1, 1))
    latent[0, 0, 0, 0] = torch.nan
    # a NaN cell is no error
    assert latent_picture(latent, colours)[0, 1].tolist() == [127, 0, 255]


@pytest.mark.parametrize(
    ("cells", "size"),
    [((8, 8), (128, 128)), ((16, 12), (96, 128)), ((40, 64), (512, 320)), ((128, 256), (512, 256))],
)
def test_a_preview_as_a_file(cells: tuple[int, int], size: tuple[int, int]) -> None:
    picture = torch.zeros(*cells, 3, dtype=torch.uint8)
    picture[..., 0] = 200
    image = Image.open(io.BytesIO(preview_as_jpeg(picture)))
    assert image.format == "JPEG" and image.size == size
    red, green, blue = image.getpixel((5, 5))  # type: ignore[misc]
    assert abs(red - 200) < 4 and green < 4 and blue < 4


def test_a_node_of_a_pack_shows_its_own() -> None:
    context = Watched(None, tick=0.1)
    image = Image.new("RGB", (3, 2), (255, 0, 0))
    with running(context, "7"):
        bar = ProgressBar(10)
        for number in range(10):
            bar.update_absolute(number + 1, preview=("JPEG", image, 512))
        # like the third convention
        ProgressBar(10).update_absolute(1, preview=torch.ones(1, 2, 3, 3))
    assert len(context.seen) < 6 and context.seen[0].tolist() == [[[255, 0, 0]] * 3] * 2


def test_a_sampling_loop_of_a_pack_shows_its_latent(pack_callback: Any) -> None:
    context = Watched(None)
    with running(context, "7"):
        step = pack_callback()
        step(0, torch.ones(1, 4, 2, 2), None, 5)
    red = round(((0.3444 + 0.1247 - 0.3192 - 0.1307) + 1) * 127.5 - 0.5)
    assert context.seen[0].shape == (2, 2, 3) and context.seen[0][0, 0, 0] == red
    with running(Watched(None, previews=False), "7"):
        pack_callback()(0, torch.ones(1, 4, 2, 2), None, 5)


@pytest.fixture
def pack_callback() -> Any:
    from types import SimpleNamespace

    from katz_graph.comfy.shims.latent_preview import prepare_callback

    model = SimpleNamespace(
        model=SimpleNamespace(latent_format=SimpleNamespace(space=LatentSpace(4, 8, 0.18215)))
    )
    return lambda: prepare_callback(model, 5)


def test_bare_runs_have_none(engine: DeviceEngine) -> None:
    assert not bare_context(engine).wants_preview("x")
