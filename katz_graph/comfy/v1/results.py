"""Converts the return value of a pack's function to outputs, expansions and ui. Accepts every form
of ComfyUI; errors describe any other value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from katz_graph.comfy.values import from_pack
from katz_graph.core.errors import RunError
from katz_graph.core.graph import Expansion, Graph, Link, NodeCall
from katz_graph.core.messages import show
from katz_graph.files.folders import TEMP
from katz_graph.node import WithUi
from katz_graph.node.scope import ExecutionBlocker
from katz_graph.node.types import ANY, Output

# folder types in ui -> subfolders of the output folder
FOLDERS = {"output": "", "temp": TEMP}
FORMS = ("ui", "result", "expand")


def from_result(
    result: Any, outputs: Sequence[Output], gives_lists: Sequence[bool], is_output: bool
) -> Any:
    """Returns one value per output, or an Expansion; either may be wrapped in WithUi. RunError if
    the result does not match the node's declaration.
    """
    if result is None and outputs and not is_output:
        raise RunError(f"returned nothing, expected {_expected(outputs)}")
    if not isinstance(result, Mapping):
        return _values(result, outputs, gives_lists)
    if not any(form in result for form in FORMS):
        raise RunError(
            f"returned {show(dict(result))} without any of {', '.join(FORMS)}, expected "
            f"{_expected(outputs)}"
        )
    values = result.get("result")
    if result.get("expand") is not None:
        graph, shown = expanded_graph(result["expand"])
        given: Any = Expansion(
            graph, tuple(map(_linked, _values(values, outputs, gives_lists))), shown
        )
    else:
        given = _values(values, outputs, gives_lists)
    ui = result.get("ui")
    if ui is None:
        return given
    if not isinstance(ui, Mapping):
        raise RunError(f"returned {show(ui)} as ui, expected an object of lists")
    return WithUi(given, dict(ui))


def surplus(result: Any, outputs: Sequence[Output]) -> int:
    """Counts a result's values beyond the declared outputs, which no node can read."""
    values = result.get("result") if isinstance(result, Mapping) else result
    return (
        sum(value is not None for value in values[len(outputs) :])
        if isinstance(values, (tuple, list))
        else 0
    )


def written_files(result: Any, output: Path) -> Iterator[Path]:
    """Yields the existing files below the output folder that a node's ui lists."""
    for shown in result.ui.values() if isinstance(result, WithUi) else ():
        for file in shown if isinstance(shown, (list, tuple)) else ():
            if (
                isinstance(file, Mapping)
                and isinstance(file.get("filename"), str)
                and file.get("type") in FOLDERS
            ):
                path = (
                    output
                    / FOLDERS[file["type"]]
                    / str(file.get("subfolder") or "")
                    / file["filename"]
                )
                if path.is_file():
                    yield path


def expanded_graph(nodes: Any) -> tuple[Graph, dict[str, str]]:
    """Reads the graph of a node's expansion, and the display ids of its nodes. RunError for a
    malformed graph.
    """
    if not isinstance(nodes, Mapping):
        raise RunError(f"returned {show(nodes)} as expand, expected an object of nodes")
    calls: dict[str, NodeCall] = {}
    shown: dict[str, str] = {}
    for identifier, node in nodes.items():
        inputs = node.get("inputs", {}) if isinstance(node, Mapping) else None
        if (
            not isinstance(node, Mapping)
            or not isinstance(inputs, Mapping)
            or not isinstance(node.get("class_type"), str)
        ):
            raise RunError(
                f"expands to a graph whose node {identifier} is {show(node)}, expected "
                "class_type and inputs"
            )
        meta = node.get("_meta")
        title = meta.get("title") if isinstance(meta, Mapping) else None
        values = {str(name): _linked(from_pack(value, ANY)) for name, value in inputs.items()}
        calls[str(identifier)] = NodeCall(
            node["class_type"], values, title if isinstance(title, str) else ""
        )
        if isinstance(node.get("override_display_id"), str):
            shown[str(identifier)] = node["override_display_id"]
    return Graph(calls), shown


def _values(result: Any, outputs: Sequence[Output], gives_lists: Sequence[bool]) -> tuple[Any, ...]:
    if isinstance(result, ExecutionBlocker):
        return (result,) * len(outputs)
    if result is None:
        return tuple(
            ExecutionBlocker(f"the linked node returned nothing for its output {output.name}")
            for output in outputs
        )
    if not isinstance(result, (tuple, list)):
        raise RunError(f"returned {show(result)}, expected {_expected(outputs)}")
    if len(result) < len(outputs):
        raise RunError(
            f"returned a {type(result).__name__} of {len(result)}, expected {_expected(outputs)}"
        )
    declared = zip(result, outputs, gives_lists, strict=False)
    return tuple(_value(value, output, is_list) for value, output, is_list in declared)


def _value(value: Any, output: Output, is_list: bool) -> Any:
    if isinstance(value, ExecutionBlocker) or _is_link(value):
        return value
    if is_list and isinstance(value, (list, tuple)):
        return [
            one if isinstance(one, ExecutionBlocker) else from_pack(one, output.socket)
            for one in value
        ]
    return from_pack(value, output.socket)


def _expected(outputs: Sequence[Output]) -> str:
    names = ", ".join(output.name for output in outputs)
    return (
        f"a tuple of {len(outputs)} ({names})"
        if outputs
        else "a tuple of 0, a dict with ui, or nothing"
    )


def _is_link(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and type(value[1]) in (int, float)
    )


def _linked(value: Any) -> Any:
    return Link(value[0], int(value[1])) if _is_link(value) else value
