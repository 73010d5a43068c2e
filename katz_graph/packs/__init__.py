"""Loads node types from packs: built-in nodes, installed packs, and folders of loose packs."""

from katz_graph.packs.registry import (
    PackProblem,
    Registry,
    builtin_nodes,
    builtin_types,
    load_registry,
)

__all__ = [
    "PackProblem",
    "Registry",
    "builtin_nodes",
    "builtin_types",
    "load_registry",
]
