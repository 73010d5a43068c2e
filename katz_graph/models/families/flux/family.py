"""Declares the family of FLUX.1. Never imports torch."""

from __future__ import annotations

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
from katz_graph.models.families.flux.files import ORIGINAL_HINT, transformer_configuration
from katz_graph.models.families.flux.previews import PREVIEWS
from katz_graph.models.families.shared.controls import numbered_blocks
from katz_graph.models.families.shared.lora_names import lora_names
from katz_graph.models.families.shared.transformer_network import transformer
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
        channels=f"{FOLDER}.channels:concatenated_channels",
        overflows=True,
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", ""),
            names=("double_blocks.0.img_attn.norm.query_norm.scale",),
            configure=transformer_configuration,
            besides=(ORIGINAL_HINT,),
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
            ),
            Layout(
                prefixes=("",),
                names=(ORIGINAL_HINT,),
                configure=original_controlnet_configuration,
                besides=("controlnet_blocks.0.linear.weight",),
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
    ),
    text_sets=(TextSet("flux", ("clip", "t5")),),
    text_layout=TextLayout(pooled="plain", clip_rows=False, least=256),
    previews=PREVIEWS,
)
