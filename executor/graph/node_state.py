"""Holds the state of one node in a graph run: its identity, its dependencies and its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.messages import show
from katz_graph.executor.graph.expansion_ui import Shown, last_part
from katz_graph.executor.graph.signature import Signature
from katz_graph.ir.provenance import EXACT, Provenance
from katz_graph.node.types import Input, NodeType
from katz_graph.planner.region import RegionNodes

Outputs = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class NodeState:
    id: str
    call: NodeCall
    kind: NodeType | None  # None: no type has this name
    # scheduling order: asynchronous nodes first, then by position in the file, then by creation
    order: tuple[bool, int, int]
    origin: str  # the file's node that shows this node: itself, or its creator
    scope: Mapping[str, NodeCall]  # the graph or the expansion that contains it
    parent: NodeState | None = None  # the node whose expansion contains it

    entered: bool = False  # visited by the signing walk
    # the inputs in use, set by `enter`
    inputs: Mapping[str, Any] = field(default_factory=dict)
    links: Sequence[tuple[str, Link]] = ()  # the linked inputs among them
    deferred: bool = False  # its signature needs values of other nodes
    signature: Signature | None = None  # None: unknown yet if `deferred`, else uncacheable
    unsigned: str = ""  # reason for never caching it
    fingerprint: Any = None
    warning: str = ""  # warning for the user if it runs
    lost: str = ""  # deleted file of its cached result

    wanted: bool = False
    sources: Sequence[NodeState] = ()  # nodes that it has waited for
    waits_for: int = 0
    readers: list[NodeState] = field(default_factory=list)
    asked: frozenset[str] = frozenset()  # requested lazy inputs
    region: RegionNodes | None = None
    expanded: list[tuple[Any, ...]] | None = None  # outputs of its expansions: links and values
    parts: Sequence[NodeState] = ()  # nodes of its expansions

    began: float = 0.0
    seconds: float = 0.0
    why: str = ""
    outputs: Outputs | None = None
    ui: Mapping[str, Sequence[Any]] | None = None
    shown: tuple[Shown, ...] = ()  # UI output of its expansions
    sampled: Sequence[Provenance] = ()  # provenance reported by the samplers that it ran
    provenance: Provenance = EXACT  # provenance of its result
    refused: Provenance = EXACT  # provenance of a cached result that this run may not use
    finished: bool = False
    failed: bool = False
    blocked: bool = False

    holders: int = 0  # references: links and other readers
    has_read: bool = False  # will not read its sources again
    held: Sequence[NodeState] = ()  # further references: upstream nodes or its expansion's roots
    freed: bool = False  # its outputs were freed

    @property
    def type(self) -> NodeType:
        if self.kind is None:
            raise InputError("unknown node type")
        return self.kind

    @property
    def made(self) -> bool:
        """Returns whether the node is part of an expansion."""
        return self.parent is not None

    def enter(self) -> None:
        """Selects the inputs in use: all declared inputs, and the undeclared ones that the type
        accepts.
        """
        self.entered = True
        self.inputs = self.call.inputs
        if self.kind is not None and not self.inputs.keys() <= self.kind.inputs.keys():
            self.inputs = {
                name: value for name, value in self.inputs.items() if self.kind.takes(name, value)
            }
        self.links = [
            (name, value) for name, value in self.inputs.items() if isinstance(value, Link)
        ]

    def lazy_links(self) -> Iterator[str]:
        """Yields the linked lazy inputs that were not requested yet."""
        if self.kind is not None and self.kind.needs is not None:
            declared = self.kind.inputs
            yield from (
                name
                for name, _ in self.links
                if name in declared and declared[name].lazy and name not in self.asked
            )

    def read_inputs(self) -> Mapping[str, Any]:
        """Returns the inputs that determine the result: all but unrequested lazy links."""
        left_out = set(self.lazy_links())
        return (
            {name: value for name, value in self.inputs.items() if name not in left_out}
            if left_out
            else self.inputs
        )

    def shown_parts(self) -> tuple[Shown, ...]:
        """Returns the nodes of its expansions with UI output, directly or in nested expansions."""
        return tuple(
            Shown(
                part=last_part(part.id),
                type=part.call.type,
                ui=part.ui,
                origin="" if part.origin == self.origin else part.origin,
                inner=part.shown,
            )
            for part in self.parts
            if part.ui is not None or part.shown
        )

    def port(self, name: str) -> Input | None:
        return None if self.kind is None else self.kind.inputs.get(name)


States = Mapping[str, NodeState]


def source_of(states: States, link: Link) -> NodeState:
    source = states.get(link.node)
    if source is None:
        raise InputError(f"links to node {show(link.node)}, which does not exist")
    return source


def output_of(states: States, link: Link) -> Any:
    """Returns the value, or `Listed`, of a link whose source is finished. Raises InputError if the
    output does not exist.
    """
    source = source_of(states, link)
    outputs = source.outputs or ()
    if not 0 <= link.output < len(outputs):
        raise InputError(
            f"links to output {link.output} of node {link.node} ({source.call.type}), which has "
            f"{len(outputs)}"
        )
    return outputs[link.output]
