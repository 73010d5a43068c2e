"""Any damaged UI file gives a graph or a clear error, soon."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from katz_graph.core.errors import InputError
from katz_graph.formats.api import from_api, to_api
from katz_graph.formats.object_info import from_object_info
from katz_graph.formats.read import parse_workflow
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_write import to_ui
from katz_graph.packs import load_registry

REGISTRY = load_registry()[0]
KNOWN = signatures(REGISTRY)
DOCUMENT: dict[str, Any] = {
    "last_node_id": 9,
    "last_link_id": 9,
    "nodes": [
        {"id": 1, "type": "CheckpointLoaderSimple", "pos": [0, 0], "size": {"0": 1, "1": 2}, "mode": 0, "inputs": [],
         "outputs": [{"name": "MODEL", "type": "MODEL", "links": [1]}, {"name": "CLIP", "type": "CLIP"}, {"name": "VAE", "type": "VAE"}],
         "widgets_values": ["katz-mini"], "properties": {"proxyWidgets": [["1", "x"]]}},
        {"id": 2, "type": "Reroute", "pos": [0, 0], "mode": 0, "inputs": [{"name": "", "type": "*", "link": 1}],
         "outputs": [{"name": "", "type": "*", "links": [2]}]},
        {"id": 3, "type": "sub", "pos": [5, 5], "mode": 0, "inputs": [{"name": "model", "type": "MODEL", "link": 2}],
         "outputs": [{"name": "LATENT", "type": "LATENT", "links": [3]}], "widgets_values": [12], "widgets_values_named": {"steps": 12},
         "properties": {"proxyWidgets": [["-1", "steps"]]}},
        {"id": 4, "type": "VAEDecode", "pos": [5, 5], "mode": 4, "inputs": [{"name": "samples", "type": "LATENT", "link": 3}],
         "outputs": [{"name": "LATENT", "type": "LATENT", "links": [4]}]},
        {"id": 5, "type": "Unknown", "pos": [5, 5], "mode": 0, "inputs": [{"name": "x", "type": "LATENT", "link": 4}],
         "outputs": [], "widgets_values": {"a": 1}},
        {"id": 6, "type": "PrimitiveNode", "outputs": [{"name": "INT", "type": "INT", "links": [5]}], "widgets_values": [3, "fixed"]},
        {"id": 7, "type": "KSampler", "inputs": [{"name": "steps", "type": "INT", "link": 5, "widget": {"name": "steps"}}],
         "outputs": [{"name": "LATENT", "type": "LATENT", "links": []}],
         "widgets_values": [1, "randomize", 20, 8.0, "euler", "normal", 1.0], "title": "mine"},
    ],
    "links": [[1, 1, 0, 2, 0, "*"], [2, 2, 0, 3, 0, "*"], [3, 3, 0, 4, 0, "LATENT"], [4, 4, 0, 5, 0, "*"], [5, 6, 0, 7, 0, "INT"]],
    "groups": [{"title": "g", "bounding": [0, 0, 1, 1]}],
    "definitions": {
        "subgraphs": [
            {"id": "sub", "name": "Sub", "inputNode": {"id": -10}, "outputNode": {"id": -20},
             "inputs": [{"name": "model", "type": "MODEL"}, {"name": "steps", "type": "INT"}],
             "outputs": [{"name": "LATENT", "type": "LATENT"}],
             "nodes": [{"id": 3, "type": "KSampler", "mode": 0,
                        "inputs": [{"name": "model", "type": "MODEL", "link": 1},
                                   {"name": "steps", "type": "INT", "link": 2, "widget": {"name": "steps"}}],
                        "outputs": [{"name": "LATENT", "type": "LATENT", "links": [3]}],
                        "widgets_values": [1, "fixed", 20, 8.0, "euler", "normal", 1.0]}],
             "links": [{"id": 1, "origin_id": -10, "origin_slot": 0, "target_id": 3, "target_slot": 0, "type": "MODEL"},
                       {"id": 2, "origin_id": -10, "origin_slot": 1, "target_id": 3, "target_slot": 1, "type": "INT"},
                       {"id": 3, "origin_id": 3, "origin_slot": 0, "target_id": -20, "target_slot": 0, "type": "LATENT"}]},
        ]
    },
    "extra": {"ds": {"scale": 1}, "katz": {"ids": {"7": "a:b"}, "run": {"seed": 1}}},
    "version": 0.4,
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


PLACES = list(places(DOCUMENT))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-30, 30)
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
)
JUNK = SCALARS | st.sampled_from(["sub", "Reroute", "GetNode", "SetNode", "Note", "-10", 4, 2]) | st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6
)  # fmt: skip
MUTATIONS = st.lists(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(["set", "delete", "copy"]), JUNK),
    min_size=1,
    max_size=4,
)


def mutated(mutations: list[tuple[tuple[Any, ...], str, Any]]) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    for path, kind, junk in mutations:
        holder: Any = document
        try:
            for key in path[:-1]:
                holder = holder[key]
            if kind == "delete":
                del holder[path[-1]]
            elif kind == "copy" and isinstance(holder, list):
                holder.append(copy.deepcopy(holder[path[-1]]))
            else:
                holder[path[-1]] = junk
        except (KeyError, IndexError, TypeError):
            continue  # an earlier mutation removed this place
    return document


def test_the_document_as_it_is() -> None:
    workflow = parse_workflow(DOCUMENT, REGISTRY)
    assert workflow.graph.nodes["3:10"].inputs["steps"] == 12
    assert workflow.graph.nodes["a:b"].inputs["steps"] == 3


@settings(max_examples=600, deadline=20_000)
@given(MUTATIONS)
def test_a_damaged_file_is_a_graph_or_a_clear_refusal(
    mutations: list[tuple[tuple[Any, ...], str, Any]],
) -> None:
    try:
        workflow = parse_workflow(mutated(mutations), REGISTRY)
        document = to_ui(workflow, KNOWN)
    except InputError as error:
        assert str(error) and all(line.isprintable() for line in str(error).split("\n"))
        return
    json.dumps(document, allow_nan=False)
    assert from_api(to_api(workflow.graph)) == workflow.graph
    assert all("\n" not in note for note in workflow.notes)


DESCRIBED = {
    "A": {
        "input": {"required": {"x": ["INT", {"default": 1}]}},
        "input_order": {"required": ["x"]},
        "output": ["INT"],
    }
}


@settings(max_examples=200, deadline=20_000)
@given(JUNK, st.sampled_from(list(places(DESCRIBED))))
def test_a_damaged_server_description_is_read_or_refused(junk: Any, path: tuple[Any, ...]) -> None:
    document: Any = copy.deepcopy(DESCRIBED)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = junk
    try:
        from_object_info(document)
    except InputError as error:
        assert str(error)
