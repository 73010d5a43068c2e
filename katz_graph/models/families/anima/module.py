"""Defines the network of Anima: diffusers' Cosmos transformer, and the part that makes its text
from a language model's states and T5's words. The published files hold both.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffusers import AnimaTextConditioner, CosmosTransformer3DModel
from diffusers.configuration_utils import register_to_config

from katz_graph.models.families.anima.architecture import EXTRAPOLATION, WORDS

MOST_CELLS = 2048  # of a side of the latent, for rotary positions
PATCH = 1, 2, 2  # frames, rows, columns


class AnimaTransformer(CosmosTransformer3DModel):  # type: ignore[misc]
    """Holds the weights of both. The attribute's name is that of the files' tensors."""

    _keep_in_fp32_modules: Sequence[str] = ()  # Cosmos' are positions that Anima lacks

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        in_channels: int = 16,
        num_layers: int = 28,
        num_attention_heads: int = 16,
        attention_head_dim: int = 128,
        mlp_ratio: float = 4.0,
        adaln_lora_dim: int = 256,
        text_embed_dim: int = 1024,
        source_dim: int = 1024,
        conditioner_dim: int = 1024,
        conditioner_layers: int = 6,
        conditioner_heads: int = 16,
        conditioner_mlp_ratio: float = 4.0,
        conditioner_words: int = 32128,
    ) -> None:
        super().__init__(
            in_channels=in_channels,
            out_channels=in_channels,
            num_attention_heads=num_attention_heads,
            attention_head_dim=attention_head_dim,
            num_layers=num_layers,
            mlp_ratio=mlp_ratio,
            text_embed_dim=text_embed_dim,
            adaln_lora_dim=adaln_lora_dim,
            max_size=(1, MOST_CELLS, MOST_CELLS),
            patch_size=PATCH,
            rope_scale=EXTRAPOLATION,
            concat_padding_mask=True,
            extra_pos_embed_type=None,
        )
        self.llm_adapter = AnimaTextConditioner(
            source_dim=source_dim,
            target_dim=text_embed_dim,
            model_dim=conditioner_dim,
            num_layers=conditioner_layers,
            num_attention_heads=conditioner_heads,
            mlp_ratio=conditioner_mlp_ratio,
            target_vocab_size=conditioner_words,
            min_sequence_length=WORDS,
        )
        # with its argument as an attribute, its buffer can be computed a second time
        self.llm_adapter.rotary_emb.head_dim = conditioner_dim // conditioner_heads
