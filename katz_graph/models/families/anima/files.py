"""Reads Anima networks in the original layout. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.models.families.anima.architecture import TRANSFORMER
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many
from katz_graph.models.renaming import Renaming

ATTENTION: Mapping[str, str] = {
    "q_proj": "to_q",
    "k_proj": "to_k",
    "v_proj": "to_v",
    "output_proj": "to_out.0",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
}
PARTS = ("self_attn", "cross_attn", "mlp")  # of a block, in order
ADAPTER = "llm_adapter"
ADAPTER_LAYERS = (  # diffusers' LoRAs name the adapter otherwise
    *(
        f"blocks.{{}}.{attention}.{one}_proj"
        for attention in ("self_attn", "cross_attn")
        for one in "qkvo"
    ),
    "blocks.{}.mlp.0",
    "blocks.{}.mlp.2",
    "in_proj",
    "out_proj",
)
RENAMING = Renaming(
    {
        "x_embedder.proj.1": ("patch_embed.proj",),
        "t_embedder.1.linear_1": ("time_embed.t_embedder.linear_1",),
        "t_embedder.1.linear_2": ("time_embed.t_embedder.linear_2",),
        "t_embedding_norm": ("time_embed.norm",),
        "final_layer.adaln_modulation.1": ("norm_out.linear_1",),
        "final_layer.adaln_modulation.2": ("norm_out.linear_2",),
        "final_layer.linear": ("proj_out",),
        "blocks.{}.mlp.layer1": ("transformer_blocks.{}.ff.net.0.proj",),
        "blocks.{}.mlp.layer2": ("transformer_blocks.{}.ff.net.2",),
    }
    | {
        f"blocks.{{}}.{part}.{layer}": (f"transformer_blocks.{{}}.attn{number}.{name}",)
        for number, part in enumerate(PARTS[:2], start=1)
        for layer, name in ATTENTION.items()
    }
    | {
        f"blocks.{{}}.adaln_modulation_{part}.{layer}": (
            f"transformer_blocks.{{}}.norm{number}.linear_{layer}",
        )
        for number, part in enumerate(PARTS, start=1)
        for layer in "12"
    }
    | {f"text_conditioner.{layer}": (f"{ADAPTER}.{layer}",) for layer in ADAPTER_LAYERS}
)
UNUSED = ("pos_embedder.", "accum_")  # beginnings of names in files of trainings


def transformer_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a network in the original layout. Raises KeyError with the name
    of a missing tensor.
    """
    width, patch = shapes["x_embedder.proj.1.weight"]
    (head,) = shapes["blocks.0.self_attn.q_norm.weight"]
    adapter = f"{ADAPTER}.blocks.0"
    (adapter_head,) = shapes[f"{adapter}.cross_attn.q_norm.weight"]
    inner, source = shapes[f"{adapter}.cross_attn.k_proj.weight"]
    return {
        "_class_name": TRANSFORMER,
        "in_channels": patch // 4 - 1,
        "num_layers": how_many(shapes, "blocks.{}."),
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "mlp_ratio": shapes["blocks.0.mlp.layer1.weight"][0] / width,
        "adaln_lora_dim": shapes["blocks.0.adaln_modulation_mlp.1.weight"][0],
        "text_embed_dim": shapes["blocks.0.cross_attn.k_proj.weight"][1],
        "source_dim": source,
        "conditioner_dim": inner,
        "conditioner_layers": how_many(shapes, f"{ADAPTER}.blocks.{{}}."),
        "conditioner_heads": head_count(inner, adapter_head),
        "conditioner_mlp_ratio": shapes[f"{adapter}.mlp.0.weight"][0] / inner,
        "conditioner_words": shapes[f"{ADAPTER}.embed.weight"][0],
    }


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors under diffusers' names. `values`: the module's configuration."""
    used = {
        name: one
        for name, one in tensors.items()
        if not name.startswith(UNUSED) and not name.endswith("_extra_state")
    }
    return RENAMING.converted(used, blocks=0)  # all blocks are alike
