"""Packs are found in folders and through entry points; a broken pack is reported and does not
affect others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from foreign_packs import forgetting_shims

from katz_graph.node.types import BUILTIN
from katz_graph.packs import PackProblem, Registry, load_registry

GOOD = '''
from katz_graph.node import Node
from katz_graph.node.wires import Boolean

class {name}(Node, category="mine"):
    """Says yes."""
    def run(self) -> Boolean:
        return True
'''


def pack(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def load(folder: Path) -> tuple[Registry, list[str]]:
    registry, problems = load_registry([folder])
    return registry, [str(problem) for problem in problems]


def entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Simulates an installed distribution."""
    pack(folder, "thing-1.0.dist-info/entry_points.txt", "[katz_graph.nodes]\n" + "\n".join(lines))
    pack(
        folder, "thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n"
    )
    monkeypatch.syspath_prepend(str(folder))


def test_built_in_nodes_are_described_once_and_packs_stay_in_their_registry(
    tmp_path: Path,
) -> None:
    pack(tmp_path, "single.py", GOOD.format(name="Single"))
    with_pack, _ = load(tmp_path)
    without = load_registry()[0]
    assert "Single" in with_pack and "Single" not in without
    assert {name: id(node) for name, node in without.items() if node.pack == BUILTIN} == {
        name: id(node) for name, node in with_pack.items() if node.pack == BUILTIN
    }


def test_files_and_packages(tmp_path: Path) -> None:
    pack(tmp_path, "single.py", GOOD.format(name="Single"))
    pack(
        tmp_path,
        "whole/__init__.py",
        "from .inner import Inner\nfrom katz_graph.node import Node\n",
    )
    pack(tmp_path, "whole/inner.py", "from .names import NAME\n" + GOOD.format(name="Inner"))
    pack(tmp_path, "whole/names.py", "NAME = 1\n")
    registry, problems = load(tmp_path)
    assert problems == []
    assert {"Single", "Inner"} <= set(registry)
    assert registry["Inner"].pack == "whole"
    assert registry["Single"].description == "Says yes."


def test_other_folders_than_packs_are_ignored(tmp_path: Path) -> None:
    for name in (
        "off.py.disabled",
        "off.disabled/__init__.py",
        "__pycache__/x.py",
        ".hidden.py",
        "notes.txt",
        "empty/readme.md",
    ):
        pack(tmp_path, name, "raise RuntimeError('imported')")
    assert load(tmp_path)[1] == []


def test_a_pack_given_in_place_of_its_folder_is_reported(tmp_path: Path) -> None:
    pack(tmp_path, "whole/__init__.py", GOOD.format(name="Inner"))
    registry, problems = load(tmp_path / "whole")
    assert "Inner" not in registry
    assert problems == [
        f"pack {tmp_path / 'whole'}: is a pack itself; give the folder that contains it, {tmp_path}"
    ]


def test_a_failing_pack_is_reported_and_skipped(tmp_path: Path) -> None:
    pack(tmp_path, "a_missing.py", "import nowhere_to_be_found\n")
    pack(tmp_path, "b_syntax.py", "x = (\n")
    pack(tmp_path, "c_exit.py", "import sys\nsys.exit('no licence')\n")
    pack(tmp_path, "d_raises/__init__.py", "from . import deep\n")
    pack(tmp_path, "d_raises/deep.py", "\n\nraise RuntimeError('first\\nlast')\n")
    pack(tmp_path, "e_good.py", GOOD.format(name="StillThere"))
    registry, problems = load(tmp_path)
    assert "StillThere" in registry
    assert problems == [
        "pack a_missing: ModuleNotFoundError: No module named 'nowhere_to_be_found' "
        f"({tmp_path.name}/a_missing.py:1); it was left out",
        "pack b_syntax: SyntaxError: '(' was never closed (b_syntax.py:1); it was left out",
        f"pack c_exit: SystemExit: no licence ({tmp_path.name}/c_exit.py:2); it was left out",
        "pack d_raises: RuntimeError: last (d_raises/deep.py:3); it was left out",
    ]
    assert not [name for name in sys.modules if "d_raises" in name]


def test_two_packs_of_one_file_name_do_not_mix(tmp_path: Path) -> None:
    pack(tmp_path, "one/same.py", GOOD.format(name="FirstOne"))
    pack(tmp_path, "two/same.py", GOOD.format(name="SecondOne"))
    registry, problems = load_registry([tmp_path / "one", tmp_path / "two"])
    assert {"FirstOne", "SecondOne"} <= set(registry)
    assert problems == []


def test_the_first_of_two_nodes_of_one_name_wins(tmp_path: Path) -> None:
    pack(tmp_path, "a.py", GOOD.format(name="Twice"))
    pack(tmp_path, "b.py", GOOD.format(name="Twice"))
    registry, problems = load(tmp_path)
    assert registry["Twice"].pack == "a"
    assert problems == ["pack b: node Twice already exists in pack a; it was left out"]


@pytest.mark.parametrize(
    ("argument", "why"),
    [("x: complex", "argument 'x' has type <class 'complex'>"), ("x", "argument 'x' has no type")],
)
def test_one_bad_node_leaves_the_others_of_its_pack(
    tmp_path: Path, argument: str, why: str
) -> None:
    bad = f"class Bad(Node):\n    def run(self, {argument}) -> None: ...\n"
    pack(tmp_path, "mixed.py", GOOD.format(name="Fine") + bad)
    registry, problems = load(tmp_path)
    assert "Fine" in registry
    assert len(problems) == 1 and why in problems[0]


def test_a_nodes_tuple_decides(tmp_path: Path) -> None:
    pack(
        tmp_path,
        "chosen.py",
        GOOD.format(name="Shown") + GOOD.format(name="Helper") + "NODES = (Shown,)\n",
    )
    registry, _ = load(tmp_path)
    assert "Shown" in registry and "Helper" not in registry


def test_installed_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All modules of a package load except broken ones. Built-in nodes cannot be overridden."""
    entry_point(tmp_path, monkeypatch, "thing = thing_nodes", "gone = thing_gone")
    pack(tmp_path, "thing_nodes/__init__.py", "")
    pack(tmp_path, "thing_nodes/broken.py", "1 / 0\n")
    pack(
        tmp_path,
        "thing_nodes/good.py",
        GOOD.format(name="Installed") + GOOD.format(name="KSampler"),
    )
    registry, problems = load_registry()
    said = [str(problem) for problem in problems if problem.pack in ("thing", "gone")]
    assert registry["Installed"].pack == "thing"
    assert registry["KSampler"].pack == "builtin"
    assert any("ZeroDivisionError" in line for line in said)
    assert any("thing_gone" in line for line in said)
    assert any("node KSampler already exists in pack builtin" in line for line in said)


def test_installed_packs_of_another_convention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They can import the same modules as packs in folders; only the entry point's module provides
    nodes.
    """
    entry_point(tmp_path, monkeypatch, "theirs = installed_v1.nodes_of_it")
    made = (
        "class Made:\n    RETURN_TYPES, FUNCTION = (), 'go'\n    INPUT_TYPES = "
        "classmethod(lambda cls: {})\n    go = print\n"
    )
    pack(
        tmp_path,
        "installed_v1/__init__.py",
        "import folder_paths\nWHERE = folder_paths.get_output_directory()\n",
    )
    pack(
        tmp_path, "installed_v1/nodes_of_it/__init__.py", "from .inner import NODE_CLASS_MAPPINGS\n"
    )
    pack(
        tmp_path,
        "installed_v1/nodes_of_it/inner.py",
        f"import comfy.utils\n{made}NODE_CLASS_MAPPINGS = {{'Theirs': Made}}\n",
    )
    with forgetting_shims():
        registry, problems = load_registry()
    assert registry["Theirs"].pack == "theirs"
    assert [str(problem) for problem in problems if problem.pack == "theirs"] == []


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    assert load_registry([tmp_path / "none"])[1] == [
        PackProblem(str(tmp_path / "none"), "no such folder of packs")
    ]


def test_prints_of_a_pack_do_not_spoil_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(tmp_path, "loud.py", "print('### Loading: loud')\n")
    load(tmp_path)
    out, err = capsys.readouterr()
    assert out == "" and "loud" in err


def test_built_in_nodes_load_without_torch() -> None:
    code = (
        "import sys; from katz_graph.packs import load_registry; r, p = load_registry(); assert r "
        "and not p, p;"
        "print('torch' in sys.modules, 'diffusers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
