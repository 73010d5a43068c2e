"""Recognises ComfyUI packs by their sources, loads them with the shims installed, and reports all
missing imports in one line.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import runpy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from katz_graph.comfy.finder import install
from katz_graph.comfy.missing import noting_missed
from katz_graph.core.errors import InputError
from katz_graph.files.folders import Folders
from katz_graph.node.types import NodeType

EXTRA = "katz-graph[packs]"
COMFYUI_DEPENDENCIES = frozenset(
    (
        *(
            "aiohttp",
            "av",
            "cv2",
            "einops",
            "kornia",
            "psutil",
            "requests",
            "sentencepiece",
            "spandrel",
            "torchaudio",
            "torchvision",
        ),
        *("yarl",),
    )
)
"""Modules that packs expect, because ComfyUI or most packs install them."""
ENTRANCES = (
    "NODE_CLASS_MAPPINGS",
    "comfy_entrypoint",
)  # attributes with which a module declares its nodes
SIGNS = (*ENTRANCES, "folder_paths", "PromptServer", "comfy.", "comfy_")
ROOTS = frozenset(
    (
        *(
            "app",
            "comfy",
            "comfy_api",
            "comfy_execution",
            "comfy_extras",
            "cuda_malloc",
            "execution",
            "folder_paths",
            "latent_preview",
        ),
        *("node_helpers", "nodes", "protocol", "server"),
    )
)


def load_foreign(
    start: Path,
    load: Callable[[], ModuleType],
    types: Mapping[str, NodeType],
    folders: Folders,
    say: Callable[[str], None],
) -> ModuleType:
    """Loads the module of a pack. `say` receives a line about imported names that are not
    implemented. InputError lists all names that cannot be imported.
    """
    shims = install(folders, types)
    package = start.name == "__init__.py"
    where = str((start.parent.parent if package else start.parent).absolute())
    if shims is not None and where not in shims.packs:
        shims.packs.append(where)
    early = start.parent / "prestartup_script.py"
    with noting_missed() as missed:
        try:
            if package and early.is_file():
                runpy.run_path(str(early))
            module = load()
        except (ImportError, AttributeError) as error:
            raise _explained(start, error) from error
    if missed:
        say(
            f"uses {', '.join(missed)}, which Katz Graph does not have; nodes that need "
            "them will fail"
        )
    brought = getattr(module, "NODE_CLASS_MAPPINGS", None)
    if shims is not None and isinstance(brought, Mapping):
        shims.classes.update(
            {str(name): kind for name, kind in brought.items() if name not in types}
        )
    return module


def _explained(start: Path, error: ImportError | AttributeError) -> Exception:
    unknown = unknown_imports(start)
    if unknown:
        return InputError(f"imports {', '.join(unknown)}, which Katz Graph does not have")
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module in COMFYUI_DEPENDENCIES:
        return InputError(
            f"needs the Python package {module}, which comes with ComfyUI: pip install '{EXTRA}'"
        )
    return error


def is_foreign(start: Path) -> bool:
    """Returns whether a loose pack, given by its file or `__init__.py`, is written for ComfyUI."""
    return any(sign in text for text in map(_text, _files(start)) for sign in SIGNS)


def unknown_imports(start: Path) -> list[str]:
    """Lists the names that a pack imports from ComfyUI's modules but this engine lacks, in the
    order of its files.
    """
    found: dict[str, None] = {}
    for file in _files(start):
        try:
            tree = ast.parse(_text(file))
        except (SyntaxError, ValueError):
            continue
        # a file in the same folder may have the same name
        own = {path.stem for path in file.parent.iterdir()}
        for module, name in _imports(tree):
            if module.partition(".")[0] in ROOTS - (own - {"nodes"}) and not _is_there(
                module, name
            ):
                found[f"{module}.{name}" if name else module] = None
    return list(found)


def _files(start: Path) -> Iterator[Path]:
    if start.name != "__init__.py":
        yield start
        return
    yield start
    yield from sorted(
        path
        for path in start.parent.rglob("*.py")
        if path != start and "node_modules" not in path.parts
    )


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
    except ModuleNotFoundError:  # the module is not a package
        return False
