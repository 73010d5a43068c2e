"""Calls nodes inside a step region: as in a graph, but with one value per input and without UI
output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.core.errors import Cancelled, InputError, RunError
from katz_graph.core.graph import Expansion
from katz_graph.executor.graph.calls import expected_outputs
from katz_graph.executor.graph.hidden_inputs import DYNPROMPT, EXTRA_PNGINFO, PROMPT, UNIQUE_ID
from katz_graph.host.run_sync import settled
from katz_graph.ir.region import Operation
from katz_graph.node import WithUi
from katz_graph.node.scope import ExecutionBlocker, acting_as
from katz_graph.node.types import INSTANCE, Context, NodeType


class RegionCalls:
    """Calls the nodes of one request on one device. A node's instance object lives as long as the
    request.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._objects: dict[str, Any] = {}

    def call(self, operation: Operation, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Calls a node and returns one value per output. Errors name the node."""
        name = f"node {operation.id} ({operation.type})"
        try:
            return self._called(operation, inputs)
        except Cancelled:
            raise
        except (InputError, RunError) as error:
            raise type(error)(f"{name}: {error}") from error
        except Exception as error:
            raise RunError(f"{name}: {type(error).__name__}: {error}") from error

    def _called(self, operation: Operation, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        kind = self._context.types[operation.type]
        # progress and UI belong to the sampler, the node visible to users
        with acting_as(kind.pack):
            result = settled(kind.run(self._context, self._arguments(operation, kind, inputs)))
        if isinstance(result, WithUi):
            result = result.result
        if isinstance(result, Expansion):  # the program is already compiled
            raise InputError("expands to a graph, impossible inside a step region")
        outputs = expected_outputs(kind, result)
        if any(isinstance(value, ExecutionBlocker) for value in outputs):
            raise InputError(
                "blocks its readers, impossible inside a step region; use StepPattern or Switch"
            )
        gives = (*kind.gives_lists, *(False for _ in outputs))
        return tuple(
            _only(value) if is_list else value
            for value, is_list in zip(outputs, gives, strict=False)
        )

    def _arguments(
        self, operation: Operation, kind: NodeType, inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        if wanted := [
            what for what in kind.hidden.values() if what in (PROMPT, DYNPROMPT, EXTRA_PNGINFO)
        ]:
            raise InputError(
                f"needs the hidden input {wanted[0]}, which is not available inside a step region"
            )
        hidden = {
            name: operation.id if what == UNIQUE_ID else None for name, what in kind.hidden.items()
        }
        values = {**inputs, **hidden}
        if kind.takes_lists:
            values = {name: [value] for name, value in values.items()}
        if kind.instance is not None:
            if operation.id not in self._objects:
                self._objects[operation.id] = kind.instance()
            values[INSTANCE] = self._objects[operation.id]
        return values


def _only(values: Any) -> Any:
    if not isinstance(values, (list, tuple)) or len(values) != 1:
        raise InputError(
            "returns a list without exactly one value, impossible inside a step region"
        )
    return values[0]
