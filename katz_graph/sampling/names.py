"""Lists samplers and schedules with the functions that implement them, imported on first use. Never
imports torch, so that listing nodes does not require it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from katz_graph.core.errors import InputError


@dataclass(frozen=True, slots=True)
class SamplerEntry:
    function: str  # module:function in `katz_graph.sampling.solvers`
    # noise between steps; brownian samplers also have a name with _gpu, without effect:
    # noise is always drawn on the CPU
    noise: Literal["none", "ancestral", "brownian"] = "none"
    options: Mapping[str, float | str] = field(default_factory=dict)  # non-default options
    divides: bool = False  # divides by the length of a step: consecutive levels must differ
    # uses a schedule one step longer without its penultimate level
    discards_penultimate: bool = False
    # under a mask, draws the preserved part's noise from seed + 1 instead of the initial noise
    redraws_mask_noise: bool = False


SAMPLERS: Mapping[str, SamplerEntry] = {
    "euler": SamplerEntry("single_step:euler"),
    "euler_ancestral": SamplerEntry("stochastic:euler_ancestral", "ancestral"),
    "heun": SamplerEntry("single_step:heun"),
    "heunpp2": SamplerEntry("single_step:heunpp2"),
    "dpm_2": SamplerEntry("single_step:dpm_2", discards_penultimate=True),
    "dpm_2_ancestral": SamplerEntry(
        "stochastic:dpm_2_ancestral", "ancestral", discards_penultimate=True
    ),
    "lms": SamplerEntry("multistep:lms", divides=True),
    "dpm_fast": SamplerEntry("single_step:dpm_fast", divides=True),
    "dpmpp_2s_ancestral": SamplerEntry("stochastic:dpmpp_2s_ancestral", "ancestral"),
    "dpmpp_sde": SamplerEntry("stochastic:dpmpp_sde", "brownian", divides=True),
    "dpmpp_2m": SamplerEntry("multistep:dpmpp_2m", divides=True),
    "dpmpp_2m_sde": SamplerEntry("stochastic:dpmpp_2m_sde", "brownian", divides=True),
    "dpmpp_2m_sde_heun": SamplerEntry(
        "stochastic:dpmpp_2m_sde", "brownian", {"solver_type": "heun"}, divides=True
    ),
    "dpmpp_3m_sde": SamplerEntry("stochastic:dpmpp_3m_sde", "brownian", divides=True),
    "ddpm": SamplerEntry("stochastic:ddpm", "ancestral"),
    "lcm": SamplerEntry("stochastic:lcm", "ancestral"),
    "ipndm": SamplerEntry("multistep:ipndm"),
    "deis": SamplerEntry("multistep:deis", divides=True),
    "res_multistep": SamplerEntry("stochastic:res_multistep", divides=True),
    "res_multistep_ancestral": SamplerEntry(
        "stochastic:res_multistep", "ancestral", {"eta": 1.0}, divides=True
    ),
    "gradient_estimation": SamplerEntry("multistep:gradient_estimation"),
    "er_sde": SamplerEntry("stochastic:er_sde", "ancestral", divides=True),
    "ddim": SamplerEntry("single_step:euler", redraws_mask_noise=True),
    "uni_pc": SamplerEntry("multistep:uni_pc", divides=True, discards_penultimate=True),
    "uni_pc_bh2": SamplerEntry(
        "multistep:uni_pc", options={"variant": "bh2"}, divides=True, discards_penultimate=True
    ),
}

ENDINGS = {"none": ("",), "ancestral": ("",), "brownian": ("", "_gpu")}
SAMPLER_NAMES = tuple(
    name + end for name, entry in SAMPLERS.items() for end in ENDINGS[entry.noise]
)

DISCARD_PENULTIMATE = frozenset(
    name for name, entry in SAMPLERS.items() if entry.discards_penultimate
)

NOT_IMPLEMENTED = (
    "euler_cfg_pp",
    "euler_ancestral_cfg_pp",
    "exp_heun_2_x0",
    "exp_heun_2_x0_sde",
    "dpm_adaptive",
    "dpmpp_2s_ancestral_cfg_pp",
    "dpmpp_2m_cfg_pp",
    "ipndm_v",
    "res_multistep_cfg_pp",
    "res_multistep_ancestral_cfg_pp",
    "gradient_estimation_cfg_pp",
    "seeds_2",
    "seeds_3",
    "sa_solver",
    "sa_solver_pece",
)
"""Names further samplers of ComfyUI workflows, refused as not implemented rather than unknown."""

SCHEDULES: Mapping[str, str] = {
    "normal": "schedules:normal",
    "karras": "schedules:karras",
    "exponential": "schedules:exponential",
    "sgm_uniform": "schedules:sgm_uniform",
    "simple": "schedules:simple",
    "ddim_uniform": "schedules:ddim_uniform",
    "beta": "schedules:beta",
    "linear_quadratic": "schedules:linear_quadratic",
    "kl_optimal": "schedules:kl_optimal",
}
"""Maps names to module:function in `katz_graph.sampling`."""

SCHEDULER_NAMES = tuple(SCHEDULES)


@dataclass(frozen=True, slots=True)
class SamplerChoice:
    """Selects a sampler by name, with values of non-default options (eta, s_noise, r, order,
    solver_type ...).
    """

    name: str
    options: tuple[tuple[str, float | str], ...] = ()


def require_sampler(name: str) -> None:
    """Raises InputError that lists the choices, unless `name` is an implemented sampler."""
    if name in SAMPLER_NAMES:
        return
    reason = "is not implemented" if name in NOT_IMPLEMENTED else "does not exist"
    raise InputError(f"sampler {name!r} {reason}; choose one of {', '.join(SAMPLER_NAMES)}")


def require_scheduler(name: str) -> None:
    """Raises InputError that lists the choices, unless `name` is a schedule."""
    if name not in SCHEDULER_NAMES:
        raise InputError(
            f"scheduler {name!r} does not exist; choose one of {', '.join(SCHEDULER_NAMES)}"
        )
