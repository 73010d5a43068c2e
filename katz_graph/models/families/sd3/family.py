"""Declares the family of Stable Diffusion 3 and 3.5. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from katz_graph.core.latent_space import LatentSpace, LinearMap
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
from katz_graph.models.text.kinds import CLIP, PROJECTING, T5

# fmt: off
PREVIEWS: Mapping[LatentSpace, LinearMap] = MappingProxyType({
    # SD3 and SD3.5: from InvokeAI (Apache 2.0), app/util/step_callback.py
    LATENT: LinearMap((
        (-0.0524, 0.0325, 0.0749), (-0.0581, 0.0076, 0.0573), (0.1614, 0.0127, -0.0377),
        (0.1442, 0.0846, 0.1594), (0.0489, 0.0056, -0.0669), (0.0519, 0.1922, 0.0626),
        (0.1539, 0.0482, 0.0710), (-0.0860, 0.0901, 0.1089), (-0.1240, -0.0677, 0.0034),
        (-0.0440, 0.0783, 0.0226), (0.0310, 0.0638, 0.0775), (-0.0132, 0.0855, -0.0877),
        (0.0646, 0.0591, 0.1326), (-0.0786, -0.0226, -0.1276), (-0.0992, -0.0801, -0.0626),
        (-0.0339, -0.0804, -0.0608),
    )),
})
# fmt: on
"""Maps latent spaces to their colours."""


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
        active_tokens=True,
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
                absent=(ORIGINAL_CONTROL,),
            ),
            Layout(
                prefixes=("",),
                names=(ORIGINAL_CONTROL,),
                configure=original_controlnet_configuration,
                configuration_tensors=(CONTROL_TYPE,),
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
