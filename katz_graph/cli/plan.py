"""`katz plan`: what a workflow's samplers compile to, without running a model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from katz_graph.cli.engines import choices, given_link, use_threads
from katz_graph.cli.options import PlanOptions
from katz_graph.cli.session import Session, open_session
from katz_graph.devices import threads_for
from katz_graph.errors import InputError, RunError

if TYPE_CHECKING:
    from torch import Tensor

    from katz_graph.context import Context, Tile
    from katz_graph.executor.planning import Resources
    from katz_graph.models.features import TextEncoding
    from katz_graph.planner.program import Device, Program
    from katz_graph.planner.region import Region
    from katz_graph.recipe import Encoding, VaeRecipe
    from katz_graph.upscale.recipe import UpscaleModelRecipe
    from katz_graph.wires import LatentSamples


@dataclass(slots=True)
class PlanningEngine:
    """Stands in for the engine: compiles what it is asked to sample, and gives zeros of the right shape for what a model would make."""

    resources: Resources
    after: str
    programs: list[Program] = field(default_factory=list)

    @property
    def device(self) -> Device:
        return self.resources.devices[0]

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        from katz_graph.executor.planning import plan_region

        self.programs.append(plan_region(region, self.resources, self.after))
        latent: LatentSamples = region.begin.inputs["latent_image"]
        return latent, latent

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        import torch

        from katz_graph.models.family import pooled_text_width, text_width
        from katz_graph.models.features import TextEncoding
        from katz_graph.models.text_recipe import length, prompts
        from katz_graph.models.tokens import prompt_length

        clip = next(prompts(encoding)).clip
        pooled = pooled_text_width(clip)
        hidden = torch.zeros(1, length(encoding, prompt_length), text_width(clip))
        return TextEncoding(hidden, None if pooled is None else torch.zeros(1, pooled))

    def encode_image(self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None) -> Tensor:
        from katz_graph.models.family import vae_shape

        shape = vae_shape(vae)
        return pixels.new_zeros(len(pixels), shape.latent_channels, pixels.shape[1] // shape.factor, pixels.shape[2] // shape.factor)

    def decode_latent(self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None) -> Tensor:
        from katz_graph.models.family import vae_shape

        factor = vae_shape(vae).factor
        return samples.new_zeros(len(samples), samples.shape[2] * factor, samples.shape[3] * factor, 3)

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        batch, channels, height, width = picture.shape
        return picture.new_zeros(batch, channels, height * model.shape.scale, width * model.shape.scale)


def plan(workflow: Path, options: PlanOptions, as_json: bool) -> None:
    """Print the plan of every sampler of a workflow."""
    from katz_graph.planner.compile import PASSES

    if options.after not in PASSES:
        passes = ", ".join(PASSES)
        raise InputError(f"--after {options.after}: no such pass; choose one of {passes}")
    session = open_session(workflow, options)
    programs = compile_workflow(session, options.after)
    from katz_graph.planner.draw import as_svg
    from katz_graph.planner.present import as_json as program_json
    from katz_graph.planner.present import as_text

    if options.svg is not None:
        if not programs[0].segments:
            raise InputError("--svg draws segments; use it without --after, or with --after segment or emit")
        try:
            options.svg.write_text(as_svg(programs[0]))
        except OSError as error:
            raise RunError(f"{options.svg}: cannot write the picture ({error.strerror})") from None
        session.say(f"wrote {options.svg}")
    if as_json:
        print(json.dumps([program_json(program) for program in programs] if len(programs) > 1 else program_json(programs[0])))
        return
    for program in programs:
        print(as_text(program))


def compile_workflow(session: Session, after: str) -> list[Program]:
    """The programs of all samplers that the outputs need. Nodes up to the outputs run, but no model does."""
    from katz_graph.executor.cache import ResultCache
    from katz_graph.executor.context import RunContext
    from katz_graph.executor.graph_run import run_graph

    engine = PlanningEngine(resources(session), after)
    context = RunContext(engine, session.folders, session.settings.output, listener=session.listen, types=session.registry)
    outputs = [session.graph.nodes[target] for target in session.targets]
    before_outputs = dict.fromkeys(link.node for call in outputs for _, link in call.links())
    result = run_graph(session.graph, context, ResultCache("none"), targets=before_outputs)
    result.raise_failures()
    if not engine.programs:
        reason = "there is no sampler in this workflow, so there is nothing to plan"
        raise InputError(f"{session.path}: {reason}")
    return engine.programs


def resources(session: Session) -> Resources:
    """Devices and links as far as they are known without starting a worker; devices of which nothing is known are measured, alone."""
    from katz_graph.executor.engine import dtype_for
    from katz_graph.executor.estimate import estimated

    devices = session.devices
    if devices.launcher == "ray":
        raise InputError("--devices ray: what a cluster has is known when it is joined; use katz run, or name devices as cpu*2")
    use_threads(threads_for(devices, session.options.threads))
    wanted = {choice.name: choice.device for choice in devices.choices}
    dtype = dtype_for(wanted.values(), session.dtype)
    return estimated(wanted, dtype, session.settings.cache, given_link(session), choices(session))
