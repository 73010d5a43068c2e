"""Declares the family of HunyuanDiT. Never imports torch."""

from __future__ import annotations

from katz_graph.models.families.hunyuan_dit.architecture import (
    LENGTHS,
    TRANSFORMER,
    complete,
    trained_latent,
    trained_noise,
    transformer_architecture,
)
from katz_graph.models.families.shared import transformer_region as region
from katz_graph.models.family import LoraNames, ModelFamily, Network, Training
from katz_graph.recipe import TextLayout

FOLDER = "katz_graph.models.families.hunyuan_dit"
FAMILY = ModelFamily(
    title="HunyuanDiT",
    short="HunyuanDiT from a folder in diffusers' layout",
    network=Network(
        noun="transformer",
        part="transformer",
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        predict=region.predict,
        prepare="katz_graph.models.prepare:prepare",
        stack=f"{FOLDER}.stack",
        skips=f"{FOLDER}.stack:skips",
    ),
    files=None,
    training=Training(
        latent=trained_latent,
        vae_overflows=lambda _: False,
        noise=trained_noise,
    ),
    lora=LoraNames(
        prefixes=("lora_unet_", "lora_transformer_"),
        roots=("blocks", "text_embedder", "pos_embed", "time_extra_emb", "norm_out", "proj_out"),
        renaming="diffusers.utils.state_dict_utils:UNET_TO_DIFFUSERS",
        originals=f"{FOLDER}.architecture:RENAMING.originals",
    ),
    text_sets=(),
    text_layout=TextLayout(lengths=LENGTHS),
    stages=(),
)
