"""`katz convert` writes files that ComfyUI's editor opens and that convert back unchanged."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.formats.api import from_api, to_api
from katz_graph.formats.object_info import read_object_info
from katz_graph.formats.read import parse_workflow, read_workflow
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import Workflow, to_native
from katz_graph.packs import load_registry

ROOT = Path(__file__).parents[2]
REGISTRY = load_registry()[0]
KNOWN = signatures(REGISTRY)


def katz(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "katz_graph.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result


def as_ui(workflow: Workflow) -> dict[str, Any]:
    return json.loads(json.dumps(to_ui(workflow, KNOWN), allow_nan=False))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "workflows").glob("*.json")), ids=lambda path: path.stem
)
def test_our_own_workflows_survive_the_editors_format(path: Path) -> None:
    workflow = read_workflow(path, REGISTRY)
    document = as_ui(workflow)
    assert parse_workflow(document, REGISTRY).graph == workflow.graph
    assert parse_workflow(document).graph == workflow.graph  # also without known node types


def test_fields_of_the_stock_editor_are_present() -> None:
    workflow = read_workflow(ROOT / "workflows" / "txt2img.json", REGISTRY)
    document = as_ui(workflow)
    nodes = {node["id"]: node for node in document["nodes"]}
    (sampler,) = (node for node in nodes.values() if node["type"] == "KSampler")
    literals = workflow.graph.nodes[str(sampler["id"])].inputs
    order = ["steps", "cfg", "sampler_name", "scheduler", "denoise"]
    assert sampler["widgets_values"] == [
        literals["seed"],
        "fixed",
        *(literals.get(name, 1.0) for name in order),
    ]
    assert sampler["properties"]["Node name for S&R"] == "KSampler"
    assert document["version"] == 0.4
    assert document["last_node_id"] == max(nodes) and document["last_link_id"] == max(
        link[0] for link in document["links"]
    )
    for number, origin, output, target, slot, socket in document["links"]:
        assert number in nodes[origin]["outputs"][output]["links"]
        assert nodes[target]["inputs"][slot]["link"] == number
        assert nodes[origin]["outputs"][output]["type"] == socket
    for node in nodes.values():
        assert {
            "id",
            "type",
            "pos",
            "size",
            "flags",
            "order",
            "mode",
            "inputs",
            "outputs",
            "properties",
            "widgets_values",
        } <= node.keys()
        assert all(
            nodes[link[1]]["order"] < node["order"]
            for link in document["links"]
            if link[3] == node["id"]
        )


def test_a_new_layout_runs_left_to_right_without_overlaps() -> None:
    nodes = as_ui(read_workflow(ROOT / "workflows" / "controlnet_lora.json", REGISTRY))
    placed = {node["id"]: (*node["pos"], *node["size"]) for node in nodes["nodes"]}
    for _, origin, _, target, _, _ in nodes["links"]:
        assert placed[origin][0] + placed[origin][2] < placed[target][0]
    boxes = list(placed.values())
    for number, (x, y, width, height) in enumerate(boxes):
        for left, top, wide, high in boxes[number + 1 :]:
            assert x + width <= left or left + wide <= x or y + height <= top or top + high <= y


def test_a_layout_comes_back_by_way_of_our_own_format() -> None:
    node = {
        "mode": 0,
        "inputs": [],
        "outputs": [],
        "flags": {"collapsed": True},
        "color": "#223",
        "size": [210, 58],
    }
    note = {
        "id": 8,
        "type": "Note",
        "pos": [1, 2],
        "size": [30, 40],
        "widgets_values": ["remember"],
    }
    document: dict[str, Any] = {
        "nodes": [
            {
                **node,
                "id": 7,
                "type": "EmptyLatentImage",
                "pos": {"0": -40.5, "1": 12},
                "widgets_values": [64, 64, 1],
            },
            note,
        ],
        "links": [],
        "groups": [{"title": "all", "bounding": [0, 0, 9, 9]}],
        "extra": {"ds": {"scale": 0.5, "offset": [1, 1]}},
        "version": 0.4,
    }
    stored = json.loads(json.dumps(to_native(parse_workflow(document, REGISTRY))))
    back = as_ui(parse_workflow(stored))
    one, other = back["nodes"]
    assert (one["id"], one["pos"], one["size"], one["flags"], one["color"]) == (
        7,
        [-40.5, 12],
        [210, 58],
        {"collapsed": True},
        "#223",
    )
    assert other == note
    assert back["groups"] == document["groups"]
    assert back["extra"]["ds"] == document["extra"]["ds"]


def test_members_of_a_subgraph_stand_apart_and_run_options_travel() -> None:
    graph = Graph(
        {
            "3": NodeCall("EmptyLatentImage", {"width": 64}),
            "5:1": NodeCall("A", {"x": Link("3", 0)}),
            "name": NodeCall("B", {}),
        }
    )
    document = as_ui(Workflow(graph, run={"seed": 5}, extra={"author": "someone"}))
    assert len({node["id"] for node in document["nodes"]}) == 3
    assert all(isinstance(node["id"], int) for node in document["nodes"])
    back = parse_workflow(document, REGISTRY)
    assert (back.graph, back.run, back.extra) == (graph, {"seed": 5}, {"author": "someone"})


LITERALS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
VALUES = (
    LITERALS
    | st.lists(LITERALS, max_size=3)
    | st.dictionaries(st.text(max_size=3), LITERALS, max_size=2)
)
TYPES = st.sampled_from(
    ["KSampler", "LoadImage", "CLIPTextEncode", "EmptyLatentImage", "VAEDecode", "Unknown", "Other"]
)
NAMES = st.sampled_from(["seed", "steps", "text", "model", "image", "samples", "x", "y", "1"])
IDS = st.lists(
    st.integers(0, 50).map(str) | st.text("ab:0", min_size=1, max_size=3),
    min_size=1,
    max_size=6,
    unique=True,
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    ids = draw(IDS)
    links = st.builds(Link, st.sampled_from(ids), st.just(0))
    nodes = {}
    for identifier in ids:
        kind = draw(TYPES)
        values = draw(st.dictionaries(NAMES, VALUES | links, max_size=4))
        readable = {
            key: value
            for key, value in values.items()
            if not isinstance(value, Link) or value.node in nodes
        }
        nodes[identifier] = NodeCall(kind, readable, draw(st.sampled_from(["", "a title"])))
    return Graph(nodes)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_any_graph_survives_the_editors_format(graph: Graph) -> None:
    document = as_ui(Workflow(graph))
    read = parse_workflow(document, REGISTRY).graph
    assert read == graph
    assert list(read.nodes) == list(graph.nodes)
    assert as_ui(Workflow(read)) == document  # api -> ui -> api -> ui


@pytest.mark.parametrize(
    ("graph", "layout", "expected"),
    [
        (
            {"1": NodeCall("A", {"x": Link("9", 0)})},
            {},
            'node 1 (A), input x: links to node "9", which is not in the workflow',
        ),
        (
            {"1": NodeCall("A", {"x": Link("2", -1)}), "2": NodeCall("B", {})},
            {},
            "links to output -1 of node 2 (B)",
        ),
        (
            {"1": NodeCall("A", {"x": Link("2", 9)}), "2": NodeCall("VAEDecode", {})},
            {},
            "links to output 9 of node 2 (VAEDecode)",
        ),
        (
            {"1": NodeCall("A", {})},
            {"nodes": {"1": 5}},
            'layout: node "1" is 5, expected an object',
        ),
        (
            {"1": NodeCall("A", {})},
            {"notes": {}},
            "layout: notes is an object of 0, expected a list",
        ),
        ({"1": NodeCall("A", {})}, {"notes": [{"type": "KSampler"}]}, "layout: note 0"),
    ],
)
def test_undrawable_workflows_give_one_line(
    graph: dict[str, NodeCall], layout: Any, expected: str
) -> None:
    with pytest.raises(InputError, match=re.escape(expected)):
        to_ui(Workflow(Graph(graph), layout), KNOWN)


def test_a_cycle_is_drawn_all_the_same() -> None:
    graph = Graph(
        {"1": NodeCall("A", {"x": Link("2", 0)}), "2": NodeCall("B", {"x": Link("1", 0)})}
    )
    assert parse_workflow(as_ui(Workflow(graph))).graph == graph


def test_the_command(tmp_path: Path) -> None:
    source = ROOT / "workflows" / "txt2img.json"
    ui, native, api = tmp_path / "ui.json", tmp_path / "katz.json", tmp_path / "api.json"
    katz("convert", source, ui, "--to", "ui")
    katz("convert", ui, native, "--to", "katz")
    katz("convert", native, api)
    assert from_api(json.loads(api.read_text())) == read_workflow(source, REGISTRY).graph
    assert "layout" in json.loads(native.read_text())
    printed = katz("convert", ui, "-", "--to", "api")
    assert from_api(json.loads(printed.stdout)) == read_workflow(source, REGISTRY).graph
    assert not printed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["api.json", "katz.json", "ui.json"]


def test_the_command_names_all_unknown_types_in_one_line_and_loses_nothing(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text(
        json.dumps(
            {
                "1": {"class_type": "One", "inputs": {"a": 1}},
                "2": {"class_type": "Two", "inputs": {"b": ["1", 3]}},
            }
        )
    )
    result = katz("convert", source, tmp_path / "out.json", "--to", "ui")
    (line,) = result.stderr.splitlines()
    assert "One, Two" in line
    assert (
        parse_workflow(json.loads((tmp_path / "out.json").read_text())).graph
        == read_workflow(source).graph
    )


def test_the_command_refuses_in_one_line_and_writes_nothing(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text('{"nodes": [], "links": []}')
    for arguments in (
        ["--to", "api"],
        ["--to", "svg"],
        ["--object-info", tmp_path / "nowhere.json"],
        ["--object-info", "http://127.0.0.1:1"],
    ):
        result = katz("convert", source, tmp_path / "out.json", *arguments, code=2)
        assert len(result.stderr.splitlines()) == 1
        assert not (tmp_path / "out.json").exists()
    assert (
        "cannot write"
        in katz(
            "convert", ROOT / "workflows" / "txt2img.json", tmp_path / "no" / "out.json", code=1
        ).stderr
    )


def test_no_model_library_is_imported() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom katz_graph.cli.convert import convert\n"
        "from katz_graph.cli.options import ConvertOptions\n"
        f"convert(Path({str(ROOT / 'workflows' / 'txt2img.json')!r}), Path('/dev/null'), "
        "ConvertOptions(to='ui'))\n"
        "print(*sorted({'torch', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        == []
    )


@pytest.fixture
def server() -> Iterator[str]:
    inputs = {"required": {"count": ["INT", {}], "text": ["STRING", {}]}}
    described = {"Foreign": {"input": inputs, "output": [], "display_name": "A foreign node"}}

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/object_info" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(described).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_server_s_description_names_unknown_types(server: str, tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    node = {"id": 1, "type": "Foreign", "inputs": [], "outputs": [], "widgets_values": [3, "x"]}
    source.write_text(json.dumps({"nodes": [node], "links": []}))
    result = katz("convert", source, "-", "--object-info", server)
    inputs = {"count": 3, "text": "x"}
    assert json.loads(result.stdout) == {
        "1": {"class_type": "Foreign", "inputs": inputs, "_meta": {"title": "A foreign node"}}
    }
    assert not result.stderr
    assert read_object_info(f"{server}/object_info").keys() == {"Foreign"}
    with pytest.raises(InputError, match="Not Found"):
        read_object_info(f"{server}/nowhere")


def test_run_options_missing_in_the_api_format_are_named(
    tmp_path: Path,
) -> None:
    source = tmp_path / "in.json"
    graph = read_workflow(ROOT / "workflows" / "txt2img.json").graph
    source.write_text(
        json.dumps({"format": "katz", "version": 1, "graph": to_api(graph), "run": {"seed": 3}})
    )
    assert "run options" in katz("convert", source, "-").stderr
