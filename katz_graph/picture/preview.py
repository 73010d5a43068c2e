"""Makes previews for samplers: RGB from a latent by its space's linear map."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad, pixel_shuffle

from katz_graph.core.latent_space import LinearMap
from katz_graph.host.transfer import to_device


def latent_picture(latent: Tensor, colours: LinearMap) -> Tensor:
    """Converts the first of scaled latents [B, C, h, w], or its first frame, to uint8 [h, w, 3]."""
    cells = latent[:1].detach().float()
    cells = pixel_shuffle(cells if cells.ndim == 4 else cells[:, :, 0], colours.patch)
    side = 3 if len(colours.rows) > cells.shape[1] else 1
    rows, bias = (
        to_device(torch.tensor(values), cells.device) for values in (colours.rows, colours.bias)
    )
    weight = rows.view(-1, side, side, 3).permute(3, 0, 1, 2)
    reach = side // 2
    around = pad(cells, (reach,) * 4, mode="replicate")
    shown = conv2d(around, weight, bias)[0].movedim(0, -1)
    return ((shown + 1) * 127.5).nan_to_num(127.5).clamp(0, 255).to(torch.uint8)
