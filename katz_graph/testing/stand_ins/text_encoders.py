"""Makes text encoders and vocabularies in the layouts of published files."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from katz_graph.models.families.shared.random_parts import mistral_words
from katz_graph.models.families.shared.stand_ins import (
    POOLED,
    QWEN25_WIDTH,
    SPREAD,
    TEXT_WIDTH,
    WIDTH,
    Shapes,
    drawn,
    linear,
)
from katz_graph.models.text.vocabularies import TOKENIZERS


def t5_shapes(width: int = TEXT_WIDTH) -> Shapes:
    yield "shared.weight", (32128, width)
    for number in range(2):
        place = f"encoder.block.{number}.layer"
        for one in "qkv":
            yield f"{place}.0.SelfAttention.{one}.weight", (64, width)
        yield f"{place}.0.SelfAttention.o.weight", (width, 64)
        if number == 0:
            yield f"{place}.0.SelfAttention.relative_attention_bias.weight", (32, 4)
        yield f"{place}.0.layer_norm.weight", (width,)
        yield f"{place}.1.DenseReluDense.wi_0.weight", (96, width)
        yield f"{place}.1.DenseReluDense.wi_1.weight", (96, width)
        yield f"{place}.1.DenseReluDense.wo.weight", (width, 96)
        yield f"{place}.1.layer_norm.weight", (width,)
    yield "encoder.final_layer_norm.weight", (width,)


def t5() -> dict[str, Tensor]:
    made = drawn(t5_shapes(), 3)
    return made | {"encoder.embed_tokens.weight": made["shared.weight"].clone()}


def sentence_pieces(extra: Sequence[tuple[str, int]] = (), spelled: bool = False) -> bytes:
    """Returns T5's vocabulary as a sentencepiece model, followed by `extra` pieces with their
    types. `spelled`: unknown letters are encoded in bytes.
    """
    read = json.loads((TOKENIZERS / "t5_tokenizer" / "tokenizer.json").read_text())
    (table,) = (
        base64.b64decode(one["precompiled_charsmap"])
        for one in read["normalizer"]["normalizers"]
        if one["type"] == "Precompiled"
    )
    types = {"<pad>": 3, "</s>": 3, "<unk>": 2}
    pieces = [(text, score, types.get(text, 1)) for text, score in read["model"]["vocab"]]
    return b"".join(
        (
            *(
                _field(1, _field(1, text.encode()) + _field(2, score) + _field(3, kind))
                for text, score, kind in (*pieces, *((text, 0.0, kind) for text, kind in extra))
            ),
            _field(2, _field(3, 1) + _field(35, int(spelled)) + _field(40, 2)),
            _field(3, _field(1, b"nmt_nfkc") + _field(2, table)),
        )
    )


def _field(number: int, value: bytes | float) -> bytes:
    """Returns a protocol buffer field: bytes, an integer, or a four-byte float."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 5) + struct.pack("<f", value)


def _varint(value: int) -> bytes:
    *others, last = (value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7))
    return bytes((*(one | 128 for one in others), last))


def _qwen3() -> Shapes:
    yield from _qwen3_tower("model", 36)


def _qwen3_tower(tower: str, layers: int) -> Shapes:
    yield f"{tower}.embed_tokens.weight", (151936, TEXT_WIDTH)
    for number in range(layers):
        place = f"{tower}.layers.{number}"
        yield f"{place}.self_attn.q_proj.weight", (64, TEXT_WIDTH)
        yield f"{place}.self_attn.k_proj.weight", (32, TEXT_WIDTH)
        yield f"{place}.self_attn.v_proj.weight", (32, TEXT_WIDTH)
        yield f"{place}.self_attn.o_proj.weight", (TEXT_WIDTH, 64)
        yield f"{place}.self_attn.q_norm.weight", (16,)
        yield f"{place}.self_attn.k_norm.weight", (16,)
        yield f"{place}.mlp.gate_proj.weight", (96, TEXT_WIDTH)
        yield f"{place}.mlp.up_proj.weight", (96, TEXT_WIDTH)
        yield f"{place}.mlp.down_proj.weight", (TEXT_WIDTH, 96)
        yield f"{place}.input_layernorm.weight", (TEXT_WIDTH,)
        yield f"{place}.post_attention_layernorm.weight", (TEXT_WIDTH,)
    yield f"{tower}.norm.weight", (TEXT_WIDTH,)


def qwen3() -> dict[str, Tensor]:
    return drawn(_qwen3(), 4)


def clip_shapes(width: int, layers: int) -> Shapes:
    yield "text_model.embeddings.token_embedding.weight", (49408, width)
    yield "text_model.embeddings.position_embedding.weight", (77, width)
    for number in range(layers):
        place = f"text_model.encoder.layers.{number}"
        for one in ("q", "k", "v", "out"):
            yield from linear(f"{place}.self_attn.{one}_proj", width, width)
        for norm in ("layer_norm1", "layer_norm2"):
            yield f"{place}.{norm}.weight", (width,)
            yield f"{place}.{norm}.bias", (width,)
        yield from linear(f"{place}.mlp.fc1", 2 * width, width)
        yield from linear(f"{place}.mlp.fc2", width, 2 * width)
    yield "text_model.final_layer_norm.weight", (width,)
    yield "text_model.final_layer_norm.bias", (width,)


def clip_l() -> dict[str, Tensor]:
    return drawn(clip_shapes(POOLED, 2), 5)


def clip_g(projection: int = 40) -> dict[str, Tensor]:
    made = drawn(clip_shapes(WIDTH, 3), 6)
    weight = SPREAD * torch.randn(projection, WIDTH, generator=torch.Generator().manual_seed(7))
    return made | {"text_projection.weight": weight}


def _mistral3(layers: int) -> Shapes:
    yield "model.embed_tokens.weight", (131072, TEXT_WIDTH)
    for number in range(layers):
        place = f"model.layers.{number}"
        yield f"{place}.self_attn.q_proj.weight", (256, TEXT_WIDTH)
        yield f"{place}.self_attn.k_proj.weight", (128, TEXT_WIDTH)
        yield f"{place}.self_attn.v_proj.weight", (128, TEXT_WIDTH)
        yield f"{place}.self_attn.o_proj.weight", (TEXT_WIDTH, 256)
        yield from _gated(f"{place}.mlp", TEXT_WIDTH, 96)
        yield f"{place}.input_layernorm.weight", (TEXT_WIDTH,)
        yield f"{place}.post_attention_layernorm.weight", (TEXT_WIDTH,)


def mistral3(layers: int = 30) -> dict[str, Tensor]:
    """Returns Mistral 3's weights up to the last layer that FLUX.2 reads, and its vocabulary."""
    words = torch.frombuffer(bytearray(mistral_words()), dtype=torch.uint8)
    return drawn(_mistral3(layers), 14) | {"tekken_model": words}


def _qwen25_vl(layers: int, vision_layers: int) -> Shapes:
    width, inner, vision = QWEN25_WIDTH, 96, 80
    yield "model.embed_tokens.weight", (152064, width)
    for number in range(layers):
        place = f"model.layers.{number}"
        for one in "qkv":
            yield from linear(f"{place}.self_attn.{one}_proj", width, width)
        yield f"{place}.self_attn.o_proj.weight", (width, width)
        yield from _gated(f"{place}.mlp", width, inner)
        yield f"{place}.input_layernorm.weight", (width,)
        yield f"{place}.post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (152064, width)
    yield "visual.patch_embed.proj.weight", (vision, 3, 2, 14, 14)
    for number in range(vision_layers):
        place = f"visual.blocks.{number}"
        yield f"{place}.norm1.weight", (vision,)
        yield f"{place}.norm2.weight", (vision,)
        yield from linear(f"{place}.attn.qkv", 3 * vision, vision)
        yield from linear(f"{place}.attn.proj", vision, vision)
        yield from linear(f"{place}.mlp.gate_proj", inner, vision)
        yield from linear(f"{place}.mlp.up_proj", inner, vision)
        yield from linear(f"{place}.mlp.down_proj", vision, inner)
    yield "visual.merger.ln_q.weight", (vision,)
    yield from linear("visual.merger.mlp.0", 4 * vision, 4 * vision)
    yield from linear("visual.merger.mlp.2", width, 4 * vision)


def _gated(place: str, width: int, inner: int) -> Shapes:
    yield f"{place}.gate_proj.weight", (inner, width)
    yield f"{place}.up_proj.weight", (inner, width)
    yield f"{place}.down_proj.weight", (width, inner)


def qwen25_vl(layers: int = 2, vision_layers: int = 2) -> dict[str, Tensor]:
    """Returns Qwen2.5-VL's weights, with its vision tower."""
    return drawn(_qwen25_vl(layers, vision_layers), 11)


def _qwen3_vl(layers: int, generates: bool) -> Shapes:
    vision, inner, merged = 72, 96, 4 * 72
    yield from _qwen3_tower("model.language_model", layers)
    if generates:
        yield "lm_head.weight", (151936, TEXT_WIDTH)
    yield "model.visual.patch_embed.proj.weight", (vision, 3, 2, 16, 16)
    yield "model.visual.patch_embed.proj.bias", (vision,)
    yield "model.visual.pos_embed.weight", (2304, vision)
    for number in range(3):
        place = f"model.visual.blocks.{number}"
        for norm in ("norm1", "norm2"):
            yield f"{place}.{norm}.weight", (vision,)
            yield f"{place}.{norm}.bias", (vision,)
        yield from linear(f"{place}.attn.qkv", 3 * vision, vision)
        yield from linear(f"{place}.attn.proj", vision, vision)
        yield from linear(f"{place}.mlp.linear_fc1", inner, vision)
        yield from linear(f"{place}.mlp.linear_fc2", vision, inner)
    mergers = {"merger": vision} | {f"deepstack_merger_list.{one}": merged for one in range(3)}
    for name, normed in mergers.items():
        place = f"model.visual.{name}"
        yield f"{place}.norm.weight", (normed,)
        yield f"{place}.norm.bias", (normed,)
        yield from linear(f"{place}.linear_fc1", merged, merged)
        yield from linear(f"{place}.linear_fc2", TEXT_WIDTH, merged)


def qwen3_vl(layers: int = 36, generates: bool = False) -> dict[str, Tensor]:
    """Returns Qwen3-VL's weights, with its vision tower; `generates`: with an own output layer."""
    return drawn(_qwen3_vl(layers, generates), 13)


def unread() -> dict[str, Tensor]:
    """Returns a part of Qwen3.5's weights, for files that templates name behind a switch that is
    off.
    """
    return drawn(iter([("model.language_model.embed_tokens.weight", (8, TEXT_WIDTH))]), 19)
