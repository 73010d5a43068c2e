"""Lists the workflows shipped with the package, and converts them to editor templates with
pictures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from katz_graph.formats.read import SHIPPED, parse_workflow
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_document import is_ui
from katz_graph.formats.ui_write import to_ui
from katz_graph.node.types import NodeType

TEMPLATES = SHIPPED / "templates"
INDEX = TEMPLATES / "index.json"
"""Template categories in ComfyUI's index format. A template's workflow is in SHIPPED; its picture
is in this folder: `NAME-1.SUBTYPE`.
"""


@dataclass(frozen=True, slots=True)
class Template:
    """A shipped workflow. `picture`: its URL path on the server; `description`: one line for the
    user.
    """

    name: str
    title: str
    description: str
    picture: str


def listing() -> list[Template]:
    """Lists the workflows in the order of the index."""
    return [
        Template(
            entry["name"],
            entry["title"],
            entry["description"],
            f"{TEMPLATES.name}/{entry['name']}-1.{entry['mediaSubtype']}",
        )
        for category in json.loads(INDEX.read_text("utf-8"))
        for entry in category["templates"]
    ]


def names() -> list[str]:
    """Lists the names of the workflows in the order of the index."""
    return [template.name for template in listing()]


def template(name: str, types: Mapping[str, NodeType]) -> dict[str, Any] | None:
    """Returns a workflow as an editor document; None if the index does not list it."""
    if name not in names():
        return None
    document: dict[str, Any] = json.loads((SHIPPED / f"{name}.json").read_text("utf-8"))
    return (
        document if is_ui(document) else to_ui(parse_workflow(document, types), signatures(types))
    )
