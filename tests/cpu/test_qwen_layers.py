"""Qwen-Image samples latents with frames: the whole picture and its layers, as diffusers' pipeline
does, on one device and on two. Other models refuse them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLQwenImage
from diffusers.pipelines.qwenimage import pipeline_qwenimage_layered
from torch import Tensor
from transformers_made import COSTED

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LinearMap
from katz_graph.core.recipe import Area, ConditioningEntry, Picture, Prompt, References
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.region import Ref, Region
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.picture.preview import latent_picture
from katz_graph.planner.passes.cost import ValueSizes
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.sampling import evaluations_of, sampling_of
from katz_graph.planner.template import template_request
from katz_graph.testing.model_files import difference
from katz_graph.testing.random_models import Kind, draw_network, kinds
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.stock_pipelines import compared
from katz_graph.testing.worker_threads import WorkerThreads

LAYERED = {"use_additional_t_cond": True, "use_layer3d_rope": True}
FRAMES, HEIGHT, WIDTH = 3, 64, 96  # the whole picture and two layers
STEPS, SEED = 4, 7
CELLS = HEIGHT // 8, WIDTH // 8
TEXT = "a red circle above sand"

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, folders: dict[Kind, Path]) -> Path:
    """Contains a pipeline whose VAE reads and makes alpha."""
    place = tmp_path_factory.mktemp("layered")
    for part in folders["qwen_image"].iterdir():
        if part.name not in ("transformer", "vae"):
            (place / part.name).symlink_to(part)
    draw_network("qwen_image", 5, **LAYERED).save_pretrained(place / "transformer")
    values = AutoencoderKLQwenImage.load_config(folders["qwen_image"] / "vae")
    torch.manual_seed(6)
    made = AutoencoderKLQwenImage.from_config({**values, "input_channels": 4})
    made.save_pretrained(place / "vae")
    return place


@pytest.fixture(scope="module")
def engine(costs: Path) -> Iterator[DeviceEngine]:
    with local_engine(batching=False, cache=costs) as opened:
        yield opened


def picture() -> Tensor:
    """Returns pixels [1, H, W, 4] of whole bytes."""
    draw = torch.Generator().manual_seed(8)
    return torch.randint(0, 256, (1, HEIGHT, WIDTH, 4), generator=draw) / 255


def asked(folder: Path, samples: Tensor, seen: Tensor | None = None, **changed: Any) -> Region:
    """Returns a request with a reference latent. `changed`: fields of the conditioning, and the
    latent's mask.
    """
    model, clip, _ = pipeline_recipes(folder)
    mask = {name: changed.pop(name) for name in ("noise_mask",) if name in changed}
    begin = {
        "model": model,
        "latent_image": {"samples": samples} | mask,
        "sampler_name": "euler",
        "scheduler": "simple",
        "steps": STEPS,
        "seed": SEED,
    }
    shown = () if seen is None else (Picture.of(seen),)
    text = ConditioningEntry(Prompt(clip, TEXT), references=References(shown), **changed)
    expansion = expand_sampling("StepBegin", begin, model, (text,), (text,), 1.0)
    return bind(expansion.graph, expansion.outputs[0].node)


def empty(*frames: int) -> Tensor:
    return torch.zeros(1, 16, *frames, *CELLS)


@pytest.fixture(scope="module")
def reference(folder: Path, engine: DeviceEngine) -> Tensor:
    return engine.encode_image(pipeline_recipes(folder)[2], picture(), bare_context(engine))


@pytest.fixture(scope="module")
def layers(folder: Path, engine: DeviceEngine, reference: Tensor) -> Tensor:
    """Returns the latent of a picture and its layers."""
    return sample(engine, asked(folder, empty(FRAMES), reference))


def test_layers_are_those_of_the_stock_pipeline(
    folder: Path, engine: DeviceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first frame is the whole picture, which the pipeline leaves out. The patch replaces the
    pipeline's size, of about 640 x 640 pixels.
    """
    monkeypatch.setattr(
        pipeline_qwenimage_layered, "calculate_dimensions", lambda area, ratio: (WIDTH, HEIGHT)
    )
    layers = kinds()["qwen_image"].stock.comparisons["layers"]
    noise = torch.randn(1, 16, FRAMES, *CELLS, generator=torch.Generator().manual_seed(SEED))
    ours, theirs = compared(layers, folder, noise, picture(), STEPS, SEED, engine)
    assert ours.shape == (FRAMES - 1, HEIGHT, WIDTH, 4)
    assert difference(ours, theirs) <= 1e-5
    assert (ours[0] - ours[1]).abs().max() > 0.1


def test_the_reference_changes_layers(folder: Path, engine: DeviceEngine, layers: Tensor) -> None:
    assert (sample(engine, asked(folder, empty(FRAMES))) - layers).abs().max() > 1e-2


def test_two_devices_make_the_same_layers(
    folder: Path, costs: Path, reference: Tensor, layers: Tensor
) -> None:
    region = asked(folder, empty(FRAMES), reference)
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        for seed in range(2):
            draw = random.Random(seed)
            pins = {
                one.id: (draw.choice(("cpu:0", "cpu:1")),)
                for one in region.operations
                if one.stage in COSTED
            }
            target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
            program = plan_region(region, target)
            made = engine.cluster.run(program, bare_context(engine)).samples
            assert torch.equal(made, layers), program.placement


def test_a_mask_preserves_the_same_part_of_every_frame(
    folder: Path, engine: DeviceEngine, reference: Tensor
) -> None:
    start = torch.randn(2, 16, FRAMES, *CELLS, generator=torch.Generator().manual_seed(9))
    mask = torch.zeros(1, 1, *CELLS)
    mask[..., CELLS[1] // 2 :] = 1.0
    made = sample(engine, asked(folder, start, reference, noise_mask=mask))
    part = CELLS[1] // 2
    assert torch.allclose(made[..., :part], start[..., :part], atol=1e-5)
    assert ((made - start)[..., part:].abs().amax(dim=(1, 3, 4)) > 0.1).all()


def test_an_area_of_the_whole_picture_is_the_picture(
    folder: Path, engine: DeviceEngine, reference: Tensor, layers: Tensor
) -> None:
    made = sample(engine, asked(folder, empty(FRAMES), reference, area=Area(0, 0, *CELLS)))
    assert torch.allclose(made, layers, atol=1e-4)


def test_no_layers_are_the_whole_picture(
    folder: Path, engine: DeviceEngine, reference: Tensor
) -> None:
    """A picture's latent is one frame, and stays without an axis of frames."""
    whole, picture = (
        sample(engine, asked(folder, samples, reference)) for samples in (empty(1), empty())
    )
    assert whole.shape == (1, 16, 1, *CELLS) and picture.shape == (1, 16, *CELLS)
    assert torch.equal(whole.squeeze(2), picture)


def test_frames_are_in_the_plan(folder: Path, reference: Tensor) -> None:
    """Frames have as many tokens as one picture of their height together; parts that are sent
    contain all of them.
    """
    target = Target((Device("cpu", 1e10, 1e10), Device("gpu", 1e10, 1e10)), {}, {}, batching=False)
    high = torch.zeros(1, 16, 1, FRAMES * CELLS[0], CELLS[1])
    framed, tall = (
        plan_region(asked(folder, samples, reference), target) for samples in (empty(FRAMES), high)
    )
    assert framed.work == tall.work
    step = Ref(framed.region.begin.id, 0)
    assert ValueSizes(framed).of(step) == ValueSizes(tall).of(step)


def test_a_mask_of_frames_reads_no_template(folder: Path) -> None:
    begin = asked(folder, empty(FRAMES), noise_mask=torch.ones(1, 1, *CELLS))
    spec, table = sampling_of(begin.begin)
    why = template_request(begin, evaluations_of(spec, table), table.path, "float32")
    assert why == "all tokens of latents with frames are computed"


def test_a_preview_shows_the_whole_picture(layers: Tensor) -> None:
    colours = LinearMap(tuple((0.1, 0.01 * row, -0.1) for row in range(16)))
    whole = latent_picture(layers[:, :, 0], colours)
    assert torch.equal(latent_picture(layers, colours), whole)
    assert not torch.equal(latent_picture(layers[:, :, 1], colours), whole)


def test_models_of_pictures_and_vaes_refuse_frames_in_a_line(
    folder: Path, folders: dict[Kind, Path], engine: DeviceEngine, layers: Tensor
) -> None:
    words = "the latent has 3 frames, expected one: pictures .* cut it with LatentCutToBatch"
    with pytest.raises(InputError, match=words):
        asked(folders["qwen_image"], empty(FRAMES))
    with pytest.raises(InputError, match=words):
        engine.decode_latent(pipeline_recipes(folder)[2], layers, bare_context(engine))
