"""Runs nodes without models. `PlanningEngine` only compiles the regions to be sampled; `Rehearsal`
runs upstream nodes to find the inputs of given nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from katz_graph.checks.validate import RULES, check, downstream, upstream
from katz_graph.core.errors import Cancelled, InputError
from katz_graph.core.graph import Graph, Link
from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.messages import node_name, show
from katz_graph.core.recipe import (
    ClipRecipe,
    Encoding,
    TextRequest,
    Tile,
    UpscaleModelRecipe,
    VaeRecipe,
)
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.graph.node_state import Outputs
from katz_graph.executor.graph.result import GraphResult
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.files.folders import Folders
from katz_graph.ir.device import Device
from katz_graph.ir.region import Region
from katz_graph.ir.values import TextEncoding
from katz_graph.models.text.kinds import pooled_text_width, text_width
from katz_graph.models.text.recipe import prompts
from katz_graph.models.text.tokens import encoded_length
from katz_graph.models.vae.kinds import latent_space, picture_channels
from katz_graph.node.types import BUILTIN, Context, NodeType
from katz_graph.planner.region import as_given, region_nodes
from katz_graph.planner.written_step import WrittenStep, written_step

Made = TypeVar("Made")
Types = Mapping[str, NodeType]
DEVICE = Device("cpu", 1e10, 1e10)  # a placeholder; nothing is computed on it


@dataclass(slots=True)
class PlanningEngine(Generic[Made]):
    """Implements `katz_graph.node.types.Engine` with zeros of the right shape as model results.
    `programs`: compiled samplers in order of execution.
    """

    device: Device
    compile: Callable[[Region], Made]
    programs: list[Made] = field(default_factory=list)
    allowed: frozenset[str] = frozenset()

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        self.programs.append(self.compile(region))
        latent = as_given(region.begin.inputs["latent_image"])
        return latent, latent

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        clip = next(prompts(encoding)).clip
        pooled = pooled_text_width(clip)
        hidden = torch.zeros(1, encoded_length(encoding), text_width(clip))
        return TextEncoding(hidden, None if pooled is None else torch.zeros(1, pooled))

    def encode_image(
        self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        space = latent_space(vae)
        return pixels.new_zeros(len(pixels), space.channels, *map(space.cells, pixels.shape[1:3]))

    def decode_latent(
        self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        size = map(latent_space(vae).pixels, samples.shape[-2:])
        return samples.new_zeros(len(samples), *size, picture_channels(vae))

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        batch, channels, height, width = picture.shape
        return picture.new_zeros(
            batch, channels, height * model.shape.scale, width * model.shape.scale
        )

    def generate_text(
        self,
        clip: ClipRecipe,
        request: TextRequest,
        context: Context,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> str:
        """Returns the prompt: the generated text is unknown."""
        return request.prompt

    def prefetch(self, values: Iterable[object], context: Context) -> None:
        """Does nothing: no model is loaded."""


@dataclass(slots=True)
class StandInEngine(PlanningEngine[Region]):
    """Records the regions of samplers. Returns a different image or latent from every call."""

    given: int = 0

    def encode_image(
        self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        return self._other(PlanningEngine.encode_image(self, vae, pixels, context, tile))

    def decode_latent(
        self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        return self._other(PlanningEngine.decode_latent(self, vae, samples, context, tile))

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        return self._other(PlanningEngine.upscale(self, model, picture, context))

    def _other(self, zeros: Tensor) -> Tensor:
        self.given += 1
        return zeros + self.given / 4096


class Rehearsal:
    """Runs built-in nodes that write nothing. Skips nodes of packs, because they may have side
    effects. `seconds`: time limit after which no further node starts.
    """

    def __init__(self, types: Types, folders: Folders, seconds: float = threading.TIMEOUT_MAX):
        self._types, self._folders, self._seconds = types, folders, seconds

    def outputs(self, graph: Graph, wanted: Iterable[str]) -> Mapping[str, Outputs]:
        """Returns the outputs of nodes; omits nodes with errors, and those that depend on them."""
        sources = _sources(graph)
        left_out = downstream(sources, self._withheld(graph))
        nodes = [name for name in wanted if name not in left_out]
        found = check(_part(graph, upstream(sources, nodes)), self._types, self._folders, {}, nodes)
        try:
            return self._run(_engine(), found.graph, found.targets).outputs if found.targets else {}
        except Cancelled:
            return {}

    def step(self, graph: Graph, sampler: str) -> WrittenStep:
        """Returns the nodes of an explicit step region that can replace a sampler. Raises
        InputError, with a line for each problem, if that is impossible.
        """
        if sampler not in graph.nodes:
            raise InputError(
                f"node {show(sampler)} is not in the workflow, or is not needed by its outputs"
            )
        call = graph.nodes[sampler]
        named = node_name(sampler, call.type, call.title)
        part = _part(graph, upstream(_sources(graph), [sampler]))
        for name, why in self._withheld(part).items():
            other = node_name(name, part.nodes[name].type, part.nodes[name].title)
            raise InputError(f"{named} cannot be expanded into step nodes: {other} {why}")
        found = check(part, self._types, self._folders, RULES, [sampler])
        if not found.targets:
            problems = [one for one in found.problems if one.severity == "error"]
            raise InputError("\n".join(map(str, problems)))
        if self._types[call.type].ends_region:
            raise InputError(f"{named}: its step already consists of nodes")
        engine = _engine()
        try:
            made = self._run(engine, found.graph, self._outside_steps(found.graph))
        except Cancelled:
            raise InputError(f"{named}: the nodes before it take too long") from None
        if made.failures:
            raise InputError("\n".join(map(str, made.failures.values())))
        regions = [region for region in engine.programs if region.name == sampler]
        if not regions:
            raise InputError(f"{named} is not a sampler, so it has no step nodes")
        if len(regions) > 1:
            raise InputError(
                f"{named} cannot be expanded into step nodes: it samples each latent of a list"
            )
        values = {
            Link(name, number): value
            for name, outputs in made.outputs.items()
            for number, value in enumerate(outputs)
        }
        return written_step(found.graph, self._types, regions[0], values, engine.given > 0)

    def _withheld(self, graph: Graph) -> dict[str, str]:
        """Returns the nodes that are not run, with the reason."""
        known = {
            name: self._types[call.type]
            for name, call in graph.nodes.items()
            if call.type in self._types
        }
        return {
            name: "writes files" if kind.pack == BUILTIN else "belongs to a pack"
            for name, kind in known.items()
            if kind.is_output or kind.pack != BUILTIN
        }

    def _outside_steps(self, graph: Graph) -> list[str]:
        """Returns the nodes outside all explicit step regions."""
        ends = [name for name, call in graph.nodes.items() if self._types[call.type].ends_region]
        inside = {one for end in ends for one in region_nodes(graph, end).members} - {*ends}
        return [name for name in graph.nodes if name not in inside]

    def _run(self, engine: StandInEngine, graph: Graph, wanted: Iterable[str]) -> GraphResult:
        output = self._folders.output
        context = RunContext(engine, self._folders, output, types=self._types)
        timer = threading.Timer(self._seconds, context.cancel)
        timer.daemon = True
        timer.start()
        try:
            return run_graph(graph, context, ResultCache("none"), wanted)
        finally:
            timer.cancel()


def _engine() -> StandInEngine:
    return StandInEngine(DEVICE, lambda region: region)


def _sources(graph: Graph) -> dict[str, list[str]]:
    return {
        name: [link.node for _, link in call.links() if link.node in graph.nodes]
        for name, call in graph.nodes.items()
    }


def _part(graph: Graph, nodes: Iterable[str]) -> Graph:
    inside = set(nodes)
    return Graph({name: call for name, call in graph.nodes.items() if name in inside})
