"""Only one module decides by name whether a file holds weights."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from katz_graph.core.errors import InputError
from katz_graph.files.folders import Folders
from katz_graph.files.urls import ANY
from katz_graph.files.weights import (
    PICKLE_ENDINGS,
    WEIGHT_ENDINGS,
    is_pickle,
    is_weights,
    without_ending,
)

ROOT = Path(__file__).parents[2]
FOLDERS = "katz_graph", "nodes", "executor", "web"
# folders whose code may name these endings
NOT_WEIGHTS = ("bench", "mini", "testing")


@pytest.mark.defect(13)
@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("a.safetensors", "a"),
        ("b/a.v2.SAFETENSORS", "b/a.v2"),
        ("a.SafeTensors", "a"),
        ("a.sft", "a"),
        ("a.SFT", "a"),
    ],
)
def test_weights_are_recognised_by_their_ending_in_any_case(name: str, bare: str) -> None:
    assert is_weights(name)
    assert is_weights(Path(name))
    assert not is_pickle(name)
    assert without_ending(name) == bare


@pytest.mark.defect(13)
@pytest.mark.parametrize("name", ["a.ckpt", "a.PT", "a.Bin", "a.pkl", "a.pth"])
def test_pickles_are_recognised_by_their_bytes(name: str) -> None:
    assert is_pickle(name)
    assert not is_weights(name)
    assert without_ending(name) == name


@pytest.mark.defect(13)
def test_no_other_module_has_a_list_of_endings_of_its_own() -> None:
    endings = {*WEIGHT_ENDINGS, *PICKLE_ENDINGS}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "katz_graph/files/weights.py" and not {*NOT_WEIGHTS} & {*path.parts}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in endings
    ]
    assert found == []


@pytest.mark.defect(13)
def test_every_kind_lists_them_all(tmp_path: Path) -> None:
    kinds = ("checkpoints", "vae", "clip", "unet", "controlnet", "loras", "embeddings", "whatever")
    names = ("a.safetensors", "b.SAFETENSORS", "c.sft", "d.Sft")
    for kind in kinds:
        (tmp_path / kind).mkdir()
        for name in (*names, "e.ckpt", "f.sft.part", "g.txt"):
            (tmp_path / kind / name).touch()
    folders = Folders((tmp_path,))
    for kind in kinds:
        found = [name for name in folders.choices(kind) if not name.startswith("katz-mini")]
        assert found == [*names]
        assert folders.resolve(kind, "b.SAFETENSORS") == tmp_path / kind / "b.SAFETENSORS"


@pytest.mark.defect(13)
@pytest.mark.parametrize("name", ["someone/a.sft", "someone/a.SAFETENSORS", "someone/a.CKPT"])
def test_a_name_of_a_file_is_no_hub_id(tmp_path: Path, name: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match=r"is not in checkpoints|is a pickle"):
        Folders((tmp_path,)).resolve("checkpoints", name)


@pytest.mark.defect(13)
def test_urls_are_judged_alike() -> None:
    folders = Folders(fetch=ANY)
    folders.check("loras", "https://example.org/a.SFT?download=true")
    with pytest.raises(InputError, match="is a pickle"):
        folders.check("loras", "https://example.org/a.CKPT?download=true")
