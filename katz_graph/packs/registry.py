"""Loads node types from packs. Built-in nodes and installed packs use the same entry points;
folders hold loose packs.

A pack that fails to import is reported and skipped; the others still load.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Protocol

from katz_graph.comfy.loading import is_foreign, load_foreign
from katz_graph.comfy.v3.adapter import mapped_nodes, v3_nodes
from katz_graph.core.errors import KatzError
from katz_graph.core.messages import one_line
from katz_graph.files.folders import Folders
from katz_graph.node import Node
from katz_graph.node.types import BUILTIN, NodeType
from katz_graph.packs.modules import (
    Load,
    builtin_modules,
    installed_modules,
    modules_in_folders,
    web_directory,
)


@dataclass(frozen=True, slots=True)
class PackProblem:
    """Reports why a pack, or one of its nodes, was skipped."""

    pack: str
    message: str

    def __str__(self) -> str:
        return f"pack {self.pack}: {self.message}"


@dataclass(frozen=True, slots=True)
class Registry(Mapping[str, NodeType]):
    """Maps names to node types, and packs to their folders of editor scripts."""

    types: Mapping[str, NodeType]
    web: Mapping[str, Path] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NodeType:
        return self.types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)


class Described(Protocol):
    """Class found by an adapter: describes itself as a node type, or raises the reason why it
    cannot.
    """

    def describe(self) -> NodeType: ...


Found = Described | type[Node] | NodeType
Adapter = Callable[[ModuleType], Iterable[Found] | None]


@cache
def builtin_types() -> Registry:
    """Returns the node types of the package and of installed packs."""
    return load_registry()[0]


def native_nodes(module: ModuleType) -> list[type[Node]] | None:
    """Returns the `NODES` of a module, else the Node classes with a `run` that the module or its
    submodules define; None if it has none.
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
"""Adapters of ComfyUI's and native nodes, tried in order. An adapter returns None for a module of
another kind.
"""


def load_registry(
    folders: Iterable[Path] = (), models: Folders | None = None
) -> tuple[Registry, list[PackProblem]]:
    """Loads all node types of installed packs and of those in `folders`. The first of equal names
    wins. Built-in nodes come first and are described once per process.

    ComfyUI packs see `models` as their model, input and output folders.
    """
    loaded = builtin_nodes().copy()
    add_shims = partial(_add_shims, loaded, models or Folders())
    for pack, load in chain(
        installed_modules(add_shims), modules_in_folders(folders, add_shims, loaded.report)
    ):
        loaded.add(pack, load)
    return Registry(loaded.types, loaded.web), loaded.problems


@cache
def builtin_nodes() -> _Loaded:
    """Loads the built-in nodes. This takes 0.3 s, so the fork server of workers calls it in
    advance.
    """
    loaded = _Loaded()
    for load in builtin_modules():
        loaded.add(BUILTIN, load)
    return loaded


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Collects node types, scripts and problems while packs load one after the other."""

    types: dict[str, NodeType] = field(default_factory=dict)
    web: dict[str, Path] = field(default_factory=dict)
    problems: list[PackProblem] = field(default_factory=list)
    seen: dict[int, Found] = field(default_factory=dict)
    """Nodes by id, to skip those that a package re-exports from its modules."""

    def copy(self) -> _Loaded:
        return _Loaded(dict(self.types), dict(self.web), list(self.problems), dict(self.seen))

    def report(self, pack: str, message: str) -> None:
        self.problems.append(PackProblem(pack, message))

    def add(self, pack: str, load: Load) -> None:
        """Loads a module of a pack and adds its nodes, except nodes with names already taken."""
        module = _guarded(pack, load, self.problems)
        if module is None:
            return
        found = [node for node in _found(pack, module, self.problems) if id(node) not in self.seen]
        self.seen.update((id(node), node) for node in found)
        if (scripts := web_directory(module)) is not None:
            self.web[pack] = scripts
        for node in _described_nodes(pack, found, self.problems):
            if node.name in self.types:
                self.problems.append(
                    PackProblem(
                        pack,
                        f"node {node.name} already exists in pack {self.types[node.name].pack}; "
                        "it was left out",
                    )
                )
            else:
                self.types[node.name] = node


def _add_shims(loaded: _Loaded, models: Folders, pack: str, start: Path, load: Load) -> Load:
    """Adds the modules that a ComfyUI pack's code imports. `start`: the pack's first file."""
    if not is_foreign(start):
        return load
    return partial(load_foreign, start, load, loaded.types, models, partial(loaded.report, pack))


def _guarded(pack: str, load: Load, problems: list[PackProblem]) -> ModuleType | None:
    """Loads a module; on failure records a problem and returns None. Redirects the pack's prints to
    stderr, because results go to stdout.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return load()
    except (Exception, SystemExit) as error:
        problems.append(PackProblem(pack, f"{_described(error)}; it was left out"))
        return None


def _described(error: BaseException) -> str:
    """Formats an exception: type, last line, and innermost frame outside the import machinery.
    Leaves our own errors unchanged.
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
        own = (str(Path(__file__).parent), str(Path(importlib.__file__).parent))
        outside = [frame for frame in frames if str(Path(frame.filename).parent) not in own]
        place = (
            f"{'/'.join(Path(outside[-1].filename).parts[-2:])}:{outside[-1].lineno}"
            if outside
            else ""
        )
    return one_line(f"{type(error).__name__}: {last}" + (f" ({place})" if place else ""))


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
