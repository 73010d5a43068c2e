"""Keeps old module names importable for one release, for packs and programs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

RENAMED_MODULES = {
    "katz_graph.approximations": "katz_graph.core.allowed_approximations",
    "katz_graph.context": "katz_graph.node.types",
    "katz_graph.devices": "katz_graph.core.devices",
    "katz_graph.errors": "katz_graph.core.errors",
    "katz_graph.events": "katz_graph.core.events",
    "katz_graph.eviction": "katz_graph.core.eviction",
    "katz_graph.files.settings": "katz_graph.settings.environment",
    "katz_graph.graph": "katz_graph.core.graph",
    "katz_graph.guidance_spec": "katz_graph.core.guidance_spec",
    "katz_graph.knobs": "katz_graph.node.knobs",
    "katz_graph.latent_space": "katz_graph.core.latent_space",
    "katz_graph.messages": "katz_graph.core.messages",
    "katz_graph.nodes.told": "katz_graph.nodes.model_conditioning",
    "katz_graph.options": "katz_graph.settings.options",
    "katz_graph.patches": "katz_graph.core.patches",
    "katz_graph.recipe": "katz_graph.core.recipe",
    "katz_graph.run_stats": "katz_graph.executor.graph.run_stats",
    "katz_graph.scope": "katz_graph.node.scope",
    "katz_graph.ui_results": "katz_graph.node.ui_results",
    "katz_graph.wires": "katz_graph.node.wires",
}
"""Maps old names to new ones."""


def install() -> None:
    """Registers the finder of renamed modules with Python, once."""
    sys.meta_path.append(RenamedModuleFinder())


class RenamedModuleFinder(MetaPathFinder):
    """Finds a renamed module by its old name, with a FutureWarning that names the new one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = RENAMED_MODULES.get(name)
        if new is None:
            return None
        # stacklevel 2 is the importing line: Python skips frames of the import machinery
        warnings.warn(
            f"{name} is now {new}; the old name will be removed", FutureWarning, stacklevel=2
        )
        return ModuleSpec(name, _Alias(new))


class _Alias(Loader):
    """Loads a module by its new name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # restores the spec that the import machinery replaced
