"""Maps the socket types of wires to Python types. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from katz_graph.core.guidance_spec import Guider as GuiderValue
from katz_graph.core.guidance_spec import Noise as NoiseValue
from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import ClipRecipe, ControlNetRecipe, ModelRecipe, VaeRecipe
from katz_graph.core.recipe import Conditioning as ConditioningEntries
from katz_graph.sampling.names import SamplerChoice

if TYPE_CHECKING:
    from torch import Tensor

    from katz_graph.core.recipe import UpscaleModelRecipe
    from katz_graph.ir.values import Features as FeatureValues
    from katz_graph.ir.values import Residuals as ResidualValues
    from katz_graph.ir.values import Step as StepValue
    from katz_graph.ir.values import Tokens as TokenValues
    from katz_graph.sampling.areas import WeightedPrediction as WeightedValue


@dataclass(frozen=True, slots=True)
class Socket:
    """Names a wire type in workflow files and in the editor."""

    name: str


Model = Annotated[ModelRecipe, Socket("MODEL")]
Clip = Annotated[ClipRecipe, Socket("CLIP")]
Vae = Annotated[VaeRecipe, Socket("VAE")]
ControlNet = Annotated[ControlNetRecipe, Socket("CONTROL_NET")]
ModelPatch = Annotated[ControlNetRecipe, Socket("MODEL_PATCH")]
Conditioning = Annotated[ConditioningEntries, Socket("CONDITIONING")]
Latent = Annotated[LatentSamples, Socket("LATENT")]
Image = Annotated["Tensor", Socket("IMAGE")]  # float32 [B, H, W, C], 0..1
Mask = Annotated["Tensor", Socket("MASK")]  # float32 [B, H, W], 0..1
Step = Annotated["StepValue", Socket("STEP")]
Features = Annotated["FeatureValues", Socket("FEATURES")]
Tokens = Annotated["TokenValues", Socket("TOKENS")]
TokenResiduals = Annotated["Tensor", Socket("TOKEN_RESIDUALS")]  # [B, N, D]
Residuals = Annotated["ResidualValues", Socket("RESIDUALS")]
Sigmas = Annotated["Tensor", Socket("SIGMAS")]  # float32 [N + 1], CPU
Sampler = Annotated[SamplerChoice, Socket("SAMPLER")]
Noise = Annotated[NoiseValue, Socket("NOISE")]
Guider = Annotated[GuiderValue, Socket("GUIDER")]
Prediction = Annotated["Tensor", Socket("PREDICTION")]  # [B, C, H/8, W/8]
Weighted = Annotated["WeightedValue", Socket("WEIGHTED_PREDICTION")]
UpscaleModel = Annotated["UpscaleModelRecipe", Socket("UPSCALE_MODEL")]
Boolean = Annotated[bool, Socket("BOOLEAN")]
Anything = Annotated[Any, Socket("*")]
