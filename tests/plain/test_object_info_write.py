"""ComfyUI clients can read `/object_info`, and our own reader restores all node types from it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from foreign_packs import forgetting_shims, load, write
from trivial_nodes import TYPES

from katz_graph.comfy.v1.adapter import V1Class
from katz_graph.files.folders import Folders
from katz_graph.formats.object_info import from_object_info
from katz_graph.formats.object_info_write import node_info, object_info, object_info_json
from katz_graph.formats.read import parse_workflow, read_workflow
from katz_graph.formats.signature import Signature, signatures
from katz_graph.formats.ui_write import to_ui
from katz_graph.packs import Registry, load_registry

ROOT = Path(__file__).parents[2]
REGISTRY = load_registry()[0]
FOLDERS = Folders(paths=False)


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    with forgetting_shims():
        yield


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    return json.loads(object_info_json(REGISTRY, FOLDERS))  # type: ignore[no-any-return]


def without_files(signature: Signature, registry_name: str) -> Signature:
    """Removes the defaults of file inputs, which only a server sets."""
    files = {name for name, port in REGISTRY[registry_name].inputs.items() if port.folder}
    return replace(
        signature,
        widgets=tuple(
            replace(slot, default=None) if slot.name in files else slot
            for slot in signature.widgets
        ),
    )


def test_our_reader_gets_every_built_in_node_back(served: dict[str, Any]) -> None:
    read, known = from_object_info(served), signatures(REGISTRY)
    assert read.keys() == REGISTRY.keys()
    wrong = [name for name in REGISTRY if without_files(read[name], name) != known(name)]
    assert wrong == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "workflows").glob("*.json")), ids=lambda path: path.stem
)
def test_workflows_of_an_editor_convert_the_same_with_it(
    path: Path, served: dict[str, Any]
) -> None:
    workflow = read_workflow(path, REGISTRY)
    document = json.loads(path.read_text())
    editors = (
        document
        if "nodes" in document
        else json.loads(json.dumps(to_ui(workflow, signatures(REGISTRY))))
    )
    for node in editors["nodes"]:
        # the file names no widgets
        node["inputs"] = [port for port in node["inputs"] if port.get("link") is not None]
    assert parse_workflow(editors, None, from_object_info(served)).graph == workflow.graph


def test_a_sampler_as_clients_know_it(served: dict[str, Any]) -> None:
    sampler = served["KSampler"]
    required = sampler["input"]["required"]
    assert required["model"][0] == "MODEL" and required["latent_image"][0] == "LATENT"
    assert required["seed"] == [
        "INT",
        {"default": 0, "min": 0, "max": 2**64 - 1, "control_after_generate": True},
    ]
    assert required["steps"] == ["INT", {"default": 20, "min": 1, "max": 10000}]
    choices, options = required["sampler_name"]
    assert {"euler", "dpmpp_2m", "uni_pc"} <= set(choices) and options == {"default": "euler"}
    assert sampler["input_order"] == {"required": list(required)}
    assert (sampler["output"], sampler["output_is_list"], sampler["output_name"]) == (
        ["LATENT"],
        [False],
        ["LATENT"],
    )
    assert (sampler["name"], sampler["category"], sampler["python_module"]) == (
        "KSampler",
        "sampling",
        "nodes",
    )
    assert sampler["output_node"] is False and sampler["is_input_list"] is False
    assert sampler["has_intermediate_output"] is False and sampler["search_aliases"] == []


def test_titles_optional_wires_outputs_and_texts(served: dict[str, Any]) -> None:
    assert served["CheckpointLoaderSimple"]["display_name"] == "Load Checkpoint"
    assert list(served["ControlNetApplyAdvanced"]["input"]["optional"]) == ["vae"]
    assert served["SaveImage"]["output_node"] is True
    assert served["CLIPTextEncode"]["input"]["required"]["text"] == [
        "STRING",
        {"multiline": True, "dynamicPrompts": True},
    ]
    # JSON itself uses braces
    assert (
        "dynamicPrompts"
        not in served["DiffusersSampler"]["input"]["required"]["scheduler_config"][1]
    )
    # a link, not a widget
    assert object_info([TYPES["Add"]])["Add"]["input"]["required"]["a"] == [
        "INT",
        {"forceInput": True},
    ]
    assert (
        object_info([TYPES["Number"]])["Number"]["input"]["required"]["value"][1]["tooltip"]
        == "the number"
    )


def test_a_whole_number_that_is_a_colour_is_declared_as_one() -> None:
    color = node_info(REGISTRY["EmptyImage"], FOLDERS)["input"]["required"]["color"]
    assert color[0] == "INT" and color[1]["display"] == "color" and color[1]["max"] == 0xFFFFFF


def test_choices_are_the_files_that_are_there_now(tmp_path: Path) -> None:
    folders = Folders((tmp_path / "models",), tmp_path / "input", tmp_path / "output", paths=False)
    (tmp_path / "models" / "loras").mkdir(parents=True)

    def choices() -> list[str]:
        return node_info(REGISTRY["LoraLoader"], folders)["input"]["required"]["lora_name"][0]  # type: ignore[no-any-return]

    before = choices()
    (tmp_path / "models" / "loras" / "mine.safetensors").touch()
    assert set(choices()) - set(before) == {"mine.safetensors"}
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "cat.png").touch()
    files, options = node_info(REGISTRY["LoadImage"], folders)["input"]["required"]["image"]
    assert "cat.png" in files and options["image_upload"] is True
    assert str(tmp_path) not in object_info_json(REGISTRY, folders).decode()


def test_equal_types_and_files_give_equal_bytes() -> None:
    again = Registry({name: REGISTRY[name] for name in REGISTRY})
    assert object_info_json(REGISTRY, FOLDERS) == object_info_json(again, Folders(paths=False))


class Everything:
    RETURN_TYPES, RETURN_NAMES, OUTPUT_TOOLTIPS = (
        ("IMAGE", "STRING"),
        ("picture", "said"),
        ("the picture", "what it says"),
    )
    OUTPUT_IS_LIST, FUNCTION, CATEGORY = (True, False), "go", "mine"
    EXPERIMENTAL, SEARCH_ALIASES, HAS_INTERMEDIATE_OUTPUT, ESSENTIALS_CATEGORY = (
        True,
        ["all"],
        True,
        "Basics",
    )
    REQUIRED: ClassVar[dict[str, Any]] = {
        "seed": (
            "INT",
            {"default": 3, "max": 9, "display": "slider", "round": 1, "advanced": True},
        ),
        "mode": (["fast", "slow"], {"default": "slow", "tooltip": "how"}),
        "style": ("COMBO", {"options": ["x", "y"], "multiselect": False}),
        "tags": (["a", "b"], {"multi_select": True}),
        "strange": (
            "FLOAT",
            {"max": math.inf, "on_change": print, "names": ("p", "q"), "tensor": object()},
        ),
    }
    OPTIONAL: ClassVar[dict[str, Any]] = {
        "wire": ("INT", {"forceInput": True}),
        "stars": ("STARDUST",),
        "count": ("INT", {"default": 4}),
    }

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": cls.REQUIRED, "optional": cls.OPTIONAL, "hidden": {"me": "UNIQUE_ID"}}

    def go(self) -> None: ...


def test_a_packs_node_describes_the_packs_declarations() -> None:
    kind = replace(V1Class("Everything", Everything, "All of it").describe(), pack="mine")
    info = json.loads(json.dumps(node_info(kind), allow_nan=False))
    required = info["input"]["required"]
    assert required["seed"] == ["INT", Everything.REQUIRED["seed"][1]]
    assert required["mode"] == [["fast", "slow"], {"default": "slow", "tooltip": "how"}]
    assert required["style"] == ["COMBO", {"options": ["x", "y"], "multiselect": False}]
    assert required["tags"] == ["COMBO", {"options": ["a", "b"], "multi_select": True}]
    # values that JSON cannot hold are omitted
    assert required["strange"] == ["FLOAT", {"names": ["p", "q"]}]
    assert info["input"]["optional"] == {
        "wire": ["INT", {"forceInput": True}],
        "stars": ["STARDUST", {}],
        "count": ["INT", {"default": 4}],
    }
    assert info["input"]["hidden"] == {"me": "UNIQUE_ID"}
    assert info["input_order"]["required"] == list(Everything.REQUIRED)
    assert (info["python_module"], info["display_name"]) == ("custom_nodes.mine", "All of it")
    assert (info["output_is_list"], info["output_tooltips"]) == (
        [True, False],
        ["the picture", "what it says"],
    )
    assert info["experimental"] is True and "deprecated" not in info
    assert (
        info["search_aliases"] == ["all"]
        and info["has_intermediate_output"] is True
        and info["essentials_category"] == "Basics"
    )
    read = from_object_info({"Everything": info})["Everything"]
    assert read.widgets == signatures({"Everything": kind})("Everything").widgets  # type: ignore[union-attr]


THIRD = """
from comfy_api.latest import ComfyExtension, io

class Tinted(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Tinted", category="mine", is_dev_only=True, search_aliases=["shade"], hidden=[io.Hidden.unique_id],
            inputs=[
                io.Int.Input("count", default=2, min=0, max=10, control_after_generate=True, tooltip="how many"),
                io.Combo.Input("shade", options=["light", "dark"], default="dark"),
                io.Image.Input("image", optional=True),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, count, shade, image=None):
        return io.NodeOutput(image)

class Extension(ComfyExtension):
    async def get_node_list(self):
        return [Tinted]

async def comfy_entrypoint():
    return Extension()
"""


def test_a_node_of_the_third_convention(tmp_path: Path) -> None:
    registry, problems = load(write(tmp_path / "packs", mine=THIRD), tmp_path)
    assert problems == []
    info = node_info(registry["Tinted"])
    count = {
        "default": 2,
        "min": 0,
        "max": 10,
        "control_after_generate": True,
        "tooltip": "how many",
    }
    assert info["input"]["required"] == {
        "count": ["INT", count],
        "shade": [["light", "dark"], {"default": "dark"}],
    }
    assert info["input"]["optional"] == {"image": ["IMAGE", {}]} and info["input"]["hidden"] == {
        "unique_id": "UNIQUE_ID"
    }
    assert (
        info["dev_only"] is True
        and info["search_aliases"] == ["shade"]
        and info["python_module"] == "custom_nodes.mine"
    )
