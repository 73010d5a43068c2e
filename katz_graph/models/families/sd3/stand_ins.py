"""Makes stand-ins for files of SD3: networks and checkpoints in the published layout."""

from __future__ import annotations

import torch

from katz_graph.models.families.flux.stand_ins import vae
from katz_graph.models.families.shared.stand_ins import PREFIX, StandIn, Tensors, under


def transformer(
    blocks: int, second: int, width: int = 64, norm: int | None = 32, positions: int = 12
) -> Tensors:
    """Makes tensors of a small transformer in the published files' layout; the first `second`
    blocks have a second attention. `positions`: of patches on a side.
    """
    draw = torch.Generator().manual_seed(blocks)
    found: Tensors = {"pos_embed": torch.randn(1, positions**2, width, generator=draw)}

    def layer(name: str, *shape: int) -> None:
        found[f"{name}.weight"] = torch.randn(shape, generator=draw)
        found[f"{name}.bias"] = torch.randn(shape[0], generator=draw)

    layer("x_embedder.proj", width, 16, 2, 2)
    for name, inputs in (("t_embedder", 256), ("y_embedder", 72)):
        layer(f"{name}.mlp.0", width, inputs)
        layer(f"{name}.mlp.2", width, width)
    layer("context_embedder", width, 96)
    layer("final_layer.linear", 64, width)
    layer("final_layer.adaLN_modulation.1", 2 * width, width)
    for number in range(blocks):
        for side, first in (("x_block", number < second), ("context_block", False)):
            read_only = side == "context_block" and number == blocks - 1
            place = f"joint_blocks.{number}.{side}"
            vectors = 9 if first else 2 if read_only else 6
            layer(f"{place}.adaLN_modulation.1", vectors * width, width)
            for attention in ("attn", "attn2")[: 2 if first else 1]:
                layer(f"{place}.{attention}.qkv", 3 * width, width)
                for one in "qk" if norm else "":
                    name = f"{place}.{attention}.ln_{one}.weight"
                    found[name] = torch.randn(norm or 0, generator=draw)
                if not read_only:
                    layer(f"{place}.{attention}.proj", width, width)
            if not read_only:
                layer(f"{place}.mlp.fc1", 4 * width, width)
                layer(f"{place}.mlp.fc2", width, 4 * width)
    return found


def checkpoint() -> Tensors:
    """Returns a network with its VAE."""
    network = {name: 0.05 * one for name, one in transformer(3, 1, positions=32).items()}
    return under(PREFIX, network) | under("first_stage_model.", vae())


ENCODERS = {
    "text_encoders.clip_l.transformer.": "clip_l.safetensors",
    "text_encoders.clip_g.transformer.": "clip_g.safetensors",
    "text_encoders.t5xxl.transformer.": "t5xxl_fp16.safetensors",
}
STAND_INS = (StandIn("checkpoints", r"^sd3\.5_large_fp8", checkpoint, ENCODERS),)
