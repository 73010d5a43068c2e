"""Builds the training corpus of drawn pictures: scenes with their seeds and latents, in one bucket
per picture size.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL

from katz_graph.mini.draw import draw
from katz_graph.mini.training import autocast, save_whole
from katz_graph.mini.world import Scene, sample_scene

# share of scenes with one thing; at 0.3 a transformer paints 5 % of single shapes wrongly
ONE_THING = 0.5
OTHER_SIZES = ((96, 96), (160, 160), (192, 192), (96, 128), (128, 96), (160, 128), (128, 160))


@dataclass(frozen=True, slots=True)
class Bucket:
    """Holds scenes of one picture size, the seeds that they are drawn with, and their latents: fp16
    [N, C, height / 8, width / 8], scaled to unit size.
    """

    height: int
    width: int
    scenes: list[Scene]
    seeds: list[int]
    latents: torch.Tensor

    def silhouettes(self, chosen: list[int]) -> torch.Tensor:
        """Redraws the silhouettes of the chosen scenes: [len(chosen), height, width] in 0..1."""
        masks = [
            draw(self.scenes[i], self.height, self.width, self.seeds[i]).silhouette for i in chosen
        ]
        return torch.from_numpy(np.stack(masks)).float() / 255

    def pictures(self, chosen: list[int], styles: frozenset[str] = frozenset()) -> torch.Tensor:
        """Redraws the chosen scenes in the given styles: [len(chosen), height, width, 3] in
        0..1.
        """
        drawn = [
            draw(self.scenes[i], self.height, self.width, self.seeds[i], styles).picture
            for i in chosen
        ]
        return torch.from_numpy(np.stack(drawn)).float() / 255

    def first(self, count: int) -> "Bucket":
        return replace(
            self,
            scenes=self.scenes[:count],
            seeds=self.seeds[:count],
            latents=self.latents[:count],
        )

    def styled(self, vae: AutoencoderKL, count: int, styles: frozenset[str]) -> "Bucket":
        """Returns the first `count` scenes of this bucket in the given styles."""
        latents = encode(vae, lambda i: self.pictures(i, styles), count)
        return replace(self.first(count), latents=latents)


@torch.no_grad()
def encode(vae: AutoencoderKL, pictures, count: int, batch: int = 16) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Encodes `pictures(indices)` for all indices below `count` to latents of unit size."""
    parts = []
    for start in range(0, count, batch):
        x = pictures(list(range(start, min(start + batch, count)))).permute(0, 3, 1, 2) * 2 - 1
        with autocast():
            encoded = vae._encode(x.contiguous(memory_format=torch.channels_last))
        mean = encoded[:, : vae.config.latent_channels].float() - (vae.config.shift_factor or 0.0)
        parts.append((mean * vae.config.scaling_factor).half())
    return torch.cat(parts).contiguous()


def random_bucket(height: int, width: int, count: int, seed: int) -> Bucket:
    """Samples random training scenes without latents."""
    generator = np.random.default_rng(seed)
    scenes = [
        sample_scene(generator, 1 if generator.random() < ONE_THING else 2) for _ in range(count)
    ]
    return Bucket(
        height, width, scenes, generator.integers(1 << 31, size=count).tolist(), torch.empty(0)
    )


def build_corpus(
    vae: AutoencoderKL, file: Path, native: int, other: int, seed: int
) -> list[Bucket]:
    """Returns the native bucket followed by one bucket of each other size. Reads the latents from
    `file` if it exists, else writes them there.
    """
    sizes = [(128, 128, native), *((height, width, other) for height, width in OTHER_SIZES)]
    stored = torch.load(file, weights_only=True) if file.exists() else []
    buckets = []
    for index, (height, width, count) in enumerate(sizes):
        bucket = random_bucket(height, width, count, seed + index)
        latents = stored[index] if stored else encode(vae, bucket.pictures, count)
        buckets.append(replace(bucket, latents=latents))
        print(f"corpus: {count} pictures of {height}x{width}", flush=True)
    if not stored:
        save_whole([bucket.latents for bucket in buckets], file)
    return buckets
