"""What each stage of a program computes on live modules: from the inputs of its operation, batched or not, to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from katz_graph.executor.batching import merge
from katz_graph.executor.models import Models
from katz_graph.models import controlnet, unet
from katz_graph.models.attention import cross_attention_keys_values
from katz_graph.models.embedding import added_embedding
from katz_graph.models.features import Residuals
from katz_graph.models.reference import fit_reference
from katz_graph.models.text import with_sizes
from katz_graph.planner.region import SLOTS
from katz_graph.recipe import ModelRecipe
from katz_graph.sampling.prediction import to_denoised

Outputs = tuple[Any, ...]
CELL = 8  # pixels of a picture along one side of a latent cell


@dataclass(frozen=True, slots=True)
class Situation:
    """What a stage needs besides its inputs: live models and the latent's shape [B, C, h, w]."""

    models: Models
    shape: tuple[int, ...]


def text_encoder(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    """A prompt, for every picture of the batch."""
    batch, _, height, width = situation.shape
    (entry,) = inputs["entry"]
    one = with_sizes(situation.models.encode_text(entry.clip, entry.text), height * CELL, width * CELL)
    return (merge([one] * batch),)


def keys_values(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    return (cross_attention_keys_values(_attending(situation, inputs["model"]), inputs["text"].hidden),)


def added(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    return (added_embedding(_attending(situation, inputs["model"]), inputs["text"]),)


def controlnet_reference(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    """The embedding of a reference image, resized nearest-exact and cropped to the picture's size, for every picture of the batch."""
    batch, _, height, width = situation.shape
    image = fit_reference(inputs["image"].pixels, batch, height * CELL, width * CELL).to(situation.models.device)
    return (controlnet.embed_reference(situation.models.control_net(inputs["control_net"]), image),)


def unet_encoder(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    start = inputs["step"] if inputs.get("features") is None else inputs["features"]
    module = situation.models.unet(inputs["model"])
    return (unet.encode(module, start, inputs["text"], inputs["kept"], inputs["first_block"], inputs["last_block"], inputs["added"]),)


def unet_mid(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    return (unet.mid(situation.models.unet(inputs["model"]), inputs["features"], inputs["text"], inputs["kept"]),)


def unet_decoder(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    """Features, and the prediction: denoised, or raw under a diffusers scheduler."""
    given = (inputs.get(f"residuals_{number}") for number in range(1, SLOTS + 1))
    features, raw = unet.decode(
        situation.models.unet(inputs["model"]),
        inputs["features"],
        inputs["text"],
        inputs["kept"],
        inputs.get("skips"),
        [residuals for residuals in given if isinstance(residuals, Residuals)],
        inputs["first_block"],
        inputs["last_block"],
    )
    return features, None if raw is None else to_denoised(raw, features.step)


def control(situation: Situation, inputs: Mapping[str, Any]) -> Outputs:
    module = situation.models.control_net(inputs["control_net"])
    residuals = controlnet.control(
        module, inputs["step"], inputs["text"], inputs["reference"], inputs["strength"], inputs["kept"], inputs["added"]
    )
    return (residuals,)


def _attending(situation: Situation, recipe: Any) -> Any:
    return situation.models.unet(recipe) if isinstance(recipe, ModelRecipe) else situation.models.control_net(recipe)


STAGES: Mapping[str, Callable[[Situation, Mapping[str, Any]], Outputs]] = {
    "text_encoder": text_encoder,
    "keys_values": keys_values,
    "added_embedding": added,
    "controlnet_reference": controlnet_reference,
    "unet_encoder": unet_encoder,
    "unet_mid": unet_mid,
    "unet_decoder": unet_decoder,
    "controlnet": control,
}
