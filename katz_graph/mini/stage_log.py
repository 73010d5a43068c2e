"""Records in the working folder which stages of a training are done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Asked = dict[str, Any]


class StageLog:
    """Stores the arguments of each of `stages`, and its duration in seconds once it is done.

    Starting a stage again discards the records of all later stages, whether they read its results
    or not.
    """

    def __init__(self, work: Path, stages: Sequence[str]) -> None:
        self._file, self._stages = work / "stages.json", stages
        self._known: dict[str, dict[str, Any]] = (
            json.loads(self._file.read_text("utf-8")) if self._file.exists() else {}
        )

    def done(self, stage: str, asked: Asked) -> bool:
        """Returns whether the stage was completed with these arguments."""
        return self._same(stage, asked) and self._known[stage]["seconds"] is not None

    def cut_off(self, stage: str, asked: Asked) -> bool:
        """Returns whether the stage was started with these arguments and not completed."""
        return self._same(stage, asked) and self._known[stage]["seconds"] is None

    def begin(self, stage: str, asked: Asked) -> None:
        before = self._stages[: self._stages.index(stage)]
        self._known = {one: self._known[one] for one in before if one in self._known}
        self._known[stage] = {"asked": asked, "seconds": None}
        self._write()

    def end(self, stage: str, seconds: float) -> None:
        self._known[stage]["seconds"] = round(seconds, 1)
        self._write()

    def __str__(self) -> str:
        took = {stage: one["seconds"] or 0.0 for stage, one in self._known.items()}
        lines = [f"{stage} {seconds:.0f} s" for stage, seconds in took.items()]
        return ", ".join([*lines, f"together {sum(took.values()) / 60:.0f} min"])

    def _same(self, stage: str, asked: Asked) -> bool:
        return stage in self._known and self._known[stage]["asked"] == asked

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self._known, indent=2) + "\n", "utf-8")
        new.replace(self._file)
