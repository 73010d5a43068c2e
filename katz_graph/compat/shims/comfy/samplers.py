"""`comfy.samplers` as packs import it: the names of samplers and schedulers, and schedules of noise levels."""

from __future__ import annotations

from typing import Any

from katz_graph.compat.missing import missing_names, refuse
from katz_graph.sampling import names

SAMPLER_NAMES = KSAMPLER_NAMES = list(names.SAMPLER_NAMES)
SCHEDULER_NAMES = list(names.SCHEDULER_NAMES)

__getattr__ = missing_names(
    __name__,
    """
    CFGGuider KSAMPLER Sampler sampler_object ksampler sampling_function calc_cond_batch calc_cond_uncond_batch cfg_function
    sample process_conds encode_model_conds get_area_and_mult can_concat_cond cond_cat KSamplerX0Inpaint calculate_sigmas
    normal_scheduler simple_scheduler ddim_scheduler beta_scheduler SCHEDULER_HANDLERS resolve_areas_and_cond_masks
    create_cond_with_same_area_if_none calculate_start_end_timesteps pre_run_control
    """,
)


class KSampler:
    """Its lists of names. Sampling itself is the work of sampler nodes."""

    SAMPLERS = SAMPLER_NAMES
    SCHEDULERS = SCHEDULER_NAMES
    DISCARD_PENULTIMATE_SIGMA_SAMPLERS = frozenset(("dpm_2", "dpm_2_ancestral", "uni_pc", "uni_pc_bh2"))

    def __init__(self, *_: Any, **__: Any) -> None:
        refuse("comfy.samplers.KSampler()")
