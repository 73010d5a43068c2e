"""Workflow files are written as they were read, and each bad file gives one clear line."""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.formats.api import from_api, to_api
from katz_graph.formats.read import SHIPPED, parse_workflow, read_workflow
from katz_graph.formats.workflow import from_native, to_native

API = {
    "1": {"class_type": "Number", "inputs": {"value": 3}},
    "2": {"class_type": "Save", "inputs": {"value": ["1", 0]}},
}


def line(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_workflow(path)
    message = str(caught.value)
    assert "\n" not in message and message.isprintable()
    assert str(path) in message
    return message


def written(folder: Path, data: str | bytes, name: str = "workflow.json") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(*texts: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + b"".join(texts)
        + chunk(b"IDAT", zlib.compress(b"\0\0"))
        + chunk(b"IEND", b"")
    )


def test_api_file(tmp_path: Path) -> None:
    workflow = read_workflow(written(tmp_path, json.dumps(API)))
    assert workflow.graph == Graph(
        {"1": NodeCall("Number", {"value": 3}), "2": NodeCall("Save", {"value": Link("1", 0)})}
    )
    assert workflow.source.endswith("workflow.json")


def test_titles_numeric_ids_and_lists() -> None:
    document = {
        "7": {
            "class_type": "A",
            "inputs": {"x": [1, 0], "size": {"__value__": ["1", 0]}, "triple": [1, 2, 3]},
            "_meta": {"title": "mine"},
        },
        "1": {"class_type": "B"},
    }
    call = from_api(document).nodes["7"]
    assert call.title == "mine"
    assert call.inputs == {"x": Link("1", 0), "size": ["1", 0], "triple": [1, 2, 3]}


def test_a_list_with_true_is_no_link() -> None:
    assert from_api({"1": {"class_type": "A", "inputs": {"x": ["1", True]}}}).nodes["1"].inputs[
        "x"
    ] == ["1", True]


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    assert read_workflow(
        written(tmp_path, b"\xef\xbb\xbf" + json.dumps(API).encode())
    ).graph == from_api(API)


LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.just("__value__"), inner, max_size=2)
    ),
    max_leaves=6,
)
LINKS = st.builds(Link, st.text(), st.integers(0, 20))
CALLS = st.builds(
    NodeCall,
    st.text(min_size=1),
    st.dictionaries(st.text(), LITERALS | LINKS, max_size=4),
    st.text(),
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(), CALLS, min_size=1, max_size=5))
def test_a_graph_survives_being_written_and_read(nodes: dict[str, NodeCall]) -> None:
    text = json.dumps(to_api(Graph(nodes)))
    read = from_api(json.loads(text))
    assert read == Graph(nodes)
    assert list(read.nodes) == list(nodes)  # the file's order decides the order of the run


def test_the_wrapper_keeps_layout_run_options_and_unknown_parts() -> None:
    document = {
        "format": "katz",
        "version": 1,
        "graph": API,
        "layout": {"1": [0, 10]},
        "run": {"seed": 5, "devices": "cpu*2", "allow": ["stale-controlnet"]},
        "author": {"name": "someone"},
    }
    workflow = parse_workflow(document)
    assert workflow.run["seed"] == 5
    assert to_native(workflow) == document
    assert from_native(to_native(workflow)) == workflow


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"format": "other"}, 'format is "other", expected "katz"'),
        ({"version": 2}, "newer"),
        ({"version": "1"}, 'version is "1", expected 1'),
        ({"layout": []}, "layout is a list of 0, expected an object"),
        ({"graph": 5}, "is 5, not an object of nodes"),
        ({"run": {"seed": float("nan")}}, "run contains NaN"),
    ],
)
def test_bad_wrappers(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        parse_workflow({"format": "katz", "version": 1, "graph": API} | change)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ('{"1": {"class_type": "A",\n "inputs": {"x" 1}}}', "line 2, column 17"),
        ('{"1": {"class_type": "A"', "but the file ends here"),
        ("[" * 5000 + "]" * 5000, "nested more than 100 levels deep"),
        (
            '{"1": {"class_type": "A", "inputs": {"x": ' + "[" * 300 + "]" * 300 + "}}}",
            "nested more than 100 levels deep",
        ),
        ("[1, 2]", "is a list of 2, not an object of nodes"),
        ('"text"', 'is "text", not an object of nodes'),
        ("null", "is null, not an object"),
        ("{}", "has no nodes"),
        ('{"1": {"inputs": {}}}', 'node 1 has no "class_type"'),
        ('{"1": {"class_type": 5}}', "class_type is 5, expected a name"),
        ('{"1": {"class_type": "A", "inputs": [1]}}', "inputs is a list of 1, expected an object"),
        ('{"1": 5}', 'node 1 is 5, expected an object with "class_type"'),
        ('{"nodes": [], "links": []}', "UI workflow"),
        (
            '{"1": {"class_type": "A", "inputs": {"x": NaN}}}',
            'node 1: input "x" contains NaN or infinity',
        ),
        (
            '{"1": {"class_type": "A", "inputs": {"x": [1, [-Infinity]]}}}',
            ("contains NaN or infinity"),
        ),
        ('{"1": {"class_type": "A", "inputs": {"x": 1e999}}}', "1e999 is too large"),
        ('{"1": {"class_type": "A", "inputs": {"x": ' + "9" * 5000 + "}}}", "thousands of digits"),
        ('{"1": {"class_type": "A"}, "1": {"class_type": "B"}}', 'the key "1" occurs twice'),
        (r'{"1": {"class_type": "\ud800"}}', "surrogate"),
        ('{"1": {"class_type": "A", "inputs": {"x": "\x1b[31m"}}}', "broken JSON"),
    ],
)
def test_bad_json(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in line(written(tmp_path, text))


def test_every_malformed_node_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_workflow(written(tmp_path, '{"1": {}, "2": {"class_type": "A"}, "3": 7}'))
    assert len(str(caught.value).split("\n")) == 2


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x93\x00\x01\x02binary", "binary file"),
        ('{"1": {"class_type": "é"}}'.encode("latin-1"), "is not UTF-8 text (line 1"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b"\xff\xd8\xff\xe0JFIF", "JPEG"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "is a WebP without a workflow"),
        (b"RIFF\x10\0\0\0WEBPEXIF\x04\0\0\0junk", "WebP with damaged EXIF"),
        (b"RIFF\x10\0\0\0WEBPEXIF\xff\xff\xff\xffjunk", "EXIF of 4,294,967,295 bytes"),
        (b"RIFF\x10\0\0\0AVI LIST", "binary file"),
        (b"PK\x03\x04rest", "ZIP"),
        (png(), "PNG without a workflow"),
        (b"\x89PNG\r\n\x1a\n\0\0", "truncated PNG"),
        (png(chunk(b"tEXt", b"prompt\0{broken")), "the workflow inside the picture: broken JSON"),
        (png(chunk(b"tEXt", b'workflow\0{"nodes": [], "links": []}')), "UI workflow"),
        (png(chunk(b"zTXt", b"prompt\0\0not zlib")), "damaged"),
        (
            b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 2**31 - 1) + b"tEXtprompt\0",
            "text of 2,147,483,647 bytes",
        ),
    ],
)
def test_bad_bytes(tmp_path: Path, data: bytes, expected: str) -> None:
    assert expected in line(written(tmp_path, data))


def test_a_compressed_bomb_in_a_png_is_not_inflated(tmp_path: Path) -> None:
    bomb = zlib.compress(b" " * (70 * 2**20), 1)
    assert "compressed text of more than" in line(
        written(tmp_path, png(chunk(b"zTXt", b"prompt\0\0" + bomb)))
    )


def test_two_hundred_megabytes_of_zeros_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "zeros.json"
    with path.open("wb") as file:
        file.truncate(200 * 2**20)
    assert "binary file" in line(path)


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b" " * 4096)
    os.truncate(path, 65 * 2**20)
    assert "larger than 64 MB" in line(path)


def test_no_such_file_names_a_near_one(tmp_path: Path) -> None:
    written(tmp_path, "{}", "portrait.json")
    assert 'did you mean "portrait.json"' in line(tmp_path / "potrait.json")
    assert "no such file" in line(tmp_path / "nowhere" / "x.json")


@pytest.mark.parametrize("name", ["txt2img", "txt2img.json", "workflows/txt2img.json"])
def test_a_workflow_that_comes_with_the_package_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file of this name in the current folder has precedence."""
    monkeypatch.chdir(tmp_path)
    found = read_workflow(name)
    assert found.graph == read_workflow(SHIPPED / "txt2img.json").graph
    assert found.source == name
    (tmp_path / "workflows").mkdir()
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError):
        read_workflow(name)


@pytest.mark.parametrize(
    ("name", "meant"), [("txt2imgg", "txt2img"), ("txt2im.json", "txt2img.json")]
)
def test_a_shipped_workflow_is_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f'did you mean "{meant}"'):
        read_workflow(name)


@pytest.mark.parametrize("name", ["elsewhere/txt2img.json", "txt2img.png", "nothing", "../txt2img"])
def test_other_names_without_a_file_mean_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_workflow(name)


def test_a_folder_and_a_device(tmp_path: Path) -> None:
    assert "is a folder" in line(tmp_path)
    assert "device" in line(Path("/dev/zero"))


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(json.dumps(API)))
    writer.start()
    assert read_workflow(pipe).graph == from_api(API)
    writer.join()


def test_a_png_with_its_graph(tmp_path: Path) -> None:
    foreign = b'workflow\0{"nodes": [], "links": []}'
    plain = png(chunk(b"tEXt", foreign), chunk(b"tEXt", b"prompt\0" + json.dumps(API).encode()))
    assert read_workflow(written(tmp_path, plain, "a.png")).graph == from_api(API)
    packed = png(chunk(b"zTXt", b"prompt\0\0" + zlib.compress(json.dumps(API).encode())))
    assert read_workflow(written(tmp_path, packed, "b.png")).graph == from_api(API)
    international = png(chunk(b"iTXt", b"prompt\0\0\0en\0\0" + json.dumps(API).encode()))
    assert read_workflow(written(tmp_path, international, "c.png")).graph == from_api(API)


def test_a_png_prefers_the_wrapper_that_knows_the_run_options(tmp_path: Path) -> None:
    wrapper = json.dumps(
        {"format": "katz", "version": 1, "graph": API, "run": {"seed": 9}}
    ).encode()
    data = png(
        chunk(b"tEXt", b"prompt\0" + json.dumps(API).encode()),
        chunk(b"tEXt", b"workflow\0" + wrapper),
    )
    assert read_workflow(written(tmp_path, data, "a.png")).run == {"seed": 9}


UI = {
    "nodes": [
        {
            "id": 1,
            "type": "Number",
            "pos": [5, 6],
            "outputs": [{"name": "n", "type": "INT"}],
            "widgets_values_named": {"value": 9},
        },
        {
            "id": 2,
            "type": "Save",
            "pos": [50, 60],
            "inputs": [{"name": "value", "type": "INT", "link": 1}],
        },
    ],
    "links": [[1, 1, 0, 2, 0, "INT"]],
    "version": 0.4,
}


def test_a_png_with_a_graph_and_an_editors_file_has_the_graph_of_the_one_and_the_places_of_the_other(
    tmp_path: Path,
) -> None:
    editor = chunk(b"tEXt", b"workflow\0" + json.dumps(UI).encode())
    both = read_workflow(
        written(
            tmp_path, png(chunk(b"tEXt", b"prompt\0" + json.dumps(API).encode()), editor), "a.png"
        )
    )
    assert both.graph == from_api(API)
    assert both.layout["nodes"]["2"]["pos"] == [50, 60]
    only = read_workflow(written(tmp_path, png(editor), "b.png"))
    assert only.graph.nodes["1"].inputs == {"value": 9}
    assert only.graph.nodes["2"].inputs == {"value": Link("1", 0)}


@pytest.mark.parametrize(
    ("model", "make", "expected"),
    [(API, UI, 3), (None, UI, 9), (API, None, 3)],
    ids=["both", "only the editor's", "only the graph"],
)
def test_a_webp_with_its_graph_in_the_exif(
    tmp_path: Path, model: Any, make: Any, expected: int
) -> None:
    from PIL import Image

    exif = Image.Exif()
    if model:
        exif[0x0110] = f"prompt:{json.dumps(model)}"
    if make:
        exif[0x010F] = f"workflow:{json.dumps(make)}"
    Image.new("RGB", (4, 4)).save(tmp_path / "a.webp", exif=exif)
    assert read_workflow(tmp_path / "a.webp").graph.nodes["1"].inputs == {"value": expected}
    (tmp_path / "cut.webp").write_bytes((tmp_path / "a.webp").read_bytes()[:-20])
    with pytest.raises(InputError, match="is a WebP with damaged EXIF"):
        read_workflow(tmp_path / "cut.webp")


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
    | LITERALS.map(lambda v: json.dumps(v).encode())
)
def test_any_bytes_are_a_workflow_or_a_clear_refusal(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(data)
    try:
        read_workflow(path)
    except InputError as error:
        assert all(part.isprintable() for part in str(error).split("\n"))
