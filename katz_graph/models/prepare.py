"""Replaces the forwards of known diffusers and transformers blocks by forwards with our kernels,
over the same parameters and buffers.

On a CPU, operations and their order equal the libraries', so results are bit-equal. On a GPU, the
kernel after a convolution adds the bias, and norms, activations and residuals take one pass over
memory each. Other blocks, and blocks with unsupported options, keep their library's forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from diffusers.models.activations import GEGLU
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertOutput, BertSelfOutput
from transformers.models.clip.modeling_clip import CLIPAttention, CLIPEncoderLayer
from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from katz_graph.kernels.bias_residual import bias_residual
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.group_norm_silu import group_norm_silu
from katz_graph.kernels.layout import in_layout_of
from katz_graph.kernels.linear_geglu import linear_geglu
from katz_graph.kernels.residual_layer_norm import residual_layer_norm
from katz_graph.models.prepared_text import (
    PreparedBertOutput,
    PreparedBertSelfOutput,
    PreparedCLIPAttention,
    PreparedCLIPLayer,
)
from katz_graph.models.projections import FUSED, FusedProjections


class PreparedResnetBlock(ResnetBlock2D):  # type: ignore[misc]
    """Computes two norms, activations and convolutions with a residual; time is optional."""

    def forward(self, input_tensor: Tensor, temb: Any = None) -> Tensor:
        hidden = _normalised(self.norm1, input_tensor)
        hidden, bias = _convolved(self.conv1, hidden)
        time = None
        if self.time_emb_proj is not None:
            time = self.time_emb_proj(temb if self.skip_time_act else F.silu(temb))
        hidden = _normalised(self.norm2, hidden, _sum(time, bias))
        hidden, bias = _convolved(self.conv2, hidden)
        residual, more = input_tensor, None
        if self.conv_shortcut is not None:
            residual, more = _convolved(self.conv_shortcut, input_tensor)
        bias = _sum(bias, more)
        return residual + hidden if bias is None else bias_residual(hidden, bias, residual)


class PreparedTransformerBlock(BasicTransformerBlock):  # type: ignore[misc]
    """Computes self-attention, cross-attention and feed-forward, each with a norm and residual."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        timestep: Tensor | None = None,
        cross_attention_kwargs: Mapping[str, Any] | None = None,
        class_labels: Tensor | None = None,
        added_cond_kwargs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        options = cross_attention_kwargs or {}
        mixed = self.attn1(
            self.norm1(hidden_states),
            encoder_hidden_states=encoder_hidden_states if self.only_cross_attention else None,
            attention_mask=attention_mask,
            **options,
        )
        if self.attn2 is None:
            hidden, normalised = _residual_norm(self.norm3, mixed, hidden_states)
        else:
            hidden, normalised = _residual_norm(self.norm2, mixed, hidden_states)
            mixed = self.attn2(
                normalised,
                encoder_hidden_states=encoder_hidden_states,
                attention_mask=encoder_attention_mask,
                **options,
            )
            hidden, normalised = _residual_norm(self.norm3, mixed, hidden)
        fed: Tensor = self.ff(normalised) + hidden
        return fed


class PreparedTransformer(Transformer2DModel):  # type: ignore[misc]
    """Computes blocks over features [B, C, H, W]; the result has the features' memory layout."""

    def _get_output_for_continuous_inputs(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        batch_size: int,
        height: int,
        width: int,
        inner_dim: int,
    ) -> Tensor:
        def features(tokens: Tensor) -> Tensor:
            found = tokens.reshape(batch_size, height, width, inner_dim).permute(0, 3, 1, 2)
            return in_layout_of(residual, found)

        if self.use_linear_projection:
            mixed = features(self.proj_out(hidden_states))
        else:
            mixed = self.proj_out(features(hidden_states))
        output: Tensor = mixed + residual
        return output


class PreparedGEGLU(GEGLU):  # type: ignore[misc]
    """Computes a linear layer, and gates the first half of the output by the second."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return linear_geglu(hidden_states, self.proj.weight, self.proj.bias)


class PreparedGroupNorm(nn.GroupNorm):
    """Normalises features [B, C, H, W] by group; uses torch for other shapes."""

    def forward(self, input: Tensor) -> Tensor:
        return _normalised(self, input, silu=False) if input.ndim == 4 else super().forward(input)


def prepare(module: nn.Module) -> None:
    """Replaces the forwards of a module's known blocks; `unprepared` counts the others."""
    for one in module.modules():
        known = _PREPARED.get(type(one))
        if known is not None and not known.unknown(one):
            one.__class__ = known.becomes


def unprepared(module: nn.Module) -> Counter[str]:
    """Counts a module's blocks that keep their library's forward, by kind and reason."""
    counts: Counter[str] = Counter()
    for one in module.modules():
        known = _PREPARED.get(type(one))
        if known is not None and (reason := known.unknown(one)):
            counts[f"{type(one).__name__}, {reason}"] += 1
    return counts


def fuse_projections(module: nn.Module) -> None:
    """Moves the weights of self-attention's three projections into one storage, and likewise the
    biases; parameters become views. Forwards that use `FUSED` compute the three in one product.
    In-place writes to a parameter take effect. The module must keep its device and dtype.
    """
    for layer in module.modules():
        if isinstance(layer, Attention) and _has_three_alike(layer):
            fused = FusedProjections.of(layer.to_q, layer.to_k, layer.to_v)
        elif isinstance(layer, PreparedCLIPAttention):
            fused = FusedProjections.of(layer.q_proj, layer.k_proj, layer.v_proj)
        else:
            continue
        setattr(layer, FUSED, fused)


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


@dataclass(frozen=True, slots=True)
class _Known:
    """Describes a known kind of block. `unknown` returns the reason if a block keeps the library's
    forward, else an empty string.
    """

    becomes: type
    unknown: Callable[[Any], str]


_PREPARED: Mapping[type, _Known] = {
    ResnetBlock2D: _Known(PreparedResnetBlock, _unknown_resnet),
    BasicTransformerBlock: _Known(PreparedTransformerBlock, _unknown_transformer),
    Transformer2DModel: _Known(PreparedTransformer, lambda module: ""),
    GEGLU: _Known(
        PreparedGEGLU, lambda block: "" if type(block.proj) is nn.Linear else "no linear layer"
    ),
    CLIPAttention: _Known(PreparedCLIPAttention, _unknown_text_attention),
    CLIPEncoderLayer: _Known(PreparedCLIPLayer, lambda layer: ""),
    BertSelfOutput: _Known(PreparedBertSelfOutput, _unknown_text_output),
    BertOutput: _Known(PreparedBertOutput, _unknown_text_output),
    nn.GroupNorm: _Known(PreparedGroupNorm, lambda norm: "" if norm.affine else "no weights"),
    **{
        norm: _Known(norm, lambda norm: "norm without a mean")
        for norm in (T5LayerNorm, MT5LayerNorm, Qwen3RMSNorm)
    },
}


def _normalised(
    norm: nn.GroupNorm, x: Tensor, shift: Tensor | None = None, silu: bool = True
) -> Tensor:
    if shift is not None:
        shift = shift.expand(len(x), -1)
    return group_norm_silu(x, norm.num_groups, norm.weight, norm.bias, norm.eps, shift, silu)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def _residual_norm(norm: nn.LayerNorm, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sum and the normalised sum."""
    return residual_layer_norm(x, residual, norm.weight, norm.bias, norm.eps)


def _convolved(layer: nn.Conv2d, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns the convolution and the bias still to be added: on a GPU the next kernel adds it."""
    if layer.bias is None or not uses_kernels(x):
        return layer(x), None
    return layer._conv_forward(x, layer.weight, None), layer.bias
