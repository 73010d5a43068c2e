"""Writes packs for ComfyUI to a folder, loads them and unloads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from katz_graph.comfy.finder import Shims
from katz_graph.comfy.loading import ROOTS
from katz_graph.files.folders import Folders
from katz_graph.packs import Registry, load_registry


@contextmanager
def forgetting_shims() -> Iterator[None]:
    """Removes finders and shim modules of other tests, and those of this test afterwards."""
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Shims)]
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ROOTS or name.startswith("katz_pack_")
    ]:
        del sys.modules[name]


def write(folder: Path, files: Mapping[str, str] | None = None, **others: str) -> Path:
    """Writes `name="text"` to name.py, `{"inside/name": "text"}` to inside/name.py."""
    for name, text in {**(files or {}), **others}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


def load(packs: Path, root: Path) -> tuple[Registry, list[str]]:
    """Loads a folder of packs; returns its node types and problems. Model, input and output folders
    are below `root`.
    """
    folders = Folders((root / "models",), root / "input", root / "output")
    registry, problems = load_registry([packs], folders)
    return registry, [str(problem) for problem in problems]
