"""Makes lists of noise levels from formulas and published tables, and cuts such lists. Must not
know models and their noise tables.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from katz_graph.errors import InputError

ALIGNED_STEPS = {
    "SD1": (14.6146412, 6.4745761, 3.8636746, 2.6946152, 1.8841921, 1.3943805, 0.9642584, 0.6523686, 0.3977456, 0.1515233, 0.0291672),
    "SDXL": (14.6146412, 6.3184485, 3.7681790, 2.1811481, 1.3405245, 0.8620721, 0.5550693, 0.3798541, 0.2332364, 0.1114188, 0.0291672),
    "SVD": (700.0, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002),
}
"""The ten-step schedules of Sabour et al. 2024, "Align Your Steps", table of optimised schedules:
SD1 and SDXL are the levels of their timesteps (999, 850, 736, 645, 545, 455, 343, 233, 124, 24, 0
and 999, 845, 730, 587, 443, 310, 193, 116, 53, 13, 0).
"""

FLIPPED_ZERO = 1e-4  # what 0 becomes at the start of a flipped list; the ecosystem's value


def end_in_zero(sigmas: Tensor) -> Tensor:
    return torch.cat([sigmas, sigmas.new_zeros(1)])


def karras_levels(steps: int, sigma_max: float, sigma_min: float, rho: float = 7.0) -> Tensor:
    """Returns [N + 1], equal distances in sigma^(1/rho) and 0 (Karras et al. 2022, equation 5).
    InputError unless all are above 0.
    """
    _require_positive(sigma_max=sigma_max, sigma_min=sigma_min, rho=rho)
    first, last = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return end_in_zero((first + torch.linspace(0, 1, steps) * (last - first)) ** rho)


def exponential_levels(steps: int, sigma_max: float, sigma_min: float) -> Tensor:
    """Returns [N + 1], equal distances in log sigma and 0. InputError unless both are above 0."""
    _require_positive(sigma_max=sigma_max, sigma_min=sigma_min)
    return end_in_zero(torch.linspace(math.log(sigma_max), math.log(sigma_min), steps).exp())


def polyexponential_levels(steps: int, sigma_max: float, sigma_min: float, rho: float = 1.0) -> Tensor:
    """Returns [N + 1], a polynomial of degree rho in log sigma and 0 (Crowson, k-diffusion).
    InputError unless all are above 0.
    """
    _require_positive(sigma_max=sigma_max, sigma_min=sigma_min, rho=rho)
    ramp = torch.linspace(1, 0, steps) ** rho
    return end_in_zero((ramp * (math.log(sigma_max) - math.log(sigma_min)) + math.log(sigma_min)).exp())


def variance_preserving_levels(steps: int, beta_d: float = 19.9, beta_min: float = 0.1, eps_s: float = 1e-3) -> Tensor:
    """Returns [N + 1], sqrt(exp(β_d t²/2 + β_min t) - 1) at equal distances in t from 1 to eps_s,
    and 0 (Karras et al. 2022, table 1, "VP"). InputError where a level would be 0 or infinite.
    """
    times = torch.linspace(1, eps_s, steps)
    levels = torch.expm1(beta_d * times**2 / 2 + beta_min * times).sqrt()
    if not (levels.isfinite() & (levels > 0)).all():
        came = f"beta_d {beta_d:g}, beta_min {beta_min:g} and eps_s {eps_s:g}"
        raise InputError(f"variance preserving schedule: {came} give levels that are 0 or infinite; expected finite ones above 0")
    return end_in_zero(levels)


def aligned_levels(model_type: str, steps: int, denoise: float = 1.0) -> Tensor:
    """Returns the last round(N · denoise) + 1 of N + 1 levels, 0 in the end; for other than ten
    steps the table is interpolated in log sigma (Sabour et al. 2024, "Align Your Steps", section
    3.3).
    """
    if denoise <= 0:
        return torch.zeros(0)
    table = np.array(ALIGNED_STEPS[model_type])
    if steps + 1 != len(table):
        table = np.exp(np.interp(np.linspace(0, 1, steps + 1), np.linspace(0, 1, len(table)), np.log(table)))
    table[-1] = 0
    kept = round(steps * denoise) if denoise < 1 else steps
    return torch.tensor(table[-(kept + 1) :], dtype=torch.float32)


def split_levels(sigmas: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Returns the levels before a step and those after it; both hold the level between them."""
    return sigmas[: step + 1], sigmas[step:]


def split_at_denoise(sigmas: Tensor, denoise: float) -> tuple[Tensor, Tensor]:
    """Splits as `split_levels`, so that the second part has the share `denoise` of the steps."""
    steps = max(len(sigmas) - 1, 0)
    return split_levels(sigmas, steps - round(steps * denoise))


def flipped(sigmas: Tensor) -> Tensor:
    """Reverses the levels, to go from a picture to noise."""
    turned = sigmas.flip(0)
    if len(turned) and turned[0] == 0:
        turned[0] = FLIPPED_ZERO
    return turned


def parse_levels(text: str) -> Tensor:
    """Parses numbers between commas or blanks. InputError names the part that is none."""
    return torch.tensor([_number(part) for part in text.replace(",", " ").split()], dtype=torch.float32)


def _number(part: str) -> float:
    try:
        number = float(part)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(f"sigmas: {part!r} is no noise level; expected numbers of at least 0 between commas, as 14.6, 3.2, 0.5, 0")
    return number


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise InputError(f"{name}: expected above 0, got {value:g}")
