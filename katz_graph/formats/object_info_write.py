"""Describes node types for clients and editors, in the format of a server's `/object_info`, which
`object_info` reads. Must not know HTTP.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from katz_graph.files.folders import Folders
from katz_graph.formats.signature import DYNAMIC, GROWING, is_seed
from katz_graph.node.types import BUILTIN, Input, NodeType

DEEPEST = 20  # nesting levels of a pack's input options
FLAGS = ("deprecated", "experimental", "dev_only", "api_node")
NOTHING = object()  # marks a value that JSON cannot represent


def object_info_json(types: Mapping[str, NodeType], folders: Folders | None = None) -> bytes:
    """Encodes the descriptions as UTF-8 JSON. Equal node types and files produce equal bytes."""
    text = json.dumps(
        object_info(types.values(), folders),
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    return text.encode("utf-8", "replace")


def object_info(kinds: Iterable[NodeType], folders: Folders | None = None) -> dict[str, Any]:
    """Describes each type under its name. File choices are the current files in `folders`; empty
    without `folders`.
    """
    return {kind.name: node_info(kind, folders) for kind in kinds}


def node_info(kind: NodeType, folders: Folders | None = None) -> dict[str, Any]:
    """Describes one type: its inputs by group, its outputs, and its other properties."""
    own = [port for port in kind.inputs.values() if port.shown_for is None]
    groups = _groups(kind, own, folders)
    if kind.hidden or kind.unlisted:
        groups["hidden"] = {
            _hidden_name(name, what): what for name, what in kind.hidden.items()
        } | plain(kind.unlisted)
    said = {name: plain(value) for name, value in kind.about.items()}
    return {
        "input": groups,
        "input_order": {group: list(inputs) for group, inputs in groups.items()},
        "is_input_list": kind.takes_lists,
        "output": [output.socket for output in kind.outputs],
        "output_is_list": list(kind.gives_lists or (False,) * len(kind.outputs)),
        "output_name": [output.name for output in kind.outputs],
        "name": kind.name,
        "display_name": kind.display_name,
        "description": kind.description,
        "python_module": "nodes" if kind.pack in ("", BUILTIN) else f"custom_nodes.{kind.pack}",
        "category": kind.category,
        "output_node": kind.is_output,
        "has_intermediate_output": bool(said.get("has_intermediate_output")),
        "search_aliases": _texts(said.get("search_aliases")),
        **(
            {"output_tooltips": _texts(said["output_tooltips"])}
            if said.get("output_tooltips")
            else {}
        ),
        **(
            {"essentials_category": said["essentials_category"]}
            if said.get("essentials_category")
            else {}
        ),
        **{flag: True for flag in FLAGS if said.get(flag)},
    }


def _groups(
    kind: NodeType, ports: Iterable[Input], folders: Folders | None
) -> dict[str, dict[str, Any]]:
    """Describes inputs in the groups `required` and `optional`; a growing group is a single
    input.
    """
    groups: dict[str, dict[str, Any]] = {"required": {}}
    ports = list(ports)
    for port in ports:
        required = "required" if kind.is_always_sent(port) else "optional"
        if port.grows is None:
            groups.setdefault(required, {})[port.own_name] = _config(kind, port, folders)
        else:
            within = f"{port.shown_for.knob}." if port.shown_for else ""
            name = port.grows.group.removeprefix(within)
            if not any(name in described for described in groups.values()):
                group = [one for one in ports if one.grows == port.grows]
                groups.setdefault(required, {})[name] = _growing(group, folders)
    return groups


def _config(kind: NodeType, port: Input, folders: Folders | None) -> list[Any]:
    """Builds the `input_config` of an input. If choices add inputs, returns ComfyUI's dynamic
    choice, with the inputs of each choice.
    """
    config = input_config(port, folders)
    if not kind.brought_by(port.name):
        return config
    options = [
        {"key": choice, "inputs": _groups(kind, kind.brought_by(port.name, choice), folders)}
        for choice in port.choices or ()
    ]
    return [DYNAMIC, config[1] | {"options": options}]


def _growing(group: Sequence[Input], folders: Folders | None) -> list[Any]:
    """Describes a growing group as ComfyUI's Autogrow."""
    first, names = group[0], [one.own_name for one in group]
    grows = first.grows
    assert grows is not None
    required = "required" if first.required else "optional"
    template: dict[str, Any] = {
        "input": {required: {names[0]: input_config(first, folders)}},
        "min": grows.least,
    }
    numbered = {"prefix": grows.prefix, "max": len(names)}
    return [GROWING, {"template": template | (numbered if grows.prefix else {"names": names})}]


def input_config(port: Input, folders: Folders | None = None) -> list[Any]:
    """Builds `[TYPE or choices, options]` from a pack's declaration or a native input."""
    options = plain(port.options) if port.options else _native_options(port)
    choices = _choices(port, folders)
    if choices is None:
        return [port.socket, options]
    if "options" in options:
        return [port.socket, options | {"options": choices}]
    return [choices, options]


def plain(value: Any, depth: int = 0) -> Any:
    """Converts a value to JSON data. Returns `NOTHING` for functions, tensors and infinities; omits
    them in lists and objects.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if isinstance(value, str):
        # packs compare types by subclasses of str that are equal to everything
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else NOTHING
    if depth < DEEPEST and isinstance(value, Mapping):
        inner = ((str(key), plain(one, depth + 1)) for key, one in value.items())
        return {key: one for key, one in inner if one is not NOTHING}
    if depth < DEEPEST and isinstance(value, (list, tuple)):
        return [one for one in (plain(one, depth + 1) for one in value) if one is not NOTHING]
    return NOTHING


def _native_options(port: Input) -> dict[str, Any]:
    widget = port.widget
    said = {
        "default": plain(port.default) if port.knob and port.default is not None else NOTHING,
        "min": NOTHING if port.minimum is None else port.minimum,
        "max": NOTHING if port.maximum is None else port.maximum,
        "step": NOTHING
        if widget.step is None
        else int(widget.step)
        if port.socket == "INT"
        else widget.step,
        "round": NOTHING if widget.round is None else widget.round,
        "tooltip": port.help or NOTHING,
        "multiline": widget.multiline or NOTHING,
        "dynamicPrompts": widget.dynamic_prompts or NOTHING,
        "control_after_generate": widget.control_after_generate
        or (port.knob and is_seed(port.name, port.socket))
        or NOTHING,
        "image_upload": widget.upload or NOTHING,
        "display": "color" if widget.colour else NOTHING,
        "lazy": port.lazy or NOTHING,
        "forceInput": (
            not port.knob and port.socket in ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
        )
        or NOTHING,
    }
    return {name: value for name, value in said.items() if value is not NOTHING}


def _choices(port: Input, folders: Folders | None) -> list[Any] | None:
    """Returns the current choices; None if the input has none, or if only a client can fetch
    them.
    """
    if port.folder is not None:
        return list(folders.choices(port.folder)) if folders is not None else []
    if port.refresh is not None:
        try:
            return list(plain(port.refresh()))
        except (Exception, SystemExit):  # a pack's own code, which reads files
            pass
    return None if port.choices is None else list(plain(port.choices))


def _hidden_name(name: str, what: str) -> str:
    """Returns the name of a hidden value, without the prefix `hidden_` that the V3 adapter adds."""
    return name.removeprefix("hidden_") if name == f"hidden_{what.lower()}" else name


def _texts(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []
