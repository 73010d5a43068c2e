"""Provides `comfy.samplers` to packs: the names of samplers and schedulers, and schedules of noise
levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from katz_graph.comfy.missing import missing_names, refuse
from katz_graph.sampling import names

if TYPE_CHECKING:
    from torch import Tensor

SAMPLER_NAMES = KSAMPLER_NAMES = list(names.SAMPLER_NAMES)
SCHEDULER_NAMES = list(names.SCHEDULER_NAMES)

__getattr__ = missing_names(
    __name__,
    """
    CFGGuider KSAMPLER Sampler sampler_object ksampler sampling_function calc_cond_batch
    calc_cond_uncond_batch cfg_function sample process_conds encode_model_conds get_area_and_mult
    can_concat_cond cond_cat KSamplerX0Inpaint normal_scheduler simple_scheduler ddim_scheduler
    beta_scheduler SCHEDULER_HANDLERS resolve_areas_and_cond_masks
    create_cond_with_same_area_if_none calculate_start_end_timesteps pre_run_control
    k_diffusion_sampling SchedulerHandler
    """,
)


def calculate_sigmas(model_sampling: Any, scheduler_name: str, steps: int) -> Tensor:
    """Computes the noise levels [steps + 1] of a named schedule."""
    return _levels(scheduler_name, model_sampling, steps, 1.0, "euler")


class KSampler:
    """Holds the lists of names and the noise levels of a schedule. Packs sample through sampler
    nodes.
    """

    SAMPLERS = SAMPLER_NAMES
    SCHEDULERS = SCHEDULER_NAMES
    DISCARD_PENULTIMATE_SIGMA_SAMPLERS = names.DISCARD_PENULTIMATE

    def __init__(
        self,
        model: Any,
        steps: int,
        device: Any,
        sampler: str = "euler",
        scheduler: str = "normal",
        denoise: float | None = None,
        model_options: Any = None,
    ) -> None:
        self.model = model
        self.steps = steps
        self.device = device
        self.sampler = sampler
        self.scheduler = scheduler
        self.denoise = denoise
        self.sigmas = _levels(
            scheduler,
            model.get_model_object("model_sampling"),
            steps,
            1.0 if denoise is None else denoise,
            sampler,
        )

    def sample(self, *_: Any, **__: Any) -> Any:
        refuse("comfy.samplers.KSampler.sample")


def _levels(
    scheduler: str, model_sampling: Any, steps: int, denoise: float, sampler: str
) -> Tensor:
    import torch

    from katz_graph.sampling.schedules import schedule

    return torch.tensor(schedule(scheduler, model_sampling.table, steps, denoise, sampler))
