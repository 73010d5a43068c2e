"""Makes stand-ins for files of Krea 2 in the original layout."""

from __future__ import annotations

from katz_graph.models.families.shared.stand_ins import (
    HEAD,
    TEXT_WIDTH,
    WIDTH,
    Shapes,
    StandIn,
    Tensors,
    drawn,
    linear,
    lora,
    peft,
)

STATES = 12  # of the text encoder, which Krea 2 reads side by side


def _krea2(blocks: int) -> Shapes:
    yield from linear("first", WIDTH, 64)
    yield from linear("tmlp.0", WIDTH, 256)
    yield from linear("tmlp.2", WIDTH, WIDTH)
    yield from linear("tproj.1", 6 * WIDTH, WIDTH)
    for chain in ("layerwise_blocks", "refiner_blocks"):
        yield from _krea2_block(f"txtfusion.{chain}.0", TEXT_WIDTH, TEXT_WIDTH)
    yield "txtfusion.projector.weight", (1, STATES)
    yield "txtmlp.0.scale", (TEXT_WIDTH,)
    yield from linear("txtmlp.1", WIDTH, TEXT_WIDTH)
    yield from linear("txtmlp.3", WIDTH, WIDTH)
    for number in range(blocks):
        yield from _krea2_block(f"blocks.{number}", WIDTH, WIDTH // 2)
        yield f"blocks.{number}.mod.lin", (6 * WIDTH,)
    yield from linear("last.linear", 64, WIDTH)
    yield "last.norm.scale", (WIDTH,)
    yield "last.modulation.lin", (2, WIDTH)


def _krea2_block(place: str, width: int, keys: int) -> Shapes:
    """Yields a block with keys and values of a width."""
    for one, out in (("wq", width), ("wk", keys), ("wv", keys), ("gate", width), ("wo", width)):
        yield f"{place}.attn.{one}.weight", (out, width)
    for one in "qk":
        yield f"{place}.attn.qknorm.{one}norm.scale", (HEAD,)
    for one, (out, into) in {
        "gate": (3 * width, width),
        "up": (3 * width, width),
        "down": (width, 3 * width),
    }.items():
        yield f"{place}.mlp.{one}.weight", (out, into)
    for norm in ("prenorm", "postnorm"):
        yield f"{place}.{norm}.scale", (width,)


def krea2(blocks: int = 2) -> Tensors:
    return drawn(_krea2(blocks), 12)


STAND_INS = (
    StandIn("unet", r"^krea2", krea2),
    StandIn("loras", r"^krea2_style", lambda: lora(krea2(), peft("base_model.model."))),
    StandIn("loras", r"^krea2", lambda: lora(krea2(), peft("diffusion_model."))),
)
