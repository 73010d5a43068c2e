"""Checks identifiers against docs/style.md. The lists grow as names are replaced."""

from __future__ import annotations

import ast
import io
import re
import tokenize
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
"""Maps uninformative names of constants to better ones."""


BANNED_WORDS = {
    "barren": "failed, without_result",
    "begun": "started",
    "beside": "concurrent, extra, next_to",
    "blow": "fault",
    "bury": "close, drop",
    "dues": "pending",
    "folk": "users, clients",
    "gone": "lost, deleted, closed, evicted, exited",
    "heard": "received, on_event, on_message",
    "heed": "handle, apply",
    "hear": "on_event, on_message, receive",
    "kept": "cached, stored, saved, remaining",
    "people": "users, clients",
    "portion": "share, chunk, slice",
    "stranded": "unplaceable",
    "strike": "fault, inject_fault",
    "struck": "faulty",
    "stuck": "hung, blocked",
    "tell": "report, emit, send",
    "told": "reported, passed, received",
    "worn": "draining, exhausted",
}
"""Maps words that no identifier may contain to words to use instead."""

ALLOWED_NAMES = {
    "tell_evictions",  # old name of an option
    "calls_beside",  # metric
}
ALLOWED_IN = {"katz_graph/planner/report/document.py": {"beside"}}  # key of a plan's JSON


BANNED_PHRASES = {
    "anew": "again",
    "beside": "next to, in addition to, at the same time as",
    "from which on": "after which",
    "goes on": "continues",
    "has come there": "has completed",
    "heeds?": "handles, applies",
    "is told": "is reported, receives",
    "are told": "are reported, receive",
    "lets go": "releases",
    "nobody": "no client, no thread",
    "of its own": "separate",
    "somebody": "a user, a client",
    "that which": "the noun",
    "whoever": "the user who, any caller",
}
"""Maps phrases that no docstring, comment, document or source of the editor may contain to words to
use instead.
"""
PROSE = re.compile(rf"\b(?:{'|'.join(BANNED_PHRASES)})\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`|\*[^*\s][^*]*\*")  # names, and words that are quoted
EDITOR = ("web/editor/src", "web/editor/e2e")
QUOTES_PHRASES = {"docs/style.md"}


def words(name: str) -> list[str]:
    """Splits an identifier into its words in lower case."""
    return re.findall(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]*", name)


def defined(tree: ast.Module) -> Iterator[str]:
    """Yields the names of functions, classes, parameters, variables and attributes of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("test_"):  # a test's name is a sentence
                yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


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


def suspects() -> Iterator[tuple[Path, ast.Module]]:
    """Yields the modules that contain a banned word anywhere, with their paths."""
    banned = re.compile(
        rf"\b(?:{'|'.join(BANNED_CONSTANTS)})\b"
        rf"|(?<![a-z])(?i:{'|'.join(BANNED_WORDS)})(?![a-z])"
    )
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" not in file.parts:
                text = file.read_text()
                if banned.search(text) or banned.search(file.stem):
                    yield file.relative_to(ROOT), ast.parse(text)


def test_names_say_what_they_are() -> None:
    found = []
    for file, tree in suspects():
        for name in constants(tree):
            if name in BANNED_CONSTANTS:
                found.append(f"{file}: {name}, say {BANNED_CONSTANTS[name]}")
        for name in {file.stem, *defined(tree)} - ALLOWED_NAMES - ALLOWED_IN.get(str(file), set()):
            for word in words(name):
                if word.lower() in BANNED_WORDS:
                    found.append(f"{file}: {name}, say {BANNED_WORDS[word.lower()]}")
    assert found == []


def prose(file: Path, text: str) -> Iterator[str]:
    """Yields the docstrings and comments of a module, the lines of the editor's sources, or the
    lines of a document without its code.
    """
    if file.suffix in (".ts", ".tsx"):
        yield from text.splitlines()
        return
    if file.suffix == ".md":
        yield from re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)  # docstrings, and texts below constants


def test_texts_contain_no_private_phrases() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    files += [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    files += [file for folder in EDITOR for file in (ROOT / folder).rglob("*.ts*")]
    found = []
    for file in sorted(files):
        name = str(file.relative_to(ROOT))
        if {"node_modules", "generated"} & {*file.parts} or name in QUOTES_PHRASES:
            continue
        text = file.read_text()
        if not PROSE.search(text):  # most files; tokens take long
            continue
        found += [
            f"{name}: {match[0]} in {passage.strip()[:80]}"
            for passage in prose(file, text)
            for match in PROSE.finditer(CODE.sub("", passage))
        ]
    assert found == []
