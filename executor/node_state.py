"""One node while its graph runs: what it is, what it waits for, what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katz_graph.errors import InputError
from katz_graph.executor.signature import Signature
from katz_graph.graph import Link, NodeCall
from katz_graph.literals import check_literal
from katz_graph.node import NodeType
from katz_graph.planner.region import RegionNodes
from katz_graph.wording import show

Outputs = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class NodeState:
    id: str
    call: NodeCall
    kind: NodeType | None  # None: there is no type of this name
    order: tuple[int, int]  # place in the file, then in what was made of it
    origin: str  # the node of the file that made it, or itself
    scope: Mapping[str, NodeCall]  # the graph or the expansion that it stands in

    entered: bool = False  # by the walk that signs
    links: Sequence[tuple[str, Link]] = ()  # its linked inputs, once it is entered
    late: bool = False  # its signature waits for values
    signature: Signature | None = None  # None: not known yet if late, else never cached
    fingerprint: Any = None

    wanted: bool = False
    sources: Sequence[NodeState] = ()  # what it has waited for
    waits_for: int = 0
    readers: list[NodeState] = field(default_factory=list)
    asked: frozenset[str] = frozenset()  # lazy inputs
    region: RegionNodes | None = None
    expanded: tuple[Any, ...] | None = None  # outputs of its expansion: links and values
    parts: tuple[str, ...] = ()  # nodes of its expansion

    began: float = 0.0
    seconds: float = 0.0
    why: str = ""
    outputs: Outputs | None = None
    failed: bool = False

    @property
    def type(self) -> NodeType:
        if self.kind is None:
            raise InputError("there is no node type of this name")
        return self.kind

    @property
    def finished(self) -> bool:
        return self.outputs is not None or self.failed

    @property
    def is_lazy(self) -> bool:
        return self.kind is not None and self.kind.needs is not None

    def lazy_links(self) -> Iterator[str]:
        """Lazy inputs that are linked and have not been asked for."""
        if self.is_lazy:
            declared = self.type.inputs
            yield from (name for name, _ in self.links if name in declared and declared[name].lazy and name not in self.asked)

    def read_inputs(self) -> Mapping[str, Any]:
        """The inputs that decide the result: all but lazy links that were not asked for."""
        left_out = set(self.lazy_links())
        return {name: value for name, value in self.call.inputs.items() if name not in left_out} if left_out else self.call.inputs


States = Mapping[str, NodeState]


def source_of(states: States, link: Link) -> NodeState:
    source = states.get(link.node)
    if source is None:
        raise InputError(f"links to node {show(link.node)}, which does not exist")
    return source


def output_of(states: States, link: Link) -> Any:
    """The value that a link delivers, once its source is finished."""
    source = source_of(states, link)
    outputs = source.outputs or ()
    if not 0 <= link.output < len(outputs):
        raise InputError(f"links to output {link.output} of node {link.node} ({source.call.type}), which has {len(outputs)}")
    return outputs[link.output]


def values_of(states: States, node: NodeState) -> dict[str, Any]:
    """The read inputs as values. A linked knob is checked as a literal is."""
    declared = node.type.inputs
    values = dict(node.read_inputs())
    for name, value in values.items():
        if not isinstance(value, Link):
            continue
        values[name] = delivered = output_of(states, value)
        if name in declared and declared[name].knob:
            try:
                values[name] = check_literal(delivered, declared[name])
            except ValueError as error:
                raise InputError(f"input {name}: {error}") from None
    return values
