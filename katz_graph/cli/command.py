"""Builds typer commands from functions with dataclass parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

Function = Callable[..., None]


def command(
    app: typer.Typer, without: Collection[str] = (), named: str | None = None
) -> Callable[[Function], Function]:
    """Returns a decorator that adds a function to `app` as a command, by default of its name. A
    dataclass parameter is replaced by one option per field, except those in `without`. Other
    parameters follow typer's rules.
    """

    def add(function: Function) -> Function:
        kinds = get_type_hints(function, include_extras=True)

        def run(**said: Any) -> None:
            given = {name: value for name, value in said.items() if name in kinds}
            groups = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
            function(**given, **{name: _filled(kind, said) for name, kind in groups.items()})

        options: list[Parameter] = []
        for name, parameter in signature(function).parameters.items():
            if is_dataclass(kinds[name]):
                options += _options(kinds[name])
            else:
                kind = Parameter.KEYWORD_ONLY
                options.append(parameter.replace(kind=kind, annotation=kinds[name]))
        if unknown := set(without) - {option.name for option in options}:
            raise TypeError(f"{function.__name__} has no options {unknown} to leave out")
        remaining = [option for option in options if option.name not in without]
        run.__signature__ = Signature(remaining)  # type: ignore[attr-defined]
        app.command(named or function.__name__, help=function.__doc__)(run)
        return function

    return add


def _options(group: type) -> Iterator[Parameter]:
    """Yields the typer options of a dataclass, and of the dataclasses nested in it."""
    kinds = get_type_hints(group)
    for field in fields(group):
        if is_dataclass(kinds[field.name]):
            yield from _options(kinds[field.name])
        elif field.metadata:
            yield _option(field, kinds[field.name])


def _option(field: Field[Any], kind: Any) -> Parameter:
    details, default = dict(field.metadata), field.default
    flags, unit = details.pop("flags").split(), details.pop("unit", None)
    details.pop("commas", None)
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], None  # type: ignore[misc]
    elif get_origin(kind) is Literal:
        kind = str
    elif unit is not None:
        kind, default = float, None if default is None else f"{default / unit:g}"
    elif default is False and not flags:
        flags = ["--" + field.name.replace("_", "-")]  # a plain flag, without its --no- counterpart
    annotation = Annotated[kind, typer.Option(*flags, **details)]
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _filled(group: Any, said: Mapping[str, Any]) -> Any:
    """Builds a dataclass from the command line's values."""
    kinds, values = get_type_hints(group), {}
    for field in fields(group):
        name = field.name
        if is_dataclass(kinds[name]):
            values[name] = _filled(kinds[name], said)
        elif name in said:
            values[name] = _value(field, kinds[name], said[name])
    return group(**values)


def _value(field: Field[Any], kind: Any, said: Any) -> Any:
    if get_origin(kind) is tuple:
        values = tuple(said or ())
        if not field.metadata.get("commas"):
            return values
        return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
    if said is None or "unit" not in field.metadata:
        return said
    return int(min(said * field.metadata["unit"], sys.maxsize))  # also caps infinity
