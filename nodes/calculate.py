"""Calculates with numbers."""

from __future__ import annotations

import ast
import math
import numbers
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from katz_graph.core.errors import InputError
from katz_graph.core.messages import one_line, shorten, show
from katz_graph.node import Grows, Node
from katz_graph.node.knobs import Text
from katz_graph.node.wires import Socket

# a float overflows at 1,024 bits; much larger integers take long to compute
MAX_BITS, MAX_CHARACTERS, MAX_DIGITS = 10_000, 5_000, 4_000
Number = float | int | bool
Numbers = Annotated[
    Mapping[str, Number],
    Socket("FLOAT,INT,BOOLEAN"),
    Grows(tuple(string.ascii_lowercase)),
]
Value = Annotated[Any, Socket("INT,FLOAT,STRING,BOOLEAN")]
# syntax allowed in an expression: no attributes, strings, lists or assignments
PARTS = (
    *(ast.Name, ast.Constant, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.Call, ast.Subscript),
)


def _sum(*given: Any) -> Any:
    return sum(given[0]) if len(given) == 1 and isinstance(given[0], Iterable) else sum(given)


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and base.bit_length() * exponent > MAX_BITS:
        raise ValueError("a power in the expression is too large")
    return pow(base, exponent)


def _round(number: Any, digits: int | None = None) -> Any:
    return round(number) if digits is None else round(number, max(-MAX_DIGITS, digits))


def _of_size(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an operator to raise an error for results that are too large."""

    def call(*given: Any) -> Any:
        result = operator(*given)
        if isinstance(result, int) and result.bit_length() > MAX_BITS:
            raise ValueError("a number in the expression is too large")
        return result

    return call


FUNCTIONS = {
    "sum": _sum,
    "pow": _power,
    "round": _round,
    **{function.__name__: function for function in (min, max, abs, int, float)},
    **{
        function.__name__: function
        for function in (
            *(math.sqrt, math.ceil, math.floor, math.log, math.log2, math.log10),
            *(math.sin, math.cos, math.tan),
        )
    },
}


class ComfyMathExpression(
    Node, category="utils/logic", title="Math Expression", names=("FLOAT", "INT", "BOOL")
):
    """Evaluates an expression of the numbers a, b, c and so on; `values` lists all. It may use + -
    * / // % ** & | ^ ~ << >> comparisons, and, or, not, `x if c else y`, sum, min, max, abs, round,
    pow, sqrt, ceil, floor, log, log2, log10, sin, cos, tan, int and float.
    """

    expression: Text = "a + b"

    def run(self, values: Numbers) -> tuple[float, int, bool]:
        try:
            result = _evaluated(self.expression, values)
            as_float = float(result)
            if not math.isfinite(as_float):
                raise ValueError(f"the result is {as_float}, expected a finite number")
        except Exception as error:  # expressions by users can raise anything
            said = one_line(shorten(str(error) or type(error).__name__))
            raise InputError(f"expression {show(self.expression)}: {said}") from error
        return as_float, int(result), bool(result)


def _evaluated(expression: str, values: Mapping[str, Any]) -> Number:
    """Evaluates an expression. Raises an error that explains a failure."""
    from simpleeval import DEFAULT_OPERATORS, SimpleEval

    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"more than {MAX_CHARACTERS:,} characters")
    known = {name: _number(name, value) for name, value in values.items()}
    tree = ast.parse(expression.strip(), mode="eval").body
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant) and not isinstance(part.value, (int, float)):
            raise TypeError(f"got {show(part.value)} in it, expected numbers only")
    evaluator = SimpleEval(
        {kind: _of_size(operator) for kind, operator in DEFAULT_OPERATORS.items()}
        | {ast.Pow: _power},
        FUNCTIONS,
        {**known, "values": tuple(known.values())},
    )
    evaluator.nodes = {kind: evaluator.nodes[kind] for kind in PARTS}
    result = evaluator.eval(expression, tree)
    if not isinstance(result, (bool, int, float)):
        raise TypeError(f"the result is {show(result)}, expected a number")
    return result


def _number(name: str, value: Any) -> Number:
    """Returns a value as a plain number: a link can carry any object."""
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return _of_size(int)(value)  # type: ignore[no-any-return]
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"{name} is {show(value)}, expected a number")


class ComfyNumberConvert(
    Node, category="utils/logic", title="Number Convert", names=("FLOAT", "INT")
):
    """Converts a number, a text with a number, true (1) or false (0) to a float and an integer."""

    def run(self, value: Value) -> tuple[float, int]:
        text = value.strip() if isinstance(value, str) else value
        try:
            as_float = float(text)
            if not math.isfinite(as_float):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"value is {show(value)}, expected a number") from None
        try:
            return as_float, int(text)  # keeps large integers exact
        except ValueError:
            return as_float, int(as_float)
