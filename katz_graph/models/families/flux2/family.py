"""Declares the family of FLUX.2. Never imports torch."""

from __future__ import annotations

from katz_graph.core.recipe import Fill, TextLayout
from katz_graph.models.families.flux2.architecture import (
    LATENT,
    SCHEDULER,
    TRANSFORMER,
    complete,
    transformer_architecture,
)
from katz_graph.models.families.flux2.files import transformer_configuration
from katz_graph.models.families.shared.declarations import lora_names, transformer
from katz_graph.models.family import Files, Layout, ModelFamily, TextSet, Training
from katz_graph.models.text.kinds import MISTRAL3, QWEN3

FOLDER = "katz_graph.models.families.flux2"
TOKENS = 512  # of a text with its pad tokens
DEV = TextLayout(
    template=(
        "<s>[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give "
        "structured responses focusing on object relationships, object\nattribution "
        "and actions without speculation.[/SYSTEM_PROMPT][INST]{}[/INST]"
    ),
    states=(10, 20, 30),
    fill=Fill(least=TOKENS, left=True),
)
KLEIN = TextLayout(
    template=("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    opening="<|im_start|>",
    states=(9, 18, 27),
    fill=Fill(least=TOKENS),
)
FAMILY = ModelFamily(
    title="FLUX.2",
    short="FLUX.2",
    network=transformer(
        class_name=TRANSFORMER,
        architecture=transformer_architecture,
        complete=complete,
        stack=f"{FOLDER}.stack",
        chains=(("double", "num_layers"), ("single", "num_single_layers")),
        overflows=True,
        references_apart=True,
    ),
    files=Files(
        network=Layout(
            prefixes=("model.diffusion_model.", ""),
            names=("double_stream_modulation_img.lin.weight",),
            configure=transformer_configuration,
        ),
        text_encoders={
            "text_encoders.qwen3_4b.transformer.": QWEN3,
            "text_encoders.qwen3_8b.transformer.": QWEN3,
        },
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
            "single_transformer_blocks",
            "x_embedder",
            "context_embedder",
            "time_guidance_embed",
            "double_stream_modulation_img",
            "double_stream_modulation_txt",
            "single_stream_modulation",
            "norm_out",
            "proj_out",
            "double_blocks",
            "single_blocks",
            "img_in",
            "txt_in",
            "time_in",
            "guidance_in",
            "final_layer",
        ),
        originals=f"{FOLDER}.files:RENAMING.originals",
        marks=("to_qkv_mlp_proj", "ff.linear_in", "ff.linear_out"),
    ),
    text_sets=(
        TextSet("flux2", (MISTRAL3.name,), layout=DEV),
        TextSet("flux2", (QWEN3.name,), sizes=("4B", "8B"), layout=KLEIN),
    ),
    text_layout=DEV,
)
