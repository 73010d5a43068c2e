"""Names say what they are: docs/style.md has the rules. The list grows as names are replaced."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("executor", "katz_graph", "kernels", "nodes", "tests", "web")
BANNED_CONSTANTS = {
    "AGAIN": "..._RETRY_S, RAISE_AGAIN_AFTER_S",
    "ALIKE": "MIN_..._SIMILARITY",
    "APART": "..._INTERVAL_S",
    "BARREN": "MAX_FAILED_...",
    "DEEP": "what is deep, and in which unit",
    "ENDING": "EXIT_TIMEOUT_S",
    "ENOUGH": "MAX_..., MIN_...",
    "EQUAL": "..._TOLERANCE, ..._FACTOR",
    "FAR": "MAX_...",
    "FEW": "MIN_..., ..._BYTES",
    "FEWEST": "MIN_...",
    "LARGE": "what is large, and in which unit",
    "LARGEST": "MAX_...",
    "LEAST": "MIN_...",
    "LITTLE": "MIN_..._SHARE",
    "LONG": "what is long, and in which unit",
    "LONGEST": "MAX_..., ..._TIMEOUT_S",
    "LOOK": "..._INTERVAL_S, POLL_INTERVAL_S",
    "LOOKS": "..._CHECKS",
    "MOST": "MAX_...",
    "MUCH": "MIN_..., ..._SHARE",
    "RARELY": "..._THRESHOLD",
    "SHORTEST": "MIN_...",
    "SMALL": "what is small, and in which unit",
    "SMALLEST": "MIN_...",
    "SOON": "..._AFTER_S",
    "STUCK": "WATCHDOG_S",
    "WIDE": "what is wide, and in which unit",
    "WORTH": "MAX_..._SHARE",
}
"""Maps names of constants that say nothing where they are used to what names them."""


def constants(tree: ast.Module) -> Iterator[str]:
    """Yields the names that a module assigns in capitals."""
    for statement in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for target in targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and name.id.isupper():
                    yield name.id


def test_constants_name_their_quantity() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {name}, say {BANNED_CONSTANTS[name]}"
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        if "node_modules" not in file.parts
        for name in constants(ast.parse(file.read_text()))
        if name in BANNED_CONSTANTS
    ]
    assert found == []
