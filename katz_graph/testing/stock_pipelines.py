"""Runs diffusers' stock transformer pipelines with a KSampler's inputs: the same noise, texts and
sigmas. Tests and `katz bench parity` compare pictures with them, `katz bench overhead` and
`katz bench gpu` compare seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import diffusers
import torch
from torch import Tensor

from katz_graph.core.recipe import (
    Concatenated,
    ConditioningEntry,
    ControlUse,
    Picture,
    Prompt,
    References,
    VaeRecipe,
)
from katz_graph.ir.region import Region
from katz_graph.models.families.shared.random_transformers import Comparison
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.node.types import Engine
from katz_graph.picture.mask import greyed
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import Kind, kinds
from katz_graph.testing.requests import bare_context, bind

TEXTS = "a red circle above sand", "grey, blurred"
Shown = Literal["controlnet", "inpaint", "fill", "control", "reference"]
"""Use of a picture: input of a ControlNet, with a mask (`inpaint`) or without, or of the model, for
inpainting (`fill`), as its control picture, or as the reference of an edit.
"""
CONTROLS = "controlnet", "inpaint"
CELL = 8  # pixels


@dataclass(frozen=True, slots=True)
class Asked:
    """Describes a request to a pipeline."""

    folder: Path  # of the pipeline
    kind: Kind
    noise: Tensor  # [B, C, h, w]
    steps: int
    texts: tuple[str, str] = TEXTS  # positive, negative
    guidance: float = 4.0  # classifier-free guidance, for models without a guidance embedding
    image: Tensor | None = None  # [1, H, W, 3] in 0..1
    strength: float = 1.0  # of the ControlNet
    # further arguments of the pipeline
    arguments: dict[str, Any] = field(default_factory=dict)
    shown: Shown = "controlnet"  # use of `image`; the ControlNet is in the folder's `controlnet`


def schedule(kind: Kind) -> str:
    """Returns the name of the schedule that has the pipeline's sigmas."""
    return str(kinds()[kind].stock.schedule)


def picture_sides(asked: Asked) -> tuple[int, int]:
    """Returns the height and the width in pixels."""
    factor = kinds()[asked.kind].latent.factor
    height, width = (factor * side for side in asked.noise.shape[-2:])
    return height, width


def cfg(kind: Kind, guidance: float) -> float:
    """Returns a sampler's guidance: 1 if the model has a guidance embedding or no guidance."""
    return guidance if kinds()[kind].stock.embedded_guidance is None else 1.0


def hole(image: Tensor) -> Tensor:
    """Returns an inpainting mask [1, H, W] for a picture [1, H, W, 3]; 1 = repaint."""
    mask = torch.zeros(image.shape[:3])
    height, width = image.shape[1:3]
    mask[:, height // 4 : -height // 4 - 3, width // 3 : -5] = 1.0
    return mask


def hole_of_cells(image: Tensor) -> Tensor:
    """Returns a mask like `hole`, of whole cells: pipelines and ComfyUI resize others unequally."""
    return hole(image)[:, ::CELL, ::CELL].repeat_interleave(CELL, 1).repeat_interleave(CELL, 2)


def region(asked: Asked, seed: int, engine: Engine) -> Region:
    """Builds the region of a KSampler that starts from the noise of the seed. The engine encodes
    the picture.
    """
    model, clip, vae = pipeline_recipes(asked.folder)
    seen = {} if asked.image is None else _seen(asked, asked.image, vae, engine)
    begin = {
        "model": model,
        "latent_image": {"samples": torch.zeros_like(asked.noise)},
        "seed": seed,
    }
    called = kinds()[asked.kind].stock
    node, how = called.begin(asked.steps, *picture_sides(asked))
    texts = asked.texts[0], asked.texts[1] if called.negative is None else called.negative
    positive, negative = ((ConditioningEntry(Prompt(clip, text), **seen),) for text in texts)
    guidance = cfg(asked.kind, asked.guidance)
    expansion = expand_sampling(node, begin | how, model, positive, negative, guidance)
    return bind(expansion.graph, expansion.outputs[0].node)


def compared(
    one: Comparison,
    folder: Path,
    noise: Tensor,
    image: Tensor,
    steps: int,
    seed: int,
    engine: Engine,
) -> tuple[Tensor, Tensor]:
    """Returns our pictures [B, H, W, C] and those of a further pipeline, for the seed's noise. The
    picture's latent is the model's reference.
    """
    model, clip, vae = pipeline_recipes(folder)
    context = bare_context(engine)
    latent = Picture.of(engine.encode_image(vae, image, context))
    entry = ConditioningEntry(Prompt(clip, TEXTS[0]), references=References((latent,)))
    begin = {
        "model": model,
        "latent_image": {"samples": torch.zeros_like(noise)},
        "seed": seed,
        **one.begin(steps, *image.shape[1:3]),
    }
    expansion = expand_sampling("SigmasStepBegin", begin, model, (entry,), (entry,), 1.0)
    made = engine.sample(bind(expansion.graph, expansion.outputs[0].node), context)[0]["samples"]
    frames = made.transpose(1, 2).flatten(0, 1) if model.latent.frames else made
    ours = engine.decode_latent(vae, frames, context)
    return ours[one.left_out :], one.pictures(folder, TEXTS[0], noise, image, steps)


def _seen(asked: Asked, image: Tensor, vae: VaeRecipe, engine: Engine) -> dict[str, Any]:
    """Returns the picture's fields of a conditioning entry."""
    if asked.shown in CONTROLS:
        control = controlnet_recipe(asked.folder / "controlnet")
        use = ControlUse(control, Picture.of(image), asked.strength, vae=vae)
        if asked.shown == "inpaint":
            visible = 1 - hole_of_cells(image)
            seen = Picture.of(image * visible[..., None])
            use = replace(use, image=seen, mask=Picture.of(visible))
        return {"control": (use,)}
    mask = hole(image) if asked.shown == "fill" else None
    pixels = image if mask is None else greyed(image, mask)
    latent = Picture.of(engine.encode_image(vae, pixels, bare_context(engine)))
    if asked.shown == "reference":
        return {"references": References((latent,))}
    return {"concatenated": Concatenated(latent, None if mask is None else Picture.of(mask))}


def _given(asked: Asked, image: Tensor) -> dict[str, Any]:
    """Returns the picture's arguments of a pipeline call."""
    pixels = image.movedim(-1, 1)
    match asked.shown:
        case "fill":
            return {"image": pixels, "mask_image": hole(image)[:, None]}
        case "reference":
            area = image.shape[1] * image.shape[2]
            return {"image": pixels, "max_area": area, "_auto_resize": False}
        case "control":
            return {"control_image": 2 * pixels - 1}  # pipelines do not normalize tensors
        case _:
            given: dict[str, Any] = {"controlnet_conditioning_scale": asked.strength}
            if asked.shown == "inpaint":
                given["control_mask"] = hole_of_cells(image)[:, None]
            return {"control_image": 2 * pixels - 1} | given


def stock(
    asked: Asked,
    output: Literal["pt", "latent"] = "pt",
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    pipeline: Any = None,
) -> Callable[[], Tensor]:
    """Returns a function that calls a pipeline and returns pictures [B, H, W, 3] in 0..1, or the
    latent [B, C, h, w] as the VAE decodes it. Replaces a stochastic scheduler by Euler's, unless
    `asked.arguments` is set. `pipeline`: from `loaded`; by default it is loaded here.
    """
    called, noise = kinds()[asked.kind].stock, asked.noise
    height, width = picture_sides(asked)
    if pipeline is None:
        pipeline = loaded(asked, device, dtype)
    given = asked.arguments | {
        "height": height,
        "width": width,
        "num_inference_steps": asked.steps,
        "output_type": output,
    }
    if asked.image is not None:
        given |= _given(asked, asked.image)
    if called.euler is not None and not asked.arguments:
        noise = noise * called.euler(pipeline)
    guidance = asked.guidance if called.embedded_guidance is None else called.embedded_guidance
    given |= called.arguments(noise, guidance)
    if called.embedded_guidance is None and called.negative is None:
        given["negative_prompt"] = asked.texts[1]

    def once() -> Tensor:
        made: Tensor = pipeline(prompt=asked.texts[0], **given).images
        if output == "pt":
            return made.movedim(1, -1)
        space = pipeline_recipes(asked.folder)[0].latent
        return space.restored(called.unpacked(made, height, width))

    return once


def loaded(asked: Asked, device: torch.device | None, dtype: torch.dtype) -> Any:
    """Loads the pipeline with all its text encoders, by default onto the CPU; uses the ControlNet
    or editing class if the request has a picture.
    """
    made = kinds()[asked.kind]
    parts: dict[str, Any] = made.stock.parts(asked.folder)
    name = made.pipeline
    if asked.shown in made.stock.editing:
        name, _ = made.stock.editing[asked.shown]
    elif asked.image is not None:
        name = f"{name.removesuffix('Pipeline')}ControlNetPipeline"
        if asked.shown == "inpaint" and made.stock.inpainting is not None:
            name, _ = made.stock.inpainting
        model = getattr(diffusers, made.control)
        parts["controlnet"] = model.from_pretrained(asked.folder / "controlnet", dtype=dtype)
    if made.stock.load is not None:
        pipeline = made.stock.load(asked.folder, dtype)
    else:
        pipeline = getattr(diffusers, name).from_pretrained(asked.folder, dtype=dtype, **parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device or torch.device("cpu"))
