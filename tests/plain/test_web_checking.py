"""`check_prompt` turns any input into a graph that runs or an answer that names the error, and
applies a server's limits.
"""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from trivial_nodes import TYPES, RecordingContext, node

from katz_graph.checks.validate import check
from katz_graph.core.errors import InputError
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.files.folders import Folders
from katz_graph.files.urls import NONE, FetchRule
from katz_graph.formats.api import from_api, to_api
from katz_graph.formats.image import workflow_from_picture
from katz_graph.formats.read import read_workflow
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import Workflow, to_native
from katz_graph.node.types import Input, NodeType, Output
from katz_graph.packs import Registry, load_registry
from katz_graph.web.options import Limits
from katz_graph.web.runner.checking import check_prompt
from katz_graph.web.runner.limits import limited
from katz_graph.web.runner_client.facts import CheckedPrompt
from katz_graph.web.runner_client.messages import Check

ROOT = Path(__file__).parents[2]
REGISTRY = load_registry()[0]
FOLDERS = Folders(paths=False)
LIMITS = Limits()


def checked(
    document: Any, targets: list[str] | None = None, types: Any = TYPES, limits: Limits = LIMITS
) -> CheckedPrompt:
    found = check_prompt(document, targets, types, FOLDERS, limits)
    # it is sent over the pipe, and partly to clients
    json.dumps(Check.answer.dump_python(found), allow_nan=False)
    assert (found.error is None) == (found.prompt is not None) == bool(found.targets)
    return found


def kind(found: CheckedPrompt) -> str:
    assert found.error is not None and set(found.error) == {
        "type",
        "message",
        "details",
        "extra_info",
    }
    return str(found.error["type"])


def save(source: str = "1") -> dict[str, Any]:
    return node("Save", value=[source, 0])


def stock() -> dict[str, Any]:
    return to_api(read_workflow(ROOT / "workflows" / "txt2img.json", REGISTRY).graph)


def only(document: dict[str, Any], class_type: str) -> dict[str, Any]:
    (found,) = (call for call in document.values() if call["class_type"] == class_type)
    return found["inputs"]  # type: ignore[no-any-return]


def test_a_sound_prompt_gets_the_types_of_its_inputs() -> None:
    found = checked({"1": node("Number", value="5"), "2": save()})
    assert (
        found.prompt == {"1": node("Number", value=5), "2": save()}
        and found.targets == ("2",)
        and found.refused == ()
    )
    assert found.node_errors == {} and found.workflow is None


def test_a_sound_output_runs_although_another_one_cannot() -> None:
    found = checked(
        {
            "1": node("Number", value=0),
            "2": save(),
            "3": node("Number", value=99_999),
            "4": save("3"),
        }
    )
    assert (found.targets, found.refused) == (("2",), ("4",))
    assert found.node_errors["3"]["dependent_outputs"] == ["4"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, "no_prompt"),
        ({}, "prompt_no_outputs"),
        ({"1": node("Number", value=0)}, "prompt_no_outputs"),
        ([], "invalid_prompt"),
        ("text", "invalid_prompt"),
        ({"1": 5}, "invalid_prompt"),
        ({"1": {"class_type": 7}}, "invalid_prompt"),
        ({"1": {"class_type": "Save", "inputs": []}}, "invalid_prompt"),
        ({"1": {"inputs": {}, "_meta": {"title": "mine"}}}, "missing_node_type"),
        ({"1": node("Nope"), "2": save()}, "missing_node_type"),
        ({"nodes": [], "links": []}, "invalid_prompt"),
        ({"format": "else"}, "invalid_prompt"),
        ({"1": node("Number", value="x"), "2": save()}, "prompt_outputs_failed_validation"),
    ],
)
def test_each_validation_problem_has_a_type(document: Any, expected: str) -> None:
    assert kind(checked(document)) == expected


LATENT = {"width": 64, "height": 64, "batch_size": 1}


@pytest.mark.defect(10)
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"width": None}, "invalid_input_type"),
        ({"batch_size": None}, "invalid_input_type"),
        ({"width": ...}, "required_input_missing"),
        ({"batch_size": ...}, "required_input_missing"),
        ({}, None),
    ],
)
def test_no_default_stands_for_a_value_that_an_api_prompt_lacks(
    inputs: dict[str, Any], expected: str | None
) -> None:
    given = {name: value for name, value in {**LATENT, **inputs}.items() if value is not ...}
    document = {
        "1": node("EmptyLatentImage", **given),
        "2": node("SaveLatent", samples=["1", 0], filename_prefix="x"),
    }
    found = checked(document, types=REGISTRY)
    errors = [one["type"] for one in found.node_errors.get("1", {}).get("errors", [])]
    assert errors == ([] if expected is None else [expected])
    # our files and those of older editors are read with defaults
    assert checked(to_native(Workflow(from_api(document))), types=REGISTRY).error is None


@pytest.mark.defect(10)
@pytest.mark.parametrize("value", [[], [1], ["1"], ["1", 0, 0], ["1", "0"], ["a", "b"]])
@pytest.mark.parametrize("kind", ["Number", "Save"])
def test_a_list_that_is_not_a_link_is_refused(kind: str, value: list[Any]) -> None:
    """As in ComfyUI, a list value must be marked, whatever the input takes."""
    document = {"1": node("Number", value=0), "2": node(kind, value=value), "3": save("2")}
    found = checked(document, ["2" if kind == "Save" else "3"])
    (problem,) = found.node_errors["2"]["errors"]
    assert problem["type"] == "bad_linked_input"
    assert to_api(from_api(document)) == document
    marked = {"1": node("Save", value={"__value__": value})}
    assert checked(marked).prompt == marked


@pytest.mark.defect(10)
@pytest.mark.parametrize(
    ("socket", "expected"),
    [("INT", "wrong_type"), ("FLOAT", "wrong_type"), ("COMBO", "not_a_choice"), ("MODEL", None)],
)
def test_null_is_refused_for_optional_numbers_and_choices_of_packs(
    socket: str, expected: str | None
) -> None:
    choices = ("a",) if socket == "COMBO" else None
    port = Input("value", socket, required=False, knob=socket != "MODEL", choices=choices)
    sink = replace(TYPES["Save"], inputs={"value": port}, instance=object)
    graph = from_api({"1": node("Sink", value=None)})
    found = check(graph, {"Sink": sink}, defaults=False)
    assert [problem.kind for problem in found.errors] == ([expected] if expected else [])
    assert not check(graph, {"Sink": sink}).errors
    assert not check(graph, {"Sink": replace(sink, instance=None)}, defaults=False).errors


@pytest.mark.defect(10)
@pytest.mark.parametrize(
    "file", sorted((ROOT / "workflows").glob("*.json")), ids=lambda file: file.stem
)
def test_shipped_prompts_have_all_values(file: Path) -> None:
    found = checked(json.loads(file.read_text(encoding="utf-8")), types=REGISTRY)
    errors = [one for node in found.node_errors.values() for one in node["errors"]]
    assert not [one for one in errors if one["type"] == "required_input_missing"]


@pytest.mark.defect(10)
@pytest.mark.parametrize(
    ("class_type", "names"),
    [
        ("CLIPLoader", {"device"}),
        ("DualCLIPLoader", {"device"}),
        ("DifferentialDiffusion", {"strength"}),
        ("ModelSamplingAuraFlow", {"sampling"}),
        ("RegexReplace", {"case_insensitive", "multiline", "dotall", "count"}),
    ],
)
def test_values_that_comfyui_declares_optional_may_be_absent(
    class_type: str, names: set[str]
) -> None:
    """Later ComfyUI versions added them; prompts of older clients run without them."""
    kind = REGISTRY[class_type]
    assert names == {
        port.name for port in kind.inputs.values() if port.knob and not kind.is_always_sent(port)
    }


@pytest.mark.defect(10)
def test_a_whole_number_does_not_feed_an_input_for_any_number() -> None:
    """ComfyUI also refuses such a link before anything runs."""
    document = stock()
    source = {"class_type": "PrimitiveInt", "inputs": {"value": 3}}
    sampler = only(document, "KSampler")
    sampler["steps"] = ["whole", 0]
    assert checked({**document, "whole": source}, types=REGISTRY).error is None
    sampler["cfg"] = ["whole", 0]
    found = checked({**document, "whole": source}, types=REGISTRY)
    assert kind(found) == "prompt_outputs_failed_validation"
    (errors,) = (entry["errors"] for entry in found.node_errors.values() if entry["errors"])
    assert [error["type"] for error in errors] == ["return_type_mismatch"]


def test_targets_are_outputs_of_the_prompt() -> None:
    document = {"1": node("Number", value=0), "2": save(), "3": save()}
    assert checked(document, ["3"]).targets == ("3",)
    assert kind(checked(document, [])) == "prompt_no_outputs"
    unknown = checked(document, ["2", "9"])
    assert unknown.targets == ("2",) and any("node 9" in note for note in unknown.notes)
    assert kind(checked(document, ["9"])) == "prompt_no_outputs"
    linked = checked(document, ["1", "2"])
    assert linked.targets == ("2",) and any("node 1" in note for note in linked.notes)
    assert kind(checked(document, ["1"])) == "prompt_no_outputs"


def test_an_editors_workflow_runs_and_is_stored() -> None:
    document = json.loads((ROOT / "workflows" / "hires_inpaint_ui.json").read_text())
    found = checked(document, types=REGISTRY)
    assert found.error is None and len(found.targets) == 4
    assert found.workflow == document
    assert found.prompt == checked(found.prompt, types=REGISTRY).prompt


def test_katz_graphs_own_wrapper_runs() -> None:
    workflow = read_workflow(ROOT / "workflows" / "txt2img.json", REGISTRY)
    assert (
        checked(to_native(workflow), types=REGISTRY).prompt
        == checked(to_api(workflow.graph), types=REGISTRY).prompt
    )


def from_picture(data: bytes) -> Any:
    return workflow_from_picture(io.BytesIO(data))


def picture(kind: str = "PNG", **texts: Any) -> bytes:
    stream = io.BytesIO()
    image = Image.new("RGB", (4, 4))
    if kind == "PNG":
        chunks = PngImagePlugin.PngInfo()
        for key, text in texts.items():
            chunks.add_text(key, json.dumps(text))
        image.save(stream, kind, pnginfo=chunks)
    else:
        exif = Image.Exif()
        for tag, (key, text) in zip((0x0110, 0x010F), texts.items(), strict=False):
            exif[tag] = f"{key}:{json.dumps(text)}"
        image.save(stream, kind, exif=exif)
    return stream.getvalue()


@pytest.mark.parametrize("container", ["PNG", "WEBP"])
def test_a_picture_runs_as_its_graph_and_keeps_the_editors_document(container: str) -> None:
    graph = from_api(stock())
    editors = json.loads(json.dumps(to_ui(Workflow(graph), signatures(REGISTRY))))
    both = checked(
        from_picture(picture(container, prompt=stock(), workflow=editors)), types=REGISTRY
    )
    assert both.prompt == checked(stock(), types=REGISTRY).prompt and both.workflow == editors
    alone = checked(from_picture(picture(container, workflow=editors)), types=REGISTRY)
    assert alone.prompt == both.prompt and alone.workflow == editors
    assert (
        checked(from_picture(picture(container, prompt=stock())), types=REGISTRY).workflow is None
    )
    native = to_native(Workflow(graph))
    assert from_picture(picture(container, prompt={"1": node("Other")}, workflow=native)) == native


def test_pictures_that_carry_nothing_are_refused_in_a_line() -> None:
    for data, expected in (
        (picture(), "without a workflow"),
        (picture(prompt=stock())[:20], "truncated PNG"),
        (b"\xff\xd8\xff", "not a PNG or WebP"),
        (b"", "not a PNG or WebP"),
    ):
        with pytest.raises(InputError, match=expected):
            from_picture(data)


def test_many_compressed_texts_are_limited_together() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + b"\0\0\0\0"

    packed = zlib.compress(b" " * (40 * 2**20), 1)
    bomb = b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(b"zTXt", key + b"\0\0" + packed) for key in (b"prompt", b"workflow")
    )
    with pytest.raises(InputError, match="more than"):
        from_picture(bomb)


def test_names_of_files_do_not_reveal_folders(tmp_path: Path) -> None:
    folders = Folders((tmp_path / "models",), tmp_path / "input", tmp_path / "output", paths=False)
    names = [
        "nope.safetensors",
        "/etc/passwd",
        "../../x",
        "old.ckpt",
        "https://a.b/c.safetensors",
        "owner/name",
        "a\0b",
        str(tmp_path),
    ]
    for name in names:
        document = stock()
        only(document, "CheckpointLoaderSimple")["ckpt_name"] = name
        found = check_prompt(document, None, REGISTRY, folders, LIMITS)
        assert kind(found) == "prompt_outputs_failed_validation"
        (problem,) = found.node_errors["1"]["errors"]
        assert (
            problem["type"] == "value_not_in_list"
            and problem["extra_info"].pop("received_value") == name
        )
        assert str(tmp_path) not in json.dumps(found.node_errors).replace(f'\\"{name}\\"', "")


@pytest.mark.parametrize("rule", [NONE, FetchRule(False, ("https://example.org/loras/",))])
def test_urls_are_taken_from_where_the_operator_allows(rule: FetchRule) -> None:
    for where in ("loras", "others"):
        document = stock()
        url = f"https://example.org/{where}/a.safetensors?token=secret"
        document["8"] = {
            "class_type": "LoraLoaderModelOnly",
            "inputs": {"lora_name": url, "model": ["1", 0], "strength_model": 1.0},
        }
        only(document, "KSampler")["model"] = ["8", 0]
        found = check_prompt(document, None, REGISTRY, replace(FOLDERS, fetch=rule), LIMITS)
        of_lora = found.node_errors.get("8", {}).get("errors", [])
        if where == "loras" and rule.beginnings:
            assert of_lora == []
        else:
            (problem,) = of_lora
            assert "may not be fetched here" in problem["details"]
            assert "secret" not in problem["details"]


LIMIT_CASES = [
    ("KSampler", {"steps": 1001}, "steps", "1,000 (steps)"),
    (
        "EmptyLatentImage",
        {"width": 16384, "height": 1032},
        "width",
        "16,777,216 in a picture (pixels)",
    ),
    ("EmptyLatentImage", {"batch_size": 65}, "batch_size", "64 (batch)"),
    (
        "EmptyLatentImage",
        {"width": 2048, "height": 2048, "batch_size": 17},
        "batch_size",
        "67,108,864 in a batch (batch_pixels)",
    ),
]


@pytest.mark.parametrize(("class_type", "inputs", "name", "limit"), LIMIT_CASES)
def test_literals_over_a_limit(
    class_type: str, inputs: dict[str, Any], name: str, limit: str
) -> None:
    document = stock()
    only(document, class_type).update(inputs)
    found = checked(document, types=REGISTRY)
    (node_error,) = found.node_errors.values()
    (problem,) = node_error["errors"]
    assert (
        problem["type"] == "value_bigger_than_max" and problem["extra_info"]["input_name"] == name
    )
    assert limit in problem["details"]


@pytest.mark.defect(32)
def test_a_text_that_is_too_long_to_be_encoded() -> None:
    """A literal is refused before the job runs; a linked text when the node is called."""
    document = stock()
    encodes = next(call for call in document.values() if call["class_type"] == "CLIPTextEncode")
    encodes["inputs"]["text"] = "word " * 40_000
    found = checked(document, types=REGISTRY)
    ((problem,),) = (one["errors"] for one in found.node_errors.values())
    assert "200,000 characters, more than this server's limit of 32,768" in problem["details"]
    encodes["inputs"]["text"] = "w" * 32_768
    assert checked(document, types=REGISTRY).error is None
    called = limited(REGISTRY, LIMITS)["CLIPTextEncode"]
    with pytest.raises(InputError, match="text: has 32,769 characters"):
        called.run(None, {"clip": object(), "text": "w" * 32_769})


def test_the_largest_that_is_allowed() -> None:
    document = stock()
    only(document, "KSampler")["steps"] = 1000
    only(document, "EmptyLatentImage").update(width=16384, height=1024, batch_size=4)
    assert checked(document, types=REGISTRY).error is None
    only(document, "EmptyLatentImage").update(width=1024, height=1024, batch_size=64)
    assert checked(document, types=REGISTRY).error is None


def test_a_limit_holds_for_a_number_of_a_primitive_node() -> None:
    document = stock() | {"p": {"class_type": "PrimitiveInt", "inputs": {"value": 5000}}}
    only(document, "KSampler")["steps"] = ["p", 0]
    found = checked(document, types=REGISTRY)
    assert [call["class_type"] for call in found.node_errors.values()] == ["KSampler"]


def test_more_nodes_than_the_limit() -> None:
    few = replace(LIMITS, nodes=2)
    document = {"1": node("Number", value=0), "2": save(), "3": save()}
    found = checked(document, limits=few)
    assert kind(found) == "invalid_prompt" and "2 (nodes)" in found.error["details"]  # type: ignore[index]
    assert checked({"1": node("Number", value=0), "2": save()}, limits=few).error is None
    wrapper = to_native(Workflow(from_api(document)))
    assert kind(checked(wrapper, limits=few)) == "invalid_prompt"
    spread = {"1": node("Number", **{f"spare{number}": 1 for number in range(50)}), "2": save()}
    assert (
        "52 inputs" not in str(checked(spread).error)
        and "51 inputs" in checked(spread, limits=few).error["details"]
    )  # type: ignore[index]
    inner = {
        "id": "s",
        "name": "s",
        "nodes": [{"id": number, "type": "Number"} for number in range(3)],
        "links": [],
    }
    editors = {
        "nodes": [{"id": 1, "type": "s"}],
        "links": [],
        "definitions": {"subgraphs": [inner]},
    }
    nested = checked(editors, limits=few)
    assert kind(nested) == "invalid_prompt" and "4 nodes" in nested.error["details"]  # type: ignore[index]


@dataclass(frozen=True)
class Tensor:
    """Has only the shape of a tensor."""

    shape: tuple[int, ...]


def made(
    result: Any,
    socket: str,
    inputs: dict[str, Input] | None = None,
    name: str = "Make",
    is_async: bool = False,
) -> NodeType:
    async def run_async(context: Any, values: Any) -> Any:
        return (result(values),)

    run = run_async if is_async else lambda context, values: (result(values),)
    return NodeType(name, name, "", "", inputs or {}, (Output("made", socket),), False, run)


def failure(kind: NodeType, document: dict[str, Any], *others: NodeType) -> str:
    registry = limited(
        Registry({**TYPES, **{other.name: other for other in (kind, *others)}}), LIMITS
    )
    result = run_graph(
        from_api(document), RecordingContext(types=registry), ResultCache.parse("none")
    )
    return "\n".join(map(str, result.failures.values()))


@pytest.mark.parametrize(
    ("value", "socket", "expected"),
    [
        (Tensor((1, 4097, 4096, 3)), "IMAGE", "4,096 x 4,097 pixels"),
        (Tensor((1, 4096, 4096, 3)), "IMAGE", ""),
        (Tensor((65, 8, 8)), "MASK", "a batch of 65"),
        ({"samples": Tensor((1, 4, 513, 512))}, "LATENT", "4,096 x 4,104 pixels"),
        ({"samples": Tensor((1, 128, 257, 256))}, "LATENT", "4,096 x 4,112 pixels"),
        ([Tensor((1, 8, 8, 3)), Tensor((1, 8192, 8192, 3))], "IMAGE", "8,192 x 8,192 pixels"),
        (Tensor((1002,)), "SIGMAS", "1,001 steps"),
        ("x" * (4 * 2**20 + 1), "STRING", "4,194,305 characters"),
        (Tensor((9999,)), "THING", ""),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_limits_apply_to_values_made_by_nodes(
    value: Any, socket: str, expected: str, is_async: bool
) -> None:
    message = failure(
        made(lambda values: value, socket, is_async=is_async), {"1": node("Make"), "2": save()}
    )
    assert expected in message and bool(message) == bool(expected)
    assert not expected or "node 1 (Make)" in message


def test_oversized_results_are_refused_before_the_node_runs() -> None:
    source = made(lambda values: Tensor((4, 2048, 1024, 3)), "IMAGE", name="Source")
    calls = []

    def scaled(**values: Any) -> str:
        wanted = {
            name: replace(REGISTRY["ImageScaleBy"].inputs["image"], name=name)
            for name in ("image",)
        }
        wanted |= {
            name: Input(name, "FLOAT" if name in ("scale_by", "megapixels") else "INT", True, True)
            for name in values
        }
        target = made(lambda given: calls.append(given), "IMAGE", wanted, name="Scale")
        return failure(
            target,
            {"1": node("Source"), "2": node("Scale", image=["1", 0], **values), "3": save("2")},
            source,
        )

    assert "scale_by: gives 4,096 x 8,192 pixels" in scaled(scale_by=4.0)
    assert "width: gives 4,096 x 8,192 pixels" in scaled(width=4096, height=0)
    assert "largest_size: gives 4,096 x 8,192 pixels" in scaled(largest_size=8192)
    assert "megapixels: gives 17,825,792 x 1 pixels" in scaled(megapixels=17.0)
    assert "amount: gives a batch of 68" in scaled(amount=17)
    for values in (
        {"scale_by": 1e308},
        {"width": 10**400, "height": 0},
        {"megapixels": 1e308},
        {"amount": 10**400},
        {"steps": 10**400},
    ):
        assert f"{next(iter(values))}: is too large" in scaled(**values)
    assert calls == []
    assert "made" not in scaled(scale_by=2.0) and len(calls) == 1  # 4 pictures of 8,388,608 pixels


def test_inputs_of_a_choice_are_limited_while_it_is_chosen() -> None:
    source = made(lambda values: Tensor((4, 2048, 1024, 3)), "IMAGE", name="Source")

    def resized(**values: Any) -> str:
        chosen = {"resize_type.width": 16384, "resize_type.height": 16384, **values}
        document = {
            "1": node("Source"),
            "2": node("ResizeImageMaskNode", input=["1", 0], **chosen),
            "3": save("2"),
        }
        target = replace(
            REGISTRY["ResizeImageMaskNode"], run=lambda context, given: (Tensor((1, 8, 8, 3)),)
        )
        return failure(target, document, source)

    assert "resize_type.width: gives 16,384 x 16,384 pixels" in resized()
    larger = {"resize_type": "scale by multiplier", "resize_type.multiplier": 4.0}
    assert "resize_type.multiplier: gives 4,096 x 8,192 pixels" in resized(**larger)
    shorter = {"resize_type": "scale shorter dimension", "resize_type.shorter_size": 4096}
    assert "resize_type.shorter_size: gives 4,096 x 8,192 pixels" in resized(**shorter)
    assert resized(**larger | {"resize_type.multiplier": 0.5}) == ""


def test_pictures_of_all_inputs_count_together() -> None:
    source = made(lambda values: Tensor((4, 2048, 1024, 3)), "IMAGE", name="Source")
    target = replace(
        REGISTRY["BatchImagesNode"], run=lambda context, given: (Tensor((1, 8, 8, 3)),)
    )

    def joined(count: int) -> str:
        links = {f"images.image{number}": ["1", 0] for number in range(count)}
        document = {"1": node("Source"), "2": node("BatchImagesNode", **links), "3": save("2")}
        return failure(target, document, source)

    assert "images.image16: gives a batch of 68" in joined(17)
    assert joined(2) == ""


def test_cutting_makes_nothing_larger() -> None:
    document = stock()
    crop = {
        "class_type": "LatentCrop",
        "inputs": {"samples": ["3", 0], "width": 16384, "height": 16384, "x": 0, "y": 0},
    }
    (latent,) = (
        name for name, call in document.items() if call["class_type"] == "EmptyLatentImage"
    )
    crop["inputs"]["samples"] = [latent, 0]  # type: ignore[index]
    only(document, "KSampler")["latent_image"] = ["crop", 0]
    assert checked(document | {"crop": crop}, types=REGISTRY).error is None


def test_an_awaited_node_stays_awaited() -> None:
    registry = limited(Registry({"Make": made(lambda values: 1, "INT", is_async=True)}), LIMITS)
    assert asyncio.iscoroutinefunction(registry["Make"].run) and asyncio.run(
        registry["Make"].run(None, {})
    ) == (1,)  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", [False, True])
def test_a_chain_of_ten_thousand_nodes(broken: bool) -> None:
    """Exceeds the recursion limit; a quadratic algorithm would take minutes."""
    middle = {
        str(number): node(
            "Echo" if not broken or number % 2 else "Ecko", value=[str(number - 1), 0]
        )
        for number in range(1, 9_999)
    }
    began = time.perf_counter()
    found = checked({"0": node("Number", value=0), **middle, "9999": save("9998")})
    assert time.perf_counter() - began < 30
    assert found.targets == (() if broken else ("9999",))


KEYS = st.sampled_from(
    [
        "1",
        "2",
        "class_type",
        "inputs",
        "_meta",
        "nodes",
        "links",
        "format",
        "graph",
        "workflow",
        "definitions",
        "value",
    ]
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["Save", "katz"])
)
ANY_JSON = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=25,
)
VALUE = ANY_JSON | st.tuples(st.sampled_from(["1", "2", "9"]), st.integers(-2, 9)).map(list)
NAME = st.sampled_from(
    ["value", "a", "b", "count", "steps", "width", "name", "mode", "thing", "image"]
)
CALL = st.fixed_dictionaries(
    {
        "class_type": st.sampled_from([*TYPES, "KSampler", "ImageScaleBy", "LoadImage"]),
        "inputs": st.dictionaries(NAME, VALUE, max_size=4),
    }
)
DOCUMENT = ANY_JSON | st.dictionaries(st.sampled_from(["1", "2", "3"]), CALL | ANY_JSON, max_size=3)


@settings(max_examples=300, deadline=None)
@given(DOCUMENT, st.none() | st.lists(st.sampled_from(["1", "2", "", "9"]), max_size=3))
def test_no_document_comes_to_an_exception(document: Any, targets: list[str] | None) -> None:
    checked(
        document,
        targets,
        types={
            **TYPES,
            **{name: REGISTRY[name] for name in ("KSampler", "ImageScaleBy", "LoadImage")},
        },
    )


def test_checking_imports_no_model_library() -> None:
    code = (
        "import sys, json\nfrom katz_graph.web.runner.checking import check_prompt\nfrom "
        "katz_graph.web.options import Limits\n"
        "from katz_graph.packs import load_registry\nfrom katz_graph.files.folders import Folders\n"
        "from katz_graph.formats.object_info_write import object_info_json\n"
        "types = load_registry()[0]\nassert object_info_json(types, Folders())\n"
        "assert check_prompt(json.load(open(sys.argv[1])), None, types, Folders(paths=False), "
        "Limits()).targets\n"
        "print(*sorted({'torch', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", code, str(ROOT / "workflows" / "txt2img.json")]
    result = subprocess.run(arguments, capture_output=True, text=True)
    assert (result.returncode, result.stdout.split()) == (0, []), result.stderr
