"""Finds the modules of packs: entry points, and files and packages in folders."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from katz_graph.comfy.loading import ENTRANCES
from katz_graph.files.entries import entries_of
from katz_graph.node.types import BUILTIN

GROUP = "katz_graph.nodes"

Load = Callable[[], ModuleType]
"""Imports a module."""
AddShims = Callable[[str, Path, Load], Load]
"""Maps a pack's name, first file and import function to an import function with shims for ComfyUI
packs.
"""
Report = Callable[[str, str], None]
"""Reports a problem: takes a pack's name and a message."""


def builtin_modules() -> Iterator[Load]:
    """Yields the import functions of the built-in nodes' modules."""
    for point in entry_points(group=GROUP, name=BUILTIN):
        yield from _modules_of(point.module, partial(importlib.import_module, point.module))


def installed_modules(add_shims: AddShims) -> Iterator[tuple[str, Load]]:
    """Yields the import functions of all other entry points' modules, with their pack's name."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name == BUILTIN:
            continue
        load = partial(importlib.import_module, point.module)
        start = _first_file(point.module)
        first = load if start is None else add_shims(point.name, start, load)
        for module in _modules_of(point.module, first):
            yield point.name, module


def modules_in_folders(
    folders: Iterable[Path], add_shims: AddShims, report: Report
) -> Iterator[tuple[str, Load]]:
    """Yields each Python file and package directly in the folders, sorted by name."""
    for folder in folders:
        if not folder.is_dir():
            report(str(folder), "no such folder of packs")
            continue
        if (folder / "__init__.py").is_file():
            report(
                str(folder),
                f"is a pack itself; give the folder that contains it, {folder.absolute().parent}",
            )
            continue
        try:
            found = entries_of(folder, partial(report, str(folder)))
        except OSError as error:
            report(str(folder), f"cannot be read: {error.strerror or error}")
            continue
        for path in (entry.path for entry in found):
            if path.name.startswith((".", "__")) or path.name.endswith(".disabled"):
                continue
            start = path / "__init__.py" if path.is_dir() else path
            if start.suffix == ".py" and start.is_file():
                yield path.stem, add_shims(path.stem, start, partial(_import_file, start))


def web_directory(module: ModuleType) -> Path | None:
    """Returns a pack's folder of editor scripts: WEB_DIRECTORY, or `web` of `[tool.comfy]` in its
    pyproject.toml. Returns None if it lies outside the pack.
    """
    start = Path(module.__file__ or "").parent
    named = getattr(module, "WEB_DIRECTORY", None)
    project = start / "pyproject.toml"
    if named is None and project.is_file() and hasattr(module, "__path__"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            named = (
                tomllib.loads(project.read_text("utf-8"))
                .get("tool", {})
                .get("comfy", {})
                .get("web")
            )
    folder = (start / named).resolve() if isinstance(named, str) else None
    return (
        folder
        if folder is not None and folder.is_dir() and folder.is_relative_to(start.resolve())
        else None
    )


def _modules_of(package: str, first: Load) -> Iterator[Load]:
    """Yields the import functions of a package and, once it is imported, of each of its modules, so
    that one failing module does not affect the others. ComfyUI packs list their nodes in the
    package itself.
    """
    yield first
    imported = sys.modules.get(package)
    if imported is None or any(hasattr(imported, sign) for sign in ENTRANCES):
        return
    for inner in pkgutil.iter_modules(getattr(imported, "__path__", ())):
        yield partial(importlib.import_module, f"{package}.{inner.name}")


def _first_file(module: str) -> Path | None:
    """Returns the first file of a module's distribution without importing anything; None if not
    found.
    """
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec(module.partition(".")[0])
        return (
            Path(found.origin)
            if found is not None and found.has_location and found.origin is not None
            else None
        )
    return None


def _import_file(file: Path) -> ModuleType:
    """Imports a loose file, or a package by its `__init__.py`, under a unique name."""
    package = file.name == "__init__.py"
    path = file.parent if package else file
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"katz_pack_{path.stem}_{digest}".replace(".", "_")
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(path)] if package else None
    )
    assert spec is not None and spec.loader is not None  # always set for .py files
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for loaded in [known for known in tuple(sys.modules) if f"{known}.".startswith(f"{name}.")]:
            del sys.modules[loaded]
        raise
    return module
