"""Opens engines that run workflows (`open`) and builds graphs in Python (`Graph`).

Importing this package loads neither. `core` has the shared vocabulary (graphs, recipes, devices,
events, errors). Only `api`, `cli` and `bench`, which put the layers together, may import the
built-in nodes, the executor and the server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from katz_graph.core import renamed_modules

if TYPE_CHECKING:
    from katz_graph.api.builder import Graph, Output
    from katz_graph.api.engine import Engine, open
    from katz_graph.api.result import Plan, Result
    from katz_graph.core.errors import Cancelled, InputError, KatzError, OutOfMemory, RunError

__all__ = [
    "Cancelled",
    "Engine",
    "Graph",
    "InputError",
    "KatzError",
    "OutOfMemory",
    "Output",
    "Plan",
    "Result",
    "RunError",
    "open",
]

renamed_modules.install()

if not TYPE_CHECKING:  # otherwise type checkers would accept every name
    MODULES = {
        **dict.fromkeys(("Engine", "open"), "katz_graph.api.engine"),
        **dict.fromkeys(("Graph", "Output"), "katz_graph.api.builder"),
        **dict.fromkeys(("Plan", "Result"), "katz_graph.api.result"),
    }

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(MODULES.get(name, "katz_graph.core.errors")), name)

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
