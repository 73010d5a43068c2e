"""Makes stand-ins for files of Anima in the original layout."""

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
    under,
)

RANK = 16  # of modulations
PREFIX = "net."


def _anima(blocks: int) -> Shapes:
    yield "x_embedder.proj.1.weight", (WIDTH, 68)  # 16 channels and the padding mask
    yield "t_embedder.1.linear_1.weight", (WIDTH, WIDTH)
    yield "t_embedder.1.linear_2.weight", (3 * WIDTH, WIDTH)
    yield "t_embedding_norm.weight", (WIDTH,)
    for number in range(blocks):
        place = f"blocks.{number}"
        for part in ("self_attn", "cross_attn", "mlp"):
            yield f"{place}.adaln_modulation_{part}.1.weight", (RANK, WIDTH)
            yield f"{place}.adaln_modulation_{part}.2.weight", (3 * WIDTH, RANK)
        yield from _attention(f"{place}.self_attn", "output_proj", WIDTH)
        yield from _attention(f"{place}.cross_attn", "output_proj", TEXT_WIDTH)
        yield f"{place}.mlp.layer1.weight", (2 * WIDTH, WIDTH)
        yield f"{place}.mlp.layer2.weight", (WIDTH, 2 * WIDTH)
    yield "final_layer.adaln_modulation.1.weight", (RANK, WIDTH)
    yield "final_layer.adaln_modulation.2.weight", (2 * WIDTH, RANK)
    yield "final_layer.linear.weight", (64, WIDTH)
    yield "llm_adapter.embed.weight", (32128, TEXT_WIDTH)
    place = "llm_adapter.blocks.0"
    for attention in ("self_attn", "cross_attn"):
        yield f"{place}.norm_{attention}.weight", (TEXT_WIDTH,)
        yield from _attention(f"{place}.{attention}", "o_proj", TEXT_WIDTH)
    yield f"{place}.norm_mlp.weight", (TEXT_WIDTH,)
    yield from linear(f"{place}.mlp.0", 2 * TEXT_WIDTH, TEXT_WIDTH)
    yield from linear(f"{place}.mlp.2", TEXT_WIDTH, 2 * TEXT_WIDTH)
    yield from linear("llm_adapter.out_proj", TEXT_WIDTH, TEXT_WIDTH)
    yield "llm_adapter.norm.weight", (TEXT_WIDTH,)


def _attention(place: str, last: str, read: int) -> Shapes:
    """Yields an attention layer that reads tokens of a width."""
    for one, into in (("q_proj", WIDTH), ("k_proj", read), ("v_proj", read), (last, WIDTH)):
        yield f"{place}.{one}.weight", (WIDTH, into)
    for one in "qk":
        yield f"{place}.{one}_norm.weight", (HEAD,)


def anima(blocks: int = 2) -> Tensors:
    return drawn(_anima(blocks), 14)


STAND_INS = (
    StandIn("unet", r"^anima-(base|preview)", lambda: under(PREFIX, anima())),
    StandIn("loras", r"^anima-turbo-lora", lambda: lora(anima(), peft("diffusion_model."))),
)
