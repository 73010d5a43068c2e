"""Makes small random files in the layouts in which transformers, text encoders and VAEs are
published.

Names and shapes are copied from the published files; the loader's tables are not used.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from scaled_files import Files
from single_files import original_vae
from torch import Tensor

from katz_graph.models.families.shared.random_parts import seeded
from katz_graph.models.text.vocabularies import TOKENIZERS

WIDTH, HEAD, T5_WIDTH, POOLED = (
    64,
    32,
    64,
    32,
)  # of tokens, heads, long texts and CLIP-L's pooled text
PREFIX = "model.diffusion_model."
SPREAD = 0.05


def drawn(shapes: Iterator[tuple[str, tuple[int, ...]]], seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: SPREAD * torch.randn(shape, generator=draw) for name, shape in shapes}


def _linear(name: str, out: int, into: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, into)
    yield f"{name}.bias", (out,)


def _flux(
    double: int, single: int, guided: bool, channels: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _linear("img_in", WIDTH, channels)
    yield from _linear("txt_in", WIDTH, T5_WIDTH)
    embedders = [("time_in", 256), ("vector_in", POOLED), *([("guidance_in", 256)] * guided)]
    for name, into in embedders:
        yield from _linear(f"{name}.in_layer", WIDTH, into)
        yield from _linear(f"{name}.out_layer", WIDTH, WIDTH)
    for number in range(double):
        for side in ("img", "txt"):
            place = f"double_blocks.{number}.{side}"
            yield from _linear(f"{place}_mod.lin", 6 * WIDTH, WIDTH)
            yield from _linear(f"{place}_attn.qkv", 3 * WIDTH, WIDTH)
            yield f"{place}_attn.norm.query_norm.scale", (HEAD,)
            yield f"{place}_attn.norm.key_norm.scale", (HEAD,)
            yield from _linear(f"{place}_attn.proj", WIDTH, WIDTH)
            yield from _linear(f"{place}_mlp.0", 4 * WIDTH, WIDTH)
            yield from _linear(f"{place}_mlp.2", WIDTH, 4 * WIDTH)
    for number in range(single):
        place = f"single_blocks.{number}"
        yield from _linear(f"{place}.modulation.lin", 3 * WIDTH, WIDTH)
        yield from _linear(f"{place}.linear1", 7 * WIDTH, WIDTH)
        yield from _linear(f"{place}.linear2", WIDTH, 5 * WIDTH)
        yield f"{place}.norm.query_norm.scale", (HEAD,)
        yield f"{place}.norm.key_norm.scale", (HEAD,)
    yield from _linear("final_layer.adaLN_modulation.1", 2 * WIDTH, WIDTH)
    yield from _linear("final_layer.linear", 64, WIDTH)


def flux(
    double: int = 2, single: int = 2, guided: bool = True, channels: int = 64
) -> dict[str, Tensor]:
    return drawn(_flux(double, single, guided, channels), 1)


def _z_image(layers: int, refiners: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _linear("x_embedder", WIDTH, 64)
    yield "cap_embedder.0.weight", (T5_WIDTH,)
    yield from _linear("cap_embedder.1", WIDTH, T5_WIDTH)
    yield from _linear("t_embedder.mlp.0", 1024, 256)
    yield from _linear("t_embedder.mlp.2", WIDTH, 1024)
    yield "x_pad_token", (1, WIDTH)
    yield "cap_pad_token", (1, WIDTH)
    inner = int(WIDTH / 3 * 8)
    for chain, count in (
        ("layers", layers),
        ("noise_refiner", refiners),
        ("context_refiner", refiners),
    ):
        for number in range(count):
            place = f"{chain}.{number}"
            yield f"{place}.attention.qkv.weight", (3 * WIDTH, WIDTH)
            yield f"{place}.attention.out.weight", (WIDTH, WIDTH)
            for one in "qk":
                yield f"{place}.attention.{one}_norm.weight", (HEAD,)
            yield f"{place}.feed_forward.w1.weight", (inner, WIDTH)
            yield f"{place}.feed_forward.w2.weight", (WIDTH, inner)
            yield f"{place}.feed_forward.w3.weight", (inner, WIDTH)
            for norm in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"):
                yield f"{place}.{norm}.weight", (WIDTH,)
            if chain != "context_refiner":
                yield from _linear(f"{place}.adaLN_modulation.0", 4 * WIDTH, WIDTH)
    yield from _linear("final_layer.linear", 64, WIDTH)
    yield from _linear("final_layer.adaLN_modulation.1", WIDTH, WIDTH)


def z_image(layers: int = 2, refiners: int = 1) -> dict[str, Tensor]:
    return drawn(_z_image(layers, refiners), 2)


def _z_image_control() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _linear("control_all_x_embedder.2-1", WIDTH, 64)
    inner = int(WIDTH / 3 * 8)
    for place in ("control_layers.0", "control_noise_refiner.0"):
        for one in ("to_q", "to_k", "to_v", "to_out.0"):
            yield f"{place}.attention.{one}.weight", (WIDTH, WIDTH)
        for one in "qk":
            yield f"{place}.attention.norm_{one}.weight", (HEAD,)
        for number, (out, into) in enumerate(((inner, WIDTH), (WIDTH, inner), (inner, WIDTH)), 1):
            yield f"{place}.feed_forward.w{number}.weight", (out, into)
        for norm in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"):
            yield f"{place}.{norm}.weight", (WIDTH,)
        yield from _linear(f"{place}.adaLN_modulation.0", 4 * WIDTH, WIDTH)
    yield from _linear("control_layers.0.before_proj", WIDTH, WIDTH)
    yield from _linear("control_layers.0.after_proj", WIDTH, WIDTH)


def z_image_control() -> dict[str, Tensor]:
    return drawn(_z_image_control(), 8)


def _t5() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "shared.weight", (32128, T5_WIDTH)
    for number in range(2):
        place = f"encoder.block.{number}.layer"
        for one in "qkv":
            yield f"{place}.0.SelfAttention.{one}.weight", (64, T5_WIDTH)
        yield f"{place}.0.SelfAttention.o.weight", (T5_WIDTH, 64)
        if number == 0:
            yield f"{place}.0.SelfAttention.relative_attention_bias.weight", (32, 4)
        yield f"{place}.0.layer_norm.weight", (T5_WIDTH,)
        yield f"{place}.1.DenseReluDense.wi_0.weight", (96, T5_WIDTH)
        yield f"{place}.1.DenseReluDense.wi_1.weight", (96, T5_WIDTH)
        yield f"{place}.1.DenseReluDense.wo.weight", (T5_WIDTH, 96)
        yield f"{place}.1.layer_norm.weight", (T5_WIDTH,)
    yield "encoder.final_layer_norm.weight", (T5_WIDTH,)


def t5() -> dict[str, Tensor]:
    made = drawn(_t5(), 3)
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


def _qwen3() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (151936, T5_WIDTH)
    for number in range(3):
        place = f"model.layers.{number}"
        yield f"{place}.self_attn.q_proj.weight", (64, T5_WIDTH)
        yield f"{place}.self_attn.k_proj.weight", (32, T5_WIDTH)
        yield f"{place}.self_attn.v_proj.weight", (32, T5_WIDTH)
        yield f"{place}.self_attn.o_proj.weight", (T5_WIDTH, 64)
        yield f"{place}.self_attn.q_norm.weight", (16,)
        yield f"{place}.self_attn.k_norm.weight", (16,)
        yield f"{place}.mlp.gate_proj.weight", (96, T5_WIDTH)
        yield f"{place}.mlp.up_proj.weight", (96, T5_WIDTH)
        yield f"{place}.mlp.down_proj.weight", (T5_WIDTH, 96)
        yield f"{place}.input_layernorm.weight", (T5_WIDTH,)
        yield f"{place}.post_attention_layernorm.weight", (T5_WIDTH,)
    yield "model.norm.weight", (T5_WIDTH,)


def qwen3() -> dict[str, Tensor]:
    return drawn(_qwen3(), 4)


def _clip(width: int, layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "text_model.embeddings.token_embedding.weight", (49408, width)
    yield "text_model.embeddings.position_embedding.weight", (77, width)
    for number in range(layers):
        place = f"text_model.encoder.layers.{number}"
        for one in ("q", "k", "v", "out"):
            yield from _linear(f"{place}.self_attn.{one}_proj", width, width)
        for norm in ("layer_norm1", "layer_norm2"):
            yield f"{place}.{norm}.weight", (width,)
            yield f"{place}.{norm}.bias", (width,)
        yield from _linear(f"{place}.mlp.fc1", 2 * width, width)
        yield from _linear(f"{place}.mlp.fc2", width, 2 * width)
    yield "text_model.final_layer_norm.weight", (width,)
    yield "text_model.final_layer_norm.bias", (width,)


def clip_l() -> dict[str, Tensor]:
    return drawn(_clip(POOLED, 2), 5)


def clip_g(projection: int = 40) -> dict[str, Tensor]:
    made = drawn(_clip(WIDTH, 3), 6)
    weight = SPREAD * torch.randn(projection, WIDTH, generator=torch.Generator().manual_seed(7))
    return made | {"text_projection.weight": weight}


def vae() -> dict[str, Tensor]:
    """Returns the weights of a 16-channel VAE in the original layout."""
    from diffusers import AutoencoderKL

    with seeded(8):
        module = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(32,) * 4,
            layers_per_block=1,
            latent_channels=16,
            use_quant_conv=False,
            use_post_quant_conv=False,
        )
    return {name: tensor.contiguous() for name, tensor in original_vae(module).items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def write(path: Path, tensors: dict[str, Tensor], kind: str = "") -> None:
    """Writes a file. `kind`: empty for bfloat16; `fp8` for 8-bit weights without scales; `convrot`
    for rotated 8-bit integers; else a marker of `scaled_files.Files`, for two-dimensional weights
    with scales.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not kind:
        save_file({name: one.to(torch.bfloat16) for name, one in tensors.items()}, path)
        return
    if kind == "fp8":
        save_file({name: one.to(torch.float8_e4m3fn) for name, one in tensors.items()}, path)
        return
    files = Files(tensors, "comfy_quant" if kind == "convrot" else kind)
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if (
            name.endswith(".weight")
            and tensor.ndim == 2
            and "embed" not in name
            and tensor.shape[1] == WIDTH
        ):
            if kind == "convrot":
                files.store(layer, "int8_tensorwise", rotated=64)
            else:
                files.store(layer, "float8_e4m3fn", rows=False)
    made, _ = files.save(path.parent)
    made.rename(path)
    (path.parent / "wide.safetensors").unlink()
