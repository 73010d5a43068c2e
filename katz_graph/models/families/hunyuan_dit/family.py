"""Declares the family of HunyuanDiT. Never imports torch."""

from __future__ import annotations

from katz_graph.models.families.hunyuan_dit.architecture import (
    LATENT,
    LENGTHS,
    TRANSFORMER,
    complete,
    trained_noise,
    transformer_architecture,
)
from katz_graph.models.families.shared.lora_names import lora_names
from katz_graph.models.families.shared.transformer_network import transformer
from katz_graph.models.family import ModelFamily, Training
from katz_graph.recipe import TextLayout

FOLDER = "katz_graph.models.families.hunyuan_dit"
FAMILY = ModelFamily(
    title="HunyuanDiT",
    short="HunyuanDiT from a folder in diffusers' layout",
    network=transformer(
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        stack=f"{FOLDER}.stack",
        skips=f"{FOLDER}.stack:skips",
    ),
    files=None,
    training=Training(
        latent=lambda _: LATENT,
        noise=trained_noise,
    ),
    lora=lora_names(
        roots=("blocks", "text_embedder", "pos_embed", "time_extra_emb", "norm_out", "proj_out"),
    ),
    text_layout=TextLayout(lengths=LENGTHS),
)
