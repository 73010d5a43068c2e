"""Describes the miniature SDXL UNet, which predicts noise."""

from __future__ import annotations

from functools import partial

from diffusers import (
    ControlNetModel,
    EulerDiscreteScheduler,
    StableDiffusionXLControlNetPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)

from katz_graph.models.families.shared.miniature import Miniature
from katz_graph.models.families.unet.family import FAMILY

SIZE_WIDTH = 32  # width of each size number's embedding


def network(text_width: int) -> UNet2DConditionModel:
    """Builds a UNet with random weights."""
    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(64, 96, 128),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=2 * text_width,
        attention_head_dim=(2, 3, 4),
        addition_embed_type="text_time",
        addition_time_embed_dim=SIZE_WIDTH,
        projection_class_embeddings_input_dim=text_width + 6 * SIZE_WIDTH,
        norm_num_groups=16,
        use_linear_projection=True,
    )


def control(unet: UNet2DConditionModel) -> ControlNetModel:
    """Builds a ControlNet from a copy of the UNet's encoder."""
    return ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(8, 16, 32, 64))


def scheduler() -> EulerDiscreteScheduler:
    return EulerDiscreteScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        timestep_spacing="leading",
        steps_offset=1,
    )


SETTINGS = {"force_zeros_for_empty_prompt": False, "add_watermarker": False}
MINIATURE = Miniature(
    learns="noise",
    family=FAMILY,
    network=network,
    control=control,
    scheduler=scheduler,
    pipeline=partial(StableDiffusionXLPipeline, **SETTINGS),
    control_pipeline=partial(StableDiffusionXLControlNetPipeline, **SETTINGS),
)
