"""Declares the family of FLUX.1. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from katz_graph.core.latent_space import LatentSpace, LinearMap
from katz_graph.core.recipe import TextLayout
from katz_graph.models.families.flux.architecture import (
    CONTROLNET,
    LATENT,
    TRANSFORMER,
    complete,
    trained_noise,
    transformer_architecture,
)
from katz_graph.models.families.flux.controls import (
    check_controlnet,
    controlnet_configuration,
    original_controlnet_configuration,
    reads,
)
from katz_graph.models.families.flux.files import (
    ORIGINAL_HINT,
    SHARED_MODULATION,
    transformer_configuration,
)
from katz_graph.models.families.shared.controls import numbered_blocks
from katz_graph.models.families.shared.declarations import lora_names, transformer
from katz_graph.models.families.shared.transformer_region import draw_control
from katz_graph.models.family import (
    Controls,
    Files,
    Layout,
    ModelFamily,
    TextSet,
    Training,
)
from katz_graph.models.text.kinds import CLIP, T5

# fmt: off
PREVIEWS: Mapping[LatentSpace, LinearMap] = MappingProxyType({
    # FLUX.1 and Z-Image (same VAE): from InvokeAI (Apache 2.0), app/util/step_callback.py
    LATENT: LinearMap((
        (-0.0412, 0.0149, 0.0521), (0.0056, 0.0291, 0.0768), (0.0342, -0.0681, -0.0427),
        (-0.0258, 0.0092, 0.0463), (0.0863, 0.0784, 0.0547), (-0.0017, 0.0402, 0.0158),
        (0.0501, 0.1058, 0.1152), (-0.0209, -0.0218, -0.0329), (-0.0314, 0.0083, 0.0896),
        (0.0851, 0.0665, -0.0472), (-0.0534, 0.0238, -0.0024), (0.0452, -0.0026, 0.0048),
        (0.0892, 0.0831, 0.0881), (-0.1117, -0.0304, -0.0789), (0.0027, -0.0479, -0.0043),
        (-0.1146, -0.0827, -0.0598),
    )),
})
# fmt: on
"""Maps latent spaces to their colours."""


FOLDER = "katz_graph.models.families.flux"
FAMILY = ModelFamily(
    title="FLUX.1",
    short="FLUX.1",
    network=transformer(
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        stack=f"{FOLDER}.stack",
        chains=(("double", "num_layers"), ("single", "num_single_layers")),
        active_tokens=True,
        channels=f"{FOLDER}.channels:concatenated_channels",
        overflows=True,
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", ""),
            names=("double_blocks.0.img_attn.norm.query_norm.scale",),
            configure=transformer_configuration,
            absent=(ORIGINAL_HINT, SHARED_MODULATION),
        ),
        text_encoders={
            "text_encoders.clip_l.transformer.": CLIP,
            "text_encoders.t5xxl.transformer.": T5,
        },
        convert=f"{FOLDER}.files:converted",
    ),
    training=Training(
        latent=lambda _: LATENT,
        noise=trained_noise,
        multiplier=1.0,
    ),
    controls=Controls(
        (CONTROLNET,),
        (
            Layout(
                prefixes=("",),
                names=("controlnet_x_embedder.weight",),
                configure=controlnet_configuration,
                absent=("txt_norm.weight",),
            ),
            Layout(
                prefixes=("",),
                names=(ORIGINAL_HINT,),
                configure=original_controlnet_configuration,
                absent=("controlnet_blocks.0.linear.weight",),
            ),
        ),
        check_controlnet,
        draw_control,
        reads,
        numbered_blocks,
    ),
    lora=lora_names(
        roots=(
            "transformer_blocks",
            "single_transformer_blocks",
            "x_embedder",
            "context_embedder",
            "time_text_embed",
            "norm_out",
            "proj_out",
            "double_blocks",
            "single_blocks",
            "img_in",
            "txt_in",
            "time_in",
            "vector_in",
            "guidance_in",
            "final_layer",
        ),
        originals=f"{FOLDER}.files:OF_LORAS.originals",
        marks=("img_mod.lin", "txt_mod.lin", "proj_mlp"),
    ),
    text_sets=(TextSet("flux", ("clip", "t5")),),
    text_layout=TextLayout(pooled="plain", clip_rows=False, least=256),
    previews=PREVIEWS,
)
