"""Declares the family of Krea 2. Never imports torch."""

from __future__ import annotations

from katz_graph.core.recipe import TextLayout
from katz_graph.models.families.krea2.architecture import (
    LATENT,
    MU,
    STATES,
    TRANSFORMER,
    complete,
    transformer_architecture,
    unused,
)
from katz_graph.models.families.krea2.files import transformer_configuration
from katz_graph.models.families.shared.declarations import (
    DESCRIBING,
    lora_names,
    shifted_flow,
    transformer,
)
from katz_graph.models.family import Files, Layout, ModelFamily, TextSet, Training
from katz_graph.models.text.kinds import QWEN3_VL

FOLDER = "katz_graph.models.families.krea2"
FAMILY = ModelFamily(
    title="Krea 2",
    short="Krea 2",
    network=transformer(
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        unused=unused,
        stack=f"{FOLDER}.stack",
        overflows=True,
        wide=("norm", "norm1", "norm2", "norm_q", "norm_k"),
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", ""),
            names=("txtfusion.projector.weight",),
            configure=transformer_configuration,
        ),
        text_encoders={"text_encoders.qwen3vl_4b.transformer.": QWEN3_VL},
        convert=f"{FOLDER}.files:converted",
    ),
    training=Training(
        latent=lambda _: LATENT,
        noise=lambda _: shifted_flow(MU),
        multiplier=1.0,
    ),
    lora=lora_names(
        roots=(
            "transformer_blocks",
            "img_in",
            "time_embed",
            "time_mod_proj",
            "text_fusion",
            "txt_in",
            "final_layer",
            "blocks",
            "first",
            "tmlp",
            "tproj",
            "txtfusion",
            "txtmlp",
            "last",
        ),
        originals=f"{FOLDER}.files:RENAMING.originals",
        marks=("attn.wq", "attn.wo", "attn.gate", "attn.to_gate", "txtfusion", "text_fusion"),
    ),
    text_sets=(TextSet("krea2", (QWEN3_VL.name,), sizes=("4B",)),),
    text_layout=TextLayout(
        template=DESCRIBING, states=STATES, opening="<|im_start|>", dropped="prefix"
    ),
    index={"text_encoder_select_layers": list(STATES), "patch_size": 2},
)
