"""Runs `katz` in the test process. Workers are threads if a test is not about processes, because a
process takes seconds to start.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Returns the last line of the output, parsed as JSON."""
        return json.loads(self.out.strip().splitlines()[-1])

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


Katz = Callable[..., Result]


def command(
    monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str], folder: Path, costs: Path
) -> Katz:
    """Returns a function that runs `katz ARGUMENT...` in `folder`, with the cost cache in
    `costs`.
    """
    from katz_graph.cli.main import main

    monkeypatch.chdir(folder)
    monkeypatch.setenv("KATZ_CACHE", str(costs))

    def run(*arguments: object) -> Result:
        captured.readouterr()
        monkeypatch.setattr("sys.argv", ["katz", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        output = captured.readouterr()
        assert "Traceback" not in output.err
        return Result(int(ended.value.code or 0), output.out, output.err)

    return run


def use_threads(monkeypatch: pytest.MonkeyPatch, module: ModuleType, cache: Path) -> None:
    """Makes the engines that a module creates run their workers as threads, with the machine's
    costs from `cache`.
    """
    from katz_graph.api import devices
    from katz_graph.executor.engine import DeviceEngine
    from katz_graph.testing.worker_threads import WorkerThreads

    def engine(
        assignments: Any, choices: Any = None, _: Any = None, *rest: Any, **named: Any
    ) -> DeviceEngine:
        named |= {
            "launchers": {one.name: WorkerThreads() for one in assignments},
            "cache": cache,
            "early_start": None,
        }
        return DeviceEngine(assignments, choices, link=rest[0] if rest else None, **named)

    monkeypatch.setattr(module, "DeviceEngine", engine)
    monkeypatch.setattr(devices, "EarlyStart", lambda *_: contextlib.nullcontext())
    # affects all threads, which would mix their outputs
    monkeypatch.setattr(contextlib, "redirect_stdout", lambda target: contextlib.nullcontext())
