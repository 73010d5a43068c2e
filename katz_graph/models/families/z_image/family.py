"""Declares the family of Z-Image. Never imports torch."""

from __future__ import annotations

from katz_graph.core.recipe import TextLayout
from katz_graph.models.families.shared.declarations import lora_names, transformer
from katz_graph.models.families.shared.transformer_region import draw_control
from katz_graph.models.families.z_image.architecture import (
    CONTROLNET,
    LATENT,
    SCHEDULER,
    TEMPLATE,
    TRANSFORMER,
    complete,
    is_controlnet,
    transformer_architecture,
)
from katz_graph.models.families.z_image.controls import (
    blocks,
    check_controlnet,
    controlnet_configuration,
    reads,
)
from katz_graph.models.families.z_image.files import transformer_configuration
from katz_graph.models.family import (
    Controls,
    Files,
    Layout,
    ModelFamily,
    TextSet,
    Training,
)
from katz_graph.models.text.kinds import QWEN3

FOLDER = "katz_graph.models.families.z_image"
FAMILY = ModelFamily(
    title="Z-Image",
    short="Z-Image",
    network=transformer(
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        stack=f"{FOLDER}.stack",
        overflows=True,
        token_multiple=32,
        formulas=False,
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", ""),
            names=("cap_pad_token",),
            configure=transformer_configuration,
        ),
        text_encoders={"text_encoders.qwen3_4b.transformer.": QWEN3},
        convert=f"{FOLDER}.files:converted",
    ),
    training=Training(
        latent=lambda _: LATENT,
        noise=lambda _: SCHEDULER,
        multiplier=1.0,
    ),
    controls=Controls(
        (CONTROLNET,),
        (
            Layout(
                prefixes=("",),
                names=("control_all_x_embedder.2-1.weight",),
                configure=controlnet_configuration,
            ),
        ),
        check_controlnet,
        draw_control,
        reads,
        blocks,
        reads_tokens=is_controlnet,
    ),
    lora=lora_names(
        roots=(
            "layers",
            "noise_refiner",
            "context_refiner",
            "cap_embedder",
            "t_embedder",
            "all_x_embedder",
            "all_final_layer",
            "x_embedder",
            "final_layer",
            "x_pad_token",
            "cap_pad_token",
        ),
        originals=f"{FOLDER}.files:RENAMING.originals",
    ),
    text_sets=(TextSet("lumina2", ("qwen3",), sizes=("4B",)),),
    text_layout=TextLayout(template=TEMPLATE, from_end=2),
)
