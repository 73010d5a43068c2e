"""Computes the blocks of Stable Diffusion 3 and 3.5 with our kernels, see `prepare` and
`prepared.joint`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diffusers.models.attention import JointTransformerBlock
from diffusers.models.transformers.transformer_sd3 import SD3SingleTransformerBlock
from torch import Tensor, nn

from katz_graph.kernels.head_norm import HeadNorm
from katz_graph.kernels.modulated_norm import modulated_norm
from katz_graph.models.active import Active
from katz_graph.models.prepared.joint import (
    JointBlock,
    active_attention,
    apart,
    attention,
    fed_forward,
    head_norms,
    linear_by_row,
    other_processor,
)
from katz_graph.models.prepared.modulations import Activated, ModulatedBlock
from katz_graph.models.projections import FUSED, FusedProjections, Fusible, Projections


class PreparedJointBlock(JointBlock, JointTransformerBlock):  # type: ignore[misc]
    """Computes a block with separate weights for picture and text tokens, and optionally a second
    attention among picture tokens.
    """

    second: FusedProjections | None = None

    @staticmethod
    def unsupported(block: Any) -> str:
        if block._chunk_size is not None:
            return "feed-forward in chunks"
        layers = (block.attn,) if block.attn2 is None else (block.attn, block.attn2)
        return next((reason for layer in layers if (reason := _unsupported(layer))), "")

    def fuse(self) -> None:
        super().fuse()
        second = self.attn2
        if second is not None:
            self.second = FusedProjections.of(second.to_q, second.to_k, second.to_v)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor | Activated,
        joint_attention_kwargs: Mapping[str, Any] | None = None,
        active: Active | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """Takes picture tokens [B, N, C] and text tokens [B, T, C]. Returns the text, or None if
        the block is the last, and the picture. `active`: the picture tokens to compute.
        """
        options = joint_attention_kwargs or {}
        picture, text = self.vectors(temb)
        shift, scale, gate, *rest = picture.chunk(9 if self.use_dual_attention else 6, dim=1)
        modulations, dual = [(scale, shift)], rest[3:]
        if dual:
            modulations.append((dual[1], dual[0]))
        normalised, *others = modulated_norm(hidden_states, modulations, self.norm1.norm.eps)
        if self.context_pre_only:
            scale, shift = text.chunk(2, dim=1)
        else:
            shift, scale, text_gate, *text_rest = text.chunk(6, dim=1)
        (text_normalised,) = modulated_norm(
            encoder_hidden_states, [(scale, shift)], self.norm1_context.norm.eps
        )
        if active is None:
            mixed, text_mixed = self._mixed(normalised, text_normalised, options)
        else:
            mixed, text_mixed = self._active_mixed(normalised, text_normalised, active)
        terms = [(gate, mixed)]
        if dual:
            second = picture_attention(self.attn2, others[0], self.second, options, active)
            terms.append((dual[2], second))
        hidden = hidden_states if active is None else active.taken(hidden_states)
        hidden = fed_forward(hidden, terms, rest[:3], self.norm2, self.ff)
        if active is not None:
            hidden = active.placed(hidden)
        if self.context_pre_only:
            return None, hidden
        text = fed_forward(
            encoder_hidden_states,
            [(text_gate, text_mixed)],
            text_rest,
            self.norm2_context,
            self.ff_context,
        )
        return text, hidden

    def _mixed(
        self, picture: Tensor, text: Tensor, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Returns the attention of picture and text tokens; the text's is unused in a last
        block.
        """
        layer = self.attn
        if self.picture is None or self.text is None:
            found: tuple[Tensor, Tensor] = layer(
                hidden_states=picture, encoder_hidden_states=text, **options
            )
            return found
        mixed = attention(layer, (picture, self.picture), (text, self.text), self._head_norms())
        end = picture.shape[1]
        return self._projected(mixed[:, :end], mixed[:, end:])

    def _active_mixed(self, picture: Tensor, text: Tensor, active: Active) -> tuple[Tensor, Tensor]:
        """Returns the attention of active picture tokens and of text tokens."""
        parts = self.active_parts(active.taken(picture), picture, text)
        mixed = active_attention(self.attn, parts, self._head_norms())
        return self._projected(*apart(mixed, parts[0][0].shape[1]))

    def _head_norms(self) -> list[HeadNorm]:
        layer = self.attn
        return head_norms((layer.norm_q, layer.norm_k), (layer.norm_added_q, layer.norm_added_k))

    def _projected(self, picture: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the output projections of an attention's picture and text tokens."""
        layer = self.attn
        if not layer.context_pre_only:
            text = linear_by_row(layer.to_add_out, text)
        return layer.to_out[1](linear_by_row(layer.to_out[0], picture)), text


class PreparedSD3SingleBlock(SD3SingleTransformerBlock, ModulatedBlock, Fusible):  # type: ignore[misc]
    """Computes a block without text tokens."""

    @staticmethod
    def unsupported(block: Any) -> str:
        return _unsupported(block.attn)

    def modulated(self) -> Sequence[Any]:
        return (self.norm1,)

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.attn.to_q, self.attn.to_k, self.attn.to_v

    def forward(self, hidden_states: Tensor, temb: Tensor | Activated) -> Tensor:
        (vectors,) = self.vectors(temb)
        shift, scale, gate, *rest = vectors.chunk(6, dim=1)
        (normalised,) = modulated_norm(hidden_states, [(scale, shift)], self.norm1.norm.eps)
        mixed = picture_attention(self.attn, normalised, getattr(self, FUSED, None), {})
        return fed_forward(hidden_states, [(gate, mixed)], rest, self.norm2, self.ff)


def _unsupported(layer: Any) -> str:
    """Returns the reason if an attention layer has other options than the prepared forwards."""
    if reason := other_processor(layer, "JointAttnProcessor2_0"):
        return reason
    norm = type(layer.norm_q).__name__
    return "" if norm in ("NoneType", "RMSNorm") else f"head norm {norm}"


def picture_attention(
    layer: Any,
    x: Tensor,
    fused: FusedProjections | None,
    options: Mapping[str, Any],
    active: Active | None = None,
) -> Tensor:
    """Returns the attention of all or active tokens [B, A, C] among picture tokens [B, N, C]."""
    norms = head_norms((layer.norm_q, layer.norm_k))
    if active is not None:
        projections = Projections((layer.to_q, layer.to_k, layer.to_v), fused)
        mixed = active_attention(layer, [(active.taken(x), x, projections)], norms)
    elif fused is not None:
        mixed = attention(layer, (x, fused), None, norms)
    else:
        found: Tensor = layer(hidden_states=x, **options)
        return found
    output: Tensor = layer.to_out[1](layer.to_out[0](mixed))
    return output
