"""Finds step regions in graphs, between a StepBegin and its StepEnd, and binds them to values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link
from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import EditTemplate, ModelRecipe
from katz_graph.ir.region import BEGIN, END, SLOTS, SWITCH, Operation, Previous, Ref, Region
from katz_graph.models.family import architecture
from katz_graph.models.stage_registry import stages
from katz_graph.models.stages import NODE, Stage
from katz_graph.models.vae.kinds import empty_in
from katz_graph.node.types import NodeType


def stage_of(operation: Operation) -> Stage:
    """Returns the declaration of an operation's stage. Raises InputError without a declaration."""
    found = stages().get(operation.stage)
    if found is None:
        raise InputError(
            f"node {operation.id} ({operation.type}): its stage {operation.stage!r} is unknown, "
            "so it cannot be planned; leave stage unset if the node computes by itself"
        )
    return found


@dataclass(frozen=True, slots=True)
class RegionNodes:
    """Lists the nodes of a region in topological order, including begin and end, and the links that
    enter the region.
    """

    begin: str
    end: str
    members: tuple[str, ...]
    inputs: tuple[Link, ...]


def region_nodes(graph: Graph, end: str) -> RegionNodes:
    """Finds the region that ends at node `end`: descendants of its StepBegin that are ancestors of
    `end`. Linear in nodes and links. Raises InputError if `step` is not linked.
    """
    step = graph.nodes[end].inputs.get("step")
    if not isinstance(step, Link) or step.node not in graph.nodes:
        raise InputError(
            f"node {end} ({graph.nodes[end].type}): input 'step' must be linked to the step "
            "of a StepBegin"
        )
    begin = step.node
    inside = {begin}
    members = []
    for node in _topological(graph, _ancestors(graph, end, begin)):
        if node == begin or any(link.node in inside for _, link in graph.nodes[node].links()):
            inside.add(node)
            members.append(node)
    entering = dict.fromkeys(
        link for node in members for _, link in graph.nodes[node].links() if link.node not in inside
    )
    return RegionNodes(begin, end, tuple(members), tuple(entering))


def bind_region(
    graph: Graph,
    registry: Mapping[str, NodeType],
    nodes: RegionNodes,
    values: Mapping[Link, Any],
    name: str = "",
    shown_as: Mapping[str, str] | None = None,
) -> Region:
    """Builds the region as data: replaces links from outside by `values`, and absent knobs by their
    defaults.

    Users see the region as node `name`, and each node in the region as its node in `shown_as`, by
    default also `name`.
    """
    inside = set(nodes.members)

    def bind(value: Any) -> Any:
        if not isinstance(value, Link):
            return value
        if value.node == nodes.begin and value.output >= 1:
            return Previous(value.output)
        return Ref(value.node, value.output) if value.node in inside else values[value]

    def operation(identifier: str) -> Operation:
        call = graph.nodes[identifier]
        kind = registry[call.type]
        defaults = {
            name: port.default
            for name, port in kind.inputs.items()
            if port.knob and not port.required
        }
        inputs = defaults | {
            name: bind(value) for name, value in call.inputs.items() if kind.takes(name, value)
        }
        required = tuple(name for name, port in kind.inputs.items() if port.required)
        return Operation(identifier, kind.stage or NODE, call.type, inputs, required)

    operations = {identifier: operation(identifier) for identifier in nodes.members}
    begin, end = operations[nodes.begin], operations[nodes.end]
    given = begin.inputs
    if "latent_image" in given and "model" in given:
        latent = fit_latent(given["latent_image"], given["model"])
        begin = replace(begin, inputs={**given, "latent_image": latent})
    interior = tuple(
        operations[identifier]
        for identifier in nodes.members
        if identifier not in (nodes.begin, nodes.end)
    )
    region = Region(begin, interior, end, name or nodes.end, shown_as or {})
    template = given["model"].template if isinstance(given.get("model"), ModelRecipe) else None
    return region if template is None else _apart(region, template)


def _apart(region: Region, template: EditTemplate) -> Region:
    """Removes the template from a region's models, or its latent would be sent with each."""

    def without(operation: Operation) -> Operation:
        inputs = {
            name: replace(value, template=None) if isinstance(value, ModelRecipe) else value
            for name, value in operation.inputs.items()
        }
        return replace(operation, inputs=inputs)

    return replace(
        region,
        begin=without(region.begin),
        operations=tuple(map(without, region.operations)),
        template=template,
    )


def region_problems(
    graph: Graph, registry: Mapping[str, NodeType]
) -> Iterator[tuple[str, str, str]]:
    """Yields the problems of the regions of an acyclic graph as (node, input, message)."""
    stages = {
        identifier: registry[call.type].stage
        for identifier, call in graph.nodes.items()
        if call.type in registry
    }
    owner: dict[str, str] = {}
    regions: list[RegionNodes] = []
    for end in (identifier for identifier, stage in stages.items() if stage == END):
        step = graph.nodes[end].inputs.get("step")
        if not isinstance(step, Link) or stages.get(step.node) != BEGIN:
            yield end, "step", "must be linked to output 0 (step) of a StepBegin"
            continue
        region = region_nodes(graph, end)
        regions.append(region)
        for member in region.members:
            if owner.setdefault(member, end) != end:
                yield (
                    member,
                    "",
                    f"is in two step regions, those of {owner[member]} and {end}; give each its "
                    "own StepBegin and nodes",
                )
    yield from _leaving(graph, owner)
    for region in regions:
        yield from _slot_problems(graph, registry, region)
    for identifier, stage in stages.items():
        if stage not in (None, SWITCH, END) and identifier not in owner:
            yield (
                identifier,
                "",
                "is in no step region: it needs a StepBegin upstream and a StepEnd downstream",
            )


def _leaving(graph: Graph, owner: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for identifier, call in graph.nodes.items():
        for name, link in call.links():
            end = owner.get(link.node)
            if end is not None and link.node != end and owner.get(identifier) != end:
                yield (
                    identifier,
                    name,
                    f"reads node {link.node} inside the step region of {end}; only StepEnd's "
                    "output leaves a region",
                )


def _slot_problems(
    graph: Graph, registry: Mapping[str, NodeType], region: RegionNodes
) -> Iterator[tuple[str, str, str]]:
    begin, end = graph.nodes[region.begin], graph.nodes[region.end]
    for member in region.members:
        for name, link in graph.nodes[member].links():
            if (
                link.node == region.begin
                and link.output >= 1
                and f"next_{link.output}" not in end.inputs
            ):
                yield (
                    member,
                    name,
                    f"reads previous_{link.output} of {region.begin}, but next_{link.output} of "
                    f"{region.end} is not linked",
                )
    for slot in range(1, SLOTS + 1):
        first, following = begin.inputs.get(f"initial_{slot}"), end.inputs.get(f"next_{slot}")
        sockets = [
            _socket(graph, registry, link) for link in (first, following) if isinstance(link, Link)
        ]
        if len(sockets) == 2 and len({*sockets} - {"*"}) == 2:
            yield (
                region.end,
                f"next_{slot}",
                f"carries {sockets[1]}, but initial_{slot} of {region.begin} is {sockets[0]}",
            )
        for member in region.members:
            for name, link in graph.nodes[member].links():
                if (
                    link == Link(region.begin, slot)
                    and sockets
                    and len({sockets[0], _wanted(graph, registry, member, name)} - {"*"}) == 2
                ):
                    wanted = _wanted(graph, registry, member, name)
                    yield (
                        member,
                        name,
                        f"takes {wanted}, but previous_{slot} of {region.begin} carries "
                        f"{sockets[0]}",
                    )


def _wanted(graph: Graph, registry: Mapping[str, NodeType], node: str, name: str) -> str:
    call = graph.nodes[node]
    port = registry[call.type].inputs.get(name) if call.type in registry else None
    return port.socket if port else "*"


def _socket(graph: Graph, registry: Mapping[str, NodeType], link: Link) -> str:
    call = graph.nodes.get(link.node)
    outputs = registry[call.type].outputs if call and call.type in registry else ()
    return outputs[link.output].socket if link.output < len(outputs) else "*"


def _ancestors(graph: Graph, end: str, begin: str) -> set[str]:
    """Returns `end` and its ancestors, searching no further back than `begin`."""
    found, frontier = {end}, [end]
    while frontier:
        node = frontier.pop()
        for _, link in graph.nodes[node].links() if node != begin else ():
            if link.node in graph.nodes and link.node not in found:
                found.add(link.node)
                frontier.append(link.node)
    return found


def _topological(graph: Graph, inside: set[str]) -> tuple[str, ...]:
    """Orders the nodes of `inside`, each after the nodes that it reads. Raises InputError for a
    cycle.
    """
    reads = {
        node: [link.node for _, link in graph.nodes[node].links() if link.node in inside]
        for node in sorted(inside)
    }
    try:
        return tuple(TopologicalSorter(reads).static_order())
    except CycleError as error:
        raise InputError(
            f"the step region contains a cycle: {' -> '.join(reversed(error.args[1]))}"
        ) from None


def fit_latent(latent: LatentSamples, model: ModelRecipe) -> LatentSamples:
    """Returns the latent as the model takes it: [B, C, h, w], or of frames [B, C, F, h, w], with
    or without the axis of one frame, see `as_given`. An empty latent (all zeros) gets the model's
    channels, and its cells for the same picture. Raises InputError for a non-empty latent with
    another channel count, and for another shape.
    """
    space, channels = model.latent, architecture(model.network).latent_channels
    samples = space.shaped(latent["samples"])
    if samples is not latent["samples"]:
        latent = {**latent, "samples": samples, "frame_axis": not space.frames}
    if (given := samples.shape[1]) == channels:
        return latent
    if samples.any():
        raise InputError(
            f"the latent has {given} channels, the model in {model.network.folder} takes "
            f"{channels}: encode the picture with the model's own VAE, or use an empty latent"
        )
    return {**latent, "samples": empty_in(replace(space, channels=channels), samples)}


def as_given(latent: LatentSamples) -> LatentSamples:
    """Returns a sampler's latent with the axis of one frame if `fit_latent` removed it, without the
    axis if `fit_latent` added it.
    """
    if "frame_axis" not in latent:
        return latent
    samples = latent["samples"]
    given: LatentSamples = {
        **latent,
        "samples": samples.unsqueeze(2) if latent["frame_axis"] else samples.squeeze(2),
    }
    del given["frame_axis"]
    return given
