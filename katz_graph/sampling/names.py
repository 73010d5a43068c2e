"""Names samplers and schedulers for node declarations. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from katz_graph.errors import InputError

SAMPLER_NAMES = (
    "euler",
    "euler_ancestral",
    "heun",
    "heunpp2",
    "dpm_2",
    "dpm_2_ancestral",
    "lms",
    "dpm_fast",
    "dpmpp_2s_ancestral",
    "dpmpp_sde",
    "dpmpp_sde_gpu",
    "dpmpp_2m",
    "dpmpp_2m_sde",
    "dpmpp_2m_sde_gpu",
    "dpmpp_2m_sde_heun",
    "dpmpp_2m_sde_heun_gpu",
    "dpmpp_3m_sde",
    "dpmpp_3m_sde_gpu",
    "ddpm",
    "lcm",
    "ipndm",
    "deis",
    "res_multistep",
    "res_multistep_ancestral",
    "gradient_estimation",
    "ddim",
    "uni_pc",
    "uni_pc_bh2",
)
"""Names the samplers. Names that end in _gpu mean the same as those without: noise is always drawn
on the CPU.
"""

SCHEDULER_NAMES = ("normal", "karras", "exponential", "sgm_uniform", "simple", "ddim_uniform", "beta", "linear_quadratic", "kl_optimal")

KNOWN_SAMPLER_NAMES = (
    "euler",
    "euler_cfg_pp",
    "euler_ancestral",
    "euler_ancestral_cfg_pp",
    "heun",
    "heunpp2",
    "exp_heun_2_x0",
    "exp_heun_2_x0_sde",
    "dpm_2",
    "dpm_2_ancestral",
    "lms",
    "dpm_fast",
    "dpm_adaptive",
    "dpmpp_2s_ancestral",
    "dpmpp_2s_ancestral_cfg_pp",
    "dpmpp_sde",
    "dpmpp_sde_gpu",
    "dpmpp_2m",
    "dpmpp_2m_cfg_pp",
    "dpmpp_2m_sde",
    "dpmpp_2m_sde_gpu",
    "dpmpp_2m_sde_heun",
    "dpmpp_2m_sde_heun_gpu",
    "dpmpp_3m_sde",
    "dpmpp_3m_sde_gpu",
    "ddpm",
    "lcm",
    "ipndm",
    "ipndm_v",
    "deis",
    "res_multistep",
    "res_multistep_cfg_pp",
    "res_multistep_ancestral",
    "res_multistep_ancestral_cfg_pp",
    "gradient_estimation",
    "gradient_estimation_cfg_pp",
    "er_sde",
    "seeds_2",
    "seeds_3",
    "sa_solver",
    "sa_solver_pece",
    "ddim",
    "uni_pc",
    "uni_pc_bh2",
)
"""Names the samplers that ComfyUI workflows may ask for: a known name that is not offered is
refused as not implemented, not as a mistake.
"""


@dataclass(frozen=True, slots=True)
class SamplerChoice:
    """Selects a sampler by name, with values for those of its options that are not left to it (eta,
    s_noise, r, order, solver_type ...).
    """

    name: str
    options: tuple[tuple[str, float | str], ...] = ()


def require_sampler(name: str) -> None:
    """Raises InputError, with the way out, unless `name` is an implemented sampler."""
    if name in SAMPLER_NAMES:
        return
    reason = "is not implemented" if name in KNOWN_SAMPLER_NAMES else "does not exist"
    raise InputError(f"sampler {name!r} {reason}; choose one of {', '.join(SAMPLER_NAMES)}")


def require_scheduler(name: str) -> None:
    """Raises InputError, with the way out, unless `name` is a schedule."""
    if name not in SCHEDULER_NAMES:
        raise InputError(f"scheduler {name!r} does not exist; choose one of {', '.join(SCHEDULER_NAMES)}")
