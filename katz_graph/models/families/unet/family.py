"""Declares the family of UNets: Stable Diffusion 1, 2, XL and the refiner. Never imports torch."""

from __future__ import annotations

from katz_graph.models.families.shared.declarations import lora_names
from katz_graph.models.families.unet import region
from katz_graph.models.families.unet.architecture import (
    CONTROLNETS,
    UNET,
    check_controlnet,
    trained_latent,
    unet_architecture,
    vae_overflows,
)
from katz_graph.models.families.unet.configurations import (
    controlnet_configuration,
    scheduler_configuration,
    unet_configuration,
)
from katz_graph.models.families.unet.parametrisation import scheduler_component
from katz_graph.models.families.unet.previews import PREVIEWS
from katz_graph.models.families.unet.stages import STAGES
from katz_graph.models.family import (
    Controls,
    Files,
    Layout,
    ModelFamily,
    Network,
    TextSet,
    Training,
)
from katz_graph.models.text.kinds import CLIP, PROJECTING

FOLDER = "katz_graph.models.families.unet"
FAMILY = ModelFamily(
    title="Stable Diffusion 1, 2 or XL",
    short="SD1.5, SD2 and SDXL",
    network=Network(
        noun="UNet",
        part="unet",
        class_name=UNET,
        architecture=unet_architecture,
        complete=region.complete,
        predict=region.predict,
        prepare=f"{FOLDER}.attention:install",
        active_tokens=True,
    ),
    controls=Controls(
        CONTROLNETS,
        (
            Layout(
                prefixes=("control_model.", ""),
                names=("zero_convs.0.0.weight", "controlnet_cond_embedding.conv_in.weight"),
                configure=controlnet_configuration,
                absent=("lora_controlnet",),
            ),
        ),
        check_controlnet,
        region.draw_control,
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", ""),
            names=("input_blocks.0.0.weight", "up_blocks.0.resnets.0.conv1.weight"),
            configure=unet_configuration,
            absent=("input_hint_block.0.weight",),
        ),
        text_encoders={
            "conditioner.embedders.0.transformer.": CLIP,
            "conditioner.embedders.1.model.": PROJECTING,
            "conditioner.embedders.0.model.": PROJECTING,  # the refiner's only encoder
            "cond_stage_model.transformer.": CLIP,
            "cond_stage_model.model.": CLIP,
        },
        convert=f"{FOLDER}.convert:converted",
    ),
    training=Training(
        latent=trained_latent,
        vae_overflows=vae_overflows,
        noise=lambda _: scheduler_configuration("epsilon", zero_terminal_snr=False),
        scheduler=scheduler_component,
    ),
    lora=lora_names(
        roots=(
            "conv_in",
            "time_embedding",
            "add_embedding",
            "down_blocks",
            "mid_block",
            "up_blocks",
            "conv_norm_out",
            "conv_out",
            "time_embed",
            "label_emb",
            "input_blocks",
            "middle_block",
            "output_blocks",
            "out",
        ),
        originals=f"{FOLDER}.naming:originals",
    ),
    text_sets=(TextSet("stable_diffusion", ("clip",)), TextSet("sdxl", ("clip", "clip"))),
    stages=STAGES,
    previews=PREVIEWS,
)
