"""Declares the family of Anima. Never imports torch."""

from __future__ import annotations

from katz_graph.core.recipe import TextLayout
from katz_graph.models.families.anima.architecture import (
    LATENT,
    SCHEDULER,
    TRANSFORMER,
    WORDS,
    complete,
    transformer_architecture,
)
from katz_graph.models.families.anima.files import transformer_configuration
from katz_graph.models.families.shared.declarations import lora_names, transformer
from katz_graph.models.family import Files, Layout, ModelFamily, TextSet, Training
from katz_graph.models.text.kinds import QWEN3

FOLDER = "katz_graph.models.families.anima"
FAMILY = ModelFamily(
    title="Anima",
    short="Anima",
    network=transformer(
        class_name=TRANSFORMER,
        module=f"{FOLDER}.module:{TRANSFORMER}",
        architecture=transformer_architecture,
        complete=complete,
        stack=f"{FOLDER}.stack",
        overflows=True,
        formulas=False,
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", "net.", ""),
            names=("llm_adapter.embed.weight",),
            configure=transformer_configuration,
        ),
        text_encoders={"text_encoders.qwen3_06b.transformer.": QWEN3},
        convert=f"{FOLDER}.files:converted",
    ),
    training=Training(
        latent=lambda _: LATENT,
        noise=lambda _: SCHEDULER,
        multiplier=1.0,
    ),
    lora=lora_names(
        roots=(
            "transformer_blocks",
            "patch_embed",
            "time_embed",
            "norm_out",
            "proj_out",
            "llm_adapter",
            "text_conditioner",
            "blocks",
            "x_embedder",
            "t_embedder",
            "final_layer",
        ),
        originals=f"{FOLDER}.files:RENAMING.originals",
        marks=(
            "llm_adapter",
            "text_conditioner",
            "self_attn.output_proj",
            "cross_attn.q_proj",
            "cross_attn.output_proj",
            "adaln_modulation_mlp",
        ),
    ),
    text_sets=(TextSet("stable_diffusion", (QWEN3.name,), sizes=("0.6B",)),),
    text_layout=TextLayout(words=WORDS),
)
