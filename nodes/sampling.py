"""Samples latents. Each node stands for a step region and is replaced by it before planning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from katz_graph.guidance_spec import Guider as GuiderValue
from katz_graph.guidance_spec import Noise as NoiseValue
from katz_graph.knobs import Fraction, Guidance, SamplerName, SchedulerName, Seed, Steps, Text
from katz_graph.node import Node
from katz_graph.planner.passes.expand import expand_guider, expand_sampling
from katz_graph.wires import Conditioning, Guider, Latent, LatentSamples, Model, Noise, Sampler, Sigmas

Step = Annotated[int, Field(ge=0, le=10000)]
OUTPUTS = ("output", "denoised_output")


class KSampler(Node, category="sampling"):
    """Denoise a latent. The picture depends on the seed, never on the device or the plan."""

    seed: Seed = 0
    steps: Steps = 20
    cfg: Guidance = 8.0
    sampler_name: SamplerName = "euler"
    scheduler: SchedulerName = "normal"
    denoise: Fraction = 1.0

    def run(self, model: Model, positive: Conditioning, negative: Conditioning, latent_image: Latent) -> Latent:
        begin = {name: value for name, value in self.model_dump().items() if name != "cfg"} | {"model": model, "latent_image": latent_image}
        return expand_sampling("StepBegin", begin, model, positive, negative, self.cfg)  # type: ignore[return-value]


class KSamplerAdvanced(Node, category="sampling", title="KSampler (Advanced)"):
    """A part of a schedule: steps `start_at_step` to `end_at_step`, with or without noise at the
    start and left over at the end.
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

    def run(self, model: Model, positive: Conditioning, negative: Conditioning, latent_image: Latent) -> Latent:
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


class SamplerCustom(Node, category="sampling/custom_sampling", title="Sampler Custom", names=OUTPUTS):
    """Denoise a latent over given noise levels with a given sampler. `denoised_output` is what the
    last step took the picture to be.
    """

    add_noise: bool = True
    noise_seed: Seed = 0
    cfg: Guidance = 8.0

    def run(
        self, model: Model, positive: Conditioning, negative: Conditioning, sampler: Sampler, sigmas: Sigmas, latent_image: Latent
    ) -> tuple[Latent, Latent]:
        guider = GuiderValue("cfg", model, positive, negative, guidance=self.cfg)
        return _over_sigmas(guider, NoiseValue(self.noise_seed, self.add_noise), sampler, sigmas, latent_image)


class SamplerCustomAdvanced(Node, category="sampling/custom_sampling", title="Sampler Custom (Advanced)", names=OUTPUTS):
    """Denoise a latent over given noise levels with a given sampler, noise and guider.
    `denoised_output` is what the last step took the picture to be.
    """

    def run(self, noise: Noise, guider: Guider, sampler: Sampler, sigmas: Sigmas, latent_image: Latent) -> tuple[Latent, Latent]:
        return _over_sigmas(guider, noise, sampler, sigmas, latent_image)


class DiffusersSampler(Node, category="sampling", title="Diffusers Sampler"):
    """Denoise exactly as a stock diffusers pipeline does: a scheduler class with its configuration
    (JSON) is sampler and schedule.
    """

    scheduler_class: str = "EulerDiscreteScheduler"
    scheduler_config: Text = "{}"
    seed: Seed = 0
    steps: Steps = 20
    guidance_scale: Guidance = 7.5
    strength: Fraction = 1.0

    def run(self, model: Model, positive: Conditioning, negative: Conditioning, latent_image: Latent) -> Latent:
        begin = {name: value for name, value in self.model_dump().items() if name != "guidance_scale"}
        begin |= {"model": model, "latent_image": latent_image}
        guidance = max(self.guidance_scale, 1.0)  # the stock pipelines use guidance above 1 only
        return expand_sampling("DiffusersStepBegin", begin, model, positive, negative, guidance)  # type: ignore[return-value]


def _over_sigmas(guider: GuiderValue, noise: NoiseValue, sampler: Any, sigmas: Any, latent: LatentSamples) -> tuple[Latent, Latent]:
    begin = {"seed": noise.seed, "add_noise": noise.drawn, "sampler": sampler, "sigmas": sigmas, "latent_image": latent}
    return expand_guider("SigmasStepBegin", begin, guider)  # type: ignore[return-value]
