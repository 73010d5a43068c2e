"""Schemas of V3 packs become node types, and results of `execute` are used in graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from foreign_packs import forgetting_shims, load, write
from trivial_nodes import TYPES, Ran, RecordingContext, node, run

from katz_graph.checks.validate import validate
from katz_graph.core.errors import InputError, RunError
from katz_graph.core.events import NodeDone
from katz_graph.files.folders import Folders
from katz_graph.formats.api import from_api
from katz_graph.formats.object_info_write import node_info
from katz_graph.packs import Registry

HEAD = """
import enum
from comfy_api.latest import ComfyExtension, io, ui

class Shade(enum.Enum):
    light = "Light"
    dark = "Dark"
"""
TAIL = """
class Extension(ComfyExtension):
    async def get_node_list(self):
        return [{nodes}]

async def comfy_entrypoint():
    return Extension()
"""
MIX = '''
class Mix(io.ComfyNode):
    """Mixes."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TestMix",
            display_name="Mix two",
            category="test/mixing",
            description="Adds and scales.",
            inputs=[
                io.Int.Input("count", default=2, min=0, max=10, step=2, control_after_generate=True, tooltip="how many"),
                io.Float.Input("scale", default=0.5, min=0.0, max=1.0, display_mode=io.NumberDisplay.slider, optional=True),
                io.String.Input("text", multiline=True, default="a"),
                io.Boolean.Input("flag", default=True, label_on="yes"),
                io.Combo.Input("shade", options=Shade, default=Shade.dark),
                io.Combo.Input("size", options=["s", "m"]),
                io.Image.Input("image", optional=True),
                io.Custom("STARDUST").Input("dust", optional=True),
                io.MultiType.Input("either", types=[io.Mask, io.Image], optional=True),
                io.AnyType.Input("anything", optional=True),
            ],
            outputs=[io.Float.Output(display_name="total"), io.String.Output("words", is_output_list=True)],
        )

    @classmethod
    def execute(cls, count, text, flag, shade, size, scale=1.0, image=None, dust=None, either=None, anything=None):
        return io.NodeOutput(count * scale, [text] * count)
'''


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    with forgetting_shims():
        yield


def loaded(folder: Path, body: str, *nodes: str) -> tuple[Registry, list[str]]:
    return load(
        write(folder / "packs", mine=HEAD + body + TAIL.format(nodes=", ".join(nodes))), folder
    )


def ran(registry: Mapping[str, Any], document: Mapping[str, Any], context: Any = None) -> Ran:
    both = Registry({**registry, **TYPES})
    problems = validate(from_api(document), both)
    assert not problems, problems
    return run(document, types=both, context=context or RecordingContext())


def outputs(done: Ran, name: str) -> tuple[Any, ...]:
    done.result.raise_failures()
    return tuple(done.result.outputs[name])


def simple(
    name: str,
    inputs: str = "",
    outputs: str = "",
    body: str = "return io.NodeOutput()",
    more: str = "",
    methods: str = "",
) -> str:
    return f'''
class {name}(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="{name}", inputs=[{inputs}], outputs=[{outputs}], {more})

    @classmethod
    def execute(cls, **given):
        {body}

    {methods}
'''


def test_a_schema_is_a_node_type(tmp_path: Path) -> None:
    registry, problems = loaded(tmp_path, MIX, "Mix")
    assert problems == []
    kind = registry["TestMix"]
    assert (kind.display_name, kind.category, kind.description, kind.pack) == (
        "Mix two",
        "test/mixing",
        "Adds and scales.",
        "mine",
    )
    count, scale, shade, size = (kind.inputs[name] for name in ("count", "scale", "shade", "size"))
    assert (
        count.socket,
        count.knob,
        count.required,
        count.default,
        count.minimum,
        count.maximum,
    ) == ("INT", True, True, 2, 0, 10)
    assert (
        count.widget.control_after_generate and count.widget.step == 2 and count.help == "how many"
    )
    assert not scale.required and scale.options["display"] == "slider"
    assert kind.inputs["text"].widget.multiline
    assert (
        shade.choices == ("Light", "Dark")
        and shade.default == "Dark"
        and size.choices == ("s", "m")
    )
    assert [kind.inputs[name].socket for name in ("image", "dust", "either", "anything")] == [
        "IMAGE",
        "STARDUST",
        "MASK,IMAGE",
        "*",
    ]
    assert not any(kind.inputs[name].knob for name in ("image", "dust", "either", "anything"))
    assert [(output.name, output.socket) for output in kind.outputs] == [
        ("total", "FLOAT"),
        ("words", "STRING"),
    ]


def test_it_runs_and_lists_come_apart(tmp_path: Path) -> None:
    registry, _ = loaded(tmp_path, MIX, "Mix")
    knobs = {"count": 3, "scale": 0.5, "text": "b", "flag": False, "shade": "Light", "size": "m"}
    context = RecordingContext()
    done = ran(
        registry,
        {
            "1": node("TestMix", **knobs),
            "2": node("Save", value=["1", 0]),
            "3": node("Save", value=["1", 1]),
        },
        context,
    )
    assert outputs(done, "2") == (1.5,)
    assert context.said == ["1.5", "'b'", "'b'", "'b'"]


def test_values_are_held_to_the_schema(tmp_path: Path) -> None:
    registry, _ = loaded(tmp_path, MIX, "Mix")
    knobs = {"count": 11, "text": "b", "flag": False, "shade": "Blue", "size": "m"}
    problems = validate(
        from_api({"1": node("TestMix", **knobs), "2": node("Save", value=["1", 0])}),
        Registry({**registry, **TYPES}),
    )
    assert {problem.input for problem in problems} == {"count", "shade"}


def test_an_input_of_several_types_is_drawn_as_its_widget_and_takes_links_of_each(
    tmp_path: Path,
) -> None:
    declared = 'io.MultiType.Input(io.Float.Input("x", default=0.5), types=[io.Int, io.String])'
    source = simple("Source", outputs="io.String.Output()", body='return io.NodeOutput("text")')
    body = 'return io.NodeOutput(repr(given["x"]))'
    registry, _ = loaded(
        tmp_path, source + simple("Wide", declared, "io.String.Output()", body), "Source", "Wide"
    )
    assert node_info(registry["Wide"])["input"]["required"]["x"] == [
        "FLOAT,INT,STRING",
        {"default": 0.5, "widgetType": "FLOAT"},
    ]
    literal, linked = node("Wide", x=7), node("Wide", x=["0", 0])
    document = {
        "0": node("Source"),
        "1": literal,
        "2": linked,
        "3": node("Save", value=["1", 0]),
        "4": node("Save", value=["2", 0]),
    }
    done = ran(registry, document)
    assert (outputs(done, "3"), outputs(done, "4")) == (("7",), ("'text'",))


def test_editors_get_options_by_the_names_that_they_know(tmp_path: Path) -> None:
    declared = """
        io.String.Input("text", "The text", dynamic_prompts=True, advanced=True),
        io.Combo.Input("voice", remote=io.RemoteOptions(route="/voices", refresh_button=True)),
        io.MultiCombo.Input("tags", options=["a", "b"]),
    """
    source = 'io.Combo.Output("mode", options=["x", "y"])'
    registry, problems = loaded(
        tmp_path,
        simple("Asks", declared, source, 'return io.NodeOutput(",".join(given["tags"]))'),
        "Asks",
    )
    assert problems == []
    required = node_info(registry["Asks"])["input"]["required"]
    assert required["text"] == [
        "STRING",
        {"dynamicPrompts": True, "advanced": True, "display_name": "The text"},
    ]
    assert required["voice"][1]["remote"] == {"route": "/voices", "refresh_button": True}
    assert required["tags"] == ["COMBO", {"multi_select": True, "options": ["a", "b"]}]
    asked = node("Asks", text="t", voice="v", tags={"__value__": ["a", "b"]})
    assert outputs(ran(registry, {"1": asked, "2": node("Save", value=["1", 0])}), "2") == ("a,b",)


def test_asynchronous_nodes_know_which_node_they_are(tmp_path: Path) -> None:
    body = """
import asyncio
from comfy_execution.utils import get_executing_context

class Slow(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="Slow", inputs=[], outputs=[io.String.Output()], hidden=[io.Hidden.unique_id], not_idempotent=True)

    @classmethod
    async def execute(cls):
        await asyncio.sleep(0.01)
        return io.NodeOutput(f"{cls.hidden.unique_id} {get_executing_context().node_id} {cls.hidden.prompt}")
"""
    registry, problems = loaded(tmp_path, body, "Slow")
    assert problems == []
    document = {
        "7": node("Slow"),
        "8": node("Slow"),
        "s": node("Save", value=["7", 0]),
        "t": node("Save", value=["8", 0]),
    }
    done = ran(registry, document)
    assert outputs(done, "s") == ("7 7 None",) and outputs(done, "t") == ("8 8 None",)


def test_lazy_inputs(tmp_path: Path) -> None:
    body = simple(
        "Pick",
        'io.Boolean.Input("first"), io.AnyType.Input("a", lazy=True, optional=True), '
        'io.AnyType.Input("b", lazy=True, optional=True)',
        "io.AnyType.Output()",
        'return io.NodeOutput(given["a"] if given["first"] else given["b"])',
        methods="@classmethod\n    def check_lazy_status(cls, first, a=None, b=None):\n        "
        'return ["a"] if first else ["b"]',
    )
    registry, _ = loaded(tmp_path, body, "Pick")
    document = {
        "1": node("Number", value=5),
        "2": node("Fail"),
        "3": node("Pick", first=True, a=["1", 0], b=["2", 0]),
        "4": node("Save", value=["3", 0]),
    }
    assert outputs(ran(registry, document), "4") == (5,)


def test_expansion_and_blocking(tmp_path: Path) -> None:
    body = simple(
        "Twice",
        'io.Int.Input("x")',
        "io.Int.Output()",
        "from comfy_execution.graph_utils import GraphBuilder; g = GraphBuilder(); "
        'n = g.node("Add", a=given["x"], b=given["x"]); return io.NodeOutput(n.out(0), '
        "expand=g.finalize())",
        more="enable_expand=True",
    ) + simple("Stop", "", "io.Int.Output()", 'return io.NodeOutput(block_execution="not today")')
    registry, _ = loaded(tmp_path, body, "Twice", "Stop")
    document = {
        "1": node("Twice", x=21),
        "2": node("Save", value=["1", 0]),
        "3": node("Stop"),
        "4": node("Save", value=["3", 0]),
    }
    done = ran(registry, document)
    assert done.result.outputs["2"] == (42,)
    assert done.result.refused == ("4",)
    with pytest.raises((InputError, RunError), match="not today"):
        done.result.raise_failures()


def test_own_checks_and_fingerprints(tmp_path: Path) -> None:
    body = simple(
        "Odd",
        'io.Int.Input("x", max=5)',
        "io.Int.Output()",
        'return io.NodeOutput(given["x"])',
        methods="@classmethod\n    def validate_inputs(cls, x):\n        return True if x % 2 else "
        'f"{x} is even"\n\n'
        "    @classmethod\n    def fingerprint_inputs(cls, x):\n        return float('nan')",
    )
    registry, _ = loaded(tmp_path, body, "Odd")
    both = Registry({**registry, **TYPES})

    def said(x: int) -> list[str]:
        return [
            problem.message
            for problem in validate(
                from_api({"1": node("Odd", x=x), "2": node("Save", value=["1", 0])}), both
            )
        ]

    assert said(7) == []  # bounds do not apply to an input that the node checks
    assert said(4) == ["4 is even"]
    from katz_graph.executor.graph.result_store import ResultCache

    cache = ResultCache()
    document = {"1": node("Odd", x=3), "2": node("Save", value=["1", 0])}
    # NaN never equals itself
    assert [run(document, cache, both).nodes("start").count("1") for _ in range(2)] == [1, 1]


def test_ui_outputs(tmp_path: Path) -> None:
    shown = 'return io.NodeOutput(ui=ui.PreviewText(given["text"]))'
    body = simple("Show", 'io.String.Input("text")', "", shown, more="is_output_node=True")
    registry, _ = loaded(tmp_path, body, "Show")
    done = ran(registry, {"1": node("Show", text="hello")})
    assert [event.ui for event in done.events if isinstance(event, NodeDone)] == [
        {"text": ["hello"]}
    ]


def test_any_number_of_inputs(tmp_path: Path) -> None:
    body = simple(
        "Count",
        "",
        "io.Int.Output()",
        "return io.NodeOutput(len(given))",
        more="accept_all_inputs=True",
    )
    registry, _ = loaded(tmp_path, body, "Count")
    done = run(
        {"1": node("Count", a=1, b="x"), "2": node("Save", value=["1", 0])},
        types=Registry({**registry, **TYPES}),
    )
    assert outputs(done, "2") == (2,)


def test_classes_with_a_schema_may_stand_in_a_mapping(tmp_path: Path) -> None:
    body = HEAD + simple("Counts", 'io.Int.Input("n", default=2)', "io.Int.Output()",
                         'return io.NodeOutput(given["n"] + 1)')  # fmt: skip
    body += """
class Old:
    INPUT_TYPES = classmethod(lambda cls: {"required": {}})
    RETURN_TYPES, FUNCTION, CATEGORY = ("INT",), "run", "test"
    def run(self):
        return (5,)

NODE_CLASS_MAPPINGS = {"CountsOn": Counts, "Plain": Counts, "Old": Old}
NODE_DISPLAY_NAME_MAPPINGS = {"CountsOn": "Counts on"}
"""
    registry, problems = load(write(tmp_path / "packs", mine=body), tmp_path)
    assert problems == []
    assert registry["CountsOn"].display_name == "Counts on"
    assert registry["Plain"].display_name == "Counts"
    document = {"1": node("CountsOn", n=2), "2": node("Save", value=["1", 0])}
    assert outputs(ran(registry, document), "2") == (3,)
    assert "Old" in registry


def test_one_bad_schema_leaves_the_others(tmp_path: Path) -> None:
    body = (
        "class Bad(io.ComfyNode):\n    @classmethod\n    def define_schema(cls):\n        raise "
        "KeyError('nothing')\n" + simple("Good")
    )
    registry, problems = loaded(tmp_path, body, "Bad", "Good")
    assert "Good" in registry and len(problems) == 1 and "KeyError" in problems[0]


def test_types_of_a_pack(tmp_path: Path) -> None:
    body = """
@io.comfytype(io_type="CUPBOARD")
class Cupboard:
    Type = dict
    class Input(io.Input):
        pass

class Keep(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="Keep", inputs=[Cupboard.Input("c", optional=True)], outputs=[Cupboard.Output("c")])
"""
    registry, problems = loaded(tmp_path, body, "Keep")
    assert problems == []
    assert registry["Keep"].inputs["c"].socket == registry["Keep"].outputs[0].socket == "CUPBOARD"


def test_an_entry_point_that_gives_something_else(tmp_path: Path) -> None:
    _, problems = load(
        write(tmp_path / "packs", odd="def comfy_entrypoint():\n    return []\n"), tmp_path
    )
    assert (
        len(problems) == 1
        and "comfy_entrypoint returned a list, expected a ComfyExtension" in problems[0]
    )


def test_choices_from_model_folders(tmp_path: Path) -> None:
    (tmp_path / "models/loras").mkdir(parents=True)
    (tmp_path / "models/loras/new.safetensors").touch()
    body = "import folder_paths\n" + simple(
        "Lora", 'io.Combo.Input("name", options=folder_paths.get_filename_list("loras"))'
    )
    registry, _ = loaded(tmp_path, body, "Lora")
    assert "new.safetensors" in (registry["Lora"].inputs["name"].choices or ())
    assert isinstance(Folders((tmp_path / "models",)).choices("loras"), tuple)
