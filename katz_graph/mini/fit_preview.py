"""Fits the linear map from the miniature VAE's latents to colours, for `previews` of its family:
`python -m katz_graph.mini.fit_preview`.

Solves least squares from the scaled latents of drawn pictures, each cell with its eight neighbours,
to the mean colour of the cell.
"""

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from katz_graph.files.folders import MINI
from katz_graph.mini.train_vae import draw_pool, to_model

PICTURES, SEED = 256, 5


@torch.no_grad()
def fit(vae: AutoencoderKL) -> torch.Tensor:
    """Fits [37, 3]: red, green and blue in -1..1 for each channel's nine cells, row by row; the
    last row is the bias.
    """
    pixels = to_model(draw_pool(PICTURES, SEED)[:, :3])
    latents = (
        torch.cat([vae._encode(part)[:, :4] for part in torch.split(pixels, 32)])
        * vae.config.scaling_factor
    )
    cells = F.unfold(F.pad(latents, (1, 1, 1, 1), mode="replicate"), 3).movedim(1, -1).flatten(0, 1)
    colours = F.avg_pool2d(pixels, 8).movedim(1, -1).flatten(0, 2)
    solved: torch.Tensor = torch.linalg.lstsq(
        torch.cat([cells, torch.ones(len(cells), 1)], dim=1), colours
    ).solution
    return solved


def main() -> None:
    vae = AutoencoderKL.from_pretrained(MINI / "pipeline" / "vae", torch_dtype=torch.float32)
    print(f"scaling factor {vae.config.scaling_factor}")
    for row in fit(vae).tolist():
        print("(" + ", ".join(f"{value:.3f}" for value in row) + "),")


if __name__ == "__main__":
    main()
