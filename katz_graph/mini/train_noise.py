"""Trains the miniature noise-predicting network together with its two text encoders on latents of
drawn pictures.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, ModelMixin
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from katz_graph.mini.corpus import Bucket
from katz_graph.mini.text import (
    LENGTH,
    WIDTH,
    build_encoders,
    rows_at,
    write_tokenizer,
    write_vocabulary,
)
from katz_graph.mini.training import Budget, Descent, autocast, load_model, prepare, squared_error
from katz_graph.mini.world import Scene, loose_caption
from katz_graph.models.families.shared.miniature import miniature

NOISE = miniature("noise")
EARLIER = 0.6  # exponent below 1: draws more noisy timesteps than a uniform distribution
DROPPED = 0.1  # share of captions replaced by the empty string


@dataclass(slots=True)
class Painter:
    """Predicts noise from captions and noisy latents. Holds the trainable network, its text
    encoders and their tokenizers.
    """

    network: ModelMixin
    encoder: CLIPTextModel
    encoder_2: CLIPTextModelWithProjection
    tokenizer: CLIPTokenizer
    tokenizer_2: CLIPTokenizer

    def modules(self) -> tuple[torch.nn.Module, ...]:
        return self.network, self.encoder, self.encoder_2

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for module in self.modules() for parameter in module.parameters()]

    def encode(self, captions: list[str], rows: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns hidden states [B, rows, 2·WIDTH] and pooled [B, WIDTH], as `encode_prompt` of the
        stock pipeline does with 77 rows.
        """
        tokens = [
            tokenizer(
                captions,
                padding="max_length",
                max_length=rows,
                truncation=True,
                return_tensors="pt",
            ).input_ids
            for tokenizer in (self.tokenizer, self.tokenizer_2)
        ]
        first = self.encoder(tokens[0], output_hidden_states=True)
        second = self.encoder_2(tokens[1], output_hidden_states=True)
        hidden = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1)
        return hidden, second.text_embeds

    def added(self, pooled: torch.Tensor, height: int, width: int) -> dict[str, torch.Tensor]:
        sizes = torch.tensor([[height, width, 0, 0, height, width]], dtype=torch.float32)
        return {"text_embeds": pooled, "time_ids": sizes.expand(len(pooled), 6)}


def new_painter(folder: Path) -> Painter:
    """Makes a painter of random weights; writes the tokenizers into `folder`."""
    first = write_tokenizer(folder / "tokenizer", "<|endoftext|>")
    second = write_tokenizer(folder / "tokenizer_2", "!")
    encoder, encoder_2 = build_encoders(first, second)
    return Painter(NOISE.network(WIDTH), encoder, encoder_2, first, second)


def load_painter(folder: Path) -> Painter:
    """Loads a painter from a pipeline folder, in fp32."""
    return Painter(
        load_model(folder / NOISE.part),
        CLIPTextModel.from_pretrained(
            folder / "text_encoder", dtype=torch.float32, attn_implementation="eager"
        ),
        CLIPTextModelWithProjection.from_pretrained(
            folder / "text_encoder_2", dtype=torch.float32, attn_implementation="eager"
        ),
        CLIPTokenizer.from_pretrained(folder / "tokenizer"),
        CLIPTokenizer.from_pretrained(folder / "tokenizer_2"),
    )


def noise_levels() -> torch.Tensor:
    """Returns the cumulative products of alpha for the 1,000 training timesteps."""
    levels: torch.Tensor = NOISE.scheduler().alphas_cumprod.float()
    return levels


def batch_captions(
    scenes: Iterable[Scene], generator: np.random.Generator, keep: float = 0.92
) -> list[str]:
    return [
        "" if generator.random() < DROPPED else loose_caption(scene, generator, keep)
        for scene in scenes
    ]


def noised(
    latents: torch.Tensor, levels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns noisy latents, noise, timesteps [B] and loss weights [B]: min(SNR, 5) / SNR (Hang et
    al. 2023, for epsilon).

    Strong noise gets more draws and more weight: it decides the composition, but its error in
    epsilon is small.
    """
    timesteps = (len(levels) * torch.rand(len(latents)) ** EARLIER).long()
    alpha = levels[timesteps].view(-1, 1, 1, 1)
    noise = torch.randn_like(latents)
    signal_to_noise = (alpha / (1 - alpha)).flatten()
    weight = signal_to_noise.clamp(max=5) / signal_to_noise * signal_to_noise.clamp(0.05, 1) ** -0.5
    return alpha.sqrt() * latents + (1 - alpha).sqrt() * noise, noise, timesteps, weight


def pick(
    buckets: list[Bucket], batch: int, generator: np.random.Generator, native: float
) -> tuple[Bucket, list[int]]:
    """Picks a bucket (the first with probability `native`) and random members, fewer of larger
    pictures.
    """
    bucket = buckets[0]
    if generator.random() > native and len(buckets) > 1:
        bucket = buckets[1 + int(generator.integers(len(buckets) - 1))]
    fitting = max(8, min(batch, batch * 128 * 128 // (bucket.height * bucket.width)))
    return bucket, generator.integers(len(bucket.scenes), size=fitting).tolist()


def save_pipeline(
    painter: Painter, vae: AutoencoderKL, folder: Path, dtype: torch.dtype = torch.float16
) -> None:
    """Writes a folder that `from_pretrained` of a stock pipeline loads."""
    network, encoder, encoder_2, decoder = (
        copy.deepcopy(m) for m in (painter.network, painter.encoder, painter.encoder_2, vae)
    )
    for module in network.modules(), decoder.modules():
        for part in module:
            part.__dict__.pop("forward", None)  # the group norm override of `prepare`
    pipeline = NOISE.pipeline(
        vae=decoder.to(dtype, memory_format=torch.contiguous_format),
        text_encoder=encoder.to(dtype),
        text_encoder_2=encoder_2.to(dtype),
        tokenizer=painter.tokenizer,
        tokenizer_2=painter.tokenizer_2,
        scheduler=NOISE.scheduler(),
        **{NOISE.part: network.to(dtype, memory_format=torch.contiguous_format)},
    )
    pipeline.save_pretrained(folder, safe_serialization=True)
    write_vocabulary(painter.tokenizer, folder / "tokenizer")
    write_vocabulary(painter.tokenizer_2, folder / "tokenizer_2")


def train_noise(
    painter: Painter, vae: AutoencoderKL, buckets: list[Bucket], output: Path, budget: Budget,
    seed: int = 0, batch: int = 32, peak: float = 1.2e-3, native: float = 0.7,
) -> None:  # fmt: skip
    """Trains network and text encoders together. The first 65 % use only the native size, the rest
    a share `native` of it. Writes the averaged pipeline to `output` every 1,000 updates.
    """
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    levels = noise_levels()
    prepare(painter.network)
    for module in painter.modules():
        module.train()

    def loss(progress: float) -> torch.Tensor:
        bucket, chosen = pick(buckets, batch, generator, 1.0 if progress < 0.65 else native)
        latents = bucket.latents[chosen].float().contiguous(memory_format=torch.channels_last)
        captions = batch_captions((bucket.scenes[i] for i in chosen), generator)
        noisy, noise, timesteps, weight = noised(latents, levels)
        with autocast():
            hidden, pooled = painter.encode(captions, rows_at(progress))
            added = painter.added(pooled, bucket.height, bucket.width)
            predicted = painter.network(noisy, timesteps, hidden, added_cond_kwargs=added).sample
        return squared_error(predicted, noise, weight)

    descent = Descent("noise", painter.parameters(), budget, peak, average=0.999, every=1000)
    descent.run(loss, lambda: save_pipeline(painter, vae, output))
