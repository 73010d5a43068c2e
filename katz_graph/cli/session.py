"""Opens the engine for a command's options, and prints lines for the user."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from katz_graph.cli.options import WorkflowOptions
from katz_graph.core.errors import InputError
from katz_graph.settings.options import FolderOptions, PlacementOptions

if TYPE_CHECKING:
    from katz_graph.api.engine import Engine


@dataclass(frozen=True, slots=True)
class TerminalLines:
    """Prints lines for the user on standard error."""

    console: Console = field(
        default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True)
    )

    def say(self, message: str) -> None:
        self.console.print(escape(message))

    def warn(self, message: str) -> None:
        self.console.print(f"[yellow]warning:[/] {escape(message)}")


def open_engine(
    options: WorkflowOptions,
    lines: TerminalLines,
    cache: str = "classic",
    report_evictions: bool = False,
) -> Engine:
    """Opens the engine for a command's options. InputError for invalid options."""
    from katz_graph.api.engine import Engine

    names = {field.name for group in (FolderOptions, PlacementOptions) for field in fields(group)}
    given = {name: getattr(options, name) for name in names}
    return Engine(
        **given,
        cache=cache,
        report_evictions=report_evictions,
        say=lines.say,
        warn=lines.warn,
    )


def check_writable(folder: Path, option: str) -> None:
    """Raises InputError if files cannot be written to a folder, which need not exist yet."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{option}: {existing} is not a folder")
    try:
        # permission bits do not reveal read-only and virtual file systems
        Path(tempfile.mkdtemp(dir=existing, prefix=".katz-")).rmdir()
    except OSError as error:
        raise InputError(f"{option}: {existing} cannot be written to ({error.strerror})") from None
