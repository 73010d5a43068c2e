"""A runner answers editors about a graph, without a model."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from katz_graph.files.folders import Folders
from katz_graph.formats.api import to_api
from katz_graph.formats.read import parse_workflow
from katz_graph.models.text.recipe import TextSize
from katz_graph.packs import Registry, load_registry
from katz_graph.web.options import Limits
from katz_graph.web.runner import dry_runs
from katz_graph.web.runner.dry_runs import DryRuns
from katz_graph.web.runner_client.messages import Unfold

WORKFLOWS = Path(__file__).parents[2] / "workflows"
REGISTRY = load_registry()[0]


def dry_runs_of(registry: Registry = REGISTRY) -> DryRuns:
    return DryRuns(registry, Folders(), Limits())


def document(name: str, **texts: str) -> dict[str, Any]:
    """Returns an API-format workflow with texts for nodes 2 and 3."""
    workflow = parse_workflow(json.loads((WORKFLOWS / name).read_text()), REGISTRY)
    made = json.loads(json.dumps(to_api(workflow.graph)))
    for node, text in texts.items():
        made[node.removeprefix("node")]["inputs"]["text"] = text
    return dict(made)


def test_a_prompt_is_counted_as_its_text_encoders_read_it() -> None:
    runs = dry_runs_of()
    graph = document("txt2img.json", node2="a (red star:1.3), \\(large\\) embedding:nobody")
    plain = document(
        "txt2img.json", node2="a red star, (large)".replace("(", "\\(").replace(")", "\\)")
    )
    weighed, same = (runs.text_sizes(one)["2"]["text"] for one in (graph, plain))
    assert weighed == same  # weights and names of missing textual inversions are no tokens
    (size,) = weighed  # both encoders share a tokenizer
    assert size.encoder == "CLIP" and size.chunks == 1 and size.most == 75
    long = runs.text_sizes(document("txt2img.json", node2=" ".join(["star"] * 81)))
    assert long["2"]["text"] == (TextSize("CLIP", 81, 2, 75),)


def test_each_kind_of_text_encoder_counts() -> None:
    sizes = dry_runs_of().text_sizes(document("flow_txt2img.json"))
    for texts in sizes.values():
        ((clip, long),) = texts.values()
        assert (clip.encoder, long.encoder) == ("CLIP", "T5")
        assert clip.chunks == 1 and long.chunks == long.most == 0


def test_an_unknown_encoder_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = document("txt2img.json")
    assert set(dry_runs_of().text_sizes(graph)) == {"2", "3"}
    del graph["3"]["inputs"]["clip"]
    graph["2"]["inputs"]["clip"] = ["nowhere", 0]
    assert dry_runs_of().text_sizes(graph) == {}
    graph["2"]["inputs"]["clip"] = ["3", 0]
    graph["3"]["inputs"]["clip"] = ["2", 0]
    assert dry_runs_of().text_sizes(graph) == {}
    for wrong in ({}, {"1": {}}, {"1": {"class_type": "CLIPTextEncode", "inputs": {}}}):
        assert dry_runs_of().text_sizes(wrong) == {}
    types = {**REGISTRY.types, "CLIPSetLastLayer": replace(REGISTRY["CLIPSetLastLayer"], pack="p")}
    graph = document("txt2img.json")
    graph["9"] = {"class_type": "CLIPSetLastLayer", "inputs": {"clip": ["1", 1]}}
    graph["2"]["inputs"]["clip"] = ["9", 0]
    assert set(dry_runs_of().text_sizes(graph)) == {"2", "3"}
    assert set(dry_runs_of(replace(REGISTRY, types=types)).text_sizes(graph)) == {"3"}
    monkeypatch.setattr(dry_runs, "LETTERS", 0)
    assert set(dry_runs_of().text_sizes(graph)) == {"3"}  # its text is empty


def test_a_sampler_is_written_out_and_errors_are_one_line() -> None:
    runs = dry_runs_of()
    graph = document("txt2img.json")
    found = Unfold.answer.validate_python(Unfold.answer.dump_python(runs.step(graph, "5")))
    assert found.error == "" and found.step is not None
    assert (found.step.nodes[0].type, found.step.nodes[-1].name) == ("StepBegin", found.step.end)
    assert found.step.nodes[0].sources["model"] == ("5", "model")
    for wrong in ({}, {"5": {}}, {"5": {"class_type": "KSampler", "inputs": {}}}):
        assert runs.step(wrong, "5").step is None and runs.step(wrong, "5").error


def test_nothing_that_stands_in_a_document_is_an_error_of_its_own() -> None:
    runs = dry_runs_of()
    junk = (None, [], {}, -1, 1e308, "x" * 99, True, ["5", 0], ["1", 99], ["1", "0"])
    graph = document("controlnet_lora.json")
    places = [(node, name) for node, call in graph.items() for name in call["inputs"]]
    chance = random.Random(0)
    for _ in range(100):
        wrong = json.loads(json.dumps(graph))
        for node, name in chance.sample(places, 2):
            wrong[node]["inputs"][name] = chance.choice(junk)
        found = runs.step(wrong, "5")
        assert (found.step is None) == bool(found.error)
        json.dumps(Unfold.answer.dump_python(found), allow_nan=False)
        runs.text_sizes(wrong)
