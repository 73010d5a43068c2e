"""Documents name existing paths, and their generated tables are current."""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from katz_graph.bench.command import BENCHES
from katz_graph.cli import docs

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))
FOLDERS = {folder.name for folder in ROOT.iterdir() if folder.is_dir()}
FENCE = re.compile(r"^```.*?^```\n", re.DOTALL | re.MULTILINE)
# packs import these names
LAID_OUT_BY_OTHERS = ROOT / "katz_graph" / "comfy" / "shims"

by_name = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def named_paths(text: str) -> Iterator[str]:
    """Yields files and folders of this repository that the text has in backticks."""
    for name in re.findall(r"`([\w.-]+(?:/[\w.-]*)*)`", FENCE.sub("", text)):
        inside = "/" in name and name.partition("/")[0] in FOLDERS
        if name.endswith(".py") or (inside and name.endswith((".json", ".jsonl", "/"))):
            yield name


@by_name
def test_every_file_and_folder_named_in_a_document_exists(document: Path) -> None:
    text = document.read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", FENCE.sub("", text))
    missing = [name for name in named_paths(text) if not (ROOT / name).exists()]
    assert missing + [target for target in targets if not (document.parent / target).exists()] == []


@by_name
def test_prose_is_narrow(document: Path) -> None:
    lines = FENCE.sub("", document.read_text()).splitlines()
    assert [line for line in lines if len(line) > 110 and not line.startswith("|")] == []


def test_the_readme_is_short_and_leads_to_every_document() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert [path.name for path in DOCUMENTS[1:] if f"{path.relative_to(ROOT)})" not in text] == []


def test_the_table_of_benches_matches_the_records() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert docs.with_table(text, (ROOT / "docs" / docs.RECORDS).read_text()) == text, (
        "run `make docs`"
    )
    assert all(f"`katz bench {name}`" in text for name in BENCHES)


def test_a_measurement_is_recorded_with_machine_and_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / docs.DOCS
    folder.mkdir()
    (folder / "benchmarks.md").write_text("before\n<!-- table -->\n<!-- end of table -->\nbehind\n")
    line = {
        "bench": "graph",
        "ok": False,
        "metrics": {"seconds": 0.25, "other": 1},
        "bounds": {"seconds": "< 0.2 s"},
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(line) + "\n"))
    docs.main(record="four cores")
    text = (folder / "benchmarks.md").read_text()
    assert "| seconds 0.25 (bound: < 0.2 s); NOT within bounds | four cores, 20" in text
    assert text.startswith("before\n") and text.endswith("behind\n")


def test_every_package_has_a_description() -> None:
    found = (path for top in ROOT.glob("*/__init__.py") for path in top.parent.rglob("__init__.py"))
    packages = [path for path in found if not path.is_relative_to(LAID_OUT_BY_OTHERS)]
    silent = [path for path in packages if not ast.get_docstring(ast.parse(path.read_text()))]
    assert packages and silent == []
