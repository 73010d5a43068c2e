"""Every workflow of the official template package (MIT, PyPI `comfyui-workflow-templates-json`)
becomes a sound graph and stays one in every format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from katz_graph.core.graph import Graph, Link
from katz_graph.formats.api import from_api, to_api
from katz_graph.formats.read import parse_workflow
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_to_prompt import Sending
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import Workflow, to_native
from katz_graph.packs import Registry, load_registry

PACKAGE = "comfyui_workflow_templates_json"
FOUND = find_spec(PACKAGE)
SENDING = Sending(datetime.min, lambda _: 0)

pytestmark = pytest.mark.skipif(
    FOUND is None, reason="pip install comfyui-workflow-templates-json (4 MB; in the dev extra)"
)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()[0]


@pytest.fixture(scope="module")
def templates() -> dict[str, dict[str, Any]]:
    assert FOUND is not None and FOUND.submodule_search_locations
    found = {}
    for file in sorted(Path(FOUND.submodule_search_locations[0]).rglob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(document, dict) and isinstance(document.get("nodes"), list):
            found[file.name] = document
    assert len(found) > 500
    return found


@pytest.fixture(scope="module")
def workflows(templates: Mapping[str, Any], registry: Registry) -> dict[str, Workflow]:
    return {name: queued(document, registry) for name, document in templates.items()}


def queued(document: Mapping[str, Any], registry: Registry) -> Workflow:
    """Reads a workflow with the file's ids and the first of each prompt's alternatives."""
    extra = {**(document.get("extra") or {}), "katz": {"ids_stay": True}}
    return parse_workflow({**document, "extra": extra}, registry, None, SENDING)


def declared(document: Mapping[str, Any], identifier: str) -> Mapping[str, Any]:
    """Finds the file's node for an id of the flat graph."""
    subgraphs = {
        subgraph["id"]: subgraph
        for subgraph in document.get("definitions", {}).get("subgraphs", ())
    }
    graph: Mapping[str, Any] = document
    *outer, last = identifier.split(":")
    for instance in outer:
        (kind,) = (node["type"] for node in graph["nodes"] if str(node["id"]) == instance)
        graph = subgraphs[kind]
    (found,) = (node for node in graph["nodes"] if str(node["id"]) == last)
    return found  # type: ignore[no-any-return]


def test_every_link_leads_to_an_existing_output(
    templates: Mapping[str, Any], workflows: Mapping[str, Workflow], registry: Registry
) -> None:
    links = 0
    for name, workflow in workflows.items():
        nodes = workflow.graph.nodes
        for identifier, call in nodes.items():
            assert declared(templates[name], identifier)["type"] == call.type
            for _, link in call.links():
                source = declared(templates[name], link.node)
                outputs = max(
                    len(source["outputs"] or ()),
                    len(registry[source["type"]].outputs) if source["type"] in registry else 0,
                )
                assert link.node in nodes and 0 <= link.output < outputs, (name, identifier, link)
                links += 1
    assert links > 5000


def test_links_inside_one_graph_are_those_of_the_file(
    templates: Mapping[str, Any], workflows: Mapping[str, Workflow]
) -> None:
    """Between directly linked nodes of the outermost graph, the link table gives an input's source."""
    compared = 0
    for name, document in templates.items():
        plain = {
            str(n["id"]) for n in document["nodes"] if str(n["id"]) in workflows[name].graph.nodes
        }
        for _, origin, output, target, slot, *_ in document["links"]:
            if str(origin) in plain and str(target) in plain:
                port = declared(document, str(target))["inputs"][slot]
                assert workflows[name].graph.nodes[str(target)].inputs[port["name"]] == Link(
                    str(origin), output
                )
                compared += 1
    assert compared > 1000


def test_positions_alone_give_known_types_the_values_that_the_file_names(
    templates: Mapping[str, Any], workflows: Mapping[str, Workflow], registry: Registry
) -> None:
    """Recent files also name the values; without names, our order of widgets must give the same."""

    def nameless(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: nameless(inner)
                for key, inner in value.items()
                if key != "widgets_values_named"
            }
        return [nameless(inner) for inner in value] if isinstance(value, list) else value

    compared = 0
    for name, document in templates.items():
        if "widgets_values_named" not in json.dumps(document):
            continue
        blind = queued(nameless(document), registry).graph.nodes
        for identifier, call in workflows[name].graph.nodes.items():
            if call.type in registry:
                assert blind[identifier].inputs == call.inputs, (name, identifier)
                compared += 1
    assert compared > 100


def test_every_template_survives_every_format(
    workflows: Mapping[str, Workflow], registry: Registry
) -> None:
    known = signatures(registry)
    for name, workflow in workflows.items():
        for written in rounds(workflow.graph, workflow, registry, known):
            assert written == workflow.graph, name
            assert list(written.nodes) == list(workflow.graph.nodes)


def rounds(graph: Graph, workflow: Workflow, registry: Registry, known: Any) -> Iterator[Graph]:
    yield from_api(json.loads(json.dumps(to_api(graph))))
    yield parse_workflow(json.loads(json.dumps(to_native(workflow)))).graph
    yield parse_workflow(
        json.loads(json.dumps(to_ui(workflow, known), allow_nan=False)), registry
    ).graph
    yield parse_workflow(
        json.loads(json.dumps(to_ui(Workflow(graph), known), allow_nan=False)), {}
    ).graph
