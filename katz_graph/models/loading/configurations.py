"""Derives the configuration of a text encoder from the shapes of its tensors, in the
original layout (OpenAI, Stability AI) or in transformers'.

Takes values that shapes do not determine from the published models. Never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from katz_graph.core.errors import InputError

Shapes = Mapping[str, tuple[int, ...]]
"""Maps a module's tensor names, without the file's prefix, to shapes."""

HEAD_WIDTH = 64  # of text encoders
PROJECTING_WIDTH = 1280  # of OpenCLIP's ViT-bigG, the text encoder with a projection
OPEN_CLIP_WIDTHS = (1024, PROJECTING_WIDTH)  # ViT-H and ViT-bigG
VOCABULARY, T5_VOCABULARY = 49408, 32128
EMBEDDING = "embed_tokens.weight"  # of a language model
MISTRAL3_WIDTH = 5120
TOWER = "visual."  # end of the prefix of a vision tower's tensors
QWEN2_5_VISION_HEAD_WIDTH = 80
QWEN2_5_WINDOW = 112  # pixels
QWEN2_5_WHOLE_BLOCKS = [7, 15, 23, 31]  # whose attention has no windows
QWEN3_VISION_HEAD_WIDTHS = (72, 64)  # of 8B, of 4B
QWEN3_DEEP_BLOCKS = {27: [8, 16, 24], 24: [5, 11, 17]}
"""Blocks whose outputs a Qwen3-VL's text part reads, by number of blocks: 8B, 4B. Else the last."""
LANGUAGE_HEAD_WIDTH = 128  # unless norms of its queries have another


def text_configuration(shapes: Shapes, projecting: bool | None = None) -> dict[str, Any]:
    """Derives the configuration of a CLIPTextModel or a CLIPTextModelWithProjection.

    projecting: true for a projection; None: decided by width.
    """
    open_clip = "positional_embedding" in shapes
    shapes = {name.removeprefix("text_model."): shape for name, shape in shapes.items()}
    table, positions, layer, inner = (
        (
            "token_embedding.weight",
            "positional_embedding",
            "transformer.resblocks.{}.",
            "mlp.c_fc.weight",
        )
        if open_clip
        else (
            "embeddings.token_embedding.weight",
            "embeddings.position_embedding.weight",
            "encoder.layers.{}.",
            "mlp.fc1.weight",
        )
    )
    vocabulary, width = shapes[table]
    if vocabulary != VOCABULARY:
        raise InputError(
            f"a text encoder with a vocabulary of {vocabulary:,} tokens, expected CLIP's "
            f"{VOCABULARY:,}"
        )
    projection = (
        shapes.get("text_projection")
        or tuple(reversed(shapes.get("text_projection.weight", ())))
        or (width, width)
    )
    projecting = width == PROJECTING_WIDTH if projecting is None else projecting
    return {
        "architectures": ["CLIPTextModelWithProjection" if projecting else "CLIPTextModel"],
        "model_type": "clip_text_model",
        "hidden_act": "gelu" if open_clip or width in OPEN_CLIP_WIDTHS else "quick_gelu",
        "hidden_size": width,
        "intermediate_size": shapes[layer.format(0) + inner][0],
        "max_position_embeddings": shapes[positions][0],
        "num_attention_heads": max(1, width // HEAD_WIDTH),
        "num_hidden_layers": how_many(shapes, layer),
        "projection_dim": projection[1],
        "vocab_size": vocabulary,
        "bos_token_id": VOCABULARY - 2,
        "eos_token_id": VOCABULARY - 1,
        "pad_token_id": 1,
        "layer_norm_eps": 1e-5,
    }


def t5_configuration(shapes: Shapes) -> dict[str, Any]:
    """Derives the configuration of a T5EncoderModel of T5 1.1, with gated feed-forward layers."""
    vocabulary, _ = shapes["shared.weight"]
    if vocabulary != T5_VOCABULARY:
        raise InputError(
            f"a T5 with a vocabulary of {vocabulary:,} tokens (mT5 or UMT5), expected T5 1.1's "
            f"{T5_VOCABULARY:,}"
        )
    return _t5(shapes) | {"architectures": ["T5EncoderModel"], "model_type": "t5"}


def mt5_configuration(shapes: Shapes) -> dict[str, Any]:
    """Derives the configuration of an MT5EncoderModel with a vocabulary of any size."""
    return _t5(shapes) | {"architectures": ["MT5EncoderModel"], "model_type": "mt5"}


def _t5(shapes: Shapes) -> dict[str, Any]:
    vocabulary, width = shapes["shared.weight"]
    first = "encoder.block.0.layer.{}."
    buckets, heads = shapes[first.format(0) + "SelfAttention.relative_attention_bias.weight"]
    return {
        "vocab_size": vocabulary,
        "d_model": width,
        "d_kv": shapes[first.format(0) + "SelfAttention.q.weight"][0] // heads,
        "d_ff": shapes[first.format(1) + "DenseReluDense.wi_1.weight"][0],
        "num_layers": how_many(shapes, "encoder.block.{}."),
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
        "feed_forward_proj": "gated-gelu",
        "eos_token_id": 1,
        "pad_token_id": 0,
    }


def bert_configuration(shapes: Shapes) -> dict[str, Any]:
    """Derives the configuration of a BertModel."""
    vocabulary, width = shapes["embeddings.word_embeddings.weight"]
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["encoder.layer.0.intermediate.dense.weight"][0],
        "max_position_embeddings": shapes["embeddings.position_embeddings.weight"][0],
        "type_vocab_size": shapes["embeddings.token_type_embeddings.weight"][0],
        "num_attention_heads": max(1, width // HEAD_WIDTH),
        "num_hidden_layers": how_many(shapes, "encoder.layer.{}."),
        "pad_token_id": 0,
    }


def language_configuration(shapes: Shapes) -> dict[str, Any]:
    """Derives the configuration of a Qwen3Model, or of a Qwen2.5-VL, Qwen3-VL or Mistral 3 with its
    text part, and its vision tower if the file has one. Raises KeyError with the name of a missing
    tensor.
    """
    whole = shapes
    before, said = text_prefix(shapes), "tekken_model" in shapes
    shapes = {name.removeprefix(before): shape for name, shape in shapes.items()}
    vocabulary, width = shapes[EMBEDDING]
    attention = "layers.0.self_attn."
    normed, biased = f"{attention}q_norm.weight" in shapes, f"{attention}k_proj.bias" in shapes
    (head,) = shapes[f"{attention}q_norm.weight"] if normed else (LANGUAGE_HEAD_WIDTH,)
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["layers.0.mlp.gate_proj.weight"][0],
        "num_hidden_layers": how_many(shapes, "layers.{}."),
        "num_attention_heads": shapes[f"{attention}q_proj.weight"][0] // head,
        "num_key_value_heads": shapes[f"{attention}k_proj.weight"][0] // head,
    }
    if normed and "language_model." in before:
        text = sizes | {"head_dim": head, "max_position_embeddings": 262144}
        sees = qwen3_vision_configuration(whole)
        return _with_pictures("Qwen3VL", "qwen3_vl", text, theta=5e6) | sees
    if normed:
        return {
            "architectures": ["Qwen3Model"],
            "model_type": "qwen3",
            **sizes,
            "head_dim": head,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "attention_bias": f"{attention}q_proj.bias" in shapes,
        }
    if biased:
        text = sizes | {"max_position_embeddings": 128000}
        sees = qwen2_5_vision_configuration(whole)
        return _with_pictures("Qwen2_5_VL", "qwen2_5_vl", text, theta=1e6) | sees
    if said or width == MISTRAL3_WIDTH:
        # a model that is cut behind its last state in use needs no final norm
        text = sizes | {"head_dim": head, "max_position_embeddings": 131072}
        text |= {} if "norm.weight" in shapes else {"final_norm": False}
        return _with_pictures("Mistral3", "mistral3", text, theta=1e9, eps=1e-5)
    raise InputError(
        "a language model with neither norms of its queries nor biases, expected Qwen3, Qwen3-VL, "
        "Qwen2.5-VL or Mistral 3"
    )


def _with_pictures(
    name: str, kind: str, text: dict[str, Any], theta: float, eps: float = 1e-6
) -> dict[str, Any]:
    """Returns the configuration of a model that sees pictures from that of its text part."""
    text |= {
        "model_type": "mistral" if kind == "mistral3" else f"{kind}_text",
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }
    return {
        "architectures": [f"{name}ForConditionalGeneration"],
        "model_type": kind,
        "text_config": text,
    }


def qwen2_5_vision_configuration(shapes: Shapes) -> dict[str, Any]:
    """Derives `vision_config` of a Qwen2.5-VL; empty without a vision tower."""
    shapes = _tower(shapes)
    if not shapes:
        return {}
    width, *_, patch = shapes["patch_embed.proj.weight"]
    sees = {
        "depth": how_many(shapes, "blocks.{}."),
        "hidden_size": width,
        "intermediate_size": shapes["blocks.0.mlp.gate_proj.weight"][0],
        "num_heads": max(1, width // QWEN2_5_VISION_HEAD_WIDTH),
        "out_hidden_size": shapes["merger.mlp.2.weight"][0],
        "patch_size": patch,
        "fullatt_block_indexes": QWEN2_5_WHOLE_BLOCKS,
        "window_size": QWEN2_5_WINDOW,
    }
    return {"vision_config": sees}


def qwen3_vision_configuration(shapes: Shapes) -> dict[str, Any]:
    """Derives `vision_config` of a Qwen3-VL; empty without a vision tower."""
    shapes = _tower(shapes)
    if not shapes:
        return {}
    width, *_, patch = shapes["patch_embed.proj.weight"]
    depth, deep = how_many(shapes, "blocks.{}."), how_many(shapes, "deepstack_merger_list.{}.")
    sees = {
        "depth": depth,
        "hidden_size": width,
        "intermediate_size": shapes["blocks.0.mlp.linear_fc1.weight"][0],
        "num_heads": next((width // one for one in QWEN3_VISION_HEAD_WIDTHS if not width % one), 1),
        "out_hidden_size": shapes["merger.linear_fc2.weight"][0],
        "patch_size": patch,
        "num_position_embeddings": shapes["pos_embed.weight"][0],
        "deepstack_visual_indexes": QWEN3_DEEP_BLOCKS.get(depth, [*range(depth - deep, depth)]),
    }
    return {"vision_config": sees}


def _tower(shapes: Shapes) -> Shapes:
    """Returns the tensors of a vision tower, without its prefix."""
    before = next((name.partition(TOWER)[0] for name in shapes if TOWER in name), None)
    if before is None:
        return {}
    return {
        name.removeprefix(before + TOWER): shape
        for name, shape in shapes.items()
        if name.startswith(before + TOWER)
    }


def text_prefix(names: Iterable[str]) -> str:
    """Returns the prefix of a language model's tensors, which may be one part of a model that sees
    pictures. Raises KeyError with the name of the missing embedding.
    """
    for name in names:
        if name == EMBEDDING or name.endswith(f".{EMBEDDING}"):
            return name.removesuffix(EMBEDDING)
    raise KeyError(EMBEDDING)


def rotary_axes(head: int, share: int = 8) -> list[int]:
    """Returns the channels per axis of rotary positions in a head of this width: one part of
    `share` for text or picture, and equal parts for row and column. Raises ValueError for an
    indivisible width.
    """
    first = head // share
    if (head - first) % 4 or first % 2:
        raise ValueError(head)
    return [first, (head - first) // 2, (head - first) // 2]


def head_count(width: int, head: int) -> int:
    """Counts the heads of width `head`. Raises ValueError unless `head` divides `width`."""
    if not head or not width or width % head:
        raise ValueError(width)
    return width // head


def how_many(shapes: Shapes, pattern: str) -> int:
    """Counts the distinct numbers at the pattern's `{}` in the tensor names."""
    before, after = map(re.escape, pattern.split("{}"))
    numbered = re.compile(rf"{before}(\d+){after}")
    return len({match[1] for name in shapes if (match := numbered.match(name))})
