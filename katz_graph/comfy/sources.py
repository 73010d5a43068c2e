"""Reads the files of a pack without running it: finds ComfyUI packs, and the names they import that
are not here.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

ENTRANCES = ("NODE_CLASS_MAPPINGS", "comfy_entrypoint")  # by which a module says which nodes it has
SIGNS = (*ENTRANCES, "folder_paths", "PromptServer", "comfy.", "comfy_")
ROOTS = frozenset(
    (
        *("app", "comfy", "comfy_api", "comfy_execution", "comfy_extras", "cuda_malloc", "execution", "folder_paths", "latent_preview"),
        *("node_helpers", "nodes", "protocol", "server"),
    )
)


def is_foreign(start: Path) -> bool:
    """Tells whether a loose pack, named by its file or `__init__.py`, is written for ComfyUI."""
    return any(sign in text for text in map(_text, _files(start)) for sign in SIGNS)


def unknown_imports(start: Path) -> list[str]:
    """Lists the names that a pack imports from ComfyUI's modules and that are not there, in the
    order of its files.
    """
    found: dict[str, None] = {}
    for file in _files(start):
        try:
            tree = ast.parse(_text(file))
        except (SyntaxError, ValueError):
            continue
        own = {path.stem for path in file.parent.iterdir()}  # a file beside it may have the same name
        for module, name in _imports(tree):
            if module.partition(".")[0] in ROOTS - (own - {"nodes"}) and not _is_there(module, name):
                found[f"{module}.{name}" if name else module] = None
    return list(found)


def _files(start: Path) -> Iterator[Path]:
    if start.name != "__init__.py":
        yield start
        return
    yield start
    yield from sorted(path for path in start.parent.rglob("*.py") if path != start and "node_modules" not in path.parts)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, name.name) for name in node.names if name.name != "*")
        elif isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)


def _is_there(module: str, name: str) -> bool:
    try:
        loaded = importlib.import_module(module)
    except Exception:
        return False
    if not name or hasattr(loaded, name):
        return True
    try:
        return importlib.util.find_spec(f"{module}.{name}") is not None
    except ModuleNotFoundError:  # the module is no package
        return False
