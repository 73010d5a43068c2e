"""Makes full-size models with random weights, on the device, and writes them as files that the
engine loads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from katz_graph.bench.gpu.setting import Setting
from katz_graph.ir.region import Region
from katz_graph.models.families.shared.random_parts import factors, tokenizer
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import usual
from katz_graph.testing.requests import sampler_region


@dataclass(frozen=True, slots=True)
class Files:
    """Holds the paths of a pipeline, another pipeline of the same size, ControlNets and LoRAs. The
    last three exist only after `write` with `whole`.
    """

    pipeline: Path
    other: Path
    controls: tuple[Path, ...]
    loras: tuple[Path, ...]

    def request(
        self,
        setting: Setting,
        side: int,
        steps: int,
        controls: tuple[int, ...] = (),
        loras: int = 0,
        strength: float = 0.8,
        other: bool = False,
    ) -> Region:
        """Builds a request with guidance. `controls`: indices of ControlNets."""
        pixels = torch.rand(1, 8 * side, 8 * side, 3, generator=torch.Generator().manual_seed(5))
        return sampler_region(
            Case(
                "gpu",
                self.other if other else self.pipeline,
                "euler",
                steps,
                latent=torch.zeros(1, 4, side, side),
                image=pixels,
                controls=tuple(ControlCase(self.controls[one], 0.8, 0.0, 1.0) for one in controls),
                loras=tuple((path, strength) for path in self.loras[:loras]),
            )
        )


def write(folder: Path, setting: Setting, whole: bool) -> Files:
    """Writes a pipeline; with `whole`, also another pipeline, three ControlNets and two LoRAs."""
    files = Files(
        folder / "pipeline",
        folder / "other",
        tuple(folder / f"control{number}" for number in range(3 * whole)),
        tuple(folder / f"lora{number}.safetensors" for number in range(2 * whole)),
    )
    for number, path in enumerate((files.pipeline, files.other)[: 1 + whole]):
        _write_pipeline(path, setting, number)
    for number, path in enumerate(files.controls):
        with made_on(setting.device, setting.dtype, 10 + number):
            control_net(setting).save_pretrained(path)
    for number, path in enumerate(files.loras):
        save_file(lora_tensors(setting, 20 + number), str(path), {"format": "pt"})
    return files


def network(setting: Setting) -> Any:
    """Creates the measured network."""
    return usual().network_of(setting.network).eval()


def pipeline_modules(setting: Setting, seed: int) -> tuple[Any, ...]:
    """Creates the network, the VAE and both text encoders."""
    first, second = setting.texts
    with made_on(setting.device, setting.dtype, seed):
        return (
            network(setting),
            AutoencoderKL(**setting.vae),
            CLIPTextModel(first),
            CLIPTextModelWithProjection(second),
        )


def control_net(setting: Setting) -> Any:
    """Creates a ControlNet; initializes its zero convolutions to random values."""
    made = usual().controlnet_of(setting.network, setting.hints)
    for layer in (*made.controlnet_down_blocks, made.controlnet_mid_block):
        nn.init.normal_(layer.weight, std=0.02)
    return made


@contextmanager
def made_on(device: torch.device, dtype: torch.dtype, seed: int) -> Iterator[None]:
    """Creates modules on a device, in a dtype, inside the `with` statement."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    numbers = [device.index or 0] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(numbers), device:
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_default_dtype(usual)


def _write_pipeline(folder: Path, setting: Setting, seed: int) -> None:
    published = usual()
    parts = (published.part, "vae", "text_encoder", "text_encoder_2")
    for part, made in zip(parts, pipeline_modules(setting, seed), strict=True):
        made.save_pretrained(folder / part)
    for name, pad in (("tokenizer", "<|endoftext|>"), ("tokenizer_2", "!")):
        tokenizer(pad).save_pretrained(folder / name)
    published.scheduler().save_pretrained(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps(published.model_index()))


def lora_tensors(setting: Setting, seed: int) -> dict[str, Tensor]:
    """Draws a LoRA of all layers of the network, in kohya's naming."""
    with torch.device("meta"):
        module = network(setting)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    made, layers = usual(), setting.network.get("layers_per_block", 2)
    for name, layer in made.lora_layers(module):
        down, up = factors(layer, setting.rank, generator)
        key = made.kohya_name(made.part, name, layers)
        tensors[f"{key}.lora_down.weight"] = down.to(setting.dtype)
        tensors[f"{key}.lora_up.weight"] = (0.01 * up).to(setting.dtype)
    return tensors
