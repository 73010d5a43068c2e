"""Declarations of V1 packs are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from v1_classes import ANYTHING

from katz_graph.comfy.v1.adapter import V1Class
from katz_graph.packs import load_registry


def test_a_class_becomes_a_node_type() -> None:
    class Made:
        RETURN_TYPES = ("IMAGE", ["a", "b"], ANYTHING)
        RETURN_NAMES = ("picture", "mode")
        FUNCTION, CATEGORY, OUTPUT_NODE, DESCRIPTION = "go", "mine/deep", True, "Makes things."
        OUTPUT_IS_LIST = (True, False)
        INPUT_IS_LIST, NOT_IDEMPOTENT, DEPRECATED, EXPERIMENTAL = True, True, True, False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {
                "required": {
                    "image": ("IMAGE",),
                    "seed": (
                        "INT",
                        {
                            "default": 3,
                            "min": 0,
                            "max": 9,
                            "step": 2,
                            "control_after_generate": True,
                        },
                    ),
                    "mode": (["fast", "slow"],),
                    "style": (
                        "COMBO",
                        {"options": ["x", "y"], "default": "y", "tooltip": "the style"},
                    ),
                    "text": ("STRING", {"multiline": True, "dynamicPrompts": True}),
                },
                "optional": {
                    "any": (ANYTHING,),
                    "number": ("INT,FLOAT", {"lazy": True}),
                    "wire": ("INT", {"forceInput": True}),
                    "file": (["a.png"], {"image_upload": True}),
                },
                "hidden": {"me": "UNIQUE_ID", "prompt": "PROMPT"},
            }

        def go(self) -> None: ...

    kind = V1Class("Made", Made, "Made By Me").describe()
    assert (kind.display_name, kind.category, kind.description) == (
        "Made By Me",
        "mine/deep",
        "Makes things.",
    )
    assert [(output.name, output.socket) for output in kind.outputs] == [
        ("picture", "IMAGE"),
        ("mode", "COMBO"),
        ("*", "*"),
    ]
    assert (
        kind.is_output
        and kind.takes_lists
        and kind.per_node
        and kind.gives_lists == (True, False, False)
    )
    assert kind.hidden == {"me": "UNIQUE_ID", "prompt": "PROMPT"} and kind.about == {
        "deprecated": True
    }
    ports = kind.inputs
    assert [name for name, port in ports.items() if port.required] == [
        "image",
        "seed",
        "mode",
        "style",
        "text",
    ]
    assert [name for name, port in ports.items() if port.knob] == [
        "seed",
        "mode",
        "style",
        "text",
        "file",
    ]
    seed = ports["seed"]
    assert (
        seed.default,
        seed.minimum,
        seed.maximum,
        seed.widget.step,
        seed.widget.control_after_generate,
    ) == (3, 0, 9, 2, True)
    assert (ports["mode"].socket, ports["mode"].choices, ports["mode"].default) == (
        "COMBO",
        ("fast", "slow"),
        "fast",
    )
    assert (ports["style"].choices, ports["style"].default, ports["style"].help) == (
        ("x", "y"),
        "y",
        "the style",
    )
    assert ports["text"].widget.multiline and ports["text"].options["dynamicPrompts"] is True
    assert ports["any"].socket == "*" and ports["number"].lazy and ports["file"].widget.upload


def test_classes_that_fail_are_left_out_and_the_others_stay(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(
        "class Good:\n"
        "    RETURN_TYPES, FUNCTION, CATEGORY = (), 'go', 'x'\n"
        "    @classmethod\n"
        "    def INPUT_TYPES(cls): return {'required': {}}\n"
        "    def go(self): return ()\n"
        "class Scans(Good):\n"
        "    @classmethod\n"
        "    def INPUT_TYPES(cls): raise FileNotFoundError('no such folder: models/x')\n"
        "class NoFunction(Good):\n"
        "    FUNCTION = 'gone'\n"
        "class KSampler(Good): pass\n"
        "NODE_CLASS_MAPPINGS = {'GoodOne': Good, 'Scans': Scans, 'NoFunction': NoFunction, "
        "'KSampler': KSampler}\n"
        "NODE_DISPLAY_NAME_MAPPINGS = {'GoodOne': 'A good one'}\n"
        "NODES = {'not': 'ours'}\n"
    )
    registry, problems = load_registry([tmp_path])
    assert registry["GoodOne"].display_name == "A good one" and registry["GoodOne"].pack == "mixed"
    assert registry["KSampler"].pack == "builtin"
    assert [str(found) for found in problems] == [
        "pack mixed: node Scans: FileNotFoundError: no such folder: models/x; the node "
        "was left out",
        'pack mixed: node NoFunction: FUNCTION is "gone", which is not a method of the class; the '
        "node was left out",
        "pack mixed: node KSampler already exists in pack builtin; it was left out",
    ]


def test_scripts_for_the_editor_are_remembered(tmp_path: Path) -> None:
    for name, text, project in (
        ("one", 'WEB_DIRECTORY = "./js"\n', ""),
        ("two", "", '[tool.comfy]\nweb = "js"\n'),
        ("three", "", ""),
    ):
        (tmp_path / name / "js").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("NODE_CLASS_MAPPINGS = {}\n" + text)
        (tmp_path / name / "pyproject.toml").write_text(project)
    registry, problems = load_registry([tmp_path])
    assert dict(registry.web) == {name: tmp_path / name / "js" for name in ("one", "two")}
    assert problems == []
