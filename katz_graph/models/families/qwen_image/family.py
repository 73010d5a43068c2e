"""Declares the family of Qwen-Image 1.x. Never imports torch."""

from __future__ import annotations

from katz_graph.core.recipe import TextLayout
from katz_graph.models.families.qwen_image.architecture import (
    CONTROLNET,
    FUN_CONTROLNET,
    MU,
    TRANSFORMER,
    complete,
    latent_of,
    transformer_architecture,
)
from katz_graph.models.families.qwen_image.controls import (
    HINT,
    check_controlnet,
    controlnet_configuration,
    fun_configuration,
    reads,
    reads_mask,
    reads_tokens,
    refused_patch,
    strength,
)
from katz_graph.models.families.qwen_image.files import transformer_configuration
from katz_graph.models.families.shared.controls import numbered_blocks
from katz_graph.models.families.shared.declarations import (
    DESCRIBING,
    lora_names,
    shifted_flow,
    transformer,
)
from katz_graph.models.families.shared.transformer_region import draw_control
from katz_graph.models.family import Controls, Files, Layout, ModelFamily, TextSet, Training
from katz_graph.models.text.chat import EDITING
from katz_graph.models.text.kinds import QWEN2_5_VL

FOLDER = "katz_graph.models.families.qwen_image"
FAMILY = ModelFamily(
    title="Qwen-Image",
    short="Qwen-Image",
    network=transformer(
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        stack=f"{FOLDER}.stack",
        chains=(("double", "num_layers"),),
        active_tokens=True,
        overflows=True,
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", ""),
            names=("txt_norm.weight",),
            configure=transformer_configuration,
            absent=(HINT,),
        ),
        text_encoders={"text_encoders.qwen25_7b.transformer.": QWEN2_5_VL},
        convert=f"{FOLDER}.files:converted",
    ),
    training=Training(
        latent=latent_of,
        noise=lambda _: shifted_flow(MU),
        multiplier=1.0,
        own_levels=True,
    ),
    controls=Controls(
        (CONTROLNET, FUN_CONTROLNET),
        (
            Layout(
                prefixes=("",),
                names=("txt_norm.weight",),
                configure=controlnet_configuration,
                absent=("proj_out.weight",),
            ),
            Layout(
                prefixes=("",),
                names=("control_blocks.0.before_proj.weight",),
                configure=fun_configuration,
            ),
            Layout(
                prefixes=("",),
                names=("controlnet_blocks.0.x_rms.weight",),
                configure=refused_patch,
            ),
        ),
        check_controlnet,
        draw_control,
        reads,
        numbered_blocks,
        reads_tokens=reads_tokens,
        reads_mask=reads_mask,
        strength=strength,
        modules={FUN_CONTROLNET: f"{FOLDER}.fun_control:{FUN_CONTROLNET}"},
    ),
    lora=lora_names(
        roots=(
            "transformer_blocks",
            "img_in",
            "txt_in",
            "txt_norm",
            "time_text_embed",
            "norm_out",
            "proj_out",
        ),
        marks=("img_mlp.net", "txt_mlp.net", "img_mod.1", "txt_mod.1"),
    ),
    text_sets=(TextSet("qwen_image", (QWEN2_5_VL.name,), sizes=("7B",)),),
    text_layout=TextLayout(
        template=DESCRIBING, opening="<|im_start|>", dropped="prefix", with_pictures=EDITING
    ),
)
