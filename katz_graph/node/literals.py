"""Checks literals of a workflow file against their inputs. Never coerces silently: 3.7 is no
integer, "false" is not true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from katz_graph.core.messages import listed, show, suggest
from katz_graph.node.types import ANY, Input

CHOICES_SHOWN = 12

LiteralFault = Literal["link_expected", "wrong_type", "too_small", "too_large", "not_a_choice"]


class LiteralError(ValueError):
    """Reports a literal that its input does not accept, with a line for users and the kind of
    fault.
    """

    def __init__(self, fault: LiteralFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def check_literal(value: Any, expected: Input, within_bounds: bool = True) -> Any:
    """Returns the value converted to the input's type. Raises LiteralError with the given and the
    expected value, or the InputError of the input's own check.
    """
    if expected.socket == ANY:
        return value
    plain = PLAIN.get(expected.socket)
    if plain is None and not expected.knob and expected.check is None:
        raise LiteralError(
            "link_expected",
            f"got {show(value)}, expected a link to an output of type {expected.socket}",
        )
    try:
        taken = value if plain is None else plain(value)
        checked = taken if expected.check is None else expected.check(taken)
        if within_bounds and expected.choices is not None:
            return _chosen(checked, expected)
        if within_bounds:
            _in_bounds(taken, expected)
    except ValueError:
        message = f"got {show(value)}, expected {expectation(expected)}{_nearest(value, expected)}"
        raise LiteralError(_fault(value, expected), message) from None
    return checked


def _fault(value: Any, expected: Input) -> LiteralFault:
    """Classifies the fault of a rejected value."""
    if expected.choices is not None:
        return "not_a_choice"
    try:
        number = PLAIN[expected.socket](value)
    except (KeyError, ValueError):
        return "wrong_type"
    if isinstance(number, str):
        return "wrong_type"
    if expected.minimum is not None and number <= expected.minimum:
        return "too_small"
    return (
        "too_large" if expected.maximum is not None and number >= expected.maximum else "wrong_type"
    )


def expectation(expected: Input) -> str:
    """Describes the accepted values of an input in words."""
    if expected.choices is not None:
        return f"one of {listed(map(show, expected.choices), CHOICES_SHOWN)}"
    if expected.folder:
        return f"the name of a file in {expected.folder}"
    kind = KIND_IN_WORDS.get(expected.socket, expected.socket)
    low, high = (
        None if bound is None else _written(bound) for bound in (expected.minimum, expected.maximum)
    )
    if low is not None and high is not None:
        return f"{kind} from {low} to {high}"
    return (
        f"{kind} of at least {low}"
        if low is not None
        else f"{kind} of at most {high}"
        if high is not None
        else kind
    )


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError
        return int(value)
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    try:
        number = float(value)
    except OverflowError:
        raise ValueError from None
    if not math.isfinite(number):
        raise ValueError
    return number


def _text(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError
    return value


PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "BOOLEAN": _boolean,
    "INT": _whole,
    "FLOAT": _number,
    "STRING": _text,
}
KIND_IN_WORDS = {
    "BOOLEAN": "true or false",
    "INT": "a whole number",
    "FLOAT": "a number",
    "STRING": "text",
}


def _chosen(value: Any, expected: Input) -> Any:
    """Returns the choice equal to a value: 1 matches 1.0, true matches neither. Refreshes choices
    that may have changed.
    """
    for choices in (lambda: expected.choices, expected.refresh):
        for choice in (choices() if choices is not None else None) or ():
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
    raise ValueError


def _in_bounds(value: Any, expected: Input) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = expected.minimum, expected.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError


def _nearest(value: Any, expected: Input) -> str:
    choices = [choice for choice in expected.choices or () if isinstance(choice, str)]
    return suggest(value, choices) if isinstance(value, str) and choices else ""


def _written(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"
