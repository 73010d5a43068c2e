"""Makes stand-ins for files of Qwen-Image: networks in ComfyUI's layout and LoRAs in the names of
several trainers.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

import torch

from katz_graph.models.families.shared.stand_ins import (
    HEAD,
    QWEN25_WIDTH,
    WIDTH,
    Naming,
    Shapes,
    StandIn,
    Tensors,
    bare,
    drawn,
    linear,
    lora,
    peft,
    underscored,
)


def _transformer(layers: int) -> Shapes:
    yield from linear("img_in", WIDTH, 64)
    yield from linear("txt_in", WIDTH, QWEN25_WIDTH)
    yield "txt_norm.weight", (QWEN25_WIDTH,)
    yield from linear("time_text_embed.timestep_embedder.linear_1", WIDTH, 256)
    yield from linear("time_text_embed.timestep_embedder.linear_2", WIDTH, WIDTH)
    yield from _blocks("transformer_blocks", layers)
    yield from linear("norm_out.linear", 2 * WIDTH, WIDTH)
    yield from linear("proj_out", 64, WIDTH)


def _blocks(name: str, count: int) -> Shapes:
    for number in range(count):
        place = f"{name}.{number}"
        for one in ("to_q", "to_k", "to_v", "to_out.0", "to_add_out"):
            yield from linear(f"{place}.attn.{one}", WIDTH, WIDTH)
        for one in "qkv":
            yield from linear(f"{place}.attn.add_{one}_proj", WIDTH, WIDTH)
        for one in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            yield f"{place}.attn.{one}.weight", (HEAD,)
        for side in ("img", "txt"):
            yield from linear(f"{place}.{side}_mod.1", 6 * WIDTH, WIDTH)
            yield from linear(f"{place}.{side}_mlp.net.0.proj", 4 * WIDTH, WIDTH)
            yield from linear(f"{place}.{side}_mlp.net.2", WIDTH, 4 * WIDTH)


def transformer(layers: int = 2, still: bool = False, layered: bool = False) -> Tensors:
    """Returns a network. `still`: of Edit 2511, which an empty tensor marks; `layered`: with the
    embedding that tells the whole picture from layers.
    """
    made = drawn(_transformer(layers), 31)
    if still:
        made["__index_timestep_zero__"] = torch.empty(0)
    if layered:
        place = "time_text_embed.addition_t_embedding.weight"
        made |= drawn(iter([(place, (2, WIDTH))]), 32)
    return made


def instantx(inputs: int = 64) -> Tensors:
    """Returns a ControlNet by InstantX, with as many input channels per token."""
    own = (one for one in _transformer(1) if not one[0].startswith(("norm_out.linear", "proj_out")))
    more = (
        *linear("controlnet_x_embedder", WIDTH, inputs),
        *linear("controlnet_blocks.0", WIDTH, WIDTH),
    )
    return drawn(chain(own, more), 34)


def fun_control(features: int = 132) -> Tensors:
    """Returns a Fun ControlNet, which acts after the first block."""
    more = (
        *linear("control_img_in", WIDTH, features),
        *linear("control_blocks.0.before_proj", WIDTH, WIDTH),
        *linear("control_blocks.0.after_proj", WIDTH, WIDTH),
    )
    return drawn(chain(_blocks("control_blocks", 1), more), 35)


def _lora(naming: Naming, chosen: str = "attn") -> Tensors:
    return lora(transformer(), naming, chosen, seed=33)


def conditioning() -> Tensors:
    return drawn(iter([("conditioning", (1, 20, QWEN25_WIDTH))]), 34)


STAND_INS = (
    StandIn("unet", r"^qwen_image_edit_2511", partial(transformer, still=True)),
    StandIn("unet", r"^qwen_image_layered", partial(transformer, layered=True)),
    StandIn("unet", r"^(qwen_image_(2512|edit|fp8|bf16)|FireRed-Image)", transformer),
    StandIn("controlnet", r"^Qwen-Image-InstantX-ControlNet-Union", instantx),
    StandIn("controlnet", r"^Qwen-Image-InstantX-ControlNet-Inp", partial(instantx, inputs=68)),
    StandIn("controlnet", r"^Qwen-Image-2512-Fun-Controlnet", fun_control),
    StandIn("loras", r"^(Qwen-Image|FireRed)\S*Lightning", lambda: _lora(bare, "_blocks")),
    StandIn("loras", r"^qwen_image_union_diffsynth", lambda: _lora(peft("", ".default"))),
    StandIn("loras", r"^(illustration|gummycandy)", lambda: _lora(underscored("lora_unet_"))),
    StandIn("loras", r"^qwen-360", lambda: _lora(underscored("lycoris_"))),
    StandIn("loras", r"^(marigold|qwen-image-edit-2511-mult)", lambda: _lora(peft("transformer."))),
    StandIn("embeddings", r"^marigold_v2_\w+_conditioning", conditioning),
    StandIn("loras", r"(?i)qwen", lambda: _lora(peft("diffusion_model."))),
)
