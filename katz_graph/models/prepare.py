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
from pkgutil import resolve_name
from typing import Any

from torch import nn

from katz_graph.models.projections import FUSED, FusedProjections, Fusible


def prepare(module: nn.Module) -> None:
    """Replaces the forwards of a module's known blocks; `unprepared` counts the others."""
    for one in module.modules():
        becomes = _prepared_class(one)
        if becomes is not None and not _unsupported(becomes, one):
            one.__class__ = becomes


def unprepared(module: nn.Module) -> Counter[str]:
    """Counts a module's blocks that keep their library's forward, by kind and reason."""
    counts: Counter[str] = Counter()
    for one in module.modules():
        becomes = _prepared_class(one)
        if becomes is not None and (reason := _unsupported(becomes, one)):
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


def _prepared_class(block: nn.Module) -> type | None:
    """Returns the class that replaces a block's class, or None if the block is not known."""
    path = PREPARED.get(_path(type(block)))
    return None if path is None else resolve_name(path)


def _unsupported(becomes: type, block: nn.Module) -> str:
    """Returns the reason if a block keeps its library's forward, else an empty string: the result
    of the static method `unsupported` of its prepared class, if it has one.
    """
    check: Callable[[nn.Module], str] | None = getattr(becomes, "unsupported", None)
    return "" if check is None else check(block)


ATTENTION = "diffusers.models.attention_processor:Attention"
FLUX = "diffusers.models.transformers.transformer_flux"
KREA2 = "diffusers.models.transformers.transformer_krea2"
QWEN_IMAGE_21 = "diffusers.models.transformers.transformer_qwenimage21"
Z_IMAGE = "diffusers.models.transformers.transformer_z_image"
Z_IMAGE_CONTROL = "diffusers.models.controlnets.controlnet_z_image"
T5_BLOCKS = ("LayerNorm", "Attention", "DenseGatedActDense", "Block")
LANGUAGE_BLOCKS = ("RMSNorm", "Attention", "MLP", "DecoderLayer")
PREPARED: Mapping[str, str] = {
    library: f"katz_graph.models.prepared.{ours}"
    for library, ours in {
        "torch.nn.modules.normalization:GroupNorm": "norms:PreparedGroupNorm",
        ATTENTION: "attention:PreparedAttention",
        "diffusers.models.resnet:ResnetBlock2D": "unet:PreparedResnetBlock",
        "diffusers.models.attention:BasicTransformerBlock": "unet:PreparedTransformerBlock",
        "diffusers.models.transformers.transformer_2d:Transformer2DModel": (
            "unet:PreparedTransformer"
        ),
        "diffusers.models.activations:GEGLU": "unet:PreparedGEGLU",
        "diffusers.models.upsampling:Upsample2D": "unet:PreparedUpsample",
        "diffusers.models.normalization:AdaLayerNormContinuous": (
            "joint:PreparedAdaLayerNormContinuous"
        ),
        f"{FLUX}:FluxTransformerBlock": "flux:PreparedFluxBlock",
        f"{FLUX}:FluxSingleTransformerBlock": "flux:PreparedFluxSingleBlock",
        "diffusers.models.transformers.transformer_qwenimage:QwenImageTransformerBlock": (
            "qwen_image:PreparedQwenImageBlock"
        ),
        f"{KREA2}:Krea2Attention": "krea2:PreparedKrea2Attention",
        f"{KREA2}:Krea2SwiGLU": "krea2:PreparedKrea2SwiGLU",
        f"{QWEN_IMAGE_21}:QwenImage21SwiGLUFeedForward": "qwen_image_21:PreparedFeedForward",
        f"{QWEN_IMAGE_21}:QwenImage21TransformerBlock": "qwen_image_21:PreparedBlock",
        "diffusers.models.attention:JointTransformerBlock": "sd3:PreparedJointBlock",
        "diffusers.models.transformers.transformer_sd3:SD3SingleTransformerBlock": (
            "sd3:PreparedSD3SingleBlock"
        ),
        "diffusers.models.transformers.hunyuan_transformer_2d:HunyuanDiTBlock": (
            "hunyuan_dit:PreparedHunyuanDiTBlock"
        ),
        f"{Z_IMAGE}:FeedForward": "z_image:PreparedFeedForward",
        f"{Z_IMAGE}:ZImageTransformerBlock": "z_image:PreparedZImageTransformerBlock",
        f"{Z_IMAGE_CONTROL}:FeedForward": "z_image:PreparedControlFeedForward",
        f"{Z_IMAGE_CONTROL}:ZImageTransformerBlock": "z_image:PreparedControlRefinerBlock",
        f"{Z_IMAGE_CONTROL}:ZImageControlTransformerBlock": (
            "z_image:PreparedZImageControlTransformerBlock"
        ),
        **{
            f"transformers.models.{model}.modeling_{model}:{block}": f"{ours}:Prepared{block}"
            for model, ours, blocks in (
                ("clip", "clip", ("CLIPAttention", "CLIPEncoderLayer")),
                ("bert", "bert", ("BertSelfOutput", "BertOutput")),
                ("t5", "t5", [f"T5{block}" for block in T5_BLOCKS]),
                ("mt5", "t5", [f"MT5{block}" for block in T5_BLOCKS]),
                ("qwen2", "qwen2", [f"Qwen2{block}" for block in LANGUAGE_BLOCKS]),
                ("qwen3", "qwen3", [f"Qwen3{block}" for block in LANGUAGE_BLOCKS]),
                ("mistral", "mistral", [f"Mistral{block}" for block in LANGUAGE_BLOCKS]),
            )
            for block in blocks
        },
    }.items()
}
"""Maps the path of a library's class to that of the prepared class."""


def _path(kind: type) -> str:
    """Returns the path of a class, as `resolve_name` takes it."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _is(layer: nn.Module, path: str) -> bool:
    """Returns whether a layer is an instance of a class that may not be imported."""
    return any(_path(base) == path for base in type(layer).__mro__)
