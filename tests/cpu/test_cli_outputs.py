"""`katz run` with outputs that cannot run, chosen targets, cache policies, and packs: files,
messages and exit codes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from katz_graph.cli.main import main

Katz = Callable[..., tuple[int, str]]

WORKFLOW: dict[str, Any] = {
    "1": {
        "class_type": "EmptyImage",
        "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 255},
    },
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "good"}},
    "3": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "other"}},
}
BROKEN = {**WORKFLOW, "3": {"class_type": "Nowhere", "inputs": {"image": ["1", 0]}}}
PACK = """
class Twice:
    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_IS_LIST = ("IMAGE",), "go", "test", (True,)
    @classmethod
    def INPUT_TYPES(cls): return {"required": {"image": ("IMAGE",)}}
    def go(self, image): return ([image, 1 - image],)
NODE_CLASS_MAPPINGS = {"Twice": Twice}
"""


@pytest.fixture
def katz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Katz:
    """Runs the command line in an empty folder; returns the exit code and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(document: dict[str, Any], *arguments: str) -> tuple[int, str]:
        Path("workflow.json").write_text(json.dumps(document))
        monkeypatch.setattr(
            sys, "argv", ["katz", "run", "workflow.json", "--threads", "1", *arguments]
        )
        with pytest.raises(SystemExit) as exit:
            main()
        return int(exit.value.code or 0), capsys.readouterr().err

    return run


def written() -> list[str]:
    return sorted(path.name for path in Path("output").glob("*.png"))


def test_good_outputs_run_and_bad_ones_are_reported(katz: Katz) -> None:
    code, said = katz(BROKEN)
    assert code == 1 and written() == ["good_00001_.png"]
    assert "error: workflow.json: node 3 (Nowhere): unknown node type" in said
    assert "error: some outputs were refused: node 4" in said and "Traceback" not in said


def test_nothing_runs_when_every_output_is_bad(katz: Katz) -> None:
    code, said = katz({**BROKEN, "2": {"class_type": "SaveImage", "inputs": {}}})
    assert code == 2 and not Path("output").exists()
    assert "node 2 (SaveImage), images: is missing" in said and "node 3 (Nowhere)" in said


def test_targets(katz: Katz) -> None:
    assert katz(BROKEN, "--target", "2")[0] == 0
    assert written() == ["good_00001_.png"]
    assert katz(WORKFLOW, "--target", "4", "--cache", "none")[0] == 0
    assert written() == ["good_00001_.png", "other_00001_.png"]
    code, said = katz(WORKFLOW, "--target", "9")
    assert code == 2 and "--target 9: no node '9' in the workflow" in said
    assert katz(WORKFLOW, "--cache", "some")[0] == 2


def test_why_every_node_ran(katz: Katz) -> None:
    code, said = katz(
        {
            **WORKFLOW,
            "5": WORKFLOW["1"],
            "6": {"class_type": "SaveImage", "inputs": {"images": ["5", 0]}},
        },
        "--why",
    )
    assert code == 0
    assert (
        "node 1 (EmptyImage): done: new" in said
        and "node 5 (EmptyImage): cached: same inputs as node 1" in said
    )


def test_prints_of_packs_go_to_standard_error(katz: Katz, tmp_path: Path) -> None:
    """Standard output has JSON only."""
    prints = (
        "    @classmethod\n    def VALIDATE_INPUTS(cls): return print('checked') is None\n    "
        "def go(self, image):\n        print('ran')\n"
    )
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "twice.py").write_text(
        PACK.replace("    def go(self, image): ", f"{prints}        ")
    )
    code, said = katz(
        {**WORKFLOW, "3": {"class_type": "Twice", "inputs": {"image": ["1", 0]}}},
        "--packs",
        "packs",
        "--json",
    )
    assert code == 0, said
    assert "checked" in said.split() and "ran" in said.split()


def test_a_pack_of_the_ecosystem_gives_lists(katz: Katz, tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "twice.py").write_text(PACK)
    code, said = katz(
        {**WORKFLOW, "3": {"class_type": "Twice", "inputs": {"image": ["1", 0]}}},
        "--packs",
        "packs",
    )
    assert code == 0, said
    assert written() == ["good_00001_.png", "other_00001_.png", "other_00002_.png"]
