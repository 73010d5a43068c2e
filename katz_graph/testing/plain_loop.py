"""Samples without the engine, as a reference: diffusers' modules and forwards, LoRAs fused by
diffusers, sampler loops from papers.

The reference gets the same seed, step count and files as the engine, so the engine causes any
difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from diffusers import AutoModel, AutoPipelineForText2Image
from torch import Tensor

from katz_graph.core.recipe import FileIdentity
from katz_graph.models.family import families

Denoiser = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True, slots=True)
class ControlCase:
    folder: Path
    strength: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Case:
    """Describes one request."""

    name: str
    pipeline: Path
    sampler: str
    steps: int
    denoise: float = 1.0
    guidance: float = 5.0
    seed: int = 7
    latent: Tensor = field(default_factory=lambda: torch.zeros(1, 4, 8, 8))
    """[B, 4, h, w], unscaled."""
    mask: Tensor | None = None
    """[h, w], the latent's size; 1 = repaint."""
    image: Tensor = field(
        default_factory=lambda: torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(5))
    )
    controls: tuple[ControlCase, ...] = ()
    loras: tuple[tuple[Path | FileIdentity, float], ...] = ()
    prompt: str = "a red circle above sand"
    negative: str = "grey, blurred"


class Table:
    """Computes the noise table in double precision, from scaled-linear betas. The scheduler's
    configuration selects epsilon or v-prediction.
    """

    def __init__(self, scheduler: Any) -> None:
        betas = numpy.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
        alphas = numpy.cumprod(1 - betas)
        self.sigmas = numpy.sqrt((1 - alphas) / alphas)
        self.v_prediction = scheduler.config.prediction_type == "v_prediction"

    def sigma(self, timestep: float) -> float:
        return float(numpy.exp(numpy.interp(timestep, numpy.arange(1000), numpy.log(self.sigmas))))

    def timestep(self, sigma: float) -> int:
        return int(numpy.abs(numpy.log(self.sigmas) - numpy.log(sigma)).argmin())

    def normal(self, steps: int) -> list[float]:
        return [self.sigma(t) for t in numpy.linspace(999, 0, steps)] + [0.0]

    def window(self, percent: float) -> float:
        return (
            numpy.inf if percent <= 0 else 0.0 if percent >= 1 else self.sigma((1 - percent) * 999)
        )


def load_with_controls(case: Case) -> Any:
    """Loads the stock pipeline, with the case's ControlNets if it has any."""
    if not case.controls:
        return load(case)
    plain = load(case)
    modules = [AutoModel.from_pretrained(str(control.folder)) for control in case.controls]
    pipeline = AutoPipelineForText2Image.from_pipe(plain, controlnet=modules)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load(case: Case) -> Any:
    """Loads the stock pipeline with its LoRAs fused into the weights."""
    pipeline = AutoPipelineForText2Image.from_pretrained(
        case.pipeline, dtype=torch.float32, local_files_only=True
    )
    names = []
    for number, (path, _) in enumerate(case.loras):
        assert isinstance(path, Path)  # stock pipelines load local files only
        names.append(f"lora{number}")
        pipeline.load_lora_weights(path.parent, weight_name=path.name, adapter_name=names[-1])
    if names:
        pipeline.set_adapters(names, [strength for _, strength in case.loras])
        # `fuse_lora` multiplies by each adapter's scale; set_adapters has set it to the strength
        encoders = [name for name in ("text_encoder", "text_encoder_2") if _has(pipeline, name)]
        components = [part(pipeline), *encoders]
        pipeline.fuse_lora(components=components, adapter_names=names)
        pipeline.unload_lora_weights()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def part(pipeline: Any) -> str:
    """Returns the name of a pipeline's network component."""
    names = {family.network.part for family in families()}
    (name,) = (name for name in names if _has(pipeline, name))
    return name


def _has(pipeline: Any, name: str) -> bool:
    return getattr(pipeline, name, None) is not None


def encode(pipeline: Any, case: Case) -> tuple[list[Tensor], list[dict[str, Tensor] | None]]:
    """Encodes text and added conditions for [negative, positive], repeated over the batch."""
    batch, _, height, width = case.latent.shape
    if not _has(pipeline, "text_encoder_2"):
        positive, negative = pipeline.encode_prompt(case.prompt, "cpu", 1, True, case.negative)
        return [negative.repeat(batch, 1, 1), positive.repeat(batch, 1, 1)], [None, None]
    positive, negative, pooled, negative_pooled = pipeline.encode_prompt(
        case.prompt, negative_prompt=case.negative, device="cpu"
    )
    sizes = torch.tensor(
        [[height * 8, width * 8, 0, 0, height * 8, width * 8]], dtype=torch.float32
    ).repeat(batch, 1)
    added = [
        {"text_embeds": pool.repeat(batch, 1), "time_ids": sizes}
        for pool in (negative_pooled, pooled)
    ]
    return [negative.repeat(batch, 1, 1), positive.repeat(batch, 1, 1)], added  # type: ignore[return-value]


@torch.no_grad()
def sample(
    case: Case,
    sigmas: Sequence[float],
    batched: bool,
    pipeline: Any = None,
    control_nets: Sequence[Any] | None = None,
) -> Tensor:
    """Returns the final latent, unscaled, from a plain loop over `forward` of the network and
    ControlNets. Loads the modules that are not passed.
    """
    pipeline = pipeline or load(case)
    table = Table(pipeline.scheduler)
    texts, added = encode(pipeline, case)
    modules = control_nets or [
        AutoModel.from_pretrained(str(control.folder)) for control in case.controls
    ]
    network = getattr(pipeline, part(pipeline))
    controls = list(zip(modules, case.controls, strict=True))
    image = case.image.movedim(-1, 1).repeat(len(case.latent), 1, 1, 1)

    def predict(x: Tensor, sigma: float, text: Tensor, extra: dict[str, Tensor] | None) -> Tensor:
        copies = len(text) // len(x)
        scaled = (x / (sigma**2 + 1) ** 0.5).repeat(copies, 1, 1, 1)
        timestep = table.timestep(sigma)
        down: list[Tensor] | None = None
        middle: Tensor | None = None
        for module, control in controls:
            if not table.window(control.end) <= sigma <= table.window(control.start):
                continue
            residuals, last = module(
                scaled,
                timestep,
                text,
                image.repeat(copies, 1, 1, 1),
                control.strength,
                added_cond_kwargs=extra,
                return_dict=False,
            )
            down = (
                list(residuals)
                if down is None
                else [a + b for a, b in zip(down, residuals, strict=True)]
            )
            middle = last if middle is None else middle + last
        output = network(
            scaled,
            timestep,
            text,
            added_cond_kwargs=extra,
            down_block_additional_residuals=down,
            mid_block_additional_residual=middle,
            return_dict=False,
        )[0]
        repeated = x.repeat(copies, 1, 1, 1)
        if table.v_prediction:
            denoised: Tensor = repeated / (sigma**2 + 1) - output * (sigma / (sigma**2 + 1) ** 0.5)
        else:
            denoised = repeated - output * sigma
        return denoised

    def guided(x: Tensor, sigma: float) -> Tensor:
        if batched:
            extra = (
                None
                if added[0] is None
                else {key: torch.cat([one[key] for one in added if one]) for key in added[0]}
            )
            uncond, cond = predict(x, sigma, torch.cat(texts), extra).chunk(2)
        else:
            uncond, cond = (
                predict(x, sigma, text, extra) for text, extra in zip(texts, added, strict=True)
            )
        combined: Tensor = uncond + (cond - uncond) * case.guidance
        return combined

    scale = pipeline.vae.config.scaling_factor
    latent = case.latent * scale
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(case.seed))
    mask = case.mask
    masked_seed = case.seed + 1 if case.sampler == "ddim" else case.seed
    mask_noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(masked_seed))

    def denoiser(x: Tensor, sigma: float) -> Tensor:
        if mask is None:
            return guided(x, sigma)
        x = x * mask + (latent + mask_noise * sigma) * (1 - mask)
        masked: Tensor = guided(x, sigma) * mask + latent * (1 - mask)
        return masked

    from_maximum = abs(sigmas[0] - table.sigmas[-1]) < 1e-4 * sigmas[0]
    x = latent + noise * ((1 + sigmas[0] ** 2) ** 0.5 if from_maximum else sigmas[0])
    final: Tensor = (
        LOOPS[case.sampler](
            denoiser, x, torch.tensor(sigmas), torch.Generator().manual_seed(case.seed + 1)
        )
        / scale
    )
    return final


def euler(denoiser: Denoiser, x: Tensor, sigmas: Tensor, generator: torch.Generator) -> Tensor:
    for sigma, following in itertools.pairwise(sigmas):
        x = x + (x - denoiser(x, float(sigma))) / sigma * (following - sigma)
    return x


def euler_ancestral(
    denoiser: Denoiser, x: Tensor, sigmas: Tensor, generator: torch.Generator
) -> Tensor:
    for sigma, following in itertools.pairwise(sigmas):
        denoised = denoiser(x, float(sigma))
        if following == 0:
            return denoised
        slope = (x - denoised) / sigma
        up = (following**2 * (sigma**2 - following**2) / sigma**2).sqrt()
        x = x + slope * ((following**2 - up**2).sqrt() - sigma)
        x = x + torch.randn(x.shape, generator=generator) * up
    return x


def heun(denoiser: Denoiser, x: Tensor, sigmas: Tensor, generator: torch.Generator) -> Tensor:
    for sigma, following in itertools.pairwise(sigmas):
        slope = (x - denoiser(x, float(sigma))) / sigma
        ahead = x + slope * (following - sigma)
        if following > 0:
            slope = (slope + (ahead - denoiser(ahead, float(following))) / following) / 2
        x = x + slope * (following - sigma)
    return x


def dpmpp_2m(denoiser: Denoiser, x: Tensor, sigmas: Tensor, generator: torch.Generator) -> Tensor:
    older, h_before = None, torch.zeros(())
    for sigma, following in itertools.pairwise(sigmas):
        denoised = denoiser(x, float(sigma))
        if following == 0:
            return denoised
        h = sigma.log() - following.log()
        target = denoised
        if older is not None:
            ratio = h_before / h
            target = (1 + 1 / (2 * ratio)) * denoised - 1 / (2 * ratio) * older
        x = following / sigma * x - (-h).expm1() * target
        older, h_before = denoised, h
    return x


LOOPS: dict[str, Callable[[Denoiser, Tensor, Tensor, torch.Generator], Tensor]] = {
    "euler": euler,
    "heun": heun,
    "dpmpp_2m": dpmpp_2m,
    "euler_ancestral": euler_ancestral,
    "ddim": euler,  # differs only in the mask's noise
}
