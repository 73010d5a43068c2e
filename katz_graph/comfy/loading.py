"""Loads a ComfyUI pack with shims around it, and lists all that it misses in one line."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from katz_graph.comfy.finder import install
from katz_graph.comfy.missing import noting_missed
from katz_graph.comfy.sources import unknown_imports
from katz_graph.errors import InputError
from katz_graph.files.folders import Folders
from katz_graph.node import NodeType

EXTRA = "katz-graph[packs]"
BROUGHT = frozenset(
    (
        *("aiohttp", "av", "cv2", "einops", "kornia", "psutil", "requests", "sentencepiece", "spandrel", "torchaudio", "torchvision"),
        *("yarl",),
    )
)
"""Modules that an installation of ComfyUI, or most packs, bring, and that packs take for granted.
"""


def load_foreign(
    start: Path, load: Callable[[], ModuleType], types: Mapping[str, NodeType], folders: Folders, say: Callable[[str], None]
) -> ModuleType:
    """Loads the module of a pack. `say` is told of names that import, but have nothing behind them;
    InputError names all that do not import.
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
        say(f"uses {', '.join(missed)}, which Katz Graph does not have; nodes that need them will fail")
    brought = getattr(module, "NODE_CLASS_MAPPINGS", None)
    if shims is not None and isinstance(brought, Mapping):
        shims.classes.update({str(name): kind for name, kind in brought.items() if name not in types})
    return module


def _explained(start: Path, error: ImportError | AttributeError) -> Exception:
    unknown = unknown_imports(start)
    if unknown:
        return InputError(f"imports {', '.join(unknown)}, which Katz Graph does not have")
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module in BROUGHT:
        return InputError(f"needs the Python package {module}, which comes with ComfyUI: pip install '{EXTRA}'")
    return error
