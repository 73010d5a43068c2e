"""Trains the miniature VAE (diffusers' AutoencoderKL, factor 8) on random crops of drawings."""

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from katz_graph.core.latent_space import LatentSpace
from katz_graph.mini.draw import draw
from katz_graph.mini.training import Budget, autocast, prepare, set_rate
from katz_graph.mini.world import STYLES, sample_scene

CROP = 64


def build_vae(channels: int = 4) -> AutoencoderKL:
    """Makes a VAE of random weights; only one with 4 channels has quantisation layers."""
    return AutoencoderKL(
        block_out_channels=(16, 32, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=8,
        sample_size=128,
        mid_block_add_attention=False,
        force_upcast=False,
        use_quant_conv=channels == 4,
        use_post_quant_conv=channels == 4,
    )


def random_styles(generator: np.random.Generator, part: float) -> frozenset[str]:
    """Includes each style independently with probability `part`."""
    return frozenset(style for style in STYLES if generator.random() < part)


def draw_pool(count: int, seed: int) -> torch.Tensor:
    """Draws random scenes, some of them styled: uint8 [count, 4, 128, 128]; the fourth channel is
    the silhouette.
    """
    generator = np.random.default_rng(seed)
    pictures = []
    for _ in range(count):
        styles = random_styles(generator, 0.15)
        drawing = draw(sample_scene(generator), 128, 128, int(generator.integers(1 << 31)), styles)
        pictures.append(np.concatenate([drawing.picture, drawing.silhouette[..., None]], axis=2))
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def take_what_fits(vae: AutoencoderKL, other: AutoencoderKL) -> None:
    """Copies the weights whose shape matches. If all of them match, copies the scaling and shift
    factors too.
    """
    wanted, given = vae.state_dict(), other.state_dict()
    fitting = {
        name: given[name]
        for name, value in wanted.items()
        if name in given and given[name].shape == value.shape
    }
    vae.load_state_dict(fitting, strict=False)
    if fitting.keys() == wanted.keys():
        settings = "scaling_factor", "shift_factor"
        vae.register_to_config(**{name: other.config[name] for name in settings})


def to_model(pictures: torch.Tensor) -> torch.Tensor:
    """Converts uint8 0..255 to float -1..1."""
    return pictures.float() / 127.5 - 1


def crops(pool: torch.Tensor, batch: int, generator: torch.Generator) -> torch.Tensor:
    """Cuts crops [batch, 4, 64, 64] uint8. Half of them are the fullest of eight candidates, so
    that they show a thing. Half have their corner on the 8-pixel grid, so that pattern phases
    appear as in the whole picture.
    """
    found = []
    for index in range(batch):
        picture = pool[int(torch.randint(len(pool), (), generator=generator))]
        corners = torch.randint(0, 65, (8 if index % 2 else 1, 2), generator=generator)
        if index % 4 < 2:
            corners = corners // 8 * 8
        options = [picture[:, y : y + CROP, x : x + CROP] for y, x in corners.tolist()]
        found.append(
            max(options, key=lambda option: int(option[3, ::8, ::8].sum(dtype=torch.int64)))
        )
    return torch.stack(found)


def train_vae(
    output: Path, budget: Budget, seed: int = 0, batch: int = 24, peak: float = 2e-3,
    start_from: Path | None = None, decoder_only: bool = False, space: LatentSpace | None = None,
) -> None:  # fmt: skip
    """Trains a VAE and writes it to `output` (a diffusers VAE folder, fp32). `start_from`: VAE
    folder to continue from instead of random weights; its channels may differ. `decoder_only`:
    sharpens the decoder and keeps the latents, on which other models are already trained. `space`:
    channels, scale and shift of the latents; without it, four channels at their measured scale.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    pool = draw_pool(6000, seed)
    vae = build_vae() if space is None else build_vae(space.channels)
    if start_from is not None:
        take_what_fits(vae, AutoencoderKL.from_pretrained(start_from))
    vae.train()
    prepare(vae)
    if decoder_only:
        vae.encoder.requires_grad_(False)
        vae.quant_conv.requires_grad_(False)
    parameters = [parameter for parameter in vae.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, peak, weight_decay=1e-4, betas=(0.9, 0.99), fused=True
    )
    step, shown = 0, 0.0
    while (progress := budget.progress(step)) < 1:
        set_rate(optimizer, peak, step, progress)
        both = crops(pool, batch, generator)
        x = to_model(both[:, :3]).to(memory_format=torch.channels_last)
        with autocast():
            mean, log_variance = vae._encode(x).float().chunk(2, dim=1)
            decoded = vae._decode(mean + 0.05 * torch.randn_like(mean)).sample
        error = decoded.float() - x
        # things and their rims weigh more
        weight = 1 + 2 * (F.max_pool2d(both[:, 3:].float(), 9, 1, 4) / 255)
        # a weak pull towards unit size bounds the latents; the variance head only has to stay
        # finite
        pull = 1e-4 * mean.square().mean() + 1e-4 * (log_variance + 6).square().mean()
        loss = (weight * (error.abs() + error.square())).mean() + pull
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        shown += (float(error.detach().square().mean()) - shown) * (1 if step == 1 else 0.02)
        if step % 100 == 0:
            print(
                f"vae {step} {budget.seconds:.0f}s psnr {-10 * math.log10(shown / 4):.2f}",
                flush=True,
            )
    finish(vae, pool[:256, :3], output, decoder_only, space)


@torch.no_grad()
def finish(
    vae: AutoencoderKL,
    pictures: torch.Tensor,
    output: Path,
    keep_scale: bool,
    space: LatentSpace | None,
) -> None:
    """Measures the size of the latents on whole pictures and saves the VAE. Without a space, writes
    the size as scaling factor. With a space, changes the outermost layers so that the space's scale
    and shift give latents of unit size.
    """
    vae.eval()
    x = to_model(pictures)
    channels = vae.config.latent_channels
    latents = torch.cat([vae._encode(part)[:, :channels] for part in torch.split(x, 32)])
    if space is not None and not keep_scale:
        move_latents(vae, latents, space)
        latents = torch.cat([vae._encode(part)[:, :channels] for part in torch.split(x, 32)])
    elif not keep_scale:
        vae.register_to_config(scaling_factor=1 / float(latents.std()))
    decoded = torch.cat([vae._decode(part).sample for part in torch.split(latents, 32)])
    psnr = -10 * math.log10(float(F.mse_loss(decoded.clamp(-1, 1), x)) / 4)
    vae.to(memory_format=torch.contiguous_format)
    vae.save_pretrained(output, safe_serialization=True)
    print(
        f"vae done: {psnr:.2f} dB on whole pictures, latent channels "
        f"{latents.std(dim=(0, 2, 3)).tolist()}",
        flush=True,
    )


def move_latents(vae: AutoencoderKL, latents: torch.Tensor, space: LatentSpace) -> None:
    """Changes the encoder's last and the decoder's first layer, so that latents get the size and
    shift of the space. Pictures change slightly at the rim, where the decoder's first layer reads
    zero padding.
    """
    scale, shift = space.scale, space.shift
    assert isinstance(scale, float) and isinstance(shift, float)  # one for all channels
    mean, size = float(latents.mean()), scale * float(latents.std())
    last, first = vae.encoder.conv_out, vae.decoder.conv_in
    last.weight[: space.channels] /= size
    last.bias[: space.channels] = (last.bias[: space.channels] - mean) / size + shift
    first.bias += first.weight.sum(dim=(1, 2, 3)) * (mean - shift * size)
    first.weight *= size
    vae.register_to_config(scaling_factor=scale, shift_factor=shift)
