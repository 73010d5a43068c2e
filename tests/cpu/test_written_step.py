"""Replacing a sampler by its step's nodes gives the same pictures, or says why it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import Katz

import katz_graph as katz
from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.executor.rehearsal import Rehearsal
from katz_graph.files.folders import Folders
from katz_graph.formats.api import to_api
from katz_graph.formats.read import parse_workflow
from katz_graph.packs import load_registry
from katz_graph.planner.written_step import with_step
from katz_graph.testing.random_models import Kind

WORKFLOWS = Path(__file__).parents[2] / "workflows"
REGISTRY = load_registry()[0]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, costs: Path) -> Iterator[katz.Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KATZ_CACHE", str(costs))
        with katz.open(devices="cpu", output=tmp_path_factory.mktemp("output")) as opened:
            yield opened


def shipped(name: str, **inputs: Any) -> Graph:
    """Returns a shipped workflow with changed inputs of node 5 and two steps."""
    graph = parse_workflow(json.loads((WORKFLOWS / f"{name}.json").read_text()), REGISTRY).graph
    nodes = {
        key: replace(call, inputs={**call.inputs, "steps": 2}) if "steps" in call.inputs else call
        for key, call in graph.nodes.items()
    }
    if inputs:
        nodes["5"] = replace(nodes["5"], inputs={**nodes["5"].inputs, **inputs})
    return Graph(nodes)


def written(graph: Graph, *samplers: str) -> Graph:
    for sampler in samplers:
        graph = with_step(graph, sampler, Rehearsal(REGISTRY, Folders()).step(graph, sampler))
    return graph


def pictures(engine: katz.Engine, graph: Graph, folder: Path) -> dict[str, bytes]:
    file = folder / "graph.json"
    file.write_text(json.dumps(to_api(graph)))
    result = engine.run(file)
    return {f"{image.size} {image.mode}": image.tobytes() for image in result.images}


@pytest.mark.parametrize(
    ("name", "samplers", "replaced"),
    [
        ("inpaint", "5", ""),
        ("controlnet_lora", "5", "10"),
        ("flow_controlnet_lora", "5", "14"),
        ("diffusers_sampler", "5", ""),
        # areas, ranges, two ControlNets with windows, a guider and another sampler's output
        ("hires_inpaint_ui", "41 51", "13 14 15 22 30 49 50"),
    ],
)
def test_the_step_paints_the_same_bytes_as_the_sampler(
    engine: katz.Engine, tmp_path: Path, name: str, samplers: str, replaced: str
) -> None:
    graph = shipped(name)
    drawn = written(graph, *samplers.split())
    assert not {*samplers.split(), *replaced.split()} & drawn.nodes.keys()
    assert set(graph.nodes) - set(drawn.nodes) == {*samplers.split(), *replaced.split()}
    assert pictures(engine, drawn, tmp_path) == pictures(engine, graph, tmp_path)


@pytest.mark.parametrize("kind", ["flux", "z_image", "hunyuan_dit"])
def test_a_transformer_gets_the_same_conditioning(
    engine: katz.Engine, tmp_path: Path, folders: dict[Kind, Path], kind: Kind
) -> None:
    graph = of_family(folders[kind])
    drawn = written(graph, "5")
    guidance = [
        call.inputs["guidance"] for call in drawn.nodes.values() if call.type == "FluxGuidance"
    ]
    assert guidance == ([3.5] if kind == "flux" else [])  # the sampler set it itself
    assert pictures(engine, drawn, tmp_path) == pictures(engine, graph, tmp_path)


def of_family(folder: Path) -> Graph:
    nodes = dict(shipped("txt2img", cfg=1.0).nodes)
    nodes["1"] = NodeCall("CheckpointLoaderSimple", {"ckpt_name": str(folder)})
    nodes["4"] = NodeCall("EmptyLatentImage", {"width": 64, "height": 64, "batch_size": 1})
    return Graph(nodes)


def test_linked_knobs_stay_linked_and_unused_nodes_are_removed() -> None:
    graph = shipped("txt2img", seed=Link("seed", 0), cfg=1.0)
    graph = Graph({"seed": NodeCall("PrimitiveInt", {"value": 3}), **graph.nodes})
    drawn = written(graph, "5")
    assert drawn.nodes["5.begin"].inputs["seed"] == Link("seed", 0)
    assert "5.negative-encoder" not in drawn.nodes  # guidance 1 needs no negative
    assert "3" in drawn.nodes  # a user's text stays
    assert drawn.nodes["90"].inputs["samples"] == Link("5.end", 0)


def test_unfoldable_samplers_give_the_reason() -> None:
    plain = shipped("txt2img")
    step = Rehearsal(REGISTRY, Folders()).step
    lines = {
        "is not in the workflow": (plain, "nobody"),
        "is not a sampler": (plain, "90"),
        "already consists of nodes": (shipped("loop_by_hand"), _end(shipped("loop_by_hand"))),
        "positive: is missing": (_without(plain, "positive"), "5"),
    }
    changed = {
        **shipped("controlnet_lora").nodes,
        "zero": NodeCall("ConditioningZeroOut", {"conditioning": Link("10", 0)}),
    }
    changed["5"] = replace(
        changed["5"], inputs={**changed["5"].inputs, "positive": Link("zero", 0)}
    )
    lines["no node before it outputs the conditioning"] = Graph(changed), "5"
    nodes = dict(shipped("controlnet_lora").nodes)
    saved = {"images": nodes["10"].inputs["image"], "filename_prefix": "x"}
    nodes["saved"] = NodeCall("SaveImage", saved)
    nodes["10"] = replace(nodes["10"], inputs={**nodes["10"].inputs, "image": Link("saved", 0)})
    lines["writes files"] = Graph(nodes), "5"
    for line, (graph, sampler) in lines.items():
        with pytest.raises(InputError, match=line):
            step(graph, sampler)
    types = {**REGISTRY.types, "CLIPTextEncode": replace(REGISTRY["CLIPTextEncode"], pack="p")}
    with pytest.raises(InputError, match="belongs to a pack"):
        Rehearsal(types, Folders()).step(plain, "5")


def _end(graph: Graph) -> str:
    return next(name for name, call in graph.nodes.items() if call.type == "StepEnd")


def _without(graph: Graph, name: str) -> Graph:
    inputs = {key: value for key, value in graph.nodes["5"].inputs.items() if key != name}
    return Graph({**graph.nodes, "5": replace(graph.nodes["5"], inputs=inputs)})


def test_pictures_that_show_only_when_models_run_are_not_mixed_up() -> None:
    """Two pictures for one VAE are distinguished before computing, unless a node combines them."""
    nodes_ = dict(shipped("controlnet_lora").nodes)
    apply = next(name for name, call in nodes_.items() if call.type == "ControlNetApplyAdvanced")
    vae = nodes_["90"].inputs["vae"]
    for name in ("a", "b"):
        nodes_[name] = NodeCall("VAEDecode", {"samples": Link("4", 0), "vae": vae})
    nodes_["other"] = replace(
        nodes_[apply],
        inputs={
            **nodes_[apply].inputs,
            "positive": Link(apply, 0),
            "negative": Link(apply, 1),
            "image": Link("b", 0),
        },
    )
    nodes_[apply] = replace(nodes_[apply], inputs={**nodes_[apply].inputs, "image": Link("a", 0)})
    sides = {"positive": Link("other", 0), "negative": Link("other", 1)}
    nodes_["5"] = replace(nodes_["5"], inputs={**nodes_["5"].inputs, **sides})
    drawn = written(Graph(nodes_), "5").nodes
    assert drawn["5.positive-controlnet1"].inputs["image"] == Link("a", 0)
    assert drawn["5.positive-controlnet2"].inputs["image"] == Link("b", 0)
    for name in ("a", "b"):
        cut = {"image": Link(name, 0), "low_threshold": 0.4, "high_threshold": 0.8}
        nodes_[f"{name}-cut"] = NodeCall("Canny", cut)
    nodes_[apply] = replace(
        nodes_[apply], inputs={**nodes_[apply].inputs, "image": Link("a-cut", 0)}
    )
    nodes_["other"] = replace(
        nodes_["other"], inputs={**nodes_["other"].inputs, "image": Link("b-cut", 0)}
    )
    with pytest.raises(InputError, match="picture from node b-cut, a-cut is"):
        written(Graph(nodes_), "5")


def test_convert_writes_a_sampler_out(katz: Katz, tmp_path: Path) -> None:
    source, ui = WORKFLOWS / "txt2img.json", tmp_path / "ui.json"
    assert katz("convert", source, ui, "--to", "ui", "--unfold", "5").code == 0
    types = {node["type"] for node in json.loads(ui.read_text())["nodes"]}
    assert {"StepBegin", "UNetEncoder", "StepEnd"} <= types and "KSampler" not in types
    refused = katz("convert", source, tmp_path / "other.json", "--unfold", "90")
    assert refused.code == 2 and "is not a sampler" in refused.err
    assert not (tmp_path / "other.json").exists()
