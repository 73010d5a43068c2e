"""Times transformers that the engine samples on one device against diffusers' stock pipelines, with
and without a ControlNet: prompt to latent, same files, same threads, in turns. A part of
`katz bench overhead`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor

from katz_graph.bench.parity import difference
from katz_graph.bench.parity_reference import Case, ControlCase
from katz_graph.bench.random_transformers import Kind, make_controlnet, make_pipeline
from katz_graph.bench.requests import local_engine, region_of, sample
from katz_graph.bench.result import medians
from katz_graph.ir.region import Region

KINDS: tuple[Kind, ...] = ("sd3", "flux")
SCHEDULERS = {"sd3": "normal", "flux": "simple"}
RATIO_BOUND = 1.02
DIFFERENCE_BOUND = 1e-5  # of the latent's range: both round in their own order
STRENGTH, GUIDANCE, SEED = 0.8, 3.5, 7


@dataclass(frozen=True, slots=True)
class Size:
    """Sets heads of 64, blocks of a transformer (a ControlNet has half), cells of a latent's side,
    steps and runs.
    """

    heads: int = 4
    blocks: int = 6
    side: int = 32
    steps: int = 8
    runs: int = 9

    def make(self, folder: Path, kind: Kind) -> None:
        """Writes a pipeline and its ControlNet."""
        sizes: dict[str, Any] = {"attention_head_dim": 64, "num_attention_heads": self.heads}
        if kind == "flux":
            sizes["axes_dims_rope"] = [16, 24, 24]
        else:
            sizes |= {"caption_projection_dim": 64 * self.heads, "pos_embed_max_size": self.side}
            sizes["qk_norm"] = "rms_norm"  # without, random weights amplify rounding
        make_pipeline(folder / kind, kind, 1, self.blocks, True, **sizes)
        control = make_controlnet(kind, 2, self.blocks // 2, **sizes)
        control.save_pretrained(folder / kind / "controlnet")


def measure(size: Size | None = None) -> dict[str, Any]:
    """Returns seconds of both and their ratio, by kind and ControlNets, and how far latents are."""
    size = size or Size()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, local_engine() as engine:
        for kind, controlled in product(KINDS, (False, True)):
            folder = Path(name) / kind
            if not folder.exists():
                size.make(Path(name), kind)
            case = _case(folder, size, controlled)
            region, stock = _region(case, kind), _stock(case, kind)
            moved = difference(sample(engine, region), stock())
            ours = partial(sample, engine, region)
            seconds = medians({"katz": ours, "diffusers": stock}, size.runs)
            title = f"{kind}_controlnet" if controlled else kind
            found |= {f"{title}_{whose}_seconds": took for whose, took in seconds.items()}
            found[f"{title}_ratio"] = seconds["katz"] / seconds["diffusers"]
            found[f"{title}_difference"] = moved
    return found


def _case(folder: Path, size: Size, controlled: bool) -> Case:
    control = ControlCase(folder / "controlnet", STRENGTH, 0.0, 1.0)
    return Case(
        folder.name,
        folder,
        True,
        "euler",
        size.steps,
        guidance=1.0 if folder.name == "flux" else GUIDANCE,
        seed=SEED,
        latent=torch.zeros(1, 16, size.side, size.side),
        image=torch.rand(
            1, 8 * size.side, 8 * size.side, 3, generator=torch.Generator().manual_seed(5)
        ),
        controls=(control,) if controlled else (),
    )


def _region(case: Case, kind: Kind) -> Region:
    inputs = {
        "sampler_name": case.sampler,
        "scheduler": SCHEDULERS[kind],
        "steps": case.steps,
        "seed": case.seed,
    }
    return region_of("StepBegin", inputs, case)


def _stock(case: Case, kind: Kind) -> Callable[[], Tensor]:
    """Makes a call of the stock pipeline from noise to the latent [1, 16, h, w]."""
    name = "StableDiffusion3" if kind == "sd3" else "Flux"
    parts: dict[str, Any] = {}
    noise = torch.randn(case.latent.shape, generator=torch.Generator().manual_seed(case.seed))
    height, width = (8 * cells for cells in noise.shape[-2:])
    given: dict[str, Any] = {
        "height": height,
        "width": width,
        "num_inference_steps": case.steps,
        "output_type": "latent",
    }
    if case.controls:
        network = "SD3" if kind == "sd3" else "Flux"
        model = getattr(diffusers, f"{network}ControlNetModel")
        parts["controlnet"] = model.from_pretrained(case.controls[0].folder)
        given["control_image"] = 2 * case.image.movedim(-1, 1) - 1
        given["controlnet_conditioning_scale"] = STRENGTH
    pipeline = getattr(diffusers, f"{name}{'ControlNet' * bool(parts)}Pipeline").from_pretrained(
        case.pipeline, **parts
    )
    pipeline.set_progress_bar_config(disable=True)
    if kind == "sd3":
        given |= {"latents": noise, "negative_prompt": case.negative, "max_sequence_length": 77}
    else:
        given |= {
            "latents": diffusers.FluxPipeline._pack_latents(noise, *noise.shape),
            "max_sequence_length": 256,
        }

    def once() -> Tensor:
        made: Tensor = pipeline(case.prompt, guidance_scale=GUIDANCE, **given).images
        if kind == "flux":
            made = pipeline._unpack_latents(made, height, width, 8)
        latent: Tensor = (
            made / pipeline.vae.config.scaling_factor + pipeline.vae.config.shift_factor
        )
        return latent

    return once


def bounds() -> dict[str, str]:
    """Returns what `measure` is held to."""
    titles = [f"{kind}{end}" for kind, end in product(KINDS, ("", "_controlnet"))]
    return {f"{title}_ratio": f"<= {RATIO_BOUND}" for title in titles} | {
        f"{title}_difference": f"<= {DIFFERENCE_BOUND}" for title in titles
    }


def within_bounds(found: Mapping[str, Any]) -> bool:
    return all(
        found[name] <= (RATIO_BOUND if name.endswith("ratio") else DIFFERENCE_BOUND)
        for name in bounds()
    )


def rows(found: Mapping[str, Any]) -> list[list[object]]:
    titles = [name.removesuffix("_ratio") for name in found if name.endswith("_ratio")]
    return [
        [
            f"sampling, {title.replace('_', ' with ')}",
            found[f"{title}_katz_seconds"],
            found[f"{title}_diffusers_seconds"],
        ]
        for title in titles
    ]
