"""Describes node types as a server does to clients and editors (`/object_info`), and reads such a
description, from a file or a URL, as signatures. Must not know the server.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from enum import Enum
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from katz_graph.errors import InputError
from katz_graph.files.folders import Folders
from katz_graph.formats.signature import Port, Signature, WidgetSlot, is_seed, start
from katz_graph.formats.strict_json import parse_json
from katz_graph.messages import one_line, show
from katz_graph.node import Input, NodeType
from katz_graph.packs import BUILTIN

DEEPEST = 20  # levels of what a pack says of an input
FLAGS = ("deprecated", "experimental", "dev_only", "api_node")
NOTHING = object()  # what has no place in JSON
LIMIT = 256 * 2**20  # bytes; the core's own nodes are 1.6 MB
TIMEOUT = 30.0  # seconds
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COLOR")
DYNAMIC = "COMFY_DYNAMICCOMBO_V3"
UPLOADS = ("image_upload", "video_upload", "audio_upload", "animated_image_upload")
DEPTH = 8  # dynamic choices inside each other


def object_info_json(types: Mapping[str, NodeType], folders: Folders | None = None) -> bytes:
    """Writes the whole description as UTF-8. Equal node types and files give equal bytes."""
    text = json.dumps(object_info(types.values(), folders), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def object_info(kinds: Iterable[NodeType], folders: Folders | None = None) -> dict[str, Any]:
    """Describes each type under its name. Choices of files are those in `folders` now; none without
    it.
    """
    return {kind.name: node_info(kind, folders) for kind in kinds}


def node_info(kind: NodeType, folders: Folders | None = None) -> dict[str, Any]:
    """Describes one type: its inputs by group, its outputs, and its other properties."""
    groups: dict[str, dict[str, Any]] = {"required": {}}
    for name, port in kind.inputs.items():
        groups.setdefault("required" if _counts_as_required(kind, port) else "optional", {})[name] = input_config(port, folders)
    if kind.hidden or kind.unlisted:
        groups["hidden"] = {_hidden_name(name, what): what for name, what in kind.hidden.items()} | plain(kind.unlisted)
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
        **({"output_tooltips": _texts(said["output_tooltips"])} if said.get("output_tooltips") else {}),
        **({"essentials_category": said["essentials_category"]} if said.get("essentials_category") else {}),
        **{flag: True for flag in FLAGS if said.get(flag)},
    }


def input_config(port: Input, folders: Folders | None = None) -> list[Any]:
    """Builds `[TYPE or choices, options]` from a pack's declaration or a native node's types."""
    options = plain(port.options) if port.options else _native_options(port)
    choices = _choices(port, folders)
    if choices is None:
        return [port.socket, options]
    if "options" in options:
        return [port.socket, options | {"options": choices}]
    return [choices, options]


def plain(value: Any, depth: int = 0) -> Any:
    """Returns the part of a value that JSON can hold: `NOTHING` for functions, tensors, infinities;
    in lists and objects they are left out.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if isinstance(value, str):
        return str.__str__(value)  # packs compare types by subclasses of str that are equal to everything
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


def _counts_as_required(kind: NodeType, port: Input) -> bool:
    """Decides whether an input is required. In ComfyUI a widget with a default still is: an editor
    always sends it. Packs have said it themselves.
    """
    native = kind.instance is None
    return port.required or (native and port.knob and port.default is not None)


def _native_options(port: Input) -> dict[str, Any]:
    widget = port.widget
    said = {
        "default": plain(port.default) if port.knob and port.default is not None else NOTHING,
        "min": NOTHING if port.minimum is None else port.minimum,
        "max": NOTHING if port.maximum is None else port.maximum,
        "step": NOTHING if widget.step is None else int(widget.step) if port.socket == "INT" else widget.step,
        "tooltip": port.help or NOTHING,
        "multiline": widget.multiline or NOTHING,
        "dynamicPrompts": widget.dynamic_prompts or NOTHING,
        "control_after_generate": widget.control_after_generate or (port.knob and is_seed(port.name, port.socket)) or NOTHING,
        "image_upload": widget.upload or NOTHING,
        "lazy": port.lazy or NOTHING,
        "forceInput": (not port.knob and port.socket in ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")) or NOTHING,
    }
    return {name: value for name, value in said.items() if value is not NOTHING}


def _choices(port: Input, folders: Folders | None) -> list[Any] | None:
    """Returns the current choices; None where there are none to choose from, or where only a client
    can ask for them.
    """
    if port.folder is not None:
        return list(folders.choices(port.folder)) if folders is not None else []
    if port.refresh is not None:
        try:
            return list(plain(port.refresh()))
        except (Exception, SystemExit):  # a pack's own code, which looks at files
            pass
    return None if port.choices is None else list(plain(port.choices))


def _hidden_name(name: str, what: str) -> str:
    """Returns the name of a hidden value. V3 nodes name them by what they are; their adapter puts
    `hidden_` before that.
    """
    return name.removeprefix("hidden_") if name == f"hidden_{what.lower()}" else name


def _texts(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def read_object_info(source: str) -> dict[str, Signature]:
    """Reads the signatures in a file, or of a server at an http(s) URL (its root, or /object_info).
    InputError when it cannot be had.
    """
    try:
        data = _fetched(source) if urlsplit(source).scheme in ("http", "https") else _loaded(Path(source))
        if len(data) > LIMIT:
            raise InputError(f"is larger than {LIMIT // 2**20} MB")
        return from_object_info(parse_json(data.decode("utf-8-sig")))
    except InputError as error:
        problem = str(error)
    except UnicodeDecodeError:
        problem = "is not UTF-8 text, expected the JSON that a server gives at /object_info"
    except (OSError, ValueError, HTTPException) as error:  # urllib's errors are OSErrors; a malformed URL is a ValueError
        reason = error.reason if isinstance(error, URLError) else getattr(error, "strerror", None) or error
        problem = one_line(str(reason))
    raise InputError(f"--object-info {one_line(source)}: {problem}")


def from_object_info(document: Any) -> dict[str, Signature]:
    """Reads the signatures in a parsed description. InputError names the malformed node type."""
    if not isinstance(document, Mapping):
        raise InputError(f"is {show(document)}, expected an object of node types, as a server gives it at /object_info")
    return {str(name): _signature(str(name), described) for name, described in document.items()}


def _loaded(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(LIMIT + 1)


def _fetched(url: str) -> bytes:
    address = url if urlsplit(url).path not in ("", "/") else f"{url.rstrip('/')}/object_info"
    with urlopen(address, timeout=TIMEOUT) as answer:
        data: bytes = answer.read(LIMIT + 1)
        return data


def _signature(name: str, described: Any) -> Signature:
    if not isinstance(described, Mapping) or not isinstance(described.get("input", {}), Mapping):
        raise InputError(f'node type {show(name)} is {show(described)}, expected an object with "input" and "output"')
    wires: list[Port] = []
    widgets: list[WidgetSlot] = []
    for port, declared in _declared(described.get("input", {}), described.get("input_order")):
        found = _port(port, declared)
        if isinstance(found, WidgetSlot):
            widgets.append(found)
        else:
            wires.append(found)
    sockets = _list(described.get("output"))
    names = _list(described.get("output_name"))
    outputs = [Port(str(names[number]) if number < len(names) else _socket(kind), _socket(kind)) for number, kind in enumerate(sockets)]
    title = described.get("display_name")
    return Signature(tuple(wires), tuple(widgets), tuple(outputs), title if isinstance(title, str) else "")


def _declared(groups: Any, order: Any = None) -> list[tuple[str, Any]]:
    """Returns the inputs, required ones first, in the server's order where it states one."""
    declared: list[tuple[str, Any]] = []
    for group in ("required", "optional"):
        inputs = groups.get(group) if isinstance(groups, Mapping) else None
        if isinstance(inputs, Mapping):
            stated = _list(order.get(group)) if isinstance(order, Mapping) else []
            first = [name for name in stated if isinstance(name, str) and name in inputs]
            declared += [(name, inputs[name]) for name in dict.fromkeys([*first, *inputs])]
    return declared


def _port(name: str, declared: Any, depth: int = 0) -> Port | WidgetSlot:
    parts = _list(declared)
    kind = parts[0] if parts else declared
    options = parts[1] if len(parts) > 1 and isinstance(parts[1], Mapping) else {}
    socket = _socket(kind)
    first = socket if options.get("widgetType") is None else str(options["widgetType"])
    is_widget = first in (*WIDGETS, DYNAMIC) or options.get("widgetType") is not None or bool(options.get("socketless"))
    if not is_widget or options.get("forceInput"):
        return Port(name, socket)
    choices = kind if isinstance(kind, list) else _list(options.get("options"))
    further = _further(name, choices, depth) if socket == DYNAMIC and depth < DEPTH else {}
    plain = list(further) if further else [choice for choice in choices if isinstance(choice, (str, int, float))]
    several = bool(options.get("multi_select") or options.get("multiselect"))
    return WidgetSlot(
        name,
        "COMBO" if socket == DYNAMIC else socket,
        start(first, options.get("default"), plain, several),
        control=bool(options.get("control_after_generate")) or is_seed(name, socket),
        upload=any(options.get(upload) for upload in UPLOADS),
        multiline=bool(options.get("multiline")),
        options=further,
    )


def _further(name: str, choices: list[Any], depth: int) -> dict[str, tuple[WidgetSlot, ...]]:
    """Returns a dynamic choice's widgets by its value; they are named `choice.widget`."""
    brought: dict[str, tuple[WidgetSlot, ...]] = {}
    for choice in choices:
        if isinstance(choice, Mapping) and isinstance(choice.get("key"), str):
            ports = [_port(f"{name}.{inner}", declared, depth + 1) for inner, declared in _declared(choice.get("inputs"))]
            brought[choice["key"]] = tuple(port for port in ports if isinstance(port, WidgetSlot))
    return brought


def _socket(kind: Any) -> str:
    return kind if isinstance(kind, str) else "COMBO" if isinstance(kind, list) else "*"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
