"""Reports a bench's figures and their bounds, as a table for readers and as one line of JSON for
scripts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Holds the result of a bench. `columns`, `table`, `svg` and `notes` are for readers; the JSON
    line has the rest.
    """

    bench: str
    ok: bool  # all bounds hold
    metrics: Mapping[str, Any]  # by name
    bounds: Mapping[str, Any] = field(default_factory=dict)  # texts, by metric name
    columns: Sequence[str] = ()
    table: Sequence[Sequence[Any]] = ()
    svg: str = ""
    notes: Sequence[str] = ()

    def line(self) -> str:
        """Returns the last line of `--json`."""
        return json.dumps(
            {
                "bench": self.bench,
                "ok": self.ok,
                "metrics": dict(self.metrics),
                "bounds": dict(self.bounds),
            }
        )


@dataclass(slots=True)
class Figures:
    """Collects figures with their bounds, and rows of a table."""

    metrics: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, str] = field(default_factory=dict)
    held: list[bool] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)

    def add(self, name: str, value: float, sign: str, bound: float) -> None:
        self.metrics[name], self.bounds[name] = value, f"{sign} {bound:g}"
        self.held.append(value >= bound if sign == ">=" else value <= bound)

    def result(
        self, bench: str, columns: Sequence[str], svg: str = "", notes: Sequence[str] = ()
    ) -> BenchResult:
        held = all(self.held)
        return BenchResult(bench, held, self.metrics, self.bounds, columns, self.rows, svg, notes)


def report(result: BenchResult, as_json: bool = False) -> None:
    """Prints the table and the bounded figures. With `as_json`, prints these to stderr and the JSON
    line to stdout.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, stderr=as_json)
    table = Table(title=f"katz bench {result.bench}", title_justify="left")
    for number, column in enumerate(result.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in result.table:
        table.add_row(
            *(
                cell
                if isinstance(cell, str)
                else f"{cell:.4g}"
                if isinstance(cell, float)
                else str(cell)
                for cell in row
            )
        )
    console.print(table)
    for name, bound in result.bounds.items():
        value = result.metrics.get(name)
        console.print(
            f"{name}: {f'{value:.4g}' if isinstance(value, float) else value} (bound: {bound})"
        )
    for note in result.notes:
        console.print(note, soft_wrap=True)
    console.print("ok" if result.ok else "NOT within bounds")
    if as_json:
        print(result.line())


def medians(actions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Returns the median seconds of each action. Actions alternate, so that a temporarily slow
    machine affects all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    return {name: median(values) for name, values in seconds.items()}
