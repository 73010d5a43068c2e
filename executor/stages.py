"""What each stage of a program computes on live modules: from the inputs of its operation, batched or not, to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any, cast

import torch
from torch import Tensor

from katz_graph.errors import InputError
from katz_graph.executor.batching import merge, split
from katz_graph.executor.models import Models
from katz_graph.executor.wrapper import call_wrapper
from katz_graph.models import controlnet, unet
from katz_graph.models.attention import cross_attention_keys_values
from katz_graph.models.concatenated import concatenated_channels
from katz_graph.models.embedding import UNPOOLED, added_embedding
from katz_graph.models.encoding import with_sizes
from katz_graph.models.family import extra_channels
from katz_graph.models.features import Residuals, TextEncoding
from katz_graph.models.freeu import skip_hook
from katz_graph.models.reference import fit_reference
from katz_graph.patches import freeu_patches, unet_wrapper
from katz_graph.planner.region import SLOTS, Part
from katz_graph.planner.schedule import table_of
from katz_graph.recipe import ModelRecipe
from katz_graph.sampling.evaluation import Step
from katz_graph.sampling.prediction import to_denoised
from katz_graph.wires import CELL

Outputs = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """What a stage needs besides its inputs: live models and the latent's shape [B, C, h, w]."""

    models: Models
    shape: tuple[int, ...]


def text_encoder(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    """A text, for every picture of the batch."""
    batch, _, height, width = situation.shape
    encoded = situation.models.encode_text(inputs["encoding"])
    if not inputs["pooled"]:  # whatever a pack gave beside it: texts of one model are of one kind
        encoded = TextEncoding(encoded.hidden)
    elif encoded.pooled is None:
        raise InputError(UNPOOLED)
    encoded = with_sizes(encoded, inputs["sizes"], height * CELL, width * CELL)
    given = len(encoded.hidden)  # several where somebody encoded a batch
    return (merge([part for part, _ in zip(cycle(split(encoded, given)), range(batch), strict=False)]),)


def keys_values(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    return (cross_attention_keys_values(_attending(situation, inputs["model"]), inputs["text"].hidden),)


def added(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    return (added_embedding(_attending(situation, inputs["model"]), inputs["text"]),)


def controlnet_reference(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    """The embedding of a reference image, resized nearest-exact and cropped to the size of the picture or of the part in question."""
    batch, (height, width) = situation.shape[0], inputs["cells"] or situation.shape[2:]
    image = fit_reference(inputs["image"].pixels, batch, height * CELL, width * CELL).to(situation.models.device)
    recipe = inputs["control_net"]
    return (controlnet.embed_reference(situation.models.control_net(recipe), image, recipe.types),)


def concatenated(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    """The input channels beside the latent, of the part of it that is seen."""
    model: ModelRecipe = inputs["model"]
    like = torch.zeros(situation.shape, device=situation.models.device)
    whole = concatenated_channels(inputs["concatenated"], extra_channels(model.unet), like, model.latent_scale)
    part: Part | None = inputs["part"]
    return (whole if part is None else whole[..., part.top : part.top + part.height, part.left : part.left + part.width],)


def unet_encoder(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    start = inputs["step"] if inputs.get("features") is None else inputs["features"]
    module = situation.models.unet(inputs["model"])
    blocks = inputs["first_block"], inputs["last_block"]
    return (unet.encode(module, start, inputs["text"], inputs["kept"], *blocks, inputs["added"], inputs.get("concatenated")),)


def unet_mid(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    return (unet.mid(situation.models.unet(inputs["model"]), inputs["features"], inputs["text"], inputs["kept"]),)


def unet_decoder(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    """Features, and the prediction: denoised, or raw under a diffusers scheduler."""
    given = (inputs.get(f"residuals_{number}") for number in range(1, SLOTS + 1))
    module = situation.models.unet(inputs["model"])
    features, raw = unet.decode(
        module,
        inputs["features"],
        inputs["text"],
        inputs["kept"],
        inputs.get("skips"),
        [residuals for residuals in given if isinstance(residuals, Residuals)],
        inputs["first_block"],
        inputs["last_block"],
        skip_hook(module, freeu_patches(inputs["model"].patches)),
    )
    return features, None if raw is None else to_denoised(raw, features.step)


def unet_wrapped(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    """The denoised prediction that a pack's function makes of the whole UNet."""
    recipe: ModelRecipe = inputs["model"]
    wrapper = unet_wrapper(recipe.patches)
    assert wrapper is not None  # expand and fit see to it

    def predict(step: Step, text: TextEncoding, kept: Any) -> Tensor:
        blocks = {"first_block": 0, "last_block": -1, "added": inputs["added"], "concatenated": inputs.get("concatenated")}
        given = {**inputs, **blocks, "step": step, "text": text, "kept": kept}
        (encoded,) = unet_encoder(situation, given)
        (middle,) = unet_mid(situation, {**given, "features": encoded})
        _, prediction = unet_decoder(situation, {**given, "features": middle})
        return cast(Tensor, prediction)

    sides = [int(inputs["uncond"])] * (len(inputs["step"].x) // situation.shape[0])
    return (call_wrapper(wrapper, predict, inputs["step"], inputs["text"], inputs["kept"], sides, table_of(recipe)),)


def control(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    module = situation.models.control_net(inputs["control_net"])
    once = inputs["reference"], inputs["strength"], inputs["kept"], inputs["added"], inputs["control_net"].types
    return (controlnet.control(module, inputs["step"], inputs["text"], *once),)


def _attending(situation: Situation, recipe: Any) -> Any:
    return situation.models.unet(recipe) if isinstance(recipe, ModelRecipe) else situation.models.control_net(recipe)


STAGES: Mapping[str, Callable[[Situation, Mapping[str, Any]], Outputs]] = {
    "text_encoder": text_encoder,
    "keys_values": keys_values,
    "added_embedding": added,
    "controlnet_reference": controlnet_reference,
    "concatenated": concatenated,
    "unet_encoder": unet_encoder,
    "unet_mid": unet_mid,
    "unet_decoder": unet_decoder,
    "unet_wrapped": unet_wrapped,
    "controlnet": control,
}
