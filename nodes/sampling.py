"""Samplers. Each stands for a step region and is replaced by it before planning."""

from __future__ import annotations

from typing import Annotated, Literal

from katz_graph.knobs import Fraction, Guidance, Seed, Steps
from katz_graph.node import Node, Widget
from katz_graph.planner.expand import expand_sampling
from katz_graph.sampling.names import SAMPLER_NAMES, SCHEDULER_NAMES
from katz_graph.wires import Conditioning, Latent, Model


class KSampler(Node, category="sampling"):
    """Denoise a latent. The picture depends on the seed, never on the device or the plan."""

    seed: Seed = 0
    steps: Steps = 20
    cfg: Guidance = 8.0
    sampler_name: Literal[SAMPLER_NAMES] = "euler"  # type: ignore[valid-type]
    scheduler: Literal[SCHEDULER_NAMES] = "normal"  # type: ignore[valid-type]
    denoise: Fraction = 1.0

    def run(self, model: Model, positive: Conditioning, negative: Conditioning, latent_image: Latent) -> Latent:
        begin = {name: value for name, value in self.model_dump().items() if name != "cfg"} | {"model": model, "latent_image": latent_image}
        return expand_sampling("StepBegin", begin, model, positive, negative, self.cfg)  # type: ignore[return-value]


class DiffusersSampler(Node, category="sampling", title="Diffusers Sampler"):
    """Denoise exactly as a stock diffusers pipeline does: a scheduler class with its configuration (JSON) is sampler and schedule."""

    scheduler_class: str = "EulerDiscreteScheduler"
    scheduler_config: Annotated[str, Widget(multiline=True)] = "{}"
    seed: Seed = 0
    steps: Steps = 20
    guidance_scale: Guidance = 7.5
    strength: Fraction = 1.0

    def run(self, model: Model, positive: Conditioning, negative: Conditioning, latent_image: Latent) -> Latent:
        begin = {name: value for name, value in self.model_dump().items() if name != "guidance_scale"}
        begin |= {"model": model, "latent_image": latent_image}
        guidance = max(self.guidance_scale, 1.0)  # the stock pipelines use guidance above 1 only
        return expand_sampling("DiffusersStepBegin", begin, model, positive, negative, guidance)  # type: ignore[return-value]
