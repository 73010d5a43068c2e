"""Loads node types from packs. Built-in nodes and anyone's installed pack use the same entry
points; folders hold loose packs.

A pack that does not import is reported and left out; it never stops the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Protocol

from katz_graph.comfy.loading import ENTRANCES, is_foreign, load_foreign
from katz_graph.comfy.v3.adapter import mapped_nodes, v3_nodes
from katz_graph.errors import KatzError
from katz_graph.files.entries import entries_of
from katz_graph.files.folders import Folders
from katz_graph.messages import one_line
from katz_graph.node import Node
from katz_graph.node.types import NodeType

GROUP = "katz_graph.nodes"
BUILTIN = "builtin"  # the entry point of our own nodes: first, so that no pack overrides them


@dataclass(frozen=True, slots=True)
class PackProblem:
    """The reason that a pack, or one node of it, was left out."""

    pack: str
    message: str

    def __str__(self) -> str:
        return f"pack {self.pack}: {self.message}"


@dataclass(frozen=True, slots=True)
class Registry(Mapping[str, NodeType]):
    """Maps names to node types, and packs to their folders of scripts for the editor."""

    types: Mapping[str, NodeType]
    web: Mapping[str, Path] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NodeType:
        return self.types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)


class Described(Protocol):
    """An adapter's find: it describes itself as a node type, or raises the reason that it
    cannot.
    """

    def describe(self) -> NodeType: ...


Found = Described | type[Node] | NodeType
Adapter = Callable[[ModuleType], Iterable[Found] | None]


@cache
def builtin_types() -> Registry:
    """Returns the node types that come with the package, and those of installed packs."""
    return load_registry()[0]


def native_nodes(module: ModuleType) -> list[type[Node]] | None:
    """Returns the `NODES` of a module, else the Node classes with a `run` defined in it or inside
    it; None when there are none.
    """
    stated = getattr(module, "NODES", None)
    if isinstance(stated, (list, tuple)) and all(
        isinstance(node, type) and issubclass(node, Node) for node in stated
    ):
        return list(stated)
    inside = f"{module.__name__}."
    found = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Node)
        and hasattr(value, "run")
        and not name.startswith("_")
        and f"{value.__module__}.".startswith(inside)
    ]
    return list(dict.fromkeys(found)) or None


ADAPTERS: tuple[Adapter, ...] = (
    mapped_nodes,
    v3_nodes,
    native_nodes,
)
"""Adapters of ComfyUI's nodes and of our own, asked in order; None for a module of another kind."""


Load = Callable[[], ModuleType]


def load_registry(
    folders: Iterable[Path] = (), models: Folders | None = None
) -> tuple[Registry, list[PackProblem]]:
    """Loads every node type of the installed packs and of those in `folders`. Of two of one name
    the first wins; built-in ones are first, and described once in a process.

    ComfyUI packs see `models` as their model, input and output folders.
    """
    loaded = builtin_nodes().copy()
    foreign = partial(_foreign, loaded.types, models or Folders(), loaded.problems)
    for pack, load in chain(_installed(foreign), _loose(folders, foreign, loaded.problems)):
        loaded.add(pack, load)
    return Registry(loaded.types, loaded.web), loaded.problems


@cache
def builtin_nodes() -> _Loaded:
    """Loads the built-in nodes. To describe them takes 0.3 s, so what workers are forked from does
    it before.
    """
    loaded = _Loaded()
    for point in entry_points(group=GROUP, name=BUILTIN):
        for load in _modules(point.module, partial(importlib.import_module, point.module)):
            loaded.add(BUILTIN, load)
    return loaded


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Collects node types, scripts and problems while packs are loaded, one after the other."""

    types: dict[str, NodeType] = field(default_factory=dict)
    web: dict[str, Path] = field(default_factory=dict)
    problems: list[PackProblem] = field(default_factory=list)
    seen: dict[int, Found] = field(default_factory=dict)
    """A package may show what its modules define."""

    def copy(self) -> _Loaded:
        return _Loaded(dict(self.types), dict(self.web), list(self.problems), dict(self.seen))

    def add(self, pack: str, load: Load) -> None:
        """Loads a module of a pack and adds its nodes, except those whose names are taken."""
        module = _guarded(pack, load, self.problems)
        if module is None:
            return
        found = [
            node for node in _found(pack, module, self.problems) if id(node) not in self.seen
        ]
        self.seen.update((id(node), node) for node in found)
        if (scripts := web_directory(module)) is not None:
            self.web[pack] = scripts
        for node in _described_nodes(pack, found, self.problems):
            if node.name in self.types:
                self.problems.append(
                    PackProblem(
                        pack,
                        f"node {node.name} is already there from pack "
                        f"{self.types[node.name].pack}; it was left out",
                    )
                )
            else:
                self.types[node.name] = node


Foreign = Callable[[str, Path, Load], Load]
"""Takes a pack's name, first file and import; gives the import, with shims for ComfyUI packs."""


def _installed(foreign: Foreign) -> Iterator[tuple[str, Load]]:
    """Yields the modules of the entry points but our own."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name == BUILTIN:
            continue
        load = partial(importlib.import_module, point.module)
        start = _source(point.module)
        first = load if start is None else foreign(point.name, start, load)
        for module in _modules(point.module, first):
            yield point.name, module


def _modules(name: str, first: Load) -> Iterator[Load]:
    """Yields the imports of a package and, once it was imported, of each of its modules, so that
    one that fails leaves the others; a ComfyUI pack names its nodes in its first module.
    """
    yield first
    imported = sys.modules.get(name)
    if imported is None or any(hasattr(imported, sign) for sign in ENTRANCES):
        return
    for inner in pkgutil.iter_modules(getattr(imported, "__path__", ())):
        yield partial(importlib.import_module, f"{name}.{inner.name}")


def _source(module: str) -> Path | None:
    """Finds the first file of the distribution that a module is from, importing nothing. None where
    there is none.
    """
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec(module.partition(".")[0])
        return (
            Path(found.origin)
            if found is not None and found.has_location and found.origin is not None
            else None
        )
    return None


def _foreign(
    types: Mapping[str, NodeType],
    models: Folders,
    problems: list[PackProblem],
    pack: str,
    start: Path,
    load: Load,
) -> Load:
    return (
        partial(load_foreign, start, load, types, models, partial(_note, pack, problems))
        if is_foreign(start)
        else load
    )


def _loose(
    folders: Iterable[Path], foreign: Foreign, problems: list[PackProblem]
) -> Iterator[tuple[str, Load]]:
    """Yields each Python file and package directly in the folders, by name."""
    for folder in folders:
        if not folder.is_dir():
            problems.append(PackProblem(str(folder), "no such folder of packs"))
            continue
        if (folder / "__init__.py").is_file():
            problems.append(
                PackProblem(
                    str(folder),
                    "is a pack itself; give the folder that it lies in, "
                    f"{folder.absolute().parent}",
                )
            )
            continue
        try:
            found = entries_of(folder, partial(_note, str(folder), problems))
        except OSError as error:
            _note(str(folder), problems, f"cannot be read: {error.strerror or error}")
            continue
        for path in (entry.path for entry in found):
            if path.name.startswith((".", "__")) or path.name.endswith(".disabled"):
                continue
            start = path / "__init__.py" if path.is_dir() else path
            if start.suffix == ".py" and start.is_file():
                yield path.stem, foreign(path.stem, start, partial(_import_file, start))


def _note(pack: str, problems: list[PackProblem], message: str) -> None:
    problems.append(PackProblem(pack, message))


def _import_file(file: Path) -> ModuleType:
    """Imports a loose file, or a package by its `__init__.py`, under a name of its own."""
    package = file.name == "__init__.py"
    path = file.parent if package else file
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"katz_pack_{path.stem}_{digest}".replace(".", "_")
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(path)] if package else None
    )
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for loaded in [known for known in tuple(sys.modules) if f"{known}.".startswith(f"{name}.")]:
            del sys.modules[loaded]
        raise
    return module


def _guarded(pack: str, load: Load, problems: list[PackProblem]) -> ModuleType | None:
    """Loads a module; None and a problem where it fails. A pack's prints go to stderr, because
    results are printed to stdout.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return load()
    except (Exception, SystemExit) as error:
        problems.append(PackProblem(pack, f"{_described(error)}; it was left out"))
        return None


def _described(error: BaseException) -> str:
    """Words an exception: its type, its last line, and the innermost place outside of the import
    machinery. Our own errors stay as they are.
    """
    if isinstance(error, KatzError):
        return one_line(str(error))
    last = str(error).strip().split("\n")[-1]
    if isinstance(error, SyntaxError):
        last, place = error.msg, f"{Path(error.filename or '?').name}:{error.lineno}"
    else:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith("<frozen")
        ]
        outside = [
            frame for frame in frames if frame.filename not in (__file__, importlib.__file__)
        ]
        place = (
            f"{'/'.join(Path(outside[-1].filename).parts[-2:])}:{outside[-1].lineno}"
            if outside
            else ""
        )
    return one_line(f"{type(error).__name__}: {last}" + (f" ({place})" if place else ""))


def web_directory(module: ModuleType) -> Path | None:
    """Finds the folder of scripts for the editor that a pack names in WEB_DIRECTORY, or as `web` of
    `[tool.comfy]` in its pyproject.toml.
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


def _found(pack: str, module: ModuleType, problems: list[PackProblem]) -> list[Found]:
    try:
        for adapter in ADAPTERS:
            found = adapter(module)
            if found is not None:
                return list(found)
    except (Exception, SystemExit) as error:
        problems.append(PackProblem(pack, f"{_described(error)}; it was left out"))
    return []


def _described_nodes(
    pack: str, found: Iterable[Found], problems: list[PackProblem]
) -> Iterator[NodeType]:
    for node in found:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                described = node if isinstance(node, NodeType) else node.describe()
            yield replace(described, pack=pack)
        except (Exception, SystemExit) as error:
            problems.append(PackProblem(pack, f"{_described(error)}; the node was left out"))
