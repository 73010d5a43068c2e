"""Makes stand-ins for files of FLUX.1: networks in the original layout, the VAE, and LoRAs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from katz_graph.models.families.shared.random_parts import seeded
from katz_graph.models.families.shared.stand_ins import (
    HEAD,
    POOLED,
    PREFIX,
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
from katz_graph.models.families.unet.random_models.original import original_vae


@dataclass(frozen=True, slots=True)
class Widths:
    """Holds the widths of a transformer: of its tokens, heads, texts and pooled text."""

    tokens: int = WIDTH
    head: int = HEAD
    text: int = TEXT_WIDTH
    pooled: int = POOLED


SMALL_WIDTHS = Widths()


def flux_shapes(
    double: int, single: int, guided: bool, channels: int, widths: Widths = SMALL_WIDTHS
) -> Shapes:
    width = widths.tokens
    yield from linear("img_in", width, channels)
    yield from linear("txt_in", width, widths.text)
    embedders = [("time_in", 256), ("vector_in", widths.pooled), *([("guidance_in", 256)] * guided)]
    for name, into in embedders:
        yield from linear(f"{name}.in_layer", width, into)
        yield from linear(f"{name}.out_layer", width, width)
    for number in range(double):
        for side in ("img", "txt"):
            place = f"double_blocks.{number}.{side}"
            yield from linear(f"{place}_mod.lin", 6 * width, width)
            yield from linear(f"{place}_attn.qkv", 3 * width, width)
            yield f"{place}_attn.norm.query_norm.scale", (widths.head,)
            yield f"{place}_attn.norm.key_norm.scale", (widths.head,)
            yield from linear(f"{place}_attn.proj", width, width)
            yield from linear(f"{place}_mlp.0", 4 * width, width)
            yield from linear(f"{place}_mlp.2", width, 4 * width)
    for number in range(single):
        place = f"single_blocks.{number}"
        yield from linear(f"{place}.modulation.lin", 3 * width, width)
        yield from linear(f"{place}.linear1", 7 * width, width)
        yield from linear(f"{place}.linear2", width, 5 * width)
        yield f"{place}.norm.query_norm.scale", (widths.head,)
        yield f"{place}.norm.key_norm.scale", (widths.head,)
    yield from linear("final_layer.adaLN_modulation.1", 2 * width, width)
    yield from linear("final_layer.linear", 64, width)


def flux(
    double: int = 2,
    single: int = 2,
    guided: bool = True,
    channels: int = 64,
    widths: Widths = SMALL_WIDTHS,
) -> Tensors:
    return drawn(flux_shapes(double, single, guided, channels, widths), 1)


def vae() -> Tensors:
    """Returns the weights of a 16-channel VAE in the original layout."""
    from diffusers import AutoencoderKL

    with seeded(8):
        module = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(32,) * 4,
            layers_per_block=1,
            latent_channels=16,
            use_quant_conv=False,
            use_post_quant_conv=False,
        )
    return {name: tensor.contiguous() for name, tensor in original_vae(module).items()}


def _checkpoint(guided: bool) -> Tensors:
    return under(PREFIX, flux(guided=guided)) | under("first_stage_model.", vae())


ENCODERS = {
    "text_encoders.clip_l.transformer.": "clip_l.safetensors",
    "text_encoders.t5xxl.transformer.": "t5xxl_fp16.safetensors",
}
STAND_INS = (
    StandIn("checkpoints", r"^flux1-dev-fp8", partial(_checkpoint, True), ENCODERS),
    StandIn("checkpoints", r"^flux1-schnell-fp8", partial(_checkpoint, False), ENCODERS),
    StandIn("unet", r"^flux1?[-.].*fill", partial(flux, channels=384)),
    StandIn("unet", r"^flux1-(canny|depth)", partial(flux, channels=128)),
    StandIn("unet", r"^flux1-schnell", partial(flux, guided=False)),
    StandIn("unet", r"^flux1-", flux),
    StandIn("vae", r"^ae\.", vae),
    StandIn("loras", r"^(flux1|removal_timestep)", lambda: lora(flux(), peft("diffusion_model."))),
)
