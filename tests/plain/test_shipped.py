"""Scripts find the package's workflows by name, and ComfyUI's editors show them as templates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from katz_graph.checks.validate import check
from katz_graph.files.folders import Folders
from katz_graph.formats.api import from_api
from katz_graph.formats.read import parse_workflow, read_workflow
from katz_graph.formats.shipped import INDEX, TEMPLATES, names, template
from katz_graph.formats.ui_document import is_ui
from katz_graph.packs import load_registry

WORKFLOWS = Path(__file__).parents[2] / "workflows"
REGISTRY = load_registry()[0]
MAX_PICTURE_BYTES = 200_000  # bytes of all pictures


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.json")), ids=lambda path: path.stem)
def test_every_node_has_a_title_as_the_editor_exports_it(path: Path) -> None:
    document = json.loads(path.read_text())
    if not is_ui(document):
        assert [
            identifier for identifier, call in from_api(document).nodes.items() if not call.title
        ] == []


def test_every_workflow_is_a_template_once() -> None:
    assert sorted(names()) == sorted(path.stem for path in WORKFLOWS.glob("*.json"))
    for category in json.loads(INDEX.read_text()):
        # the server's, not a pack's
        assert category["moduleName"] == "default" and category["title"]
        assert all(
            one["title"] and one["description"] and one["mediaType"] == "image"
            for one in category["templates"]
        )


def test_every_template_has_a_small_picture_and_a_workflow_that_runs_here() -> None:
    templates = [one for category in json.loads(INDEX.read_text()) for one in category["templates"]]
    pictures = {TEMPLATES / f"{one['name']}-1.{one['mediaSubtype']}" for one in templates}
    assert pictures == set(TEMPLATES.iterdir()) - {INDEX}
    assert sum(picture.stat().st_size for picture in pictures) < MAX_PICTURE_BYTES
    for picture in pictures:
        with Image.open(picture) as opened:
            assert opened.format == "WEBP" and len(set(opened.convert("L").tobytes())) > 50
    for name in names():
        document = template(name, REGISTRY)
        assert document is not None and is_ui(document)  # the stock dialog opens only these
        graph = parse_workflow(document, REGISTRY).graph
        assert graph == read_workflow(WORKFLOWS / f"{name}.json", REGISTRY).graph
        found = check(graph, REGISTRY, Folders())
        assert found.targets and not found.refused and not found.problems, name


def test_no_file_that_is_not_listed_is_a_template() -> None:
    for name in (
        "",
        "index",
        "templates/index",
        "../workflows/txt2img",
        "__init__",
        "/etc/hostname",
        "txt2img.json",
    ):
        assert template(name, REGISTRY) is None
