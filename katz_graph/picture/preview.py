"""Makes small pictures to watch a sampler by: of a latent by the linear map of its latent space,
which is told from the scaling factor, without a VAE; and as JPEG.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import conv2d, pad

from katz_graph.host.transfer import to_device
from katz_graph.latent_space import DEFAULT_LATENT_SPACE

# pixels of a preview's longer side; between them a latent's cell has as many as in the picture
LONGEST, SHORTEST = 512, 128
QUALITY = 80  # of JPEG
NEAR = 1e-4  # relative difference of scaling factors that are the same


def latent_picture(latent: Tensor, colours: LinearMap) -> Tensor:
    """Shows the first of scaled latents [B, C, h, w] as uint8 [h, w, 3]."""
    cells = latent[:1].detach().float()
    side = 3 if len(colours.rows) > cells.shape[1] else 1
    rows, bias = (
        to_device(torch.tensor(values), cells.device) for values in (colours.rows, colours.bias)
    )
    weight = rows.view(-1, side, side, 3).permute(3, 0, 1, 2)
    reach = side // 2
    around = pad(cells, (reach,) * 4, mode="replicate")
    shown = conv2d(around, weight, bias)[0].movedim(0, -1)
    return ((shown + 1) * 127.5).nan_to_num(127.5).clamp(0, 255).to(torch.uint8)


def as_jpeg(picture: Tensor) -> bytes:
    """Encodes uint8 [h, w, 3] as JPEG, eight times as large, though its longer side is not under
    128 nor over 512 pixels.
    """
    longer = max(picture.shape[:2])
    ratio = min(max(DEFAULT_LATENT_SPACE.pixels(longer), SHORTEST), LONGEST) / longer
    height, width = (max(round(side * ratio), 1) for side in picture.shape[:2])
    written = io.BytesIO()
    Image.fromarray(picture.numpy()).resize((width, height), Image.Resampling.BILINEAR).save(
        written, "JPEG", quality=QUALITY
    )
    return written.getvalue()


@dataclass(frozen=True, slots=True)
class LinearMap:
    """Red, green and blue in -1..1 that each channel of a scaled latent adds to a cell, and what is
    added everywhere.

    With nine times as many rows they are those of the channel's cells around it, row by row.
    """

    rows: tuple[tuple[float, float, float], ...]
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)


# by channels and scaling factor
# fmt: off
LATENT_SPACES: Mapping[tuple[int, float], LinearMap] = MappingProxyType({
    # SD 1 and 2: of InvokeAI (Apache 2.0), app/util/step_callback.py, there by torridgristle after
    # keturn and erucipe
    (4, 0.18215): LinearMap((
        (0.3444, 0.1385, 0.0670), (0.1247, 0.4027, 0.1494), (-0.3192, 0.2513, 0.2103),
        (-0.1307, -0.1874, -0.7445),
    )),
    # SDXL: of InvokeAI, same place, there by StAlKeR7779
    (4, 0.13025): LinearMap((
        (0.3816, 0.4930, 0.5320), (-0.3753, 0.1631, 0.1739), (0.1770, 0.3588, -0.2048),
        (-0.4350, -0.2644, -0.4289),
    )),
    # SD3 and SD3.5: of InvokeAI, same place
    (16, 1.5305): LinearMap((
        (-0.0524, 0.0325, 0.0749), (-0.0581, 0.0076, 0.0573), (0.1614, 0.0127, -0.0377),
        (0.1442, 0.0846, 0.1594), (0.0489, 0.0056, -0.0669), (0.0519, 0.1922, 0.0626),
        (0.1539, 0.0482, 0.0710), (-0.0860, 0.0901, 0.1089), (-0.1240, -0.0677, 0.0034),
        (-0.0440, 0.0783, 0.0226), (0.0310, 0.0638, 0.0775), (-0.0132, 0.0855, -0.0877),
        (0.0646, 0.0591, 0.1326), (-0.0786, -0.0226, -0.1276), (-0.0992, -0.0801, -0.0626),
        (-0.0339, -0.0804, -0.0608),
    )),
    # FLUX.1, and Z-Image with the same VAE: of InvokeAI, same place
    (16, 0.3611): LinearMap((
        (-0.0412, 0.0149, 0.0521), (0.0056, 0.0291, 0.0768), (0.0342, -0.0681, -0.0427),
        (-0.0258, 0.0092, 0.0463), (0.0863, 0.0784, 0.0547), (-0.0017, 0.0402, 0.0158),
        (0.0501, 0.1058, 0.1152), (-0.0209, -0.0218, -0.0329), (-0.0314, 0.0083, 0.0896),
        (0.0851, 0.0665, -0.0472), (-0.0534, 0.0238, -0.0024), (0.0452, -0.0026, 0.0048),
        (0.0892, 0.0831, 0.0881), (-0.1117, -0.0304, -0.0789), (0.0027, -0.0479, -0.0043),
        (-0.1146, -0.0827, -0.0598),
    )),
    # the miniature family: `python -m katz_graph.mini.fit_preview`
    (4, 0.64577): LinearMap((
        (-0.068, 0.033, 0.036), (0.027, -0.073, 0.255), (-0.088, -0.051, 0.056),
        (-0.042, -0.030, 0.166), (-0.300, 0.130, -0.024), (-0.040, 0.074, -0.170),
        (-0.091, -0.016, 0.077), (-0.042, -0.012, -0.088), (-0.022, 0.141, -0.056),
        (0.062, 0.008, -0.103), (-0.055, 0.098, -0.236), (0.076, 0.081, -0.103),
        (0.019, 0.056, -0.169), (0.175, -0.008, 0.129), (0.017, -0.021, 0.109),
        (0.076, 0.034, -0.085), (0.002, 0.020, 0.079), (0.026, -0.092, 0.013),
        (0.036, -0.005, 0.012), (0.005, 0.046, -0.042), (0.039, 0.023, 0.009),
        (0.025, 0.035, -0.027), (0.136, 0.022, 0.202), (0.006, -0.012, 0.140),
        (0.036, 0.016, -0.007), (0.023, 0.044, 0.150), (0.016, -0.046, 0.057),
        (0.024, -0.024, 0.033), (-0.037, 0.025, -0.074), (0.032, 0.013, 0.021),
        (0.003, 0.004, -0.057), (-0.036, -0.171, 0.057), (0.002, -0.048, 0.136),
        (0.040, 0.008, -0.036), (0.007, 0.001, 0.112), (0.006, -0.084, 0.041),
    ), (0.107, 0.083, 0.264)),
})
# fmt: on


def linear_map(scale: float, channels: int) -> LinearMap | None:
    """Returns the map of the latent space with this scaling factor; None where it is not known."""
    return next(
        (
            known
            for (count, factor), known in LATENT_SPACES.items()
            if count == channels and math.isclose(scale, factor, rel_tol=NEAR)
        ),
        None,
    )
