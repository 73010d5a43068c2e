"""Fixtures of tests that run models: one thread, random-weight pipelines in a models folder, and the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from katz_graph.bench.parity import Models
from katz_graph.cli.main import main


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, sd1: Models, sdxl: Models) -> Path:
    """checkpoints/sd1, checkpoints/sdxl, controlnet/<family>-control0, loras/<family>-first.safetensors ..."""
    root = tmp_path_factory.mktemp("models")
    for kind in ("checkpoints", "controlnet", "loras"):
        (root / kind).mkdir()
    for models in (sd1, sdxl):
        (root / "checkpoints" / models.name).symlink_to(models.pipeline)
        for control in models.controls:
            (root / "controlnet" / control.name).symlink_to(control)
        for lora in models.loras:
            (root / "loras" / lora.name).symlink_to(lora)
    return root


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The last line of the output, as JSON."""
        return json.loads(self.out.strip().splitlines()[-1])

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


Katz = Callable[..., Result]


@pytest.fixture
def katz(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, costs: Path) -> Iterator[Katz]:
    """`katz ARGUMENT...` in an empty folder, without a subprocess."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KATZ_CACHE", str(costs))

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        monkeypatch.setattr("sys.argv", ["katz", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capfd.readouterr()
        assert "Traceback" not in output.err
        return Result(int(ended.value.code or 0), output.out, output.err)

    yield run
