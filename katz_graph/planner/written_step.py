"""Converts a sampler to the nodes of its step region, and replaces values by links to the nodes
that output them. Must not import torch at import time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.messages import listed, node_name
from katz_graph.core.recipe import ConditioningEntry, Picture, digest
from katz_graph.ir.region import Operation, Ref, Region
from katz_graph.node.types import NodeType

GUIDANCE_NODE = "FluxGuidance"  # the node type that sets the guidance input of a distilled model
CHANGED = frozenset(("CONDITIONING", "GUIDER", "NOISE", "MODEL"))
"""Types of the output sockets of nodes that a step replaces."""

Source = tuple[str, str]
"""Names a link of the graph by its reader: node and input name."""


@dataclass(frozen=True, slots=True)
class StepNode:
    """A node of a step. Each input is a value, an output of another node of the step (`links`), or
    a copy of a link of the graph (`sources`).
    """

    name: str
    type: str
    title: str
    values: Mapping[str, Any]
    links: Mapping[str, tuple[str, int]]
    sources: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """Holds the nodes that replace a sampler, in topological order. Node `end` has the same outputs
    as the sampler, with the same numbers.

    `passed_by` lists nodes of the graph that the step replaces, the nearest to the sampler first.
    They can be removed if nothing else reads them.
    """

    nodes: tuple[StepNode, ...]
    end: str
    passed_by: tuple[str, ...]


def written_step(
    graph: Graph,
    types: Mapping[str, NodeType],
    region: Region,
    values: Mapping[Link, Any],
    guessed: bool = False,
) -> WrittenStep:
    """Converts the region of a sampler to nodes. `values` are the outputs of upstream nodes.
    `guessed`: some are placeholders for model outputs, so pictures equal here may differ in the
    run. Raises InputError if no node outputs a value that the region needs.
    """
    writer = _Writer(graph, region, guessed)
    for source, link, given in _sources(graph, region.name, values):
        writer.know(source, link, given)
    for operation in (region.begin, *region.operations, region.end):
        writer.write(operation)
    return WrittenStep(
        tuple(writer.nodes),
        writer.name_of(region.end.id),
        tuple(_passed_by(graph, types, region.name)),
    )


def with_step(graph: Graph, sampler: str, step: WrittenStep) -> Graph:
    """Returns the graph with the sampler replaced by the nodes of its step."""
    ids = {node.name: f"{sampler}.{node.name}" for node in step.nodes}

    def call_of(node: StepNode) -> NodeCall:
        inputs = dict(node.values)
        inputs |= {name: Link(ids[one], output) for name, (one, output) in node.links.items()}
        inputs |= {
            name: graph.nodes[one].inputs[given] for name, (one, given) in node.sources.items()
        }
        return NodeCall(node.type, inputs, node.title)

    made = {ids[node.name]: call_of(node) for node in step.nodes}

    def moved(value: Any) -> Any:
        if isinstance(value, Link) and value.node == sampler:
            return Link(ids[step.end], value.output)
        return value

    nodes: dict[str, NodeCall] = {}
    for name, call in graph.nodes.items():
        inputs = {key: moved(value) for key, value in call.inputs.items()}
        nodes |= made if name == sampler else {name: replace(call, inputs=inputs)}
    for name in step.passed_by:
        if not any(link.node == name for call in nodes.values() for _, link in call.links()):
            del nodes[name]
    return Graph(nodes)


@dataclass(slots=True)
class _Writer:
    graph: Graph
    region: Region
    guessed: bool
    nodes: list[StepNode] = field(default_factory=list)
    # sources of recipes by digest and of latents by identity; below, of pictures
    recipes: dict[object, Source] = field(default_factory=dict)
    pictures: list[tuple[Source, Link, Any]] = field(default_factory=list)

    def name_of(self, operation: str) -> str:
        return operation.removeprefix(f"{self.region.name}.")

    def know(self, source: Source, link: Link, given: Any) -> None:
        """Registers the source of a value. The first source of equal values wins."""
        if _is_picture(given):
            self.pictures.append((source, link, given))
        elif isinstance(given, dict | tuple) or is_dataclass(given):
            self.recipes.setdefault(_key(given), source)

    def write(self, operation: Operation) -> None:
        """Adds the node of an operation, preceded by the guidance nodes that it needs."""
        begins = operation is self.region.begin
        own = dict(self.graph.nodes[self.region.name].links()) if begins else {}
        values: dict[str, Any] = {}
        links: dict[str, tuple[str, int]] = {}
        sources: dict[str, Source] = {}
        for name, value in operation.inputs.items():
            if isinstance(value, Ref):
                links[name] = self.name_of(value.operation), value.output
            elif name in own and not is_dataclass(value):
                sources[name] = self.region.name, name
            elif isinstance(value, bool | int | float | str):
                values[name] = value
            elif (found := self._source(value)) is not None:
                sources[name] = found
            elif name in own:
                sources[name] = self.region.name, name
            elif value is not None:
                links[name] = self._conditioned(operation, name, value), 0
        title = "" if begins or operation is self.region.end else operation.id
        self.nodes.append(
            StepNode(
                self.name_of(operation.id),
                operation.type,
                self.name_of(title).replace("-", " "),
                values,
                links,
                sources,
            )
        )

    def _source(self, value: Any) -> Source | None:
        """Finds the source of a value. Raises InputError if several nodes may be its source."""
        if not _is_picture(value):
            return self.recipes.get(_key(value))
        pixels = value.pixels if isinstance(value, Picture) else value
        found = [
            (source, link) for source, link, given in self.pictures if _are_equal(pixels, given)
        ]
        if self.guessed and len({link for _, link in found}) > 1:
            nodes = listed(dict.fromkeys(link.node for _, link in found))
            raise InputError(
                f"{self._named()} cannot be expanded: its picture from node {nodes} is known only "
                "when it runs"
            )
        return found[0][0] if found else None

    def _conditioned(self, operation: Operation, name: str, value: Any) -> str:
        """Adds a node that sets the guidance of a conditioning, and returns its name. Raises
        InputError if no node outputs the value.
        """
        entry = value[0] if isinstance(value, tuple) and len(value) == 1 else None
        if isinstance(entry, ConditioningEntry) and entry.guidance is not None:
            source = self._source((replace(entry, guidance=None),))
            if source is not None:
                return self._guidance(entry.guidance, source)
        raise InputError(
            f"{self._named()} cannot be expanded: no node before it outputs the {name} for its "
            f"{operation.type}; put ControlNets, areas, masks and ranges last before the sampler, "
            "and take an inpainting model's picture from InpaintModelConditioning"
        )

    def _guidance(self, guidance: Any, source: Source) -> str:
        known = {
            (one.values.get("guidance"), one.sources.get("conditioning")): one.name
            for one in self.nodes
            if one.type == GUIDANCE_NODE
        }
        name = known.get((guidance, source))
        if name is None:
            name = f"told{len(known) or ''}"
            values = {"guidance": guidance}
            self.nodes.append(
                StepNode(name, GUIDANCE_NODE, "", values, {}, {"conditioning": source})
            )
        return name

    def _named(self) -> str:
        call = self.graph.nodes[self.region.name]
        return node_name(self.region.name, call.type, call.title)


def _key(value: Any) -> object:
    """Returns a key that is the same for equal recipes. Treats guidance "off" as None."""
    if isinstance(value, dict):
        return id(value)
    entry = value[0] if isinstance(value, tuple) and len(value) == 1 else None
    if isinstance(entry, ConditioningEntry) and entry.guidance == "off":
        value = (replace(entry, guidance=None),)
    return digest(value)


def _is_picture(value: Any) -> bool:
    return isinstance(value, Picture) or hasattr(value, "dtype")


def _are_equal(pixels: Any, given: Any) -> bool:
    import torch

    return (
        given.shape == pixels.shape
        and given.dtype == pixels.dtype
        and (given is pixels or torch.equal(given.detach().cpu(), pixels.detach().cpu()))
    )


def _sources(
    graph: Graph, sampler: str, values: Mapping[Link, Any]
) -> Iterator[tuple[Source, Link, Any]]:
    for node in _upstream(graph, sampler):
        for name, link in graph.nodes[node].links():
            if link in values:
                yield (node, name), link, values[link]


def _upstream(graph: Graph, sampler: str) -> Iterator[str]:
    """Yields a node and its ancestors, the nearest first."""
    order, known = [sampler], {sampler}
    for node in order:  # grows during the loop
        yield node
        further = dict.fromkeys(link.node for _, link in graph.nodes[node].links())
        order += (one for one in further if one not in known)
        known |= further.keys()


def _passed_by(graph: Graph, types: Mapping[str, NodeType], sampler: str) -> Iterator[str]:
    for node in _upstream(graph, sampler):
        kind = types[graph.nodes[node].type]
        given = {output.socket for output in kind.outputs}
        reads = {port.socket for port in kind.inputs.values()}
        if node != sampler and given and given <= CHANGED and "CLIP" not in reads:
            yield node
