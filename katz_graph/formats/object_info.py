"""Reads a server's description of its node types (`/object_info`) from a file or a URL, as
signatures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from katz_graph.core.errors import InputError
from katz_graph.core.messages import one_line, show
from katz_graph.formats.signature import (
    DYNAMIC,
    GROWING,
    WIDGETS,
    Port,
    Signature,
    WidgetSlot,
    followers,
    is_seed,
    start,
)
from katz_graph.formats.strict_json import parse_json

LIMIT = 256 * 2**20  # bytes; ComfyUI's own nodes take 1.6 MB
TIMEOUT = 30.0  # seconds
UPLOADS = ("image_upload", "video_upload", "audio_upload", "animated_image_upload")
DEPTH = 8  # nested dynamic choices
MAX_GROUP_WIRES = 100  # inputs of a growing group


def read_object_info(source: str) -> dict[str, Signature]:
    """Reads signatures from a file, or from a server at an HTTP or HTTPS URL (its root, or
    /object_info). InputError if they cannot be read.
    """
    try:
        data = (
            _fetched(source)
            if urlsplit(source).scheme in ("http", "https")
            else _loaded(Path(source))
        )
        if len(data) > LIMIT:
            raise InputError(f"is larger than {LIMIT // 2**20} MB")
        return from_object_info(parse_json(data.decode("utf-8-sig")))
    except InputError as error:
        problem = str(error)
    except UnicodeDecodeError:
        problem = "is not UTF-8 text, expected the JSON of a server's /object_info"
    # urllib's errors are OSErrors; a malformed URL is a ValueError
    except (OSError, ValueError, HTTPException) as error:
        reason = (
            error.reason
            if isinstance(error, URLError)
            else getattr(error, "strerror", None) or error
        )
        problem = one_line(str(reason))
    raise InputError(f"--object-info {one_line(source)}: {problem}")


def from_object_info(document: Any) -> dict[str, Signature]:
    """Reads signatures from a parsed description. InputError names the malformed node type."""
    if not isinstance(document, Mapping):
        raise InputError(
            f"is {show(document)}, expected an object of node types, as from a server's "
            "/object_info"
        )
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
        raise InputError(
            f'node type {show(name)} is {show(described)}, expected an object with "input" '
            'and "output"'
        )
    wires: list[Port] = []
    widgets: list[WidgetSlot] = []
    for port, declared in _declared(described.get("input", {}), described.get("input_order")):
        found = _port(port, declared)
        if isinstance(found, WidgetSlot):
            widgets.append(found)
            wires += dict.fromkeys(_further_wires(port, declared))
        else:
            wires += _wires(found, declared)
    sockets = _list(described.get("output"))
    names = _list(described.get("output_name"))
    outputs = [
        Port(str(names[number]) if number < len(names) else _socket(kind), _socket(kind))
        for number, kind in enumerate(sockets)
    ]
    title = described.get("display_name")
    return Signature(
        tuple(wires), tuple(widgets), tuple(outputs), title if isinstance(title, str) else ""
    )


def _declared(groups: Any, order: Any = None) -> list[tuple[str, Any]]:
    """Returns the required inputs, then the optional ones, each in the server's order if stated."""
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
    is_widget = (
        first in WIDGETS or options.get("widgetType") is not None or bool(options.get("socketless"))
    )
    if not is_widget or options.get("forceInput"):
        return Port(name, socket)
    choices = kind if isinstance(kind, list) else _list(options.get("options"))
    further = _further(name, choices, depth) if socket == DYNAMIC and depth < DEPTH else {}
    plain = (
        list(further)
        if further
        else [choice for choice in choices if isinstance(choice, (str, int, float))]
    )
    several = bool(options.get("multi_select") or options.get("multiselect"))
    return WidgetSlot(
        name,
        "COMBO" if socket == DYNAMIC else socket,
        start(first, options.get("default"), plain, several),
        control=bool(options.get("control_after_generate")) or is_seed(name, socket),
        upload=any(options.get(upload) for upload in UPLOADS),
        multiline=bool(options.get("multiline")),
        dynamic_prompts=bool(options.get("dynamicPrompts")),
        options=further,
        followers=followers(options),
    )


def _further(name: str, choices: list[Any], depth: int) -> dict[str, tuple[WidgetSlot, ...]]:
    """Maps each value of a dynamic choice to the widgets that it adds, named `choice.widget`."""
    brought: dict[str, tuple[WidgetSlot, ...]] = dict.fromkeys(_values(choices), ())
    for value, inner, declared in _brought(name, choices):
        port = _port(inner, declared, depth + 1)
        if isinstance(port, WidgetSlot):
            brought[value] = (*brought[value], port)
    return brought


def _further_wires(name: str, declared: Any, depth: int = 0) -> Iterator[Port]:
    """Yields the inputs without widgets that a dynamic choice adds."""
    kind, *rest = _list(declared) or [None]
    options = rest[0] if rest and isinstance(rest[0], Mapping) else {}
    if kind == DYNAMIC and depth < DEPTH:
        for _, inner, further in _brought(name, _list(options.get("options"))):
            port = _port(inner, further, depth + 1)
            if isinstance(port, Port):
                yield from _wires(port, further)
            else:
                yield from _further_wires(inner, further, depth + 1)


def _wires(port: Port, declared: Any) -> list[Port]:
    """Returns the input; for a growing group, all inputs that it may have."""
    if port.socket != GROWING:
        return [port]
    options = _list(declared)[1:]
    template = options[0].get("template") if options and isinstance(options[0], Mapping) else None
    if not isinstance(template, Mapping):
        return [port]
    names = _list(template.get("names"))
    most = template.get("max")
    if "prefix" in template and isinstance(most, int):
        names = [f"{template['prefix']}{number}" for number in range(min(most, MAX_GROUP_WIRES))]
    kinds = [kind for _, kind in _declared(template.get("input"))]
    one = _port(port.name, kinds[0] if kinds else "*")
    return [Port(f"{port.name}.{name}", one.socket, port.name) for name in names[:MAX_GROUP_WIRES]]


def _brought(name: str, choices: list[Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields the inputs that the values of a dynamic choice add, as (value, name, declaration)."""
    for value, choice in _values(choices).items():
        for inner, declared in _declared(choice.get("inputs")):
            yield value, f"{name}.{inner}", declared


def _values(choices: list[Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the values of a dynamic choice, each with its description."""
    found = (choice for choice in choices if isinstance(choice, Mapping))
    return {choice["key"]: choice for choice in found if isinstance(choice.get("key"), str)}


def _socket(kind: Any) -> str:
    return kind if isinstance(kind, str) else "COMBO" if isinstance(kind, list) else "*"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
