"""Declares the family of Stable Diffusion 3 and 3.5. Never imports torch."""

from __future__ import annotations

from katz_graph.core.recipe import TextLayout
from katz_graph.models.families.sd3.architecture import (
    CONTROLNET,
    LATENT,
    SCHEDULER,
    TRANSFORMER,
    complete,
    reads_tokens,
    transformer_architecture,
)
from katz_graph.models.families.sd3.controls import (
    check_controlnet,
    controlnet_configuration,
    original_controlnet_configuration,
    reads,
)
from katz_graph.models.families.sd3.files import (
    CONTROL_TYPE,
    ORIGINAL_CONTROL,
    transformer_configuration,
)
from katz_graph.models.families.sd3.previews import PREVIEWS
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
from katz_graph.models.text.kinds import CLIP, PROJECTING, T5

FOLDER = "katz_graph.models.families.sd3"
FAMILY = ModelFamily(
    title="Stable Diffusion 3 or 3.5",
    short="SD3 and SD3.5",
    network=transformer(
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        stack=f"{FOLDER}.stack",
        chains=(("double", "num_layers"),),
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", ""),
            names=("joint_blocks.0.context_block.attn.qkv.weight",),
            configure=transformer_configuration,
        ),
        text_encoders={
            "text_encoders.clip_l.transformer.": CLIP,
            "text_encoders.clip_g.transformer.": PROJECTING,
            "text_encoders.t5xxl.transformer.": T5,
        },
        convert=f"{FOLDER}.files:converted",
    ),
    training=Training(
        latent=lambda _: LATENT,
        noise=lambda _: SCHEDULER,
    ),
    controls=Controls(
        (CONTROLNET,),
        (
            Layout(
                prefixes=("",),
                names=("pos_embed_input.proj.weight",),
                configure=controlnet_configuration,
                besides=(ORIGINAL_CONTROL,),
            ),
            Layout(
                prefixes=("",),
                names=(ORIGINAL_CONTROL,),
                configure=original_controlnet_configuration,
                told=(CONTROL_TYPE,),
            ),
        ),
        check_controlnet,
        draw_control,
        reads,
        numbered_blocks,
        reads_tokens,
        f"{FOLDER}.stack:seen",
    ),
    lora=lora_names(
        roots=(
            "transformer_blocks",
            "pos_embed",
            "context_embedder",
            "time_text_embed",
            "norm_out",
            "proj_out",
            "joint_blocks",
            "x_embedder",
            "t_embedder",
            "y_embedder",
            "final_layer",
        ),
        originals=f"{FOLDER}.files:RENAMING.originals",
    ),
    text_sets=(TextSet("sd3", ("clip", "clip")), TextSet("sd3", ("clip", "clip", "t5"))),
    text_layout=TextLayout(pooled="joined", least=77),
    previews=PREVIEWS,
)
