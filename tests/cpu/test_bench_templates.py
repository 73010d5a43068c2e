"""`katz bench templates`: official templates run on stand-ins, and what has no effect is found."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from katz_graph.bench import templates
from katz_graph.bench.templates import Template, tried
from katz_graph.core.graph import Graph
from katz_graph.packs import Registry, load_registry

pytest.importorskip(templates.PACKAGE, reason="pip install comfyui-workflow-templates-json")


@cache
def registry() -> Registry:
    return load_registry()[0]


@cache
def every() -> dict[str, Template]:
    return {one.name: one for one in templates.templates(registry())}


@pytest.mark.parametrize(
    "name",
    [
        "sd3.5_simple_example",
        "flux_fill_inpaint_example",
        "image_z_image_turbo_int8",
        "image_z_image_turbo_fun_union_controlnet",
        "image_qwen_image_2512_with_2steps_lora",
    ],
)
def test_an_official_template_runs_to_a_picture(name: str) -> None:
    assert tried(every()[name], registry(), seed=1) == ""


def test_a_lora_without_effect_does_not_count_as_running() -> None:
    template = every()["image_qwen_image_2512_with_2steps_lora"]
    nodes = {
        name: replace(node, inputs={**node.inputs, "strength_model": 0.0})
        if node.type == "LoraLoaderModelOnly"
        else node
        for name, node in template.graph.nodes.items()
    }
    found = tried(replace(template, graph=Graph(nodes)), registry(), seed=1)
    assert found.startswith("the pictures do not change without LoraLoaderModelOnly")


def test_what_cannot_run_has_a_reason() -> None:
    wanted = {
        "flux_redux_model_example": "unknown nodes: CLIPVisionEncode",
        "image_chroma_text_to_image": "no stand-in for Chroma1-HD-fp8mixed.safetensors",
    }
    for name, reason in wanted.items():
        assert tried(every()[name], registry(), seed=1).startswith(reason)


def test_templates_and_their_uses_are_counted() -> None:
    assert (len(every()), sum(one.uses for one in every().values())) == (145, 76_111)
