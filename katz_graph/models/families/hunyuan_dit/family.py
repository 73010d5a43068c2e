"""Declares the family of HunyuanDiT. Never imports torch."""

from __future__ import annotations

from katz_graph.core.recipe import TextLayout
from katz_graph.models.families.hunyuan_dit.architecture import (
    CONTROLNET,
    LATENT,
    LENGTHS,
    TRANSFORMER,
    complete,
    trained_noise,
    transformer_architecture,
)
from katz_graph.models.families.hunyuan_dit.controls import blocks, check_controlnet, reads
from katz_graph.models.families.hunyuan_dit.files import (
    FUSED,
    controlnet_configuration,
    transformer_configuration,
)
from katz_graph.models.families.shared.declarations import lora_names, transformer
from katz_graph.models.families.shared.transformer_region import draw_control
from katz_graph.models.family import Controls, Files, Layout, ModelFamily, Training
from katz_graph.models.text.kinds import BERT, MT5

FOLDER = "katz_graph.models.families.hunyuan_dit"
BERT_PREFIX = "text_encoders.hydit_clip.transformer.bert."
MT5_PREFIX = "text_encoders.mt5xl.transformer."
FAMILY = ModelFamily(
    title="HunyuanDiT",
    short="HunyuanDiT",
    network=transformer(
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        stack=f"{FOLDER}.stack",
        skips=f"{FOLDER}.stack:skips",
    ),
    files=Files(
        network=Layout(
            # checkpoint saved by ComfyUI; transformer-only file; ComfyUI's published checkpoint
            prefixes=("model.diffusion_model.", "", "model."),
            names=(FUSED,),
            configure=transformer_configuration,
            absent=("before_proj.weight",),
        ),
        text_encoders={BERT_PREFIX: BERT, MT5_PREFIX: MT5},
        convert=f"{FOLDER}.files:converted",
        # ComfyUI's checkpoints lack BERT's vocabulary because ComfyUI ships it
        on_hub={BERT_PREFIX: "Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers/tokenizer"},
        pieces={MT5_PREFIX: "text_encoders.mt5xl.spiece_model"},
    ),
    training=Training(
        latent=lambda _: LATENT,
        noise=trained_noise,
    ),
    controls=Controls(
        (CONTROLNET,),
        (
            Layout(
                prefixes=("",),
                names=("before_proj.weight", "input_block.weight"),
                configure=controlnet_configuration,
            ),
        ),
        check_controlnet,
        draw_control,
        reads,
        blocks,
    ),
    lora=lora_names(
        roots=(
            "blocks",
            "text_embedder",
            "pos_embed",
            "time_extra_emb",
            "norm_out",
            "proj_out",
            "x_embedder",
            "t_embedder",
            "extra_embedder",
            "mlp_t5",
            "pooler",
            "final_layer",
            "style_embedder",
            "text_embedding_padding",
        ),
        originals=f"{FOLDER}.files:RENAMING.originals",
        merged=("time_extra_emb.pooler.",),
        marks=("attn1.Wqkv", "attn2.kv_proj", "default_modulation"),
    ),
    text_layout=TextLayout(lengths=LENGTHS),
)
