"""Builds the Fun ControlNet of Qwen-Image 2512, whose class diffusers does not have."""

from __future__ import annotations

from typing import Any

from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformerBlock
from torch import nn


class QwenImageFunControlNetModel(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Holds the layers of a ControlNet that continues from the model's embedded tokens: blocks of
    the model's kind, the first with a projection of its hint, each with one of its residual.
    """

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        patch_size: int = 2,
        control_in_features: int = 132,
        num_layers: int = 5,
        control_layers_places: tuple[int, ...] = (0, 12, 24, 36, 48),
        attention_head_dim: int = 128,
        num_attention_heads: int = 24,
        axes_dims_rope: tuple[int, int, int] = (16, 56, 56),
    ) -> None:
        super().__init__()
        width = num_attention_heads * attention_head_dim
        sizes: Any = {"dim": width, "num_attention_heads": num_attention_heads}
        self.control_img_in = nn.Linear(control_in_features, width)
        self.control_blocks = nn.ModuleList(
            QwenImageTransformerBlock(**sizes, attention_head_dim=attention_head_dim)
            for _ in range(num_layers)
        )
        self.control_blocks[0].before_proj = nn.Linear(width, width)
        for block in self.control_blocks:
            block.after_proj = nn.Linear(width, width)
