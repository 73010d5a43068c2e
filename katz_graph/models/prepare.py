"""Replaces the forwards of known diffusers and transformers blocks by forwards with our kernels,
over the same parameters and buffers.

On a CPU, operations and their order equal the libraries', so results are bit-equal. On a GPU, the
kernel after a convolution adds the bias, and norms, activations and residuals take one pass over
memory each. Other blocks, and blocks with unsupported options, keep their library's forward.

Each module of `prepared` subclasses blocks of one or few library modules. It is imported when a
model has one of these blocks, so a job imports only the libraries' modules of its models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from torch import nn

from katz_graph.models.prepared.activations import GATES
from katz_graph.models.projections import FUSED, FusedProjections, Fusible


def prepare(module: nn.Module) -> None:
    """Replaces the forwards of a module's known blocks; `unprepared` counts the others."""
    for one in module.modules():
        known = PREPARED.get(_path(type(one)))
        if known is not None and not known.unknown(one):
            one.__class__ = resolve_name(known.becomes)


def unprepared(module: nn.Module) -> Counter[str]:
    """Counts a module's blocks that keep their library's forward, by kind and reason."""
    counts: Counter[str] = Counter()
    for one in module.modules():
        known = PREPARED.get(_path(type(one)))
        if known is not None and (reason := known.unknown(one)):
            counts[f"{type(one).__name__}, {reason}"] += 1
    return counts


def fuse_projections(module: nn.Module) -> None:
    """Moves the weights of layers with the same input into one storage, and likewise the biases;
    parameters become views. Such are the projections of self-attention and the layers of a
    `Fusible` block; forwards compute them in one product. In-place writes to a parameter take
    effect. The module must keep its device and dtype.
    """
    layer: Any
    for layer in module.modules():
        if isinstance(layer, Fusible):
            layer.fuse()
        elif _is(layer, ATTENTION) and _has_three_alike(layer):
            setattr(layer, FUSED, FusedProjections.of(layer.to_q, layer.to_k, layer.to_v))


def _has_three_alike(layer: Any) -> bool:
    """Returns true for self-attention without norms, with equal bias-free projections."""
    projections = (layer.to_q, layer.to_k, layer.to_v)
    norms = (layer.norm_q, layer.norm_k, layer.norm_cross, layer.group_norm, layer.spatial_norm)
    return (
        not layer.is_cross_attention
        and all(norm is None for norm in norms)
        and all(isinstance(one, nn.Linear) and one.bias is None for one in projections)
        and len({one.weight.shape for one in projections}) == 1
    )


def _unknown_resnet(block: Any) -> str:
    if block.time_embedding_norm != "default" and block.time_emb_proj is not None:
        return f"time embedding norm {block.time_embedding_norm}"
    if block.upsample is not None or block.downsample is not None:
        return "resampling inside"
    if not isinstance(block.nonlinearity, nn.SiLU):
        return f"activation {type(block.nonlinearity).__name__}"
    if block.output_scale_factor != 1.0:
        return "scaled output"
    return "dropout" if block.dropout.p and block.dropout.training else ""


def _unknown_transformer(block: Any) -> str:
    if block.norm_type != "layer_norm":
        return f"norm {block.norm_type}"
    if block.pos_embed is not None or hasattr(block, "fuser"):
        return "position embedding or gated attention"
    if block._chunk_size is not None:
        return "feed-forward in chunks"
    return ""


def _unknown_text_attention(layer: Any) -> str:
    return "dropout" if layer.dropout and layer.training else ""


def _unknown_text_output(layer: Any) -> str:
    return "dropout" if layer.dropout.p and layer.training else ""


def _unknown_t5_block(block: Any) -> str:
    if block.is_decoder:
        return "decoder"
    return "dropout" if block.layer[0].dropout.p and block.training else ""


def _unknown_qwen3_attention(layer: Any) -> str:
    return "dropout" if layer.attention_dropout and layer.training else ""


def _unknown_gate(activation: nn.Module) -> str:
    name = type(activation).__name__
    return "" if name in GATES else f"activation {name}"


def _unknown_hunyuan_dit(block: Any) -> str:
    if block._chunk_size is not None:
        return "feed-forward in chunks"
    return "" if block.attn1.norm_q is not None else "heads without norms"


def _always_known(block: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class _Known:
    """Describes a known kind of block. `becomes`: path of the class that replaces its class.
    `unknown` returns the reason if a block keeps the library's forward, else an empty string.
    """

    becomes: str
    unknown: Callable[[Any], str] = _always_known


def _unknown_flux(block: Any) -> str:
    return _other_processor(block.attn, "FluxAttnProcessor")


def _unknown_joint(block: Any) -> str:
    if getattr(block, "_chunk_size", None) is not None:
        return "feed-forward in chunks"
    layers = (block.attn, getattr(block, "attn2", None))
    return next(
        (
            reason
            for layer in layers
            if layer is not None
            and (reason := _other_processor(layer, "JointAttnProcessor2_0") or _other_norm(layer))
        ),
        "",
    )


def _other_processor(layer: Any, name: str) -> str:
    found = type(layer.processor).__name__
    return "" if found == name else f"attention processor {found}"


def _other_norm(layer: Any) -> str:
    found = type(layer.norm_q).__name__
    return "" if found in ("NoneType", "RMSNorm") else f"head norm {found}"


def _unknown_continuous(norm: Any) -> str:
    plain = isinstance(norm.norm, nn.LayerNorm) and not norm.norm.elementwise_affine
    return "" if plain else "norm with weights or without a mean"


PREPARED: Mapping[str, _Known] = {
    "torch.nn.modules.normalization:GroupNorm": _Known(
        "katz_graph.models.prepared.norms:PreparedGroupNorm",
        lambda norm: "" if norm.affine else "no weights",
    ),
    "diffusers.models.resnet:ResnetBlock2D": _Known(
        "katz_graph.models.prepared.unet:PreparedResnetBlock", _unknown_resnet
    ),
    "diffusers.models.attention:BasicTransformerBlock": _Known(
        "katz_graph.models.prepared.unet:PreparedTransformerBlock", _unknown_transformer
    ),
    "diffusers.models.transformers.transformer_2d:Transformer2DModel": _Known(
        "katz_graph.models.prepared.unet:PreparedTransformer"
    ),
    "diffusers.models.activations:GEGLU": _Known(
        "katz_graph.models.prepared.unet:PreparedGEGLU",
        lambda block: "" if type(block.proj) is nn.Linear else "no linear layer",
    ),
    "diffusers.models.normalization:AdaLayerNormContinuous": _Known(
        "katz_graph.models.prepared.joint:PreparedAdaLayerNormContinuous", _unknown_continuous
    ),
    "diffusers.models.transformers.transformer_flux:FluxTransformerBlock": _Known(
        "katz_graph.models.prepared.flux:PreparedFluxBlock", _unknown_flux
    ),
    "diffusers.models.transformers.transformer_flux:FluxSingleTransformerBlock": _Known(
        "katz_graph.models.prepared.flux:PreparedFluxSingleBlock", _unknown_flux
    ),
    "diffusers.models.attention:JointTransformerBlock": _Known(
        "katz_graph.models.prepared.sd3:PreparedJointBlock", _unknown_joint
    ),
    "diffusers.models.transformers.transformer_sd3:SD3SingleTransformerBlock": _Known(
        "katz_graph.models.prepared.sd3:PreparedSD3SingleBlock", _unknown_joint
    ),
    "transformers.models.clip.modeling_clip:CLIPAttention": _Known(
        "katz_graph.models.prepared.clip:PreparedCLIPAttention", _unknown_text_attention
    ),
    "transformers.models.clip.modeling_clip:CLIPEncoderLayer": _Known(
        "katz_graph.models.prepared.clip:PreparedCLIPLayer"
    ),
    "transformers.models.bert.modeling_bert:BertSelfOutput": _Known(
        "katz_graph.models.prepared.bert:PreparedBertSelfOutput", _unknown_text_output
    ),
    "transformers.models.bert.modeling_bert:BertOutput": _Known(
        "katz_graph.models.prepared.bert:PreparedBertOutput", _unknown_text_output
    ),
    **{
        f"transformers.models.{module}.modeling_{module}:{kind}{block}": _Known(
            f"katz_graph.models.prepared.t5:Prepared{kind}{block}", unknown
        )
        for module, kind in (("t5", "T5"), ("mt5", "MT5"))
        for block, unknown in (
            ("LayerNorm", _always_known),
            ("Attention", _unknown_text_attention),
            ("DenseGatedActDense", lambda block: _unknown_gate(block.act)),
            ("Block", _unknown_t5_block),
        )
    },
    **{
        f"transformers.models.qwen3.modeling_qwen3:Qwen3{block}": _Known(
            f"katz_graph.models.prepared.qwen3:PreparedQwen3{block}", unknown
        )
        for block, unknown in (
            ("RMSNorm", _always_known),
            ("Attention", _unknown_qwen3_attention),
            ("MLP", lambda block: _unknown_gate(block.act_fn)),
            ("DecoderLayer", _always_known),
        )
    },
    "diffusers.models.transformers.hunyuan_transformer_2d:HunyuanDiTBlock": _Known(
        "katz_graph.models.prepared.hunyuan_dit:PreparedHunyuanDiTBlock", _unknown_hunyuan_dit
    ),
    **{
        f"diffusers.models.{module}:{block}": _Known(
            f"katz_graph.models.prepared.z_image:{becomes}"
        )
        for module, block, becomes in (
            ("transformers.transformer_z_image", "FeedForward", "PreparedFeedForward"),
            (
                "transformers.transformer_z_image",
                "ZImageTransformerBlock",
                "PreparedZImageTransformerBlock",
            ),
            ("controlnets.controlnet_z_image", "FeedForward", "PreparedControlFeedForward"),
            (
                "controlnets.controlnet_z_image",
                "ZImageTransformerBlock",
                "PreparedControlRefinerBlock",
            ),
            (
                "controlnets.controlnet_z_image",
                "ZImageControlTransformerBlock",
                "PreparedZImageControlTransformerBlock",
            ),
        )
    },
}
ATTENTION = "diffusers.models.attention_processor:Attention"


def _path(kind: type) -> str:
    """Returns the path of a class, as `resolve_name` takes it."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _is(layer: nn.Module, path: str) -> bool:
    """Returns whether a layer is an instance of a class that may not be imported."""
    return any(_path(base) == path for base in type(layer).__mro__)
