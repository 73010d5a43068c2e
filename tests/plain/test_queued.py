"""Queued documents give the prompts of `tests/queued_cases.json`, which the editor's tests read
too, and any text obeys the same rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from katz_graph.core.errors import InputError
from katz_graph.formats.api import from_api, to_api
from katz_graph.formats.front_end.prompt_text import sent_text, typed_text
from katz_graph.formats.object_info import from_object_info
from katz_graph.formats.read import parse_workflow
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_to_prompt import Sending, prompt_from_ui
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import Workflow

TABLE = json.loads((Path(__file__).parents[1] / "queued_cases.json").read_text())
TYPES = from_object_info(TABLE["object_info"])
NOW = datetime(2026, 3, 7, 9, 5, 4)

pytestmark = [pytest.mark.defect(8), pytest.mark.defect(9)]


def picking(picks: list[int]) -> Callable[[int], int]:
    remaining = iter(picks)
    return lambda _: next(remaining, 0)


def queued(document: Any, picks: list[int] | None = None) -> Workflow:
    return parse_workflow(document, {}, TYPES, Sending(NOW, picking(picks or [])))


def document_of(case: Mapping[str, Any]) -> dict[str, Any]:
    subgraphs = [TABLE["subgraphs"][name] for name in case["subgraphs"]]
    return {
        "version": 0.4,
        "last_node_id": case.get("last_node_id", 0),
        "nodes": case["nodes"],
        "links": case["links"],
        "extra": case.get("extra", {}),
        "definitions": {"subgraphs": subgraphs},
    }


def called(case: Any) -> str:
    return str(case.get("name") or case["typed"])


@pytest.mark.parametrize("case", TABLE["texts"], ids=called)
def test_of_a_prompt_one_alternative_of_each_group_is_sent_and_no_comment(case: Any) -> None:
    assert sent_text(case["typed"], picking(case["picks"])) == case["sent"]
    node = {"id": 1, "type": "Text", "widgets_values": [case["typed"]]}
    graph = queued({"nodes": [node], "links": []}, case["picks"]).graph
    assert graph.nodes["1"].inputs["text"] == case["sent"]


@pytest.mark.parametrize("case", TABLE["names"], ids=called)
def test_dates_and_values_of_nodes_are_filled_in_in_names_of_files(case: Any) -> None:
    nodes = [
        {"id": 1, "type": "SaveImage", "widgets_values": [case["typed"]]},
        *TABLE["named_nodes"],
    ]
    subgraphs = [TABLE["subgraphs"]["two samplers"]]
    document = {"nodes": nodes, "links": [], "definitions": {"subgraphs": subgraphs}}
    assert queued(document).graph.nodes["1"].inputs["filename_prefix"] == case["sent"]


@pytest.mark.parametrize("case", TABLE["documents"], ids=called)
@pytest.mark.defect(12)
def test_a_document_is_queued_as_front_ends_send_it(case: Any) -> None:
    if "refused" in case:
        with pytest.raises(InputError, match=case["refused"]):
            queued(document_of(case))
        return
    workflow = queued(document_of(case))
    sent = to_api(workflow.graph)
    titled = {call.title: call.inputs for call in workflow.graph.nodes.values()}
    for title, inputs in case.get("leaves", {}).items():
        assert {name: titled[title].get(name) for name in inputs} == inputs
    for node, inputs in case.get("inputs", {}).items():
        assert {name: sent[node]["inputs"].get(name) for name in inputs} == inputs
    for node, name in case.get("ids", {}).items():
        assert name in (sent[node]["class_type"], workflow.graph.nodes[node].title)
    assert not set(case.get("absent", ())) & set(sent)
    notes = "\n".join(workflow.notes)
    assert all(note in notes for note in case.get("notes", ())), notes
    assert "left out" not in notes or case.get("notes"), notes


def test_a_graph_in_api_format_stays_as_it_is() -> None:
    graph = {
        "1": {"class_type": "Text", "inputs": {"text": "a {b|c} // d"}},
        "2": {"class_type": "SaveImage", "inputs": {"filename_prefix": "%date:yyyy%"}},
    }
    assert to_api(parse_workflow(graph, {}, TYPES).graph) == graph


def test_texts_stay_as_typed_where_a_document_becomes_one_for_editors_again() -> None:
    typed = "a {b|c} \\{d\\} // e"
    node = {"id": 1, "type": "Text", "widgets_values": [typed]}
    known = signatures({}, TYPES)
    workflow = prompt_from_ui({"nodes": [node], "links": []}, known)
    (written,) = to_ui(workflow, known)["nodes"]
    assert written["widgets_values"] == [typed]


@given(st.text(alphabet="ab{}|\\/* \n", max_size=30))
@settings(max_examples=200, deadline=None)
def test_sent_graphs_come_back_from_editor_files(text: str) -> None:
    graph = from_api({"1": {"class_type": "Text", "inputs": {"text": text}}})
    drawn = json.loads(json.dumps(to_ui(Workflow(graph), signatures({}, TYPES))))
    assert queued(drawn).graph == graph
    assert parse_workflow(drawn).graph == graph  # with an unknown type
    typed = typed_text(text)
    assert typed is None or sent_text(typed, picking([])) == text


@given(st.text(alphabet="ab{}|\\/* \n", max_size=40), st.lists(st.integers(0, 9), max_size=9))
@settings(max_examples=200, deadline=None)
def test_any_text_gives_one_and_draws_only_existing_alternatives(
    text: str, picks: list[int]
) -> None:
    drawn: Iterator[int] = iter(picks)
    sent = sent_text(text, lambda count: next(drawn, 0) % count)
    assert len(sent) <= len(text)


def test_deep_nesting_takes_no_recursion_and_no_time() -> None:
    assert sent_text("{" * 50_000 + "|" * 50_000, lambda count: count - 1) == ""


@pytest.mark.defect(12)
def test_ids_stay_in_a_document_if_its_sender_refers_to_them() -> None:
    case = next(case for case in TABLE["documents"] if "twice" in case["name"])
    document = {**document_of(case), "extra": {"katz": {"ids_stay": True}}}
    assert {"5:1", "5:20", "6:20"} <= set(queued(document).graph.nodes)
