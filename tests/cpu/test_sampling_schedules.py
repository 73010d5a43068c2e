"""Noise tables and schedules equal the published formulas, derived here in float64, and values
known by hand.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import betainc

from katz_graph.core.errors import InputError
from katz_graph.core.patches import DiscreteSampling
from katz_graph.sampling.names import SCHEDULER_NAMES
from katz_graph.sampling.noise_table import altered_table, noise_table
from katz_graph.sampling.schedules import schedule, slice_steps

STABLE_DIFFUSION = {
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "num_train_timesteps": 1000,
}
TABLE = noise_table(STABLE_DIFFUSION)


def reference_sigmas() -> np.ndarray:
    """Returns [1000] float64 levels by running products."""
    product, sigmas = 1.0, []
    for t in range(1000):
        root = math.sqrt(0.00085) + (math.sqrt(0.012) - math.sqrt(0.00085)) * t / 999
        product *= 1 - root**2
        sigmas.append(math.sqrt(1 / product - 1))
    return np.array(sigmas)


REFERENCE = reference_sigmas()


def test_the_table_of_stable_diffusion() -> None:
    assert TABLE.sigma_max == pytest.approx(14.6146, abs=5e-5)
    # the first step keeps 1 - 0.00085; the 0.0291675 that tools print comes from float32 arithmetic
    assert TABLE.sigma_min == pytest.approx(math.sqrt(0.00085 / 0.99915), rel=1e-7)
    np.testing.assert_allclose(TABLE.sigmas.numpy(), REFERENCE, rtol=2e-7)


def test_other_tables() -> None:
    linear = noise_table({"beta_schedule": "linear", "beta_start": 1e-4, "beta_end": 0.02})
    # DDPM (Ho et al. 2020): no signal is left, ᾱ_T = 4.04e-5
    assert 1 / (1 + linear.sigma_max**2) == pytest.approx(4.04e-5, rel=2e-3)
    cosine = noise_table({"beta_schedule": "squaredcos_cap_v2", "num_train_timesteps": 500})
    alpha_cumprod = (
        math.cos((250 / 500 + 0.008) / 1.008 * math.pi / 2) ** 2
        / math.cos(0.008 / 1.008 * math.pi / 2) ** 2
    )
    assert float(cosine.sigmas[249]) == pytest.approx(math.sqrt(1 / alpha_cumprod - 1), rel=1e-6)
    assert len(cosine.sigmas) == 500
    trained = noise_table({"trained_betas": [0.19, 0.5], "prediction_type": "v_prediction"})
    assert trained.sigmas.tolist() == pytest.approx(
        [math.sqrt(1 / 0.81 - 1), math.sqrt(1 / 0.405 - 1)]
    )
    assert trained.parametrisation == "v_prediction"


def test_zero_terminal_snr_keeps_the_first_level_and_ends_at_the_ecosystems_maximum() -> None:
    rescaled = noise_table({**STABLE_DIFFUSION, "rescale_betas_zero_snr": True})
    assert rescaled.sigma_min == pytest.approx(TABLE.sigma_min, rel=1e-6)
    assert rescaled.sigma_max == pytest.approx(4518.7637, abs=1e-3)
    first, last, middle = (1 / math.sqrt(1 + REFERENCE[t] ** 2) for t in (0, 999, 600))
    expected = first * (middle - last) / (first - last)
    assert 1 / math.sqrt(1 + float(rescaled.sigmas[600]) ** 2) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("wrong", [{"beta_schedule": "sigmoid"}, {"prediction_type": "sample"}])
def test_a_table_that_is_not_supported_is_named(wrong: dict[str, str]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong.values()))):
        noise_table(wrong)


def test_sigma_and_timestep_are_inverse_on_the_table() -> None:
    torch.testing.assert_close(TABLE.sigma_at(torch.arange(1000)), TABLE.sigmas, rtol=1e-6, atol=0)
    assert [TABLE.timestep_at(sigma) for sigma in TABLE.sigmas] == list(range(1000))


def test_between_table_entries_log_sigma_decides() -> None:
    assert float(TABLE.sigma_at(torch.tensor(499.5))) == pytest.approx(
        math.sqrt(REFERENCE[499] * REFERENCE[500]), rel=1e-6
    )
    assert float(TABLE.sigma_at(torch.tensor(10.25))) == pytest.approx(
        REFERENCE[10] ** 0.75 * REFERENCE[11] ** 0.25, rel=1e-6
    )
    boundary = math.sqrt(REFERENCE[0] * REFERENCE[1])
    assert (TABLE.timestep_at(boundary * 0.999), TABLE.timestep_at(boundary * 1.001)) == (0, 1)
    assert (TABLE.timestep_at(1e-4), TABLE.timestep_at(1e4)) == (0, 999)


def test_halfway_between_entries_a_level_is_their_mean_to_the_last_bit() -> None:
    """It is equally near to both: rounding decides which timestep the model gets (sgm_uniform on a
    distilled table).
    """
    distilled = altered_table(STABLE_DIFFUSION, DiscreteSampling("lcm", zero_terminal_snr=False))
    for table, logs, stride, first in (
        (TABLE, TABLE.log_sigmas, 1, 0),
        (distilled, distilled.sigmas.log(), 20, 19),
    ):
        halfway = first + stride * (torch.arange(len(logs) - 1) + 0.5)
        assert torch.equal(table.sigma_at(halfway), (logs[:-1] / 2 + logs[1:] / 2).exp())


def test_percent_counts_from_pure_noise_to_done() -> None:
    assert TABLE.percent_to_sigma(0.0) == math.inf
    assert TABLE.percent_to_sigma(1.0) == 0.0
    assert TABLE.percent_to_sigma(0.5) == pytest.approx(
        math.sqrt(REFERENCE[499] * REFERENCE[500]), rel=1e-6
    )
    assert TABLE.percent_to_sigma(1 / 3) == pytest.approx(REFERENCE[666], rel=1e-5)


def interpolated(timesteps: np.ndarray) -> np.ndarray:
    sigmas: np.ndarray = np.exp(np.interp(timesteps, np.arange(1000), np.log(REFERENCE)))
    return sigmas


def by_time(steps: int) -> np.ndarray:
    return interpolated(np.linspace(999, 0, steps))


def by_time_without_the_end(steps: int) -> np.ndarray:
    return interpolated(999 - np.arange(steps) * 999 / steps)


def by_karras(steps: int) -> np.ndarray:
    places = np.arange(steps) / (steps - 1)
    return np.array(
        [
            (REFERENCE[999] ** (1 / 7) + p * (REFERENCE[0] ** (1 / 7) - REFERENCE[999] ** (1 / 7)))
            ** 7
            for p in places
        ]
    )


def by_ratio(steps: int) -> np.ndarray:
    return np.geomspace(REFERENCE[999], REFERENCE[0], steps)


def by_angle(steps: int) -> np.ndarray:
    return np.tan(np.linspace(np.arctan(REFERENCE[999]), np.arctan(REFERENCE[0]), steps))


@pytest.mark.parametrize("steps", [2, 7, 20, 30])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("normal", by_time),
        ("sgm_uniform", by_time_without_the_end),
        ("karras", by_karras),
        ("exponential", by_ratio),
        ("kl_optimal", by_angle),
    ],
)
def test_schedules_with_a_closed_form(
    name: str, expected: Callable[[int], np.ndarray], steps: int
) -> None:
    sigmas = schedule(name, TABLE, steps)
    np.testing.assert_allclose(sigmas[:-1], expected(steps), rtol=2e-5)
    assert sigmas[-1] == 0


def table_indices(sigmas: tuple[float, ...]) -> list[int]:
    positions = {sigma: index for index, sigma in enumerate(TABLE.sigmas.tolist())}
    return [positions[sigma] for sigma in sigmas[:-1]]


def test_simple_counts_from_the_end_of_the_table() -> None:
    assert table_indices(schedule("simple", TABLE, 4)) == [999, 749, 499, 249]
    assert table_indices(schedule("simple", TABLE, 3)) == [999, 666, 333]
    # 19 · (1000 / 38) is slightly below 500 in floating point: entry 499 from the end, which gives
    # the familiar picture
    assert table_indices(schedule("simple", TABLE, 38))[19] == 999 - int(19 * (1000 / 38)) == 500


def test_ddim_uniform_starts_at_one_and_may_be_longer_than_asked() -> None:
    assert table_indices(schedule("ddim_uniform", TABLE, 10)) == [
        901,
        801,
        701,
        601,
        501,
        401,
        301,
        201,
        101,
        1,
    ]
    assert len(schedule("ddim_uniform", TABLE, 30)) == 32  # 1, 34, ... 991 and 0


@pytest.mark.parametrize("steps", [1, 5, 20, 37])
def test_beta_takes_the_index_nearest_to_the_quantile(steps: int) -> None:
    indices = table_indices(schedule("beta", TABLE, steps))
    assert len(indices) == steps and indices[0] == 999
    for place, index in enumerate(indices):
        quantile = 1 - place / steps
        below, above = betainc(0.6, 0.6, np.clip(np.array([index - 0.5, index + 0.5]) / 999, 0, 1))
        assert below - 1e-9 <= quantile <= above + 1e-9


def test_beta_drops_repeated_indices() -> None:
    indices = table_indices(schedule("beta", TABLE, 900))
    assert len(indices) < 900
    assert indices == sorted(set(indices), reverse=True)


def test_linear_quadratic_by_hand() -> None:
    # removed shares 0, 1/80, 2/80, then a constant slope plus curvature (1 - 4/80) / 4, to 1
    expected = [1, 0.9875, 0.975, 0.725, 0]
    assert schedule("linear_quadratic", TABLE, 4) == pytest.approx(
        [share * TABLE.sigma_max for share in expected], rel=1e-6
    )
    assert schedule("linear_quadratic", TABLE, 1) == pytest.approx([TABLE.sigma_max, 0])


@pytest.mark.parametrize("name", SCHEDULER_NAMES)
@pytest.mark.parametrize("steps", [1, 2, 3, 20, 150, 1000])
def test_every_schedule_falls_to_zero_within_the_table(name: str, steps: int) -> None:
    sigmas = np.array(schedule(name, TABLE, steps))
    assert np.isfinite(sigmas).all() and (np.diff(sigmas) < 0).all()
    assert sigmas[0] <= TABLE.sigma_max * (1 + 1e-5) and sigmas[-1] == 0
    if name not in ("ddim_uniform", "beta"):
        assert len(sigmas) == steps + 1


@pytest.mark.parametrize("name", SCHEDULER_NAMES)
def test_denoise_takes_the_end_of_a_longer_schedule(name: str) -> None:
    assert schedule(name, TABLE, 10, denoise=0.4) == schedule(name, TABLE, 25)[-11:]
    assert schedule(name, TABLE, 10, denoise=0.0) == ()


def test_denoise_truncates_the_number_of_steps() -> None:
    assert schedule("simple", TABLE, 20, denoise=0.9) == schedule("simple", TABLE, 22)[-21:]


def test_only_a_denoise_of_one_keeps_a_schedule_that_is_longer_than_asked() -> None:
    whole = schedule("ddim_uniform", TABLE, 30)
    assert len(whole) == 32
    assert schedule("ddim_uniform", TABLE, 30, denoise=0.99995) == whole
    assert schedule("ddim_uniform", TABLE, 30, denoise=0.99) == whole[-31:]


def test_samplers_that_drop_the_last_but_one_sigma() -> None:
    longer = schedule("karras", TABLE, 6)
    assert schedule("karras", TABLE, 5, sampler="dpm_2") == (*longer[:5], 0)
    longer = schedule("karras", TABLE, 11)
    assert schedule("karras", TABLE, 5, denoise=0.5, sampler="uni_pc") == (*longer[5:10], 0)


def test_slicing_by_start_and_end_step() -> None:
    sigmas = (5.0, 4.0, 3.0, 2.0, 0.0)
    assert slice_steps(sigmas, 0, 10000, force_full_denoise=False) == sigmas
    assert slice_steps(sigmas, 1, 3, force_full_denoise=False) == (4.0, 3.0, 2.0)
    assert slice_steps(sigmas, 1, 3, force_full_denoise=True) == (4.0, 3.0, 0.0)
    assert slice_steps(sigmas, 2, 10000, force_full_denoise=True) == (3.0, 2.0, 0.0)
    assert slice_steps(sigmas, 4, 10000, force_full_denoise=True) == ()
    assert slice_steps(sigmas, 3, 2, force_full_denoise=True) == ()
    # the first half ends at the second's first level
    assert slice_steps(sigmas, 0, 2, False)[-1] == slice_steps(sigmas, 2, 10000, False)[0]


def test_offered_names_are_implemented_and_others_refused_by_name() -> None:
    assert all(schedule(name, TABLE, 20)[-1] == 0 for name in SCHEDULER_NAMES)
    with pytest.raises(InputError, match=r"'linear' does not exist.*karras"):
        schedule("linear", TABLE, 20)
    with pytest.raises(InputError, match="at least 1"):
        schedule("karras", TABLE, 0)
