"""Holds the state of one node in a graph run: what it is, what it waits for, what came of it."""

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
    kind: NodeType | None  # None: there is no type of this name
    # asynchronous ones first, then place in the file, then in what was made of it
    order: tuple[bool, int, int]
    origin: str  # the node of the file that it is shown as: the one that made it, or itself
    scope: Mapping[str, NodeCall]  # the graph or the expansion that it stands in
    parent: NodeState | None = None  # whose expansion it stands in

    entered: bool = False  # by the walk that signs
    # those that take part, once it is entered
    inputs: Mapping[str, Any] = field(default_factory=dict)
    links: Sequence[tuple[str, Link]] = ()  # the linked ones among them
    late: bool = False  # its signature waits for values
    signature: Signature | None = None  # None: not known yet if late, else never cached
    unsigned: str = ""  # why it is never cached
    fingerprint: Any = None
    warning: str = ""  # what the person is told if it runs
    lost: str = ""  # a file of its kept result that is gone

    wanted: bool = False
    sources: Sequence[NodeState] = ()  # what it has waited for
    waits_for: int = 0
    readers: list[NodeState] = field(default_factory=list)
    asked: frozenset[str] = frozenset()  # lazy inputs
    region: RegionNodes | None = None
    expanded: list[tuple[Any, ...]] | None = None  # outputs of its expansions: links and values
    parts: Sequence[NodeState] = ()  # nodes of its expansions

    began: float = 0.0
    seconds: float = 0.0
    why: str = ""
    outputs: Outputs | None = None
    ui: Mapping[str, Sequence[Any]] | None = None
    shown: tuple[Shown, ...] = ()  # of its expansions
    sampled: Sequence[Provenance] = ()  # what samplers that it ran say of their results
    provenance: Provenance = EXACT  # of its result
    refused: Provenance = EXACT  # of a kept result that this run may not take
    finished: bool = False
    failed: bool = False
    blocked: bool = False

    holders: int = 0  # links and others that may still read it
    has_read: bool = False  # it will read its sources no more
    held: Sequence[NodeState] = ()  # upstream nodes that its code may link to when it expands
    freed: bool = False  # its outputs were let go

    @property
    def type(self) -> NodeType:
        if self.kind is None:
            raise InputError("there is no node type of this name")
        return self.kind

    @property
    def made(self) -> bool:
        """Returns whether the node stands in an expansion."""
        return self.parent is not None

    def enter(self) -> None:
        """Selects the inputs that take part: all that are declared, and of the others those that
        the type wants.
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
        """Yields the lazy inputs that are linked and have not been asked for."""
        if self.kind is not None and self.kind.needs is not None:
            declared = self.kind.inputs
            yield from (
                name
                for name, _ in self.links
                if name in declared and declared[name].lazy and name not in self.asked
            )

    def read_inputs(self) -> Mapping[str, Any]:
        """Returns the inputs that decide the result: all but lazy links that were not asked for."""
        left_out = set(self.lazy_links())
        return (
            {name: value for name, value in self.inputs.items() if name not in left_out}
            if left_out
            else self.inputs
        )

    def shown_parts(self) -> tuple[Shown, ...]:
        """Returns the nodes of its expansions that have, or contain, output for editors."""
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
    """Returns the value, or `Listed`, that a link delivers, once its source is finished."""
    source = source_of(states, link)
    outputs = source.outputs or ()
    if not 0 <= link.output < len(outputs):
        raise InputError(
            f"links to output {link.output} of node {link.node} ({source.call.type}), which has "
            f"{len(outputs)}"
        )
    return outputs[link.output]
