"""The levels of flows equal diffusers' schedulers and formulas."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from katz_graph.core.errors import InputError
from katz_graph.core.patches import FlowSampling
from katz_graph.sampling.noise_table import FlowTable, altered_table, flow_table, noise_table
from katz_graph.sampling.schedules import schedule

SD3 = flow_table(3.0)
AURA = flow_table(3.0, multiplier=1.0)
FLUX = flow_table(math.exp(1.15), levels=10_000, multiplier=1.0)


def shifted(time: Any, shift: float) -> Any:
    """σ of a time in [0, 1] (Esser et al. 2024, equation 23), in float64."""
    return shift * time / (1 + (shift - 1) * time)


def test_the_table_and_the_model_use_shifted_levels() -> None:
    for table, count, timesteps in ((SD3, 1000, 1000.0), (AURA, 1000, 1.0), (FLUX, 10_000, 1.0)):
        times = np.arange(1, count + 1) / count
        np.testing.assert_allclose(table.sigmas, shifted(times, table.shift), rtol=1e-5)
        assert table.sigma_max == 1.0 and table.timestep_at(0.75) == 0.75 * timesteps
    # FLUX's own formula: e^mu / (e^mu + 1 / t - 1)
    times = np.linspace(0.01, 1, 50)
    np.testing.assert_allclose(
        FLUX.sigma_at(torch.from_numpy(times)), math.e**1.15 / (math.e**1.15 + 1 / times - 1), 1e-6
    )


def test_percents_count_from_pure_noise() -> None:
    assert [SD3.percent_to_sigma(percent) for percent in (-1.0, 0.0, 1.0, 2.0)] == [1, 1, 0, 0]
    assert SD3.percent_to_sigma(0.4) == pytest.approx(shifted(0.6, 3.0), rel=1e-6)
    assert FLUX.percent_to_sigma(0.4) == pytest.approx(shifted(0.6, math.exp(1.15)), rel=1e-6)


def test_levels_are_those_of_diffusers_pipelines() -> None:
    """SD3 is `normal`; FLUX is `simple` if the steps divide its 10,000 levels."""
    for steps in (1, 4, 20, 28):
        scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
        scheduler.set_timesteps(steps)
        np.testing.assert_allclose(schedule("normal", SD3, steps), scheduler.sigmas, atol=5e-7)
    for steps in (1, 4, 20, 25):
        scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
        scheduler.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps), mu=1.15)
        np.testing.assert_allclose(schedule("simple", FLUX, steps), scheduler.sigmas, atol=5e-7)


def test_schedules_that_are_equal_in_time_shift_twice() -> None:
    """Mapping a level to a time keeps the shift, so it acts twice. Pictures depend on this."""
    times = np.linspace(1, shifted(1e-3, 3.0), 11)
    np.testing.assert_allclose(
        schedule("normal", SD3, 11), [*shifted(times, 3.0), 0.0], rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(
        schedule("sgm_uniform", SD3, 10), [*shifted(times[:-1], 3.0), 0.0], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(("table", "levels"), [(SD3, 1000), (FLUX, 10_000)])
def test_other_schedules_follow_their_formulas(table: FlowTable, levels: int) -> None:
    low, steps = shifted(1 / levels, table.shift), 10
    share = np.linspace(0, 1, steps)
    expected = {
        "karras": (1 + share * (low ** (1 / 7) - 1)) ** 7,
        "exponential": low**share,
        "simple": shifted(1 - np.arange(steps) / steps, table.shift),
        "kl_optimal": np.tan(share * math.atan(low) + (1 - share) * math.pi / 4),
        # the second level of the table, then every 1/10 of it
        "ddim_uniform": shifted((2 + np.arange(steps) * levels / steps) / levels, table.shift)[
            ::-1
        ],
        # removes 0.005 per step to 0.025, then meets 1 with the same slope
        "linear_quadratic": [1 - 0.005 * i - 0.038 * max(i - 5, 0) ** 2 for i in range(steps)],
    }
    for name, want in expected.items():
        np.testing.assert_allclose(
            schedule(name, table, steps), [*want, 0.0], rtol=0, atol=1e-6, err_msg=name
        )


def test_a_scheduler_folder_of_a_flow_gives_its_levels() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    table = noise_table(json.loads(scheduler.to_json_string()))
    assert torch.equal(table.sigmas, SD3.sigmas) and table.parametrisation == "flow_prediction"
    dynamic = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, max_shift=1.15)
    table = noise_table(json.loads(dynamic.to_json_string()))
    assert torch.equal(table.sigmas, FLUX.sigmas) and table.parametrisation == "flow_prediction"


@pytest.mark.parametrize("shift", [0.0, -1.0, math.inf, math.nan])
def test_a_shift_that_has_no_levels_is_refused(shift: float) -> None:
    with pytest.raises(InputError, match="shift: expected a number above 0"):
        altered_table({}, FlowSampling(shift))
