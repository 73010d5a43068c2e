"""Samples latents: each sampler expands to a step region before planning. Also creates the noise
and guiders of custom samplers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field

from katz_graph.core.guidance_spec import Guider as GuiderValue
from katz_graph.core.guidance_spec import Noise as NoiseValue
from katz_graph.core.latent_space import LatentSamples
from katz_graph.node import Node
from katz_graph.node.knobs import Guidance, SamplerName, SchedulerName, Seed, Share, Steps, Text
from katz_graph.node.wires import Conditioning, Guider, Latent, Model, Noise, Sampler, Sigmas
from katz_graph.planner.passes.expand import expand_guider, expand_sampling

Step = Annotated[int, Field(ge=0, le=10000)]
OUTPUTS = ("output", "denoised_output")


class KSampler(Node, category="sampling"):
    """Denoises a latent. The picture depends on the seed, never on the device or the plan."""

    seed: Seed = 0
    steps: Steps = 20
    cfg: Guidance = 8.0
    sampler_name: SamplerName = "euler"
    scheduler: SchedulerName = "normal"
    denoise: Share = 1.0

    def run(
        self, model: Model, positive: Conditioning, negative: Conditioning, latent_image: Latent
    ) -> Latent:
        begin = {name: value for name, value in self.model_dump().items() if name != "cfg"} | {
            "model": model,
            "latent_image": latent_image,
        }
        return expand_sampling("StepBegin", begin, model, positive, negative, self.cfg)  # type: ignore[return-value]


class KSamplerAdvanced(Node, category="sampling", title="KSampler (Advanced)"):
    """Denoises in steps `start_at_step` to `end_at_step` of a schedule, with or without noise at
    the start and remaining noise at the end.
    """

    add_noise: Literal["enable", "disable"] = "enable"
    noise_seed: Seed = 0
    steps: Steps = 20
    cfg: Guidance = 8.0
    sampler_name: SamplerName = "euler"
    scheduler: SchedulerName = "normal"
    start_at_step: Step = 0
    end_at_step: Step = 10000
    return_with_leftover_noise: Literal["disable", "enable"] = "disable"

    def run(
        self, model: Model, positive: Conditioning, negative: Conditioning, latent_image: Latent
    ) -> Latent:
        same = ("steps", "sampler_name", "scheduler", "start_at_step", "end_at_step")
        begin: dict[str, Any] = {name: getattr(self, name) for name in same}
        begin |= {
            "model": model,
            "latent_image": latent_image,
            "seed": self.noise_seed,
            "add_noise": self.add_noise == "enable",
            "return_with_leftover_noise": self.return_with_leftover_noise == "enable",
        }
        return expand_sampling("StepBegin", begin, model, positive, negative, self.cfg)  # type: ignore[return-value]


class SamplerCustom(
    Node, category="sampling/custom_sampling", title="Sampler Custom", names=OUTPUTS
):
    """Denoises a latent over given noise levels with a given sampler. `denoised_output` is the last
    step's denoised prediction.
    """

    add_noise: bool = True
    noise_seed: Seed = 0
    cfg: Guidance = 8.0

    def run(
        self,
        model: Model,
        positive: Conditioning,
        negative: Conditioning,
        sampler: Sampler,
        sigmas: Sigmas,
        latent_image: Latent,
    ) -> tuple[Latent, Latent]:
        guider = GuiderValue("cfg", model, positive, negative, guidance=self.cfg)
        return _over_sigmas(
            guider, NoiseValue(self.noise_seed, self.add_noise), sampler, sigmas, latent_image
        )


class SamplerCustomAdvanced(
    Node, category="sampling/custom_sampling", title="Sampler Custom (Advanced)", names=OUTPUTS
):
    """Denoises a latent over given noise levels with a given sampler, noise and guider.
    `denoised_output` is the last step's denoised prediction.
    """

    def run(
        self, noise: Noise, guider: Guider, sampler: Sampler, sigmas: Sigmas, latent_image: Latent
    ) -> tuple[Latent, Latent]:
        return _over_sigmas(guider, noise, sampler, sigmas, latent_image)


class DiffusersSampler(Node, category="sampling", title="Diffusers Sampler"):
    """Denoises exactly as a stock diffusers pipeline: a scheduler class with its configuration
    (JSON) defines sampler and schedule.
    """

    scheduler_class: str = "EulerDiscreteScheduler"
    scheduler_config: Text = "{}"
    seed: Seed = 0
    steps: Steps = 20
    guidance_scale: Guidance = 7.5
    strength: Share = 1.0

    def run(
        self, model: Model, positive: Conditioning, negative: Conditioning, latent_image: Latent
    ) -> Latent:
        begin = {
            name: value for name, value in self.model_dump().items() if name != "guidance_scale"
        }
        begin |= {"model": model, "latent_image": latent_image}
        guidance = max(self.guidance_scale, 1.0)  # stock pipelines guide only above 1
        return expand_sampling("DiffusersStepBegin", begin, model, positive, negative, guidance)  # type: ignore[return-value]


class RandomNoise(Node, category="sampling/custom_sampling/noise", title="Random Noise"):
    """Draws noise from a seed, always on the CPU."""

    noise_seed: Seed = 0

    def run(self) -> Noise:
        return NoiseValue(self.noise_seed)


class DisableNoise(Node, category="sampling/custom_sampling/noise", title="Disable Noise"):
    """Adds no noise, for a latent that already has some."""

    def run(self) -> Noise:
        return NoiseValue(0, drawn=False)


class BasicGuider(Node, category="sampling/custom_sampling/guiders", title="Basic Guider"):
    """Predicts with one conditioning, without guidance."""

    def run(self, model: Model, conditioning: Conditioning) -> Guider:
        return GuiderValue("basic", model, conditioning)


class CFGGuider(Node, category="sampling/custom_sampling/guiders", title="CFG Guider"):
    """Applies classifier-free guidance of a positive against a negative conditioning."""

    cfg: Guidance = 8.0

    def run(self, model: Model, positive: Conditioning, negative: Conditioning) -> Guider:
        return GuiderValue("cfg", model, positive, negative, guidance=self.cfg)


class DualCFGGuider(Node, category="sampling/custom_sampling/guiders", title="Dual CFG Guider"):
    """Applies two guidances. Regular: cond2 against the negative, plus cond1 against cond2. Nested:
    cond1 against cond2, and the result against the negative.
    """

    cfg_conds: Guidance = 8.0
    cfg_cond2_negative: Guidance = 8.0
    style: Literal["regular", "nested"] = "regular"

    def run(
        self, model: Model, cond1: Conditioning, cond2: Conditioning, negative: Conditioning
    ) -> Guider:
        kind: Literal["dual", "nested"] = "nested" if self.style == "nested" else "dual"
        return GuiderValue(
            kind, model, cond1, negative, cond2, self.cfg_conds, self.cfg_cond2_negative
        )


class AddNoise(Node, category="sampling/custom_sampling/noise", title="Add Noise"):
    """Adds noise to a latent. The noise level is the first sigma minus the last, or the only sigma.
    For a flow, the picture fades as noise grows, as in training.
    """

    def run(self, model: Model, noise: Noise, sigmas: Sigmas, latent_image: Latent) -> Latent:
        from katz_graph.planner.region import as_given, fit_latent
        from katz_graph.planner.sampling import table_of
        from katz_graph.sampling.noise import initial_noise

        if not len(sigmas):
            return latent_image
        level = float((sigmas[0] - sigmas[-1]).abs() if len(sigmas) > 1 else sigmas[0])
        path = table_of(model).path
        path.check((level, 0.0))
        latent = fit_latent(latent_image, model)
        start = model.latent.starting(latent["samples"])
        drawn = (
            initial_noise(start.shape, noise.seed, latent.get("batch_index"))
            if noise.drawn
            else start * 0.0
        )
        noisy = model.latent.restored(path.noised(start, drawn, level))
        finite = noisy.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return as_given(cast(LatentSamples, {**latent, "samples": finite}))


def _over_sigmas(
    guider: GuiderValue, noise: NoiseValue, sampler: Any, sigmas: Any, latent: LatentSamples
) -> tuple[Latent, Latent]:
    begin = {
        "seed": noise.seed,
        "add_noise": noise.drawn,
        "sampler": sampler,
        "sigmas": sigmas,
        "latent_image": latent,
    }
    return expand_guider("SigmasStepBegin", begin, guider)  # type: ignore[return-value]
