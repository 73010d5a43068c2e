"""Calls the functions of nodes with resolved inputs: linked and hidden values. Splits lists into
runs and skips blocked runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.graph import Expansion, Link
from katz_graph.core.messages import node_name
from katz_graph.executor.graph.event_loop import Tasks
from katz_graph.executor.graph.hidden_inputs import UNIQUE_ID, HiddenInputs
from katz_graph.executor.graph.lists import Listed, elements, joined, per_element
from katz_graph.executor.graph.node_state import NodeState, Outputs, States, output_of
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.host.process_state import ProcessState
from katz_graph.node import WithUi
from katz_graph.node.literals import check_literal
from katz_graph.node.scope import ExecutionBlocker, Running, running, staying
from katz_graph.node.types import BUILTIN, INSTANCE, Context, NodeType
from katz_graph.planner.region import RegionNodes

Arguments = dict[str, Any]
OWN_PACKS = ("", BUILTIN)  # packs whose nodes do not change the state of this process


class Calls:
    """Calls the nodes of one run."""

    def __init__(
        self,
        states: States,
        context: Context,
        cache: ResultCache,
        tasks: Tasks,
        hidden: HiddenInputs,
        process: ProcessState,
    ) -> None:
        self._states = states
        self._context = context
        self._cache = cache
        self._tasks = tasks
        self._hidden = hidden
        self._process = process

    def run(self, node: NodeState) -> list[Any]:
        """Runs a node. Returns the result of each run: the outputs or an expansion, with or without
        UI output; a blocker found among the inputs; or an awaitable of one of these.
        """
        kind = node.type
        missing = next(
            (
                name
                for name, declared in kind.inputs.items()
                if declared.required and name not in node.inputs
            ),
            None,
        )
        if missing is not None:
            raise InputError(f"input {missing} is missing")
        with self._inside(node) as now:
            node.sampled = now.sampled
            return [
                blocker_in(values) or self._awaited(node, staying(kind.run(self._context, values)))
                for values in self._arguments(node, self._values(node))
            ]

    @contextmanager
    def _inside(self, node: NodeState) -> Iterator[Running]:
        """Runs a node's code. Isolates the code of packs."""
        isolated = nullcontext() if node.type.pack in OWN_PACKS else self._isolated(node)
        with running(self._context, node.id, node.type.pack) as now, isolated:
            yield now

    @contextmanager
    def _isolated(self, node: NodeState) -> Iterator[None]:
        """Lets no other run execute code of packs, and restores the process state that the code of
        this pack changes.
        """
        name = node_name(node.id, node.call.type, node.call.title)
        with self._context.in_pack_code(), self._process.guarded(name, self._context.warn):
            yield

    def _awaited(self, node: NodeState, result: Any) -> Any:
        """Returns a result. Isolates an awaitable of a pack until it ends."""
        if node.type.pack in OWN_PACKS or not inspect.isawaitable(result):
            return result

        async def inside() -> Any:
            with self._isolated(node):
                return await result

        return inside()

    def needs(self, node: NodeState) -> list[str]:
        """Returns the names of inputs that a lazy node requests."""
        kind = node.type
        assert kind.needs is not None
        wanted: list[str] = []
        with self._inside(node):
            for values in self._arguments(node, self._values(node)):
                if blocker_in(values) is None:
                    wanted += self._tasks.settle(kind.needs(values)) or ()
        return wanted

    def fingerprint(self, node: NodeState, early: bool) -> Any:
        """Computes the fingerprint of a node; `early`: without values of links."""
        kind = node.type
        assert kind.fingerprint is not None
        values = self._known(node, kind.fingerprint_linked) if early else self._values(node)
        with self._inside(node):
            found = [
                self._tasks.settle(kind.fingerprint(self._context, call))
                for call in self._arguments(node, values, instance=False)
            ]
        return found[0] if len(found) == 1 else found

    def _known(self, node: NodeState, without_links: bool) -> Arguments:
        """Returns the literal inputs. Omits links if `without_links`, otherwise they are None."""
        literals = {
            name: value for name, value in node.inputs.items() if not isinstance(value, Link)
        }
        return (
            literals if without_links else dict.fromkeys(name for name, _ in node.links) | literals
        )

    def region_inputs(self, region: RegionNodes) -> list[dict[Link, Any]]:
        """Returns the input values of a step region, for each of its runs."""
        entering = {link: output_of(self._states, link) for link in region.inputs}
        return per_element(entering) if _any_listed(entering) else [entering]

    def warnings(self, node: NodeState, results: Sequence[Any]) -> Iterator[str]:
        """Yields warnings for the user about a node that has run."""
        if node.warning:
            yield node.warning
        for one in results:
            yield from one.warnings if isinstance(one, Expansion) else ()
        if not results and node.type.is_output:
            values = ((name, output_of(self._states, link)) for name, link in node.links)
            empty = ", ".join(
                name for name, value in values if isinstance(value, Listed) and not value.values
            )
            yield f"got an empty list for {empty}, so there was nothing to do"

    def _values(self, node: NodeState) -> Arguments:
        """Resolves every input to its value or `Listed`, and validates linked knobs. Lazy links
        that were not requested are None.
        """
        declared = node.type.inputs
        unasked = set(node.lazy_links())
        values = dict(node.inputs)
        for name, link in node.links:
            port = declared.get(name)
            if name in unasked:
                values[name] = None
            elif port is not None and port.raw:
                values[name] = [link.node, link.output]
            else:
                values[name] = value = output_of(self._states, link)
                if port is not None and port.knob and port.check is not None:
                    values[name] = joined(
                        [_checked(node.type, name, one) for one in elements(value)]
                    )
        return values

    def _arguments(
        self, node: NodeState, values: Arguments, instance: bool = True
    ) -> list[Arguments]:
        """Returns the arguments of each run: one run for nodes that take lists, else one per
        element.
        """
        kind = node.type
        if kind.takes_lists:
            calls = [{name: list(elements(value)) for name, value in values.items()}]
        else:
            calls = per_element(values) if _any_listed(values) else [values]
        for name, what in kind.hidden.items():
            value = self._hidden.value(what, node)
            for call in calls:
                call[name] = [value] if kind.takes_lists else value
        if kind.instance is not None and instance:
            held = self._cache.instance(node.id, kind)
            for call in calls:
                call[INSTANCE] = held
        return calls


def blocker_in(values: Mapping[Any, Any]) -> ExecutionBlocker | None:
    """Returns the first blocker among the inputs of a run, including elements of whole lists."""
    for value in values.values():
        if type(value) is ExecutionBlocker:
            return value
        if type(value) is list:
            for one in value:
                if type(one) is ExecutionBlocker:
                    return one
    return None


def outputs_of(kind: NodeType, results: Sequence[Any]) -> Outputs:
    """Joins the results of a node's runs to one value, or `Listed`, per output. Raises RunError if
    a result does not match the declared type.
    """
    rows = [expected_outputs(kind, result) for result in results]
    if len(rows) == 1 and not any(kind.gives_lists):
        return rows[0]
    gives = (*kind.gives_lists, *(False for _ in kind.outputs))
    return tuple(
        _column(kind.outputs[number].name, [row[number] for row in rows], gives[number])
        for number in range(len(kind.outputs))
    )


def expected_outputs(kind: NodeType, result: Any) -> Outputs:
    """Returns one value per output, or the blocker for each if the run was blocked. Raises RunError
    for a wrong number of outputs.
    """
    expected = len(kind.outputs)
    if isinstance(result, ExecutionBlocker):
        return (result,) * expected
    if isinstance(result, Expansion):
        result = result.outputs
    if not isinstance(result, tuple) or len(result) != expected:
        came = (
            f"{len(result)} outputs" if isinstance(result, tuple) else f"a {type(result).__name__}"
        )
        raise RunError(f"returned {came}, expected {expected} outputs")
    return result


def ui_of(results: Sequence[Any]) -> dict[str, list[Any]] | None:
    """Joins the UI output of a node's runs by kind."""
    shown: dict[str, list[Any]] | None = None
    for result in results:
        if isinstance(result, WithUi):
            shown = {} if shown is None else shown
            for kind, values in result.ui.items():
                shown.setdefault(kind, []).extend(
                    values if isinstance(values, (list, tuple)) else [values]
                )
    return shown


def is_per_node(kind: NodeType) -> bool:
    """Returns whether equal nodes of this type have separate results."""
    return kind.per_node or UNIQUE_ID in kind.hidden.values()


def _column(name: str, values: Sequence[Any], is_list: bool) -> Any:
    column: list[Any] = []
    for value in values:
        if isinstance(value, Listed):
            column += value.values
        elif is_list and not isinstance(value, ExecutionBlocker):
            if not isinstance(value, (list, tuple)):
                raise RunError(
                    f"returned a {type(value).__name__} for output {name}, expected a list of "
                    "values"
                )
            column += value
        else:
            column.append(value)
    return joined(column)


def _any_listed(values: Mapping[Any, Any]) -> bool:
    return Listed in set(map(type, values.values()))


def _checked(kind: NodeType, name: str, value: Any) -> Any:
    if isinstance(value, ExecutionBlocker):
        return value
    try:
        return check_literal(value, kind.inputs[name])
    except (ValueError, InputError) as error:
        raise InputError(f"input {name}: {error}") from None


Key = TypeVar("Key")
