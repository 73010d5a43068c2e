"""Calculates with numbers."""

from __future__ import annotations

import ast
import math
import string
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from katz_graph.errors import InputError
from katz_graph.knobs import Text
from katz_graph.messages import one_line, shorten, show
from katz_graph.node import Grows, Node
from katz_graph.wires import Socket

MOST_BITS = 100_000  # of a whole number's power: what has more takes long
Number = float | int | bool
Numbers = Annotated[
    Mapping[str, Number],
    Socket("FLOAT,INT,BOOLEAN"),
    Grows(tuple(string.ascii_lowercase)),
]
Value = Annotated[Any, Socket("INT,FLOAT,STRING,BOOLEAN")]


def _sum(*given: Any) -> Any:
    return sum(given[0]) if len(given) == 1 and isinstance(given[0], Iterable) else sum(given)


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and base.bit_length() * exponent > MOST_BITS:
        raise ValueError("a power in it is too large")
    return pow(base, exponent)


FUNCTIONS = {
    "sum": _sum,
    "pow": _power,
    **{function.__name__: function for function in (min, max, abs, round, int, float)},
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
    """What an expression gives for the numbers a, b, c and so on; `values` are all of them. It may
    use + - * / // % ** comparisons, and, or, not, `x if c else y`, sum, min, max, abs, round, pow,
    sqrt, ceil, floor, log, log2, log10, sin, cos, tan, int and float.
    """

    expression: Text = "a + b"

    def run(self, values: Numbers) -> tuple[float, int, bool]:
        from simpleeval import DEFAULT_OPERATORS, SimpleEval

        evaluator = SimpleEval(
            {**DEFAULT_OPERATORS, ast.Pow: _power},
            FUNCTIONS,
            {**values, "values": list(values.values())},
        )
        try:
            result = evaluator.eval(self.expression.strip())
            if not isinstance(result, (bool, int, float)):
                raise TypeError(f"it gives {show(result)}, expected a number")
            as_float = float(result)
            if not math.isfinite(as_float):
                raise ValueError(f"it gives {as_float}, which no number is")
        except Exception as error:  # of anything that people may write
            said = one_line(shorten(str(error) or type(error).__name__))
            raise InputError(f"expression {show(self.expression)}: {said}") from error
        return as_float, int(result), bool(result)


class ComfyNumberConvert(
    Node, category="utils/logic", title="Number Convert", names=("FLOAT", "INT")
):
    """A number, a text with a number, or true (1) and false (0), as both kinds of numbers."""

    def run(self, value: Value) -> tuple[float, int]:
        text = value.strip() if isinstance(value, str) else value
        try:
            as_float = float(text)
            if not math.isfinite(as_float):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"value is {show(value)}, expected a number") from None
        try:
            return as_float, int(text)  # large ones exactly
        except ValueError:
            return as_float, int(as_float)
