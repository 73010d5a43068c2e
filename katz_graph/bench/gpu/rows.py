"""Writes each measurement immediately: to the error output, and to a file for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import RunError


class Rows:
    """Collects the rows of one part. `folder`: of the rows' file and of models. Raises RunError if
    the file cannot be written.
    """

    def __init__(self, part: str, folder: Path | None) -> None:
        self.folder = folder
        self._part, self._file = part, None if folder is None else _opened(folder, part)
        self.rows: list[dict[str, Any]] = []
        self.judged: list[dict[str, Any]] = []  # rows with a bound

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, what: str, **figures: Any) -> None:
        self.rows.append(self._written(what, figures))

    def judge(
        self,
        what: str,
        figure: float,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Adds a figure with its bound, `at_most` or `at_least`."""
        if at_most is not None:
            bound, holds = f"<= {at_most:g}", figure <= at_most
        else:
            assert at_least is not None
            bound, holds = f">= {at_least:g}", figure >= at_least
        self.judged.append(
            self._written(what, {"figure": figure, "bound": bound, "holds": bool(holds)})
        )

    def result(self, **metrics: float) -> BenchResult:
        """Returns the result of the part: all bounds hold. `metrics`: figures without a bound."""
        columns, table = self.table()
        return BenchResult(
            "gpu",
            all(row["holds"] for row in self.judged),
            metrics | {row["what"]: row["figure"] for row in self.judged},
            {row["what"]: row["bound"] for row in self.judged},
            columns,
            table,
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Returns columns and rows of the printed table."""
        names = list(dict.fromkeys(name for row in self.rows for name in row if name != "part"))
        return names, [[row.get(name, "") for name in names] for row in self.rows]

    def _written(self, what: str, figures: Mapping[str, Any]) -> dict[str, Any]:
        row = {"part": self._part, "what": what, **figures}
        words = ", ".join(f"{name} {_words(value)}" for name, value in figures.items())
        print(f"{what}: {words}", file=sys.stderr, flush=True)
        if self._file is not None:
            print(json.dumps(row), file=self._file, flush=True)
        return row


def file_of(folder: Path, part: str) -> Path:
    """Returns the file of a part's rows: one JSON object per line."""
    return folder / f"{part}.jsonl"


def _opened(folder: Path, part: str) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return file_of(folder, part).open("a")
    except OSError as error:
        raise RunError(f"--out {folder}: cannot write ({error.strerror})") from None


def _words(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
