"""Makes stand-ins for files of Z-Image: networks and control patches in the original layout."""

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


def _z_image(layers: int, refiners: int) -> Shapes:
    yield from linear("x_embedder", WIDTH, 64)
    yield "cap_embedder.0.weight", (TEXT_WIDTH,)
    yield from linear("cap_embedder.1", WIDTH, TEXT_WIDTH)
    yield from linear("t_embedder.mlp.0", 1024, 256)
    yield from linear("t_embedder.mlp.2", WIDTH, 1024)
    yield "x_pad_token", (1, WIDTH)
    yield "cap_pad_token", (1, WIDTH)
    inner = int(WIDTH / 3 * 8)
    for chain, count in (
        ("layers", layers),
        ("noise_refiner", refiners),
        ("context_refiner", refiners),
    ):
        for number in range(count):
            place = f"{chain}.{number}"
            yield f"{place}.attention.qkv.weight", (3 * WIDTH, WIDTH)
            yield f"{place}.attention.out.weight", (WIDTH, WIDTH)
            for one in "qk":
                yield f"{place}.attention.{one}_norm.weight", (HEAD,)
            yield f"{place}.feed_forward.w1.weight", (inner, WIDTH)
            yield f"{place}.feed_forward.w2.weight", (WIDTH, inner)
            yield f"{place}.feed_forward.w3.weight", (inner, WIDTH)
            for norm in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"):
                yield f"{place}.{norm}.weight", (WIDTH,)
            if chain != "context_refiner":
                yield from linear(f"{place}.adaLN_modulation.0", 4 * WIDTH, WIDTH)
    yield from linear("final_layer.linear", 64, WIDTH)
    yield from linear("final_layer.adaLN_modulation.1", WIDTH, WIDTH)


def z_image(layers: int = 2, refiners: int = 1) -> Tensors:
    return drawn(_z_image(layers, refiners), 2)


def _z_image_control() -> Shapes:
    yield from linear("control_all_x_embedder.2-1", WIDTH, 64)
    inner = int(WIDTH / 3 * 8)
    for place in ("control_layers.0", "control_noise_refiner.0"):
        for one in ("to_q", "to_k", "to_v", "to_out.0"):
            yield f"{place}.attention.{one}.weight", (WIDTH, WIDTH)
        for one in "qk":
            yield f"{place}.attention.norm_{one}.weight", (HEAD,)
        for number, (out, into) in enumerate(((inner, WIDTH), (WIDTH, inner), (inner, WIDTH)), 1):
            yield f"{place}.feed_forward.w{number}.weight", (out, into)
        for norm in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"):
            yield f"{place}.{norm}.weight", (WIDTH,)
        yield from linear(f"{place}.adaLN_modulation.0", 4 * WIDTH, WIDTH)
    yield from linear("control_layers.0.before_proj", WIDTH, WIDTH)
    yield from linear("control_layers.0.after_proj", WIDTH, WIDTH)


def z_image_control() -> Tensors:
    return drawn(_z_image_control(), 8)


STAND_INS = (
    StandIn("unet", r"^z_image", z_image),
    StandIn("model_patches", r"^Z-Image-Turbo-Fun-Controlnet", z_image_control),
    StandIn(
        "loras",
        r"z_image",
        lambda: lora(z_image(), peft("diffusion_model."), "attention"),
    ),
)
