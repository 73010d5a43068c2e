"""Converts INPUT_TYPES of a ComfyUI V1 node to inputs. Must not know how the node runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.messages import show
from katz_graph.node import Widget
from katz_graph.node.literals import PLAIN
from katz_graph.node.types import ANY, FILLED_IN, Input

NO_TYPE = "\0"  # never the name of a type or input
WIDGETS = (*PLAIN, "COMBO", "COLOR")
WIRES = frozenset(
    (
        *(
            "MODEL",
            "CLIP",
            "VAE",
            "CONDITIONING",
            "LATENT",
            "IMAGE",
            "MASK",
            "CONTROL_NET",
            "CLIP_VISION",
            "CLIP_VISION_OUTPUT",
        ),
        *(
            "STYLE_MODEL",
            "UPSCALE_MODEL",
            "GLIGEN",
            "SAMPLER",
            "SIGMAS",
            "GUIDER",
            "NOISE",
            "AUDIO",
            "VIDEO",
        ),
    )
)
"""Types that only links carry. Types of packs may have widgets, so their literals are accepted
unchanged.
"""
UPLOADS = ("image_upload", "video_upload", "audio_upload", "animated_image_upload")
SECONDS = 1.0  # for which a result of INPUT_TYPES stays valid


class Declared:
    """The groups of INPUT_TYPES of one class. Choices may be files, so a missing choice calls
    INPUT_TYPES again.
    """

    def __init__(self, input_types: Callable[[], Any]) -> None:
        self._input_types = input_types
        self._groups = _groups(input_types())
        self._asked = time.monotonic()

    def inputs(self) -> dict[str, Input]:
        """Returns required and optional inputs by name. InputError for a malformed input."""
        return {
            name: self._input(name, declared, group == "required")
            for group in ("required", "optional")
            for name, declared in self._groups.get(group, {}).items()
        }

    def hidden(self) -> dict[str, str]:
        """Maps hidden arguments to the values that the run supplies."""
        found = (
            (name, _hidden_kind(declared))
            for name, declared in self._groups.get("hidden", {}).items()
        )
        return {name: kind for name, kind in found if kind in FILLED_IN}

    def unlisted(self) -> dict[str, Any]:
        """Returns hidden inputs of other types, as the pack declared them. They receive a value
        only from a graph that contains one, such as an expansion.
        """
        return {
            name: declared
            for name, declared in self._groups.get("hidden", {}).items()
            if _hidden_kind(declared) not in FILLED_IN
        }

    def takes_any_name(self) -> bool:
        """Returns whether the groups claim to contain every name, which packs use to accept any
        number of inputs.
        """
        return any(NO_TYPE in self._groups.get(group, {}) for group in ("required", "optional"))

    def _input(self, name: str, declared: Any, required: bool) -> Input:
        kind, options = _parts(name, declared)
        choices = _choices(kind, options)
        socket = socket_of(kind)
        widget = (
            options.get("widgetType") is not None
            or bool(options.get("socketless"))
            or socket in WIDGETS
        )
        several = bool(options.get("multi_select") or options.get("multiselect"))
        default = options.get("default")
        return Input(
            name=name,
            socket=socket,
            required=required,
            knob=widget and not options.get("forceInput"),
            default=([] if several else choices[0]) if default is None and choices else default,
            minimum=_bound(options.get("min")),
            maximum=_bound(options.get("max")),
            choices=None if several else choices,
            lazy=bool(options.get("lazy")),
            help=str(options.get("tooltip") or ""),
            widget=Widget(
                step=_bound(options.get("step")),
                multiline=bool(options.get("multiline")),
                control_after_generate=bool(options.get("control_after_generate")),
                upload=any(options.get(upload) for upload in UPLOADS),
            ),
            check=_literal_check(socket),
            refresh=None if choices is None or several else lambda: self._refreshed(name),
            raw=bool(options.get("rawLink")),
            options=options | {"options": list(choices)}
            if several and choices is not None
            else options,
        )

    def _refreshed(self, name: str) -> tuple[Any, ...]:
        if time.monotonic() - self._asked > SECONDS:
            self._groups, self._asked = _groups(self._input_types()), time.monotonic()
        for group in ("required", "optional"):
            declared = self._groups.get(group, {})
            if name in declared.keys():  # noqa: SIM118  some groups claim to contain every name
                return _choices(*_parts(name, declared[name])) or ()
        return ()


def socket_of(kind: Any) -> str:
    """Returns the name of a type, `A,B` for a union. A list is a COMBO; a type that is never `!=`
    another accepts everything.
    """
    if isinstance(kind, (list, tuple)):
        return "COMBO"
    differs = kind != NO_TYPE
    return (
        ",".join(name.strip() for name in _text(kind).split(","))
        if isinstance(kind, str) and differs
        else ANY
    )


def _hidden_kind(declared: Any) -> str:
    return _text(declared[0] if isinstance(declared, (tuple, list)) and declared else declared)


def _groups(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise InputError(
            f"INPUT_TYPES returned {show(found)}, expected an object with required, optional and "
            "hidden"
        )
    return {name: group for name, group in found.items() if isinstance(group, Mapping)}


def _parts(name: str, declared: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(declared, str):
        return declared, {}
    if not isinstance(declared, (tuple, list)) or not declared:
        raise InputError(f"INPUT_TYPES: {name} is {show(declared)}, expected (TYPE, options)")
    options = declared[1] if len(declared) > 1 else None
    return declared[0], dict(options) if isinstance(options, Mapping) else {}


def _choices(kind: Any, options: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Returns the choices; None if the input has none, or if only a client can fetch them."""
    if isinstance(kind, (list, tuple)):
        return tuple(kind)
    listed = options.get("options")
    return (
        tuple(listed)
        if socket_of(kind) == "COMBO"
        and isinstance(listed, Iterable)
        and not isinstance(listed, str)
        else None
    )


def _literal_check(socket: str) -> Callable[[Any], Any] | None:
    """Returns the check of literals: None for known types. Literals of unknown types and unions
    pass unchanged, as in ComfyUI.
    """
    if socket in (*WIDGETS, ANY) or all(name in WIRES for name in socket.split(",")):
        return None
    return lambda value: value


def _bound(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _text(name: Any) -> str:
    return (
        str(name.value)
        if isinstance(name, Enum)
        else str.__str__(name)
        if isinstance(name, str)
        else str(name)
    )
