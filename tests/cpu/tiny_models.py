"""Makes random models on disk, once per test process, and helpers for tests around them."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from katz_graph.core.recipe import ClipRecipe, ControlNetRecipe, Lora, ModelRecipe, VaeRecipe
from katz_graph.ir.values import Step, TextEncoding
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.residents import ResidentHooks
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.random_models import Kind, make_controlnet, make_lora, make_pipeline

FAMILIES: tuple[Kind, ...] = ("sd1", "sd2", "sdxl")
ONE_LAYER = ("sd1", "sd2")  # families with one layer per block, which halves the work; SDXL has two

torch.set_num_threads(1)


class EvictionLog(ResidentHooks):
    """Collects the reports of evictions."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def evicted(self, line: str) -> None:
        self.lines.append(line)


@cache
def folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="katz-tiny-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def sizes(family: Kind) -> dict[str, int]:
    return {"layers": 1} if family in ONE_LAYER else {}


@cache
def pipeline_folder(family: Kind) -> Path:
    make_pipeline(folder() / family, family, seed=1, **sizes(family))
    return folder() / family


def controlnet_folder(family: Kind, seed: int = 10) -> Path:
    path = folder() / f"{family}-controlnet-{seed}"
    # clears the cache for all spellings: recipes treat a rewritten file as a different one
    if not path.exists():
        make_controlnet(path, family, seed, **sizes(family))
    return path


def lora_file(
    family: Kind,
    rank: int = 3,
    alpha: float = 2.0,
    naming: str = "peft",
    seed: int = 20,
    text_encoder: bool = True,
) -> Path:
    path = folder() / f"{family}-{rank}-{alpha}-{naming}-{seed}-{text_encoder}.safetensors"
    if not path.exists():
        make_lora(path, family, rank, alpha, naming, seed, text_encoder, **sizes(family))
    return path


def recipes(family: Kind) -> tuple[ModelRecipe, ClipRecipe, VaeRecipe]:
    return pipeline_recipes(pipeline_folder(family))


def control_recipe(family: Kind, seed: int = 10) -> ControlNetRecipe:
    return controlnet_recipe(controlnet_folder(family, seed))


def lora(family: Kind, strength: float = 1.0, **made: Any) -> Lora:
    return Lora(file_identity(lora_file(family, **made)), strength)


@cache
def unet(family: Kind, dtype: torch.dtype = torch.float32) -> Any:
    """Returns a module that tests may read but not change."""
    return ModelStore().network(recipes(family)[0].network, "cpu", dtype)


@cache
def controlnet(family: Kind, dtype: torch.dtype = torch.float32, seed: int = 10) -> Any:
    return ModelStore().controlnet(control_recipe(family, seed).control_net, "cpu", dtype)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_step(
    batch: int,
    height: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    timestep: float = 500.0,
) -> Step:
    x = random(batch, 4, height, width, seed=seed)
    return Step.of(x, x.to(dtype), 1.0, timestep)


def rows(step: Step, strength: float) -> Tensor:
    """Returns the same strength for each row of a step."""
    return torch.full((len(step.x),), strength)


def random_text(
    module: Any, batch: int, tokens: int = 9, dtype: torch.dtype = torch.float32, seed: int = 0
) -> TextEncoding:
    config = module.config
    hidden = random(batch, tokens, config.cross_attention_dim, seed=seed + 100, dtype=dtype)
    if config.addition_embed_type is None:
        return TextEncoding(hidden)
    pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
    sizes = torch.tensor([[64.0, 72.0, 0.0, 0.0, 64.0, 72.0]], dtype=dtype).expand(batch, -1)
    return TextEncoding(hidden, random(batch, pooled, seed=seed + 200, dtype=dtype), sizes)


def diffusers_arguments(step: Step, text: TextEncoding) -> dict[str, Any]:
    """Returns the arguments of diffusers' own forward."""
    added = None if text.pooled is None else {"text_embeds": text.pooled, "time_ids": text.sizes}
    return {
        "sample": step.model_input,
        "timestep": step.timestep,
        "encoder_hidden_states": text.hidden,
        "added_cond_kwargs": added,
    }


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_same(module: nn.Module, before: dict[str, Tensor]) -> None:
    changed = [
        name for name, value in module.state_dict().items() if not torch.equal(value, before[name])
    ]
    assert not changed
