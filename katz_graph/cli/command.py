"""Builds commands from functions whose parameters are dataclasses of options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from katz_graph.options import Option

Function = Callable[..., Any]


def command(app: typer.Typer) -> Callable[[Function], Function]:
    """Add a function to `app`. A parameter that is a dataclass stands for its fields.

    Fields without an `Option` or an argument of typer's keep their default.
    """

    def add(function: Function) -> Function:
        def run(**said: Any) -> None:
            _call(function, said)

        run.__signature__ = inspect.Signature([*_options(function)])  # type: ignore[attr-defined]
        app.command(function.__name__, help=function.__doc__)(run)
        return function

    return add


def _parameters(function: Function) -> Iterator[inspect.Parameter]:
    """Those of a function, or the fields of a dataclass, with annotations evaluated."""
    annotations = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        annotation = annotations[parameter.name]
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _options(function: Function) -> Iterator[inspect.Parameter]:
    """The parameters of all dataclasses in a row, in typer's terms."""
    for parameter in _parameters(function):
        annotation = parameter.annotation
        if isinstance(annotation, type) and is_dataclass(annotation):
            yield from _options(annotation)
        elif get_origin(annotation) is Annotated:
            yield _for_typer(parameter)


def _for_typer(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, option = get_args(parameter.annotation)
    if not isinstance(option, Option):
        return parameter
    default, flags = parameter.default, option.flags.split()
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], None  # type: ignore[misc]
    elif get_origin(kind) is Literal:
        kind = str
    elif option.unit is not None:
        kind, default = float, None if default is None else f"{default / option.unit:g}"
    elif default is False and not flags:
        flags = ["--" + parameter.name.replace("_", "-")]  # and none that begins with --no-
    info = typer.Option(
        *flags,
        help=option.help,
        metavar=option.metavar,
        min=option.min if option.unit is None else 0,
        max=option.max,
        envvar=option.envvar,
        exists=option.folder,
        file_okay=not option.folder,
    )
    return parameter.replace(default=default, annotation=Annotated[kind, info])


def _call(function: Function, said: Mapping[str, Any]) -> Any:
    """Call a function or make a dataclass with what the command line gave for its parameters."""
    given = {}
    for parameter in _parameters(function):
        name, annotation = parameter.name, parameter.annotation
        if isinstance(annotation, type) and is_dataclass(annotation):
            given[name] = _call(annotation, said)
        elif name in said:
            given[name] = _value(annotation, said[name])
    return function(**given)


def _value(annotation: Any, said: Any) -> Any:
    """What typer parsed, as the annotation has it."""
    kind, option = get_args(annotation)
    if get_origin(kind) is tuple:
        values = tuple(said or ())
        if not option.commas:
            return values
        return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
    if said is None or not isinstance(option, Option) or option.unit is None:
        return said
    return int(min(said * option.unit, sys.maxsize))  # as many as can be said for infinity
