"""Makes stand-ins for files of FLUX.2: networks and VAEs in the original layout, and LoRAs."""

from __future__ import annotations

from functools import partial

from katz_graph.models.families.shared.random_parts import seeded
from katz_graph.models.families.shared.stand_ins import (
    HEAD,
    TEXT_WIDTH,
    WIDTH,
    Shapes,
    StandIn,
    Tensors,
    drawn,
    lora,
    peft,
)
from katz_graph.models.families.unet.random_models.original import original_vae

STATES = 3  # of the text encoder, which FLUX.2 reads side by side
INNER = 3 * WIDTH  # of a feed-forward


def _network(double: int, single: int, guided: bool) -> Shapes:
    yield "img_in.weight", (WIDTH, 128)
    yield "txt_in.weight", (WIDTH, STATES * TEXT_WIDTH)
    for name in ("time_in", *(["guidance_in"] if guided else [])):
        yield f"{name}.in_layer.weight", (WIDTH, 256)
        yield f"{name}.out_layer.weight", (WIDTH, WIDTH)
    for side in ("img", "txt"):
        yield f"double_stream_modulation_{side}.lin.weight", (6 * WIDTH, WIDTH)
    yield "single_stream_modulation.lin.weight", (3 * WIDTH, WIDTH)
    for number in range(double):
        for side in ("img", "txt"):
            place = f"double_blocks.{number}.{side}"
            yield f"{place}_attn.qkv.weight", (3 * WIDTH, WIDTH)
            yield f"{place}_attn.norm.query_norm.scale", (HEAD,)
            yield f"{place}_attn.norm.key_norm.scale", (HEAD,)
            yield f"{place}_attn.proj.weight", (WIDTH, WIDTH)
            yield f"{place}_mlp.0.weight", (2 * INNER, WIDTH)
            yield f"{place}_mlp.2.weight", (WIDTH, INNER)
    for number in range(single):
        place = f"single_blocks.{number}"
        yield f"{place}.linear1.weight", (3 * WIDTH + 2 * INNER, WIDTH)
        yield f"{place}.linear2.weight", (WIDTH, WIDTH + INNER)
        yield f"{place}.norm.query_norm.scale", (HEAD,)
        yield f"{place}.norm.key_norm.scale", (HEAD,)
    yield "final_layer.adaLN_modulation.1.weight", (2 * WIDTH, WIDTH)
    yield "final_layer.linear.weight", (128, WIDTH)


def transformer(double: int = 2, single: int = 2, guided: bool = False) -> Tensors:
    return drawn(_network(double, single, guided), 41)


def vae(small: bool = False) -> Tensors:
    """Returns the weights of FLUX.2's VAE in the original layout, with the layers next to the
    latent inside the halves. `small`: with a decoder of other widths than the encoder.
    """
    from diffusers import AutoencoderKLFlux2

    with seeded(15):
        module = AutoencoderKLFlux2(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(64,) * 4,
            decoder_block_out_channels=(32,) * 4 if small else None,
            layers_per_block=1,
        )
        module.bn.running_mean.normal_()
        module.bn.running_var.uniform_(0.5, 2.0)
    halves = {"quant_conv.": "encoder.quant_conv.", "post_quant_conv.": "decoder.post_quant_conv."}
    made = {}
    for name, tensor in original_vae(module).items():
        before, _, after = name.partition(".")
        made[halves.get(f"{before}.", f"{before}.") + after] = tensor.contiguous()
    return made


STAND_INS = (
    StandIn("unet", r"^flux2_dev", partial(transformer, guided=True)),
    StandIn("unet", r"^flux-2-klein", transformer),
    StandIn("vae", r"^flux2-vae\.", vae),
    StandIn("vae", r"^full_encoder_small_decoder", partial(vae, small=True)),
    StandIn("loras", r"^Flux_?2", lambda: lora(transformer(), peft("diffusion_model."), "_blocks")),
)
