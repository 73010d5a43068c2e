"""Runs steps of diffusers' network with guidance, as its pipelines do, to compare with ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoModel, EulerDiscreteScheduler

from katz_graph.bench.gpu.clock import Action
from katz_graph.bench.gpu.layers import TEXTS
from katz_graph.bench.gpu.setting import Setting
from katz_graph.testing.random_models import usual


def network(setting: Setting, pipeline: Path) -> Any:
    folder = pipeline / usual().part
    loaded = AutoModel.from_pretrained(str(folder), dtype=setting.dtype)
    return loaded.eval().requires_grad_(False).to(setting.device)


def steps(
    setting: Setting, module: Callable[..., Any], config: Any, side: int, count: int
) -> Action:
    """Returns an action that runs `count` steps of Euler's method from noise."""
    device, dtype = setting.device, setting.dtype
    pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    text = random(2, TEXTS, config.cross_attention_dim)
    added = {"text_embeds": random(2, pooled), "time_ids": random(2, 6)}
    scheduler = EulerDiscreteScheduler()
    noise = random(1, 4, side, side)

    def act() -> torch.Tensor:
        scheduler.set_timesteps(count, device="cpu")
        latent: torch.Tensor = noise * scheduler.init_noise_sigma
        for timestep in scheduler.timesteps:
            both = scheduler.scale_model_input(torch.cat([latent, latent]), timestep)
            first, second = module(
                both,
                timestep.to(device, dtype, non_blocking=True),
                text,
                added_cond_kwargs=added,
                return_dict=False,
            )[0].chunk(2)
            guided = first + 5.0 * (second - first)
            latent = scheduler.step(guided, timestep, latent, return_dict=False)[0]
        return latent

    return act
