"""Changes a model's sampling, applies FreeU and masks, and merges two models. All nodes return
recipes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.core.patches import (
    ContinuousSampling,
    DiscreteSampling,
    FlowSampling,
    GradualMask,
    ReferencesApart,
    WholeSequence,
)
from katz_graph.core.patches import FreeU as FreeUPatch
from katz_graph.core.recipe import EditTemplate as EditTemplateRecipe
from katz_graph.core.recipe import Picture
from katz_graph.models.loading.merge import Scales, merge_notes, merged_clip, merged_model
from katz_graph.node import Node, Widget
from katz_graph.node.knobs import Share
from katz_graph.node.types import Context
from katz_graph.node.wires import Clip, Conditioning, Latent, Model

Factor = Annotated[float, Field(ge=0.0, le=10.0), Widget(step=0.01)]
Sigma = Annotated[float, Field(ge=0.0, le=1000.0), Widget(step=0.001)]
FlowShift = Annotated[float, Field(ge=0.0, le=100.0), Widget(step=0.01)]
PictureSide = Annotated[int, Field(ge=16, le=16384), Widget(step=8)]
MERGING = "advanced/model_merging"
TOKEN_PIXELS = 16 * 16
SMALL_TOKENS, LARGE_TOKENS = 256, 4096  # in pictures of 256² and 1024² pixels
LARGEST_LOGARITHM = 80.0  # of a shift; e^80 fits in a float32


class FreeU(Node, category="model_patches/unet"):
    """Applies FreeU (Si et al. 2024): at the two deepest widths, multiplies the backbone by b1 and
    b2, and the low frequencies of the skips by s1 and s2.
    """

    b1: Factor = 1.1
    b2: Factor = 1.2
    s1: Factor = 0.9
    s2: Factor = 0.2

    def run(self, model: Model) -> Model:
        return model.with_patch(FreeUPatch(1, self.b1, self.b2, self.s1, self.s2))


class FreeU_V2(Node, category="model_patches/unet"):
    """Applies the second version of FreeU, which scales the backbone by each sample's channel mean
    (Si et al. 2024).
    """

    b1: Factor = 1.3
    b2: Factor = 1.4
    s1: Factor = 0.9
    s2: Factor = 0.2

    def run(self, model: Model) -> Model:
        return model.with_patch(FreeUPatch(2, self.b1, self.b2, self.s1, self.s2))


class DifferentialDiffusion(
    Node, category="_for_testing", title="Differential Diffusion", optional=("strength",)
):
    """Repaints a mask's white areas from the first step, and darker greys from later steps (Levin
    and Fried 2023).
    """

    strength: Share = 1.0

    def run(self, model: Model) -> Model:
        return model.with_patch(GradualMask(self.strength))


class EditTemplate(Node, category="latent/inpaint", title="Edit Template"):
    """Says which picture masked samplers edit, and which prompts describe it. With `--allow
    cached-edit`, layers compute the tokens under the mask, and of `margin` cells around it.
    """

    margin: Annotated[int, Field(ge=0, le=64)] = 2

    def run(
        self, model: Model, latent: Latent, positive: Conditioning, negative: Conditioning
    ) -> Model:
        if not positive:
            raise InputError("EditTemplate: positive is empty; link a CLIPTextEncode")
        seen = Picture.of(latent["samples"])
        return replace(model, template=EditTemplateRecipe(seen, positive, negative, self.margin))


class ModelSamplingDiscrete(Node, category="advanced/model"):
    """Sets the meaning of the model's output (eps, v_prediction, x0, or lcm for a distilled one),
    and whether its schedule has zero terminal SNR (zsnr).
    """

    sampling: Literal["eps", "v_prediction", "lcm", "x0", "img_to_img", "img_to_img_flow"] = "eps"
    zsnr: bool = False

    def run(self, model: Model) -> Model:
        if self.sampling == "img_to_img" or self.sampling == "img_to_img_flow":
            raise InputError(
                f"ModelSamplingDiscrete: sampling {self.sampling!r} is not supported; choose eps, "
                "v_prediction, lcm or x0"
            )
        return model.with_patch(DiscreteSampling(self.sampling, self.zsnr))


class ModelSamplingContinuousEDM(Node, category="advanced/model"):
    """Replaces the model's noise levels by sigma_min to sigma_max, with log(sigma) / 4 as the time
    input (Karras et al. 2022).
    """

    sampling: Literal["v_prediction", "edm", "edm_playground_v2.5", "eps", "cosmos_rflow"] = (
        "v_prediction"
    )
    sigma_max: Sigma = 120.0
    sigma_min: Sigma = 0.002

    def run(self, model: Model) -> Model:
        if self.sampling == "edm_playground_v2.5" or self.sampling == "cosmos_rflow":
            raise InputError(
                f"ModelSamplingContinuousEDM: sampling {self.sampling!r} is not supported; choose "
                "v_prediction, edm or eps"
            )
        return model.with_patch(ContinuousSampling(self.sampling, self.sigma_max, self.sigma_min))


class ModelSamplingSD3(Node, category="advanced/model"):
    """Samples the model as a flow whose time input is 1000 times the noise level. A larger shift
    spends more steps at strong noise (Esser et al. 2024, section 5.3.2).
    """

    shift: FlowShift = 3.0

    def run(self, model: Model) -> Model:
        return model.with_patch(FlowSampling(self.shift))


class ModelSamplingAuraFlow(Node, category="advanced/model", optional=("sampling",)):
    """Samples the model as a flow whose time input is the noise level, 0 to 1, as in AuraFlow. A
    larger shift spends more steps at strong noise. img_to_img_velocity: the flow leads from the
    latent itself to the result.
    """

    shift: FlowShift = 1.73
    sampling: Literal["flow", "img_to_img_velocity"] = "flow"

    def run(self, model: Model) -> Model:
        between = self.sampling == "img_to_img_velocity"
        return model.with_patch(FlowSampling(self.shift, 1000, 1.0, between))


class ModelSamplingFlux(Node, category="advanced/model"):
    """Samples the model as a flow of 10,000 levels whose shift grows with the picture: its
    logarithm from base_shift at 256² pixels to max_shift at 1024².
    """

    max_shift: FlowShift = 1.15
    base_shift: FlowShift = 0.5
    width: PictureSide = 1024
    height: PictureSide = 1024

    def run(self, model: Model) -> Model:
        per_token = (self.max_shift - self.base_shift) / (LARGE_TOKENS - SMALL_TOKENS)
        tokens = self.width * self.height / TOKEN_PIXELS
        logarithm = self.base_shift + per_token * (tokens - SMALL_TOKENS)
        if logarithm > LARGEST_LOGARITHM:
            raise InputError(
                f"ModelSamplingFlux: {self.width}x{self.height} with these shifts gives a shift of "
                f"e^{logarithm:.0f}, at which every level is noise; lower max_shift"
            )
        return model.with_patch(FlowSampling(math.exp(logarithm), levels=10_000, multiplier=1.0))


class FluxKVCache(Node, category="advanced/model"):
    """Lets references attend to references only, with timestep 0, as models were trained whose keys
    and values of references are the same at every step.
    """

    def run(self, model: Model) -> Model:
        return model.with_patch(ReferencesApart())


class QwenImage21Cache(Node, category="advanced/model", title="Qwen Image 2.1 Cache"):
    """Computes text and references once per request, or with `off` in every step. Plans place their
    keys and values, so other devices have no effect, and these have the model's number format.
    """

    device: Literal["auto", "gpu", "cpu", "off"] = "auto"
    dtype: Literal["default", "int8", "int4"] = "default"

    def run(self, model: Model, context: Context) -> Model:
        if self.device == "off":
            return model.with_patch(WholeSequence())
        if self.dtype != "default":
            context.warn(
                f"QwenImage21Cache: dtype {self.dtype} is taken as default: keys and values have "
                "the model's number format"
            )
        return model


class ModelMergeSimple(Node, category=MERGING):
    """Merges two models of one shape: `ratio` of the first's weights plus 1 - `ratio` of the
    second's. Other settings are the first's.
    """

    ratio: Share = 1.0

    def run(self, context: Context, model1: Model, model2: Model) -> Model:
        return _merged_models(context, model1, model2, (("", self.ratio, 1.0 - self.ratio),))


class ModelMergeBlocks(Node, category=MERGING):
    """Merges like ModelMergeSimple, with a ratio each for down blocks (and time embedding), middle
    and up blocks.
    """

    input: Share = 1.0
    middle: Share = 1.0
    out: Share = 1.0

    def run(self, context: Context, model1: Model, model2: Model) -> Model:
        ratios = {
            "mid_block.": self.middle,
            "up_blocks.": self.out,
            "conv_norm_out.": self.out,
            "conv_out.": self.out,
            "": self.input,
        }
        return _merged_models(
            context,
            model1,
            model2,
            tuple((part, ratio, 1.0 - ratio) for part, ratio in ratios.items()),
        )


class ModelMergeAdd(Node, category=MERGING):
    """Adds the weights of two models of one shape, one of which is usually a difference."""

    def run(self, context: Context, model1: Model, model2: Model) -> Model:
        return _merged_models(context, model1, model2, (("", 1.0, 1.0),))


class ModelMergeSubtract(Node, category=MERGING):
    """Subtracts the weights of two models of one shape, and multiplies the difference by
    `multiplier`.
    """

    multiplier: Annotated[float, Field(ge=-10.0, le=10.0), Widget(step=0.01)] = 1.0

    def run(self, context: Context, model1: Model, model2: Model) -> Model:
        return _merged_models(context, model1, model2, (("", self.multiplier, -self.multiplier),))


class CLIPMergeSimple(Node, category=MERGING):
    """Merges the text encoders of two models: `ratio` of the first's weights plus 1 - `ratio` of
    the second's. Other settings are the first's.
    """

    ratio: Share = 1.0

    def run(self, context: Context, clip1: Clip, clip2: Clip) -> Clip:
        merged = merged_clip(clip1, clip2, (("", self.ratio, 1.0 - self.ratio),))
        for note in merge_notes(clip1, clip2):
            context.warn(note)
        return merged


def _merged_models(context: Context, model1: Model, model2: Model, scales: Scales) -> Model:
    """Returns the merged model; warns of weights that only one of the two models has."""
    merged = merged_model(model1, model2, scales)
    for note in merge_notes(model1, model2):
        context.warn(note)
    return merged
