"""Makes stand-ins for files of Qwen-Image 2.1: networks in ComfyUI's layout."""

from __future__ import annotations

from katz_graph.models.families.shared.stand_ins import (
    HEAD,
    TEXT_WIDTH,
    WIDTH,
    Shapes,
    StandIn,
    Tensors,
    drawn,
)


def _transformer(layers: int) -> Shapes:
    yield "img_in.weight", (WIDTH, 64)
    yield "txt_in.text_norm.weight", (TEXT_WIDTH,)
    yield "txt_in.in_layer.weight", (WIDTH, TEXT_WIDTH)
    yield "txt_in.out_layer.weight", (WIDTH, WIDTH)
    yield "time_text_embed.timestep_embedder.linear_1.weight", (WIDTH, 256)
    yield "time_text_embed.timestep_embedder.linear_2.weight", (WIDTH, WIDTH)
    yield "modulation.1.weight", (4 * WIDTH, WIDTH)
    for number in range(layers):
        place = f"transformer_blocks.{number}"
        for one in ("to_q", "to_k", "to_v", "to_out.0"):
            yield f"{place}.attn.{one}.weight", (WIDTH, WIDTH)
        for one in ("norm_q", "norm_k"):
            yield f"{place}.attn.{one}.weight", (HEAD,)
        yield f"{place}.img_mlp.gate_up.weight", (6 * WIDTH, WIDTH)
        yield f"{place}.img_mlp.out.weight", (WIDTH, 3 * WIDTH)
    yield "norm_out.linear.weight", (WIDTH, WIDTH)
    yield "proj_out.weight", (64, WIDTH)


def transformer(layers: int = 2) -> Tensors:
    return drawn(_transformer(layers), 41)


STAND_INS = (StandIn("unet", r"^qwen_image_2\.1", transformer),)
