"""The documents' plans, packs and commands run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command import Katz, use_threads
from PIL import Image

from katz_graph.cli.docs import with_plans
from katz_graph.executor import start as starting

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NUMBER = re.compile(r"\d+(\.\d+)?")  # kernel counts and bytes depend on torch's version
LOOP = ROOT / "workflows" / "loop_by_hand.json"


def blocks(document: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (DOCS / document).read_text(), re.DOTALL | re.MULTILINE
    )


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = tmp_path / "packs"
    folder.mkdir()
    (folder / "calm.py").write_text("\n\n".join(blocks("nodes.md", "python")))
    return folder


def test_plans_in_the_document_are_those_that_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = (DOCS / "planner.md").read_text()
    shown, printed = NUMBER.sub("#", text), NUMBER.sub("#", with_plans(text, tmp_path))
    assert shown.splitlines() == printed.splitlines(), "run `make docs`"
    drawn, committed = (
        NUMBER.sub("#", (folder / "plan.svg").read_text()) for folder in (tmp_path, DOCS)
    )
    assert drawn == committed, "run `make docs`"


def test_the_workflow_of_the_document_runs_on_its_pack(katz: Katz, pack: Path) -> None:
    (workflow,) = blocks("nodes.md", "json")
    Path("vignette.json").write_text(workflow)
    result = katz("run", "vignette.json", "--packs", pack, "--json")
    assert result.code == 0, result.err
    picture = Image.open(result.data["outputs"][0])
    middle, corner = picture.getpixel((32, 32)), picture.getpixel((0, 0))
    assert middle[0] > 250 and corner[0] < 60


def test_the_guidance_of_the_document_runs_inside_the_loop(katz: Katz, pack: Path) -> None:
    """With an unreachable bound, the picture equals plain guidance, to the byte; a low bound
    changes it.
    """
    pixels = []
    for changes in (
        {},
        {"class_type": "CalmGuidance", "most": 1e6},
        {"class_type": "CalmGuidance", "most": 0.1},
    ):
        graph: dict[str, Any] = json.loads(LOOP.read_text())
        graph["10"]["inputs"]["steps"] = 2
        if changes:
            graph["40"] = {
                "class_type": changes["class_type"],
                "inputs": {**graph["40"]["inputs"], "most": changes["most"]},
            }
        Path("loop.json").write_text(json.dumps(graph))
        result = katz("run", "loop.json", "--packs", pack, "--json")
        assert result.code == 0, result.err
        pixels.append(Image.open(result.data["outputs"][0]).tobytes())
    plain, unbound, calm = pixels
    assert plain == unbound != calm


def commands() -> list[tuple[str, ...]]:
    """Lists in order, each once, the commands of all blocks except those marked as not-run."""
    lines = (
        line
        for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    )
    return list(dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines if line))


@pytest.mark.defect(43)
def test_commands_of_the_documents_run(
    katz: Katz, pack: Path, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs outside of a checkout, with two sampler steps instead of twenty."""
    use_threads(monkeypatch, starting, costs)
    Path("vignette.json").write_text(blocks("nodes.md", "json")[0])
    found = commands()
    assert len(found) > 10
    for program, command, *rest in found:
        assert program == "katz", f"{program}: mark its block as not-run"
        samples = command == "run" and "vignette.json" not in rest
        quick = ["--set", "KSampler.steps=2"] if samples else []
        result = katz(command, *rest, *quick)
        assert result.code == 0, (command, rest, result.err)
