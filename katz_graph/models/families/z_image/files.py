"""Reads Z-Image transformers in the original layout. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.models.families.z_image.architecture import TRANSFORMER
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many, rotary_axes
from katz_graph.models.renaming import Renaming

CHAINS = "layers", "noise_refiner", "context_refiner"
ATTENTION: Mapping[str, tuple[str, ...]] = {
    "qkv": ("to_q", "to_k", "to_v"),
    "out": ("to_out.0",),
    "q_norm": ("norm_q",),
    "k_norm": ("norm_k",),
}
RENAMING = Renaming(
    {
        "x_embedder": ("all_x_embedder.2-1",),
        "final_layer.linear": ("all_final_layer.2-1.linear",),
        "final_layer.adaLN_modulation.1": ("all_final_layer.2-1.adaLN_modulation.1",),
    }
    | {
        f"{chain}.{{}}.attention.{layer}": tuple(f"{chain}.{{}}.attention.{one}" for one in names)
        for chain in CHAINS
        for layer, names in ATTENTION.items()
    }
)
UNUSED = "norm_final.weight"  # present in some files


def transformer_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a transformer in the original layout. Raises KeyError with the
    name of a missing tensor.
    """
    width, inputs = shapes["x_embedder.weight"]
    (head,) = shapes["layers.0.attention.q_norm.weight"]
    return {
        "_class_name": TRANSFORMER,
        "in_channels": inputs // 4,
        "dim": width,
        "n_layers": how_many(shapes, "layers.{}."),
        "n_refiner_layers": how_many(shapes, "noise_refiner.{}."),
        "n_heads": head_count(width, head),
        "n_kv_heads": head_count(width, head),
        "cap_feat_dim": shapes["cap_embedder.1.weight"][1],
        "axes_dims": rotary_axes(head, 4),
    }


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors under diffusers' names, which ControlNet files already use. `values`: the
    module's configuration.
    """
    remaining = {name: tensor for name, tensor in tensors.items() if name != UNUSED}
    return RENAMING.converted(remaining, blocks=0)  # all blocks are alike
