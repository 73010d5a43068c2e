"""Builds workflows in Python: each node type is a function that adds a node to a graph."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from keyword import iskeyword
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

from katz_graph.checks.validate import check_node
from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph as FrozenGraph
from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.messages import node_name, suggest
from katz_graph.files.folders import Folders
from katz_graph.formats.api import to_api, with_defaults
from katz_graph.node.literals import expectation
from katz_graph.node.types import KNOB_SOCKETS, Input, NodeType
from katz_graph.packs import load_registry
from katz_graph.settings.environment import Settings

PYTHON_TYPES = {socket: kind for kind, socket in KNOB_SOCKETS.items()}

log = logging.getLogger("katz_graph")

Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]


def as_paths(given: Paths) -> tuple[Path, ...]:
    """Converts one path or several to a tuple of paths."""
    return (Path(given),) if isinstance(given, (str, PathLike)) else tuple(map(Path, given))


class UnknownNodeType(InputError, AttributeError):
    """No node type has this name."""


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """An output of a node, to pass to other nodes of the same graph."""

    graph: Graph
    link: Link
    name: str
    socket: str

    def __repr__(self) -> str:
        return f"<{self.socket} output {self.link.output} ({self.name}) of node {self.link.node}>"


@dataclass(frozen=True, slots=True, eq=False)
class AddedNode(Sequence[Output]):
    """A node of a graph, as the sequence of its outputs. A node with a single output may itself be
    passed to an input.
    """

    id: str
    type: str
    outputs: tuple[Output, ...]

    def __len__(self) -> int:
        return len(self.outputs)

    @overload
    def __getitem__(self, number: int) -> Output: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Output, ...]: ...
    def __getitem__(self, number: int | slice) -> Output | tuple[Output, ...]:
        return self.outputs[number]

    def __repr__(self) -> str:
        outputs = ", ".join(output.name for output in self.outputs) or "no outputs"
        return f"<{node_name(self.id, self.type)}: {outputs}>"


Node = str | int | AddedNode | Output
"""A node of a workflow: its id, title or type, or the object that adding the node returned."""


def node_id(node: Node) -> str:
    """Returns the id, title or type of a node."""
    if isinstance(node, Output):
        return node.link.node
    return node.id if isinstance(node, AddedNode) else str(node)


class Graph:
    """Builds a workflow: `graph.KSampler(model=..., steps=20)` adds a node and returns its outputs.

    Omitted inputs take their defaults. Node types are `types`, or else those of the installed packs
    and of the folders in `packs`. Use `graph["Any Name"]` for node types whose names are not Python
    identifiers. If `folders` is given, file names are checked when a node is added.
    """

    def __init__(
        self,
        packs: Paths = (),
        *,
        types: Mapping[str, NodeType] | None = None,
        folders: Folders | None = None,
    ) -> None:
        if types is None:
            settings = Settings.read(packs=as_paths(packs))
            types, problems = load_registry(settings.packs, settings.folders())
            for problem in problems:
                log.warning(str(problem))
        self._types, self._folders = types, folders
        self._nodes: dict[str, NodeCall] = {}

    @property
    def graph(self) -> FrozenGraph:
        """Returns the nodes added so far."""
        return FrozenGraph(dict(self._nodes))

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the workflow in the API format, which every client accepts."""
        Path(path).write_text(
            json.dumps(to_api(with_defaults(self.graph, self._types)), indent=2, ensure_ascii=False)
            + "\n",
            encoding="utf-8",
        )

    def __getattr__(self, name: str) -> Callable[..., AddedNode]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Callable[..., AddedNode]:
        """Returns the function that adds a node of this type. InputError for an unknown type."""
        if name not in self._types:
            raise UnknownNodeType(f"unknown node type {name!r}{suggest(name, self._types)}")
        kind = self._types[name]

        def add(*, _title: str = "", **inputs: Any) -> AddedNode:
            return self._add(kind, inputs, _title)

        add.__name__ = add.__qualname__ = name
        add.__doc__ = _documentation(kind)
        setattr(add, "__signature__", _signature(kind))  # noqa: B010  mypy knows no such attribute of functions
        return add

    def __dir__(self) -> Iterator[str]:
        yield from super().__dir__()
        yield from (name for name in self._types if name.isidentifier())

    def __repr__(self) -> str:
        return f"<Graph of {len(self._nodes)} nodes>"

    def _add(self, kind: NodeType, given: Mapping[str, Any], title: str) -> AddedNode:
        identifier = str(len(self._nodes) + 1)
        name = node_name(identifier, kind.name, title)
        inputs = {
            port.name: port.default
            for port in kind.inputs.values()
            if port.knob and port.default is not None
        }
        inputs |= {
            field: self._value(f"{name}, input {field}", value) for field, value in given.items()
        }
        unknown = [field for field, value in inputs.items() if not kind.takes(field, value)]
        if unknown:
            lines = (
                f"{name} has no input {field!r}{suggest(field, kind.inputs)}" for field in unknown
            )
            raise InputError("\n".join(lines))
        nodes = {**self._nodes, identifier: NodeCall(kind.name, inputs, title)}
        call, problems = check_node(FrozenGraph(nodes), self._types, self._folders, identifier)
        if problems:
            raise InputError("\n".join(map(str, problems)))
        self._nodes[identifier] = call
        outputs = (
            Output(self, Link(identifier, number), output.name, output.socket)
            for number, output in enumerate(kind.outputs)
        )
        return AddedNode(identifier, kind.name, tuple(outputs))

    def _value(self, where: str, value: Any) -> Any:
        """Returns a literal unchanged; converts an output to a link."""
        if isinstance(value, AddedNode):
            if len(value) != 1:
                names = ", ".join(output.name for output in value)
                has = (
                    f"{len(value)} outputs ({names}); choose one" if value.outputs else "no outputs"
                )
                raise InputError(f"{where}: {node_name(value.id, value.type)} has {has}")
            value = value[0]
        if not isinstance(value, Output):
            return value
        if value.graph is not self:
            raise InputError(
                f"{where}: the output of node {value.link.node} belongs to another graph"
            )
        return value.link


def _signature(kind: NodeType) -> Signature:
    parameters = [
        Parameter(
            port.name,
            Parameter.KEYWORD_ONLY,
            default=_default(port),
            annotation=_annotation(port),
        )
        for port in kind.inputs.values()
        if port.name.isidentifier() and not iskeyword(port.name)
    ]
    gives = ", ".join(output.name for output in kind.outputs)
    return Signature(parameters, return_annotation=gives or None)


def _default(port: Input) -> Any:
    if port.knob and port.default is not None:
        return port.default
    return Parameter.empty if port.required else None


def _annotation(port: Input) -> Any:
    if port.choices:
        return Literal[tuple(port.choices)]
    return PYTHON_TYPES.get(port.socket, port.socket) if port.knob else port.socket


def _documentation(kind: NodeType) -> str:
    inputs = (
        f"{port.name}: {port.help or (expectation(port) if port.knob else port.socket)}"
        for port in kind.inputs.values()
    )
    return "\n".join((kind.description or kind.display_name, "", *inputs))
