"""Writes each measurement immediately: to the error output, and to a file for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from katz_graph.core.errors import RunError


class Rows:
    """Collects the rows of one part. Raises RunError if the file cannot be written."""

    def __init__(self, part: str, folder: Path | None) -> None:
        self._part, self._file = part, None if folder is None else _opened(folder, part)
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, what: str, **figures: Any) -> None:
        row = {"part": self._part, "what": what, **figures}
        self.rows.append(row)
        words = ", ".join(f"{name} {_words(value)}" for name, value in figures.items())
        print(f"{what}: {words}", file=sys.stderr, flush=True)
        if self._file is not None:
            print(json.dumps(row), file=self._file, flush=True)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Returns columns and rows of the printed table."""
        names = list(dict.fromkeys(name for row in self.rows for name in row if name != "part"))
        return names, [[row.get(name, "") for name in names] for row in self.rows]


def _opened(folder: Path, part: str) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / f"{part}.jsonl").open("a")
    except OSError as error:
        raise RunError(f"--out {folder}: cannot write ({error.strerror})") from None


def _words(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
