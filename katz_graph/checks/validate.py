"""Validates a graph before anything runs. Reports all problems together: one line each, with the
value found, the value expected and a remedy.

Linear in nodes and links, without recursion. Problems of nodes that no output needs are warnings,
because users keep spare nodes. An error refuses only the outputs that depend on its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from katz_graph.checks.cycles import describe_cycle, find_cycles
from katz_graph.checks.problem import Checked, Problem, ProblemKind
from katz_graph.core.errors import InputError
from katz_graph.core.graph import BadLink, Graph, Link, NodeCall
from katz_graph.core.messages import listed, nearest, node_name, show, suggest
from katz_graph.files.folders import Folders
from katz_graph.node.literals import LiteralError, check_literal
from katz_graph.node.types import ANY, Input, NodeType
from katz_graph.planner.region import region_problems

SUGGESTIONS = 50  # names that get a suggestion; comparing thousands would take minutes
Types = Mapping[str, NodeType]
Rule = Callable[[Graph, Types], Iterable[tuple[str, str, str]]]
RULES: Mapping[ProblemKind, Rule] = {"region": region_problems}
"""Checks over several nodes, by the kind of problem that they find. They yield (node, input,
message) and receive graphs whose links and types are sound.
"""


def validate(
    graph: Graph,
    types: Types,
    folders: Folders | None = None,
    rules: Mapping[ProblemKind, Rule] = RULES,
) -> list[Problem]:
    """Returns all problems of a graph, in the order of the file."""
    return list(check(graph, types, folders, rules).problems)


def check_node(
    graph: Graph, types: Types, folders: Folders | None, identifier: str
) -> tuple[NodeCall, list[Problem]]:
    """Checks one node in isolation, and the links that it reads. Returns the node with checked
    literals, and its problems.
    """
    single = _SingleNodes(graph, types, folders)
    return single.node(identifier, graph.nodes[identifier]), single.problems


def check(
    graph: Graph,
    types: Types,
    folders: Folders | None = None,
    rules: Mapping[ProblemKind, Rule] = RULES,
    targets: Iterable[str] | None = None,
    defaults: bool = True,
) -> Checked:
    """Finds all problems of a graph, and checks its literals. Skips file names if `folders` is
    None. Without `defaults`, an absent or null value counts as missing, as in ComfyUI's API
    prompts.

    `targets` are the nodes to run; None: every output node. Raises InputError for a target that
    does not exist.
    """
    order = {identifier: number for number, identifier in enumerate(graph.nodes)}
    single = _SingleNodes(graph, types, folders, defaults)
    checked = Graph(
        {identifier: single.node(identifier, call) for identifier, call in graph.nodes.items()}
    )
    wanted = _wanted(graph, types, single, targets)
    cycles = list(find_cycles(single.sources))
    found = single.problems + [_cycle_problem(graph, cycle) for cycle in cycles]
    unsound = single.unsound.union(*cycles)
    needed = upstream(single.sources, wanted)
    broken = downstream(single.sources, unsound)
    sound = (
        upstream(single.sources, (target for target in wanted if target not in broken))
        if broken
        else needed
    )
    wrong = {problem.node for problem in found if problem.severity == "error"}
    own = [
        node
        for node, call in graph.nodes.items()
        if call.type in types and types[call.type].check is not None
    ]
    found += (
        problem
        for node in own
        if node in sound and node not in wrong
        for problem in _own_problems(node, graph, checked, types)
    )
    if sound:
        whole = (
            checked
            if not unsound
            else Graph(
                {
                    identifier: checked.nodes[identifier]
                    for identifier in order
                    if identifier in sound
                }
            )
        )
        for rule_kind, rule in rules.items():
            found += [
                Problem(rule_kind, node, graph.nodes[node].type, name, message)
                for node, name, message in rule(whole, types)
            ]
    problems = [
        problem if problem.node in needed else replace(problem, severity="warning")
        for problem in found
    ]
    if not wanted:
        problems.append(_no_output(types))
    failing = downstream(
        single.sources,
        {problem.node for problem in problems if problem.severity == "error" and problem.node},
    )
    refused = tuple(target for target in wanted if target in failing)
    runnable = tuple(target for target in wanted if target not in failing)
    return Checked(
        checked,
        tuple(sorted(problems, key=lambda problem: order.get(problem.node, len(order)))),
        runnable,
        refused,
    )


def upstream(sources: Mapping[str, Sequence[str]], roots: Iterable[str]) -> set[str]:
    """Returns the roots and everything that they read, directly or indirectly. `sources` maps each
    node to the nodes that it reads.
    """
    pending = list(roots)
    found = set(pending)
    while pending:
        for source in sources[pending.pop()]:
            if source not in found:
                found.add(source)
                pending.append(source)
    return found


def downstream(sources: Mapping[str, Sequence[str]], roots: Iterable[str]) -> set[str]:
    """Returns the roots and everything that reads them, directly or indirectly."""
    pending = list(roots)
    return upstream(readers(sources), pending) if pending else set()


def readers(sources: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """Returns the readers of each node. `sources` maps each node to the nodes that it reads."""
    found: dict[str, list[str]] = {identifier: [] for identifier in sources}
    for identifier, read in sources.items():
        for source in read:
            found[source].append(identifier)
    return found


class _SingleNodes:
    """Checks each node in isolation, and the links that it reads."""

    def __init__(
        self, graph: Graph, types: Types, folders: Folders | None, defaults: bool = True
    ) -> None:
        self.graph, self.types, self.folders = graph, types, folders
        self._defaults = defaults
        self.problems: list[Problem] = []
        self.unsound: set[str] = set()  # nodes of unknown type or with dead links
        self.sources: dict[str, list[str]] = {}  # node -> the nodes that it reads
        self._files: dict[tuple[str, str], str | None] = {}
        self._near: dict[tuple[str, int], str] = {}

    @cached_property
    def read(self) -> set[str]:
        """Returns the nodes that another node reads."""
        return {source for sources in self.sources.values() for source in sources}

    def node(self, identifier: str, call: NodeCall) -> NodeCall:
        """Returns the node with checked literals."""

        def report(
            fault: ProblemKind,
            name: str,
            message: str,
            severity: Literal["error", "warning"] = "error",
        ) -> None:
            self.problems.append(
                Problem(fault, identifier, call.type, name, message, severity, call.title)
            )

        kind = self.types.get(call.type)
        if kind is None:
            self.unsound.add(identifier)
            near = self._suggest(call.type, self.types)
            report(
                "unknown_type",
                "",
                f"unknown node type{near}; `katz nodes` lists all, --packs adds a folder of packs",
            )
        inputs: dict[str, Any] = {}
        sources = self.sources[identifier] = []
        for name, value in call.inputs.items():
            expected = kind.inputs.get(name) if kind else None
            if isinstance(value, Link):
                if value.node in self.graph.nodes:
                    sources.append(value.node)
                for fault, message in self._link(
                    identifier,
                    value,
                    None if kind is not None and kind.links_unchecked else expected,
                ):
                    report(fault, name, message)
                inputs[name] = value
            elif isinstance(value, BadLink) and expected is not None:
                report(
                    "bad_link",
                    name,
                    f"got {show(list(value))}, expected a link [node, output]; write a list value "
                    'as {"__value__": [...]}',
                )
            elif (
                kind is not None
                and expected is not None
                and (value is not None or self._refuses_null(kind, expected))
            ):
                try:
                    inputs[name] = self._literal(
                        value, expected, kind is not None and name in kind.unchecked
                    )
                except LiteralError as error:
                    report(error.fault, name, str(error))
                except InputError as error:
                    report(
                        "not_a_choice" if expected.socket == "COMBO" else "refused",
                        name,
                        str(error),
                    )
            elif kind and expected is None and kind.takes(name, value):
                inputs[name] = value
            if kind and not kind.takes(name, value):
                near = self._suggest(name, kind.inputs)
                report(
                    "unknown_input",
                    name,
                    f"{call.type} has no input of this name{near}; it is ignored",
                    "warning",
                )
        for name, missing in kind.inputs.items() if kind else ():
            if name not in call.inputs and self._must_be_given(kind, missing):
                report("missing_input", name, f"is missing; expected {_expected_source(missing)}")
        return NodeCall(call.type, inputs, call.title)

    def _must_be_given(self, kind: NodeType | None, expected: Input) -> bool:
        if self._defaults or kind is None:
            return expected.required
        return kind.is_always_sent(expected) and expected.shown_for is None

    def _refuses_null(self, kind: NodeType, expected: Input) -> bool:
        return self._must_be_given(kind, expected) or not (
            self._defaults or kind.takes_null(expected)
        )

    def _link(
        self, reader: str, link: Link, expected: Input | None
    ) -> Iterator[tuple[ProblemKind, str]]:
        source = self.graph.nodes.get(link.node)
        if source is None:
            self.unsound.add(reader)
            yield "dead_link", f"links to node {show(link.node)}, which is not in the workflow"
            return
        kind = self.types.get(source.type)
        if kind is None:
            return
        if not 0 <= link.output < len(kind.outputs):
            self.unsound.add(reader)
            outputs = ", ".join(
                f"{number} ({output.name})" for number, output in enumerate(kind.outputs)
            )
            name = node_name(link.node, source.type, source.title)
            yield (
                "dead_link",
                f"links to output {link.output} of {name}, which has {outputs or 'no outputs'}",
            )
        elif expected and not connects(kind.outputs[link.output].socket, expected.socket):
            came, name = kind.outputs[link.output], node_name(link.node, source.type, source.title)
            yield (
                "link_type",
                f"got {came.socket} from output {link.output} ({came.name}) of {name}, expected "
                f"{expected.socket}",
            )

    def _literal(self, value: Any, expected: Input, unchecked: bool) -> Any:
        checked = check_literal(value, expected, within_bounds=not unchecked)
        if expected.folder and self.folders and isinstance(checked, str):
            key = expected.folder, checked
            if key not in self._files:
                try:
                    self.folders.check(*key)
                    self._files[key] = None
                except InputError as error:
                    self._files[key] = str(error)
            if refused := self._files[key]:
                raise LiteralError("not_a_choice", refused)
        return checked

    def _suggest(self, name: str, known: Mapping[str, Any]) -> str:
        key = name, id(known)
        if key not in self._near and len(self._near) < SUGGESTIONS:
            close = nearest(name, known)
            self._near[key] = f"; did you mean {show(close)}?" if close else ""
        return self._near.get(key, "")


def connects(source: str, target: str) -> bool:
    """Returns whether an output of socket `source` may feed an input of socket `target`. `*`
    connects to every socket.

    Two unions (`A,B`) connect if they have a member in common.
    """
    given, taken = set(source.split(",")), set(target.split(","))
    return ANY in given | taken or not given.isdisjoint(taken)


def _expected_source(missing: Input) -> str:
    return "a value" if missing.knob else f"a link to an output of type {missing.socket}"


def _cycle_problem(graph: Graph, cycle: Sequence[str]) -> Problem:
    call = graph.nodes[cycle[0]]
    path = describe_cycle(cycle, graph.nodes)
    message = (
        f"is in a cycle: {path}; remove a link (a loop over steps uses the slots of StepBegin and "
        "StepEnd)"
    )
    return Problem("cycle", cycle[0], call.type, "", message, "error", call.title, tuple(cycle))


def _wanted(
    graph: Graph, types: Types, single: _SingleNodes, targets: Iterable[str] | None
) -> list[str]:
    """Returns the targets. If None are given, returns the output nodes and the possible outputs:
    nodes of unknown type that read a node and have no reader.
    """
    if targets is not None:
        wanted = list(dict.fromkeys(targets))
        for target in wanted:
            if target not in graph.nodes:
                raise InputError(
                    f"target node {show(target)} is not in the "
                    f"workflow{suggest(target, graph.nodes)}"
                )
        return wanted

    def may_be_output(identifier: str, kind: NodeType | None) -> bool:
        return (
            bool(single.sources[identifier]) and identifier not in single.read
            if kind is None
            else kind.is_output
        )

    return [
        identifier
        for identifier, call in graph.nodes.items()
        if may_be_output(identifier, types.get(call.type))
    ]


def _own_problems(node: str, graph: Graph, checked: Graph, types: Types) -> Iterator[Problem]:
    """Yields the problems that a node's own check finds."""
    call = checked.nodes[node]
    type_ = types[call.type]
    own_check = type_.check
    assert own_check is not None
    literals = {name: value for name, value in call.inputs.items() if not isinstance(value, Link)}
    literals |= {name: node for name, what in type_.hidden.items() if what == "UNIQUE_ID"}
    sockets = {
        name: types[graph.nodes[link.node].type].outputs[link.output].socket
        for name, link in call.links()
    }
    kind: ProblemKind = "refused"
    try:
        found = list(own_check(literals, sockets))
    except (Exception, SystemExit) as error:
        kind = "check_failed"
        found = [("", f"its own check of its inputs failed: {type(error).__name__}: {error}")]
    for name, message in found:
        yield Problem(kind, node, call.type, name, message, "error", call.title)


def _no_output(types: Types) -> Problem:
    outputs = listed(sorted(name for name, kind in types.items() if kind.is_output))
    message = (
        "the workflow has no output node, so nothing would run; add one of "
        f"{outputs or 'an output node of a pack'}"
    )
    return Problem("no_output", "", "", "", message)
