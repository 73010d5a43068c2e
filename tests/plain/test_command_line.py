"""Tests what all commands share: help, version, terminals, folder options."""

from __future__ import annotations

import io
from importlib.metadata import version

import pytest
from command import Katz
from rich.console import Console

from katz_graph.api.progress import EvaluationProgress

pytestmark = pytest.mark.defect(46)
UNWRITABLE = "/proc/nowhere"  # root may write to all folders except the kernel's


def test_the_version_is_that_of_the_package(katz: Katz) -> None:
    assert katz("--version").out == f"katz {version('katz-graph')}\n"


def test_help_describes_the_program(katz: Katz) -> None:
    printed = katz("--help").out
    assert "workflows of diffusion models" in printed
    assert "--install-completion" in printed


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_unencodable_output_does_not_end_a_command(
    katz: Katz, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding, write_through=True))
    assert katz("nodes", "BatchImagesNode").code == 0
    printed = written.getvalue().decode(encoding)
    assert ("\u2026" if encoding == "utf-8" else r"\u2026") in printed


@pytest.mark.parametrize("option", ["--models", "--packs", "--input"])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_folder_that_is_not_there_is_refused(katz: Katz, command: str, option: str) -> None:
    result = katz(command, "workflows/txt2img.json", option, "/nowhere")
    assert result.code == 2 and option in result.err and "/nowhere" in result.err


@pytest.mark.parametrize("option", ["--models", "--packs", "--input"])
@pytest.mark.parametrize("command", ["plan", "serve"])
def test_a_file_in_place_of_a_folder_is_refused(katz: Katz, command: str, option: str) -> None:
    workflow = ["workflows/txt2img.json"] if command == "plan" else []
    result = katz(command, *workflow, option, __file__)
    assert result.code == 2 and option in result.err


def test_a_folder_of_packs_that_is_not_there_is_refused_by_nodes(katz: Katz) -> None:
    assert katz("nodes", "--packs", "/nowhere").code == 2


@pytest.mark.parametrize("option", ["--output", "--trace"])
def test_a_place_that_cannot_be_written_is_refused_before_sampling(katz: Katz, option: str) -> None:
    where = UNWRITABLE if option == "--output" else f"{UNWRITABLE}.json"
    result = katz("run", "workflows/txt2img.json", option, where)
    (line,) = result.errors
    assert result.code == 2 and option in line and "cannot be written to" in line


def test_a_drawing_that_cannot_be_written_is_refused_before_planning(katz: Katz) -> None:
    result = katz("plan", "workflows/txt2img.json", "--svg", f"{UNWRITABLE}.svg")
    (line,) = result.errors
    assert result.code == 2 and "--svg" in line


@pytest.mark.parametrize("width", range(24, 130, 7))
def test_the_progress_of_a_sampler_fits_in_one_line(width: int) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=width)
    progress = EvaluationProgress(console)
    with progress:
        progress.update("97:98", 998, 1000)
        progress.update("97:98", 999, 1000)
        drawn = Console(file=io.StringIO(), width=width)
        drawn.print(progress.renderable())
    (line,) = drawn.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "node 97:98" in line and "999/1000" in line
