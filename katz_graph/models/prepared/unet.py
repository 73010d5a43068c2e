"""Computes blocks of diffusers' UNets, ControlNets and VAEs with our kernels, see `prepare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from diffusers.models.activations import GEGLU
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from diffusers.models.upsampling import Upsample2D
from torch import Tensor, nn

from katz_graph.kernels.bias_residual import bias_residual
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.geglu import geglu
from katz_graph.kernels.layout import in_layout_of
from katz_graph.kernels.linear_geglu import linear_geglu
from katz_graph.kernels.upsampled_convolution import upsampled_convolution
from katz_graph.models.active import Active, Layers
from katz_graph.models.lora_layers import has_row_loras
from katz_graph.models.prepared.norms import group_norm, residual_norm
from katz_graph.models.quantised_weight import wide


class PreparedResnetBlock(ResnetBlock2D):  # type: ignore[misc]
    """Computes two norms, activations and convolutions with a residual; time is optional."""

    @staticmethod
    def unsupported(block: Any) -> str:
        if block.time_embedding_norm != "default" and block.time_emb_proj is not None:
            return f"time embedding norm {block.time_embedding_norm}"
        if block.upsample is not None or block.downsample is not None:
            return "resampling inside"
        if not isinstance(block.nonlinearity, nn.SiLU):
            return f"activation {type(block.nonlinearity).__name__}"
        if block.output_scale_factor != 1.0:
            return "scaled output"
        return "dropout" if block.dropout.p and block.dropout.training else ""

    def forward(self, input_tensor: Tensor, temb: Any = None) -> Tensor:
        hidden = group_norm(self.norm1, input_tensor)
        hidden, bias = _convolved(self.conv1, hidden)
        time = None
        if self.time_emb_proj is not None:
            time = self.time_emb_proj(temb if self.skip_time_act else F.silu(temb))
        hidden = group_norm(self.norm2, hidden, _sum(time, bias))
        hidden, bias = _convolved(self.conv2, hidden)
        residual, more = input_tensor, None
        if self.conv_shortcut is not None:
            residual, more = _convolved(self.conv_shortcut, input_tensor)
        bias = _sum(bias, more)
        return residual + hidden if bias is None else bias_residual(hidden, bias, residual)


class PreparedTransformerBlock(BasicTransformerBlock):  # type: ignore[misc]
    """Computes self-attention, cross-attention and feed-forward, each with a norm and residual."""

    @staticmethod
    def unsupported(block: Any) -> str:
        if block.norm_type != "layer_norm":
            return f"norm {block.norm_type}"
        if block.pos_embed is not None or hasattr(block, "fuser"):
            return "position embedding or gated attention"
        return "feed-forward in chunks" if block._chunk_size is not None else ""

    @property
    def layer(self) -> str:
        """Returns the name of the block in its network."""
        name: str = self.attn1.processor.layer
        return name.removesuffix(".attn1")

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
        _, normalised = residual_norm(self.norm1, hidden_states, None)
        hidden, fed = self.until_last_sum(
            hidden_states,
            normalised,
            attention_mask,
            encoder_hidden_states,
            encoder_attention_mask,
            cross_attention_kwargs,
        )
        return fed + hidden

    def active(
        self,
        hidden: Tensor,
        active: Active,
        encoder_hidden_states: Tensor | None = None,
        cross_attention_kwargs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Computes the active tokens only; returns all tokens [B, N, D]."""
        options = cross_attention_kwargs or {}
        _, normalised = residual_norm(self.norm1, hidden, None)
        text = encoder_hidden_states if self.only_cross_attention else normalised
        mixed = self.attn1(active.taken(normalised), encoder_hidden_states=text, **options)
        hidden, fed = self._after_first(
            active.taken(hidden), mixed, encoder_hidden_states, None, options
        )
        return active.placed(fed + hidden)

    def until_last_sum(
        self,
        hidden: Tensor,
        normalised: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cross_attention_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns the two terms of the block's result: the residual, and the output of the
        feed-forward. `normalised`: `hidden`, normalised by `norm1`.
        """
        options = cross_attention_kwargs or {}
        mixed = self.attn1(
            normalised,
            encoder_hidden_states=encoder_hidden_states if self.only_cross_attention else None,
            attention_mask=attention_mask,
            **options,
        )
        return self._after_first(
            hidden, mixed, encoder_hidden_states, encoder_attention_mask, options
        )

    def _after_first(
        self,
        hidden: Tensor,
        mixed: Tensor,
        text: Tensor | None,
        text_mask: Tensor | None,
        options: Mapping[str, Any],
    ) -> tuple[Tensor, Tensor]:
        """Computes a block after its first attention, whose output is `mixed`; returns the terms of
        the block's result.
        """
        if self.attn2 is None:
            hidden, normalised = residual_norm(self.norm3, mixed, hidden)
        else:
            hidden, normalised = residual_norm(self.norm2, mixed, hidden)
            mixed = self.attn2(
                normalised,
                encoder_hidden_states=text,
                attention_mask=text_mask,
                **options,
            )
            hidden, normalised = residual_norm(self.norm3, mixed, hidden)
        fed: Tensor = self.ff(normalised)
        return hidden, fed


class PreparedTransformer(Transformer2DModel):  # type: ignore[misc]
    """Computes blocks over features [B, C, H, W]; the result has the features' memory layout. The
    sum at the end of a block and the norm at the start of the next one are one pass over memory.
    """

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        *arguments: Any,
        cross_attention_kwargs: Mapping[str, Any] | None = None,
        return_dict: bool = True,
        **options: Any,
    ) -> Any:
        blocks = self.transformer_blocks
        others = any(one is not None for one in (*arguments, *options.values()))
        prepared = all(type(block) is PreparedTransformerBlock for block in blocks)
        further = dict(cross_attention_kwargs or {})
        layers: Layers | None = further.pop("layers", None)
        if others or not prepared or not self.is_input_continuous:
            return super().forward(
                hidden_states,
                encoder_hidden_states,
                *arguments,
                cross_attention_kwargs=further,
                return_dict=return_dict,
                **options,
            )
        batch, _, height, width = hidden_states.shape
        hidden, inner = self._operate_on_continuous_inputs(hidden_states)
        if layers is None:
            hidden = self._in_one_pass(hidden, encoder_hidden_states, further)
        else:
            hidden = self._by_layer(hidden, layers, encoder_hidden_states, further)
        output = self._get_output_for_continuous_inputs(
            hidden, hidden_states, batch, height, width, inner
        )
        return Transformer2DModelOutput(sample=output) if return_dict else (output,)

    def _in_one_pass(
        self, hidden: Tensor, text: Tensor | None, options: Mapping[str, Any]
    ) -> Tensor:
        """Computes all blocks with the sum at the end of one and the norm of the next together."""
        added = None
        for block in self.transformer_blocks:
            terms = (hidden, None) if added is None else (added, hidden)
            hidden, normalised = residual_norm(block.norm1, *terms)
            hidden, added = block.until_last_sum(
                hidden,
                normalised,
                encoder_hidden_states=text,
                cross_attention_kwargs=options,
            )
        return hidden if added is None else added + hidden

    def _by_layer(
        self, hidden: Tensor, layers: Layers, text: Tensor | None, options: Mapping[str, Any]
    ) -> Tensor:
        """Computes the blocks one by one: those with a template for their active tokens only."""
        given: dict[str, Any] = {
            "encoder_hidden_states": text,
            "cross_attention_kwargs": options,
        }
        for block in self.transformer_blocks:
            active = layers.active(block.layer, hidden.shape[1])
            if active is None:
                hidden = block(hidden, **given)
            else:
                hidden = block.active(hidden, active, **given)
            layers.collect(block.layer, hidden)
        return hidden

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


class PreparedUpsample(Upsample2D):  # type: ignore[misc]
    """Upsamples features to twice their size, or another size, and convolves them."""

    @staticmethod
    def unsupported(block: Any) -> str:
        layer: Any = getattr(block, "conv", None)
        plain = type(layer) is nn.Conv2d and layer.bias is not None and block.interpolate
        alike = plain and layer.kernel_size == (3, 3) and layer.padding == (1, 1)
        return "" if alike and block.norm is None else "another convolution or a norm"

    def forward(
        self, hidden_states: Tensor, output_size: Any = None, *arguments: Any, **options: Any
    ) -> Tensor:
        *_, height, width = hidden_states.shape
        doubled = output_size is None or tuple(output_size) == (2 * height, 2 * width)
        if doubled and uses_kernels(hidden_states) and not has_row_loras(self.conv):
            return upsampled_convolution(hidden_states, wide(self.conv.weight), self.conv.bias)
        upsampled: Tensor = super().forward(hidden_states, output_size, *arguments, **options)
        return upsampled


class PreparedGEGLU(GEGLU):  # type: ignore[misc]
    """Computes a linear layer, and gates the first half of the output by the second."""

    @staticmethod
    def unsupported(block: Any) -> str:
        return "" if type(block.proj) is nn.Linear else "no linear layer"

    def forward(self, hidden_states: Tensor) -> Tensor:
        if has_row_loras(self.proj):
            return geglu(self.proj(hidden_states))
        return linear_geglu(hidden_states, wide(self.proj.weight), self.proj.bias)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def _convolved(layer: nn.Conv2d, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns the convolution and the bias still to be added: on a GPU the next kernel adds it."""
    if layer.bias is None or not uses_kernels(x) or has_row_loras(layer):
        return layer(x), None
    return layer._conv_forward(x, layer.weight, None), layer.bias
