"""Declares the family of Qwen-Image 2.1. Never imports torch."""

from __future__ import annotations

from katz_graph.models.families.qwen_image_21.architecture import (
    LATENT,
    LAYOUT,
    SCHEDULER,
    TRANSFORMER,
    complete,
    prefix_values,
    transformer_architecture,
)
from katz_graph.models.families.qwen_image_21.files import transformer_configuration
from katz_graph.models.families.shared.declarations import lora_names, transformer
from katz_graph.models.family import Files, Layout, ModelFamily, TextSet, Training
from katz_graph.models.text.kinds import QWEN3_VL

FOLDER = "katz_graph.models.families.qwen_image_21"
FAMILY = ModelFamily(
    title="Qwen-Image 2.1",
    short="Qwen-Image 2.1",
    network=transformer(
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        stack=f"{FOLDER}.stack",
        overflows=True,
        formulas=False,
        prefix=prefix_values,
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", ""),
            names=("txt_in.text_norm.weight",),
            configure=transformer_configuration,
        ),
        text_encoders={"text_encoders.qwen3vl_8b.transformer.": QWEN3_VL},
        convert=f"{FOLDER}.files:converted",
    ),
    training=Training(
        latent=lambda _: LATENT,
        noise=lambda _: SCHEDULER,
        multiplier=1.0,
        own_levels=True,
    ),
    lora=lora_names(
        roots=(
            "transformer_blocks",
            "img_in",
            "txt_in",
            "time_text_embed",
            "modulation",
            "norm_out",
            "proj_out",
        ),
        originals=f"{FOLDER}.files:RENAMING.originals",
        # layers that also compute a row for timestep 0, which no request owns
        merged=("time_text_embed.", "modulation.", "norm_out."),
        marks=("img_mlp.gate_up", "img_mlp.gate_layer", "img_mlp.proj", "img_mlp.out"),
    ),
    text_sets=(TextSet("qwen_image", (QWEN3_VL.name,), sizes=("8B",)),),
    text_layout=LAYOUT,
)
