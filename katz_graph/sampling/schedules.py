"""Makes the noise levels of a run: named schedules over a noise table, levels from formulas and
published tables, and cuts of such lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pkgutil import resolve_name

import numpy as np
import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.sampling.aligned import ALIGNED_STEPS
from katz_graph.sampling.names import DISCARD_PENULTIMATE, SCHEDULES, require_scheduler
from katz_graph.sampling.noise_table import NoiseTable

Schedule = Callable[[NoiseTable, int], Tensor]
"""Maps (table, steps) to descending sigmas [N + 1] float32, the last one 0; N is `steps` except for
ddim_uniform and beta.
"""

TURBO_PARTS = 10
MAX_STEPS = 1_000_000  # maximum length of a schedule; a small denoise uses only its end

FEW_TOKENS = 4300  # to which the shift for a size depends on the steps
FLIPPED_ZERO = 1e-4  # replaces 0 at the start of a flipped list; the ecosystem's value


def normal(table: NoiseTable, steps: int) -> Tensor:
    """Spaces levels equally in time, including both ends."""
    return end_in_zero(
        table.sigma_at(
            torch.linspace(
                table.timestep_at(table.sigma_max), table.timestep_at(table.sigma_min), steps
            )
        )
    )


def sgm_uniform(table: NoiseTable, steps: int) -> Tensor:
    """Spaces levels equally in time, with the last point replaced by 0."""
    timesteps = torch.linspace(
        table.timestep_at(table.sigma_max), table.timestep_at(table.sigma_min), steps + 1
    )
    return end_in_zero(table.sigma_at(timesteps[:-1]))


def simple(table: NoiseTable, steps: int) -> Tensor:
    """Takes table entries at equal distances, counted from the end."""
    # Divides first: the other order truncates to another index for some step counts.
    stride = len(table.sigmas) / steps
    return end_in_zero(table.sigmas[[-(1 + int(i * stride)) for i in range(steps)]])


def ddim_uniform(table: NoiseTable, steps: int) -> Tensor:
    """Takes every s-th entry of the table from 1, s = T // steps (Song et al. 2021, appendix D.2,
    linear); may be longer than `steps`.
    """
    stride = max(len(table.sigmas) // steps, 1)
    return end_in_zero(table.sigmas[1::stride].flip(0))


def karras(table: NoiseTable, steps: int, rho: float = 7.0) -> Tensor:
    """Spaces levels equally in sigma^(1/rho) (Karras et al. 2022, equation 5)."""
    return karras_levels(steps, table.sigma_max, table.sigma_min, rho)


def exponential(table: NoiseTable, steps: int) -> Tensor:
    """Spaces levels equally in log sigma."""
    return exponential_levels(steps, table.sigma_max, table.sigma_min)


def beta(table: NoiseTable, steps: int, alpha: float = 0.6, beta: float = 0.6) -> Tensor:
    """Takes times at equal quantiles of a Beta distribution, dense at both ends (Lee et al. 2024,
    "Beta Sampling is All You Need"). Shorter than `steps` if quantiles share an index. Raises
    InputError unless both parameters are above 0.
    """
    if alpha <= 0 or beta <= 0:
        raise InputError(
            f"beta schedule: a Beta distribution has alpha and beta above 0, got {alpha:g} "
            f"and {beta:g}"
        )
    from scipy.special import betaincinv  # slow to import

    quantiles = 1 - np.linspace(0, 1, steps, endpoint=False)
    indices = np.rint(betaincinv(alpha, beta, quantiles) * (len(table.sigmas) - 1)).astype(int)
    return end_in_zero(table.sigmas[list(dict.fromkeys(indices.tolist()))])


def linear_quadratic(table: NoiseTable, steps: int, threshold: float = 0.025) -> Tensor:
    """Subtracts a share of sigma_max that grows linearly to `threshold` over the first half, then
    quadratically to 1 with a continuous slope (Polyak et al. 2024, "Movie Gen").
    """
    linear_steps = steps // 2
    if linear_steps == 0:
        return torch.tensor([table.sigma_max, 0.0])
    slope, quadratic_steps = threshold / linear_steps, steps - linear_steps
    curvature = (1 - slope * steps) / quadratic_steps**2
    removed = [slope * i + curvature * max(i - linear_steps, 0) ** 2 for i in range(steps)]
    return torch.tensor([1 - share for share in removed] + [0.0]) * table.sigma_max


def kl_optimal(table: NoiseTable, steps: int) -> Tensor:
    """Spaces levels equally in atan sigma (Sabour et al. 2024, "Align Your Steps")."""
    share = torch.arange(steps) / max(steps - 1, 1)
    return end_in_zero(
        (share * math.atan(table.sigma_min) + (1 - share) * math.atan(table.sigma_max)).tan()
    )


def turbo(table: NoiseTable, steps: int, denoise: float = 1.0) -> Tensor:
    """Takes levels at tenths of the training time, from pure noise on, as in SD Turbo's
    distillation (Sauer et al. 2023, "Adversarial Diffusion Distillation", section 3.1). `denoise`
    omits the first tenths. Shorter than `steps` if fewer remain.
    """
    timesteps = torch.arange(TURBO_PARTS, 0, -1) * 100 - 1
    start = TURBO_PARTS - int(TURBO_PARTS * denoise)
    return end_in_zero(table.sigma_at(timesteps[start : start + steps]))


def schedule(
    scheduler: str, table: NoiseTable, steps: int, denoise: float = 1.0, sampler: str = "euler"
) -> tuple[float, ...]:
    """Returns the sigmas of `steps` steps, ending in 0; none at denoise 0.

    `denoise` below 1 returns the end of a longer schedule: the last `steps` intervals of int(steps
    / denoise). Raises InputError for an unknown scheduler, fewer than one step, and a longer
    schedule of more than `MAX_STEPS` steps.
    """
    require_scheduler(scheduler)
    if steps < 1:
        raise InputError(f"steps: expected at least 1, got {steps}")
    if denoise <= 0:
        return ()
    if denoise * MAX_STEPS < steps:
        raise InputError(
            f"{steps} steps at denoise {denoise:g} need more than {MAX_STEPS} in all: raise denoise"
        )
    cut = denoise <= 0.9999
    longer = int(steps / denoise) if cut else steps
    levels: Schedule = resolve_name(f"katz_graph.sampling.{SCHEDULES[scheduler]}")
    if sampler in DISCARD_PENULTIMATE:
        sigmas = levels(table, longer + 1)
        sigmas = torch.cat([sigmas[:-2], sigmas[-1:]])
    else:
        sigmas = levels(table, longer)
    return tuple((sigmas[-(steps + 1) :] if cut else sigmas).tolist())


def slice_steps(
    sigmas: tuple[float, ...], start: int, end: int, force_full_denoise: bool
) -> tuple[float, ...]:
    """Returns the levels from step `start` to step `end`. A slice that ends early leaves noise,
    unless `force_full_denoise` sets the last level to 0. Returns none if `start` is not before the
    end.
    """
    if end < len(sigmas) - 1:
        sigmas = sigmas[: end + 1]
        if force_full_denoise:
            sigmas = (*sigmas[:-1], 0.0)
    return sigmas[start:] if start < len(sigmas) - 1 else ()


def end_in_zero(sigmas: Tensor) -> Tensor:
    return torch.cat([sigmas, sigmas.new_zeros(1)])


def karras_levels(steps: int, sigma_max: float, sigma_min: float, rho: float = 7.0) -> Tensor:
    """Returns levels [N + 1] at equal distances in sigma^(1/rho), then 0 (Karras et al. 2022,
    equation 5). Raises InputError unless both sigmas and rho are above 0.
    """
    _require_positive(sigma_max=sigma_max, sigma_min=sigma_min, rho=rho)
    first, last = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return end_in_zero((first + torch.linspace(0, 1, steps) * (last - first)) ** rho)


def exponential_levels(steps: int, sigma_max: float, sigma_min: float) -> Tensor:
    """Returns levels [N + 1] at equal distances in log sigma, then 0. Raises InputError unless both
    sigmas are above 0.
    """
    _require_positive(sigma_max=sigma_max, sigma_min=sigma_min)
    return end_in_zero(torch.linspace(math.log(sigma_max), math.log(sigma_min), steps).exp())


def polyexponential_levels(
    steps: int, sigma_max: float, sigma_min: float, rho: float = 1.0
) -> Tensor:
    """Returns levels [N + 1] with log sigma a polynomial of degree rho in the step, then
    0 (Crowson, k-diffusion). Raises InputError unless both sigmas and rho are above 0.
    """
    _require_positive(sigma_max=sigma_max, sigma_min=sigma_min, rho=rho)
    ramp = torch.linspace(1, 0, steps) ** rho
    return end_in_zero(
        (ramp * (math.log(sigma_max) - math.log(sigma_min)) + math.log(sigma_min)).exp()
    )


def variance_preserving_levels(
    steps: int, beta_d: float = 19.9, beta_min: float = 0.1, eps_s: float = 1e-3
) -> Tensor:
    """Returns levels [N + 1] sqrt(exp(β_d t²/2 + β_min t) - 1) at equally spaced t from 1 to eps_s,
    then 0 (Karras et al. 2022, table 1, "VP"). Raises InputError if a level would be 0 or infinite.
    """
    times = torch.linspace(1, eps_s, steps)
    levels = torch.expm1(beta_d * times**2 / 2 + beta_min * times).sqrt()
    if not (levels.isfinite() & (levels > 0)).all():
        came = f"beta_d {beta_d:g}, beta_min {beta_min:g} and eps_s {eps_s:g}"
        raise InputError(
            f"variance preserving schedule: {came} give levels that are 0 or infinite; expected "
            "finite ones above 0"
        )
    return end_in_zero(levels)


def aligned_levels(model_type: str, steps: int, denoise: float = 1.0) -> Tensor:
    """Returns the last round(N · denoise) + 1 of N + 1 levels, ending in 0. For step counts other
    than ten, interpolates the table in log sigma (Sabour et al. 2024, "Align Your Steps", section
    3.3).
    """
    if denoise <= 0:
        return torch.zeros(0)
    table = np.array(ALIGNED_STEPS[model_type])
    if steps + 1 != len(table):
        table = np.exp(
            np.interp(np.linspace(0, 1, steps + 1), np.linspace(0, 1, len(table)), np.log(table))
        )
    table[-1] = 0
    count = round(steps * denoise) if denoise < 1 else steps
    return torch.tensor(table[-(count + 1) :], dtype=torch.float32)


def levels_for_size(steps: int, width: int, height: int) -> Tensor:
    """Returns `steps` + 1 levels of a flow for a picture of this size in pixels, from 1 to 0.

    The shift is linear in the tokens, and up to 4,300 tokens also linear in the steps, between
    values at 10 and at 200 steps. Source: `compute_empirical_mu` in diffusers.
    """
    tokens = round(width * height / 16**2)
    many = 0.00016927 * tokens + 0.45666666
    mu = many
    if tokens <= FEW_TOKENS:
        few = 8.73809524e-05 * tokens + 1.89833333
        mu = few + (many - few) * (steps - 10) / (200 - 10)
    times = np.linspace(1, 0, steps + 1)
    with np.errstate(divide="ignore"):
        levels = math.exp(mu) / (math.exp(mu) + (1 / times - 1))
    return torch.tensor(levels, dtype=torch.float32)


def split_levels(sigmas: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Returns the levels before and after a step; both include the level at the split."""
    return sigmas[: step + 1], sigmas[step:]


def split_at_denoise(sigmas: Tensor, denoise: float) -> tuple[Tensor, Tensor]:
    """Splits like `split_levels`; the second part has the share `denoise` of the steps."""
    steps = max(len(sigmas) - 1, 0)
    return split_levels(sigmas, steps - round(steps * denoise))


def flipped(sigmas: Tensor) -> Tensor:
    """Reverses the levels, to go from a picture to noise."""
    turned = sigmas.flip(0)
    if len(turned) and turned[0] == 0:
        turned[0] = FLIPPED_ZERO
    return turned


def parse_levels(text: str) -> Tensor:
    """Parses numbers separated by commas or blanks. Raises InputError that names an invalid
    part.
    """
    return torch.tensor(
        [_number(part) for part in text.replace(",", " ").split()], dtype=torch.float32
    )


def _number(part: str) -> float:
    try:
        number = float(part)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(
            f"sigmas: {part!r} is not a noise level; expected numbers of at least 0 between "
            "commas, as 14.6, 3.2, 0.5, 0"
        )
    return number


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise InputError(f"{name}: expected above 0, got {value:g}")
