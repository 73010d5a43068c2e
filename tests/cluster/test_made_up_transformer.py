"""One file and one registration line add a made-up transformer family. The engine loads, checks,
plans on two devices and samples it, and streams its ControlNet's residuals.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, SanaControlNetModel, SanaTransformer2DModel
from made_up_transformer import FAMILY
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ConditioningEntry, ControlUse, Picture, Prompt
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.recorded.recorder import Recorder
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.region import Region
from katz_graph.models.family import check_controlnet, families
from katz_graph.models.loading.sources import controlnet_recipe, network_recipe, pipeline_recipes
from katz_graph.models.stage_registry import register_family, stages
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.sampling import sampling_of
from katz_graph.testing.model_files import Models
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.tapes import Tapes
from katz_graph.testing.worker_threads import WorkerThreads

STEPS, STRENGTH = 3, 0.7
SIZES: dict[str, Any] = {
    "in_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 8,
    "cross_attention_dim": 16,
    "caption_channels": 32,
    "patch_size": 2,
}

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def family() -> Iterator[None]:
    register_family(FAMILY)
    yield
    families.cache_clear()
    stages.cache_clear()


@pytest.fixture
def made(tmp_path: Path) -> tuple[Any, Any]:
    """Saves a transformer of five blocks and a ControlNet of four with nonzero residuals."""
    torch.manual_seed(1)
    network = SanaTransformer2DModel(out_channels=4, num_layers=5, **SIZES).eval()
    control = SanaControlNetModel(num_layers=4, **SIZES).eval()
    for layer in (control.input_block, *control.controlnet_blocks):
        torch.nn.init.normal_(layer.weight, std=0.3)
    network.save_pretrained(tmp_path / "network")
    control.save_pretrained(tmp_path / "control")
    return network, control


def pixels() -> Tensor:
    return torch.rand(1, 48, 64, 3, generator=torch.Generator().manual_seed(9))


def region(models: Models, folder: Path, cfg: float = 3.0) -> Region:
    model = network_recipe(folder / "network")
    _, clip, vae = pipeline_recipes(models.pipeline)
    use = ControlUse(controlnet_recipe(folder / "control"), Picture.of(pixels()), STRENGTH, vae=vae)
    begin = {
        "model": model,
        "latent_image": {"samples": torch.zeros(1, 4, 6, 8)},
        "steps": STEPS,
        "seed": 7,
        "sampler_name": "euler",
        "scheduler": "simple",
    }
    sides = (
        (ConditioningEntry(Prompt(clip, text), control=(use,)),) for text in ("a red square", "")
    )
    expansion = expand_sampling("StepBegin", begin, model, *sides, cfg)
    return bind(expansion.graph, expansion.outputs[0].node)


@torch.no_grad()
def sampled(
    made: tuple[Any, Any], asked: Region, texts: list[Tensor], reference: Tensor, cfg: float = 3.0
) -> Tensor:
    """Samples with Euler's method in a plain loop over diffusers' modules."""
    network, control = made
    spec, table = sampling_of(asked.begin)
    x = torch.randn(1, 4, 6, 8, generator=torch.Generator().manual_seed(7))
    for sigma, following in pairwise(spec.sigmas):
        time = torch.tensor([table.timestep_at(sigma)]).float()
        sides = []
        for text in texts:
            (residuals,) = control(x, text, time, reference, STRENGTH, return_dict=False)
            sides.append(network(x, text, time, controlnet_block_samples=residuals).sample)
        positive, negative = sides
        x = x + (negative + cfg * (positive - negative)) * (following - sigma)
    return x


def test_it_samples_as_diffusers_modules_do_recorded_too(
    sd1: Models, costs: Path, tmp_path: Path, made: tuple[Any, Any]
) -> None:
    asked = region(sd1, tmp_path)
    clip = pipeline_recipes(sd1.pipeline)[1]
    with local_engine(batching=False, cache=costs) as engine:
        ours = sample(engine, asked, bare_context(engine))
        texts = [
            engine.models.encode_text(Prompt(clip, one)).hidden for one in ("a red square", "")
        ]
        engine.models.compute = Recorder(Tapes(strict=True), eager=0)
        assert torch.equal(sample(engine, asked, bare_context(engine)), ours)
    space = network_recipe(tmp_path / "network").latent
    encoder = AutoencoderKL.from_pretrained(sd1.pipeline, subfolder="vae")
    with torch.no_grad():
        posterior = encoder.encode(2 * pixels().movedim(-1, 1) - 1).latent_dist
    reference = space.normalised(posterior.mode())
    expected = sampled(made, asked, texts, reference)
    assert torch.allclose(ours, expected / space.scale, rtol=0, atol=1e-5)
    assert (ours - sampled(made, asked, texts, 0 * reference) / space.scale).abs().max() > 1e-2


def test_its_residuals_stream_between_two_devices_bit_for_bit(
    sd1: Models, costs: Path, tmp_path: Path, made: tuple[Any, Any]
) -> None:
    asked = region(sd1, tmp_path, cfg=1.0)
    with local_engine(batching=False, cache=costs) as engine:
        expected = sample(engine, asked, bare_context(engine))
    names = ("cpu:0", "cpu:1")
    launchers = {name: WorkerThreads() for name in names}
    workers = [WorkerConfig(name) for name in names]
    link = NetworkLink(1e6, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        devices = tuple(Device(name, 1e6, 1e6) for name in names)
        program = plan_region(asked, Target(devices, engine.cluster.links, {}, batching=False))
        control = program.placement["positive-controlnet1"]
        assert program.placement["positive-embed"] != control
        sent = {
            instruction.target
            for instruction in program.instructions[control]
            if instruction.kind == "send" and "block" in instruction.target
        }
        # Each residual is sent when its block has run. The last blocks may run on the ControlNet's
        # device.
        assert len(sent) >= 2
        streamed = min(program.alternatives.values())
        assert program.alternatives["one device"] > 1.3 * streamed
        assert torch.equal(engine.cluster.run(program, bare_context(engine)).samples, expected)


def test_a_controlnet_of_another_width_is_refused_in_a_line(
    tmp_path: Path, made: tuple[Any, Any]
) -> None:
    other = {**SIZES, "attention_head_dim": 4}
    SanaControlNetModel(num_layers=1, **other).save_pretrained(tmp_path / "narrow")
    model, control = (
        network_recipe(tmp_path / "network"),
        controlnet_recipe(tmp_path / "narrow"),
    )
    with pytest.raises(InputError, match=r"its width is 8, the transformer in .* has 16"):
        check_controlnet(control, model)
