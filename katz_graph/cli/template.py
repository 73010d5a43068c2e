"""Runs `katz template`: fills, lists and removes the templates of edits."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from katz_graph.cli.options import WorkflowOptions
from katz_graph.cli.session import TerminalLines, open_engine
from katz_graph.core.errors import InputError
from katz_graph.ir.provenance import CACHED_EDIT
from katz_graph.ir.reuse import shown_template
from katz_graph.settings.environment import TEMPLATES, Settings
from katz_graph.settings.options import TemplateOptions

if TYPE_CHECKING:
    from katz_graph.executor.templates.store import TemplateStore

ALL = "all"


def fill(workflow: Path, options: WorkflowOptions, as_json: bool) -> None:
    """Fills the templates of a workflow, and prints their names."""
    # a sampler that needs the result of an edit gets the one that later runs compute
    options = replace(options, allow=CACHED_EDIT)
    # packs may print
    with open_engine(options, TerminalLines()) as engine, contextlib.redirect_stdout(sys.stderr):
        filled = engine.fill_templates(workflow, set=options.sets)
    if as_json:
        print(json.dumps(filled))
    else:
        for name in filled:
            print(f"filled {shown_template(name)}")


def show(options: TemplateOptions, as_json: bool) -> None:
    """Prints the stored templates."""
    found = _store(options).templates()
    if as_json:
        facts = [
            {
                "name": one.manifest.name,
                "bytes": one.manifest.nbytes,
                "used": one.used,
                **one.manifest.details,
            }
            for one in found
        ]
        print(json.dumps(facts))
        return
    if not found:
        print("no templates are stored")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "MB", "last use", "model", "cells", "levels", "text"):
        table.add_column(heading, justify="right" if heading == "MB" else "left")
    for one in found:
        details = one.manifest.details
        table.add_row(
            shown_template(one.manifest.name),
            f"{one.manifest.nbytes / 1e6:,.1f}",
            datetime.fromtimestamp(one.used).strftime("%Y-%m-%d %H:%M"),
            *(details.get(name, "") for name in ("model", "cells", "levels", "text")),
        )
    Console(highlight=False, soft_wrap=True).print(table)


def drop(names: Sequence[str], options: TemplateOptions) -> None:
    """Removes the templates whose names begin so. InputError for a name that no template has."""
    store, used = _store(options), list[str]()
    for name in names:
        dropped, remaining = store.drop("" if name == ALL else name) if name else ([], [])
        if name != ALL and not dropped and not remaining:
            raise InputError(
                f"{name!r}: no template has a name that begins so; see katz template list"
            )
        for one in dropped:
            print(f"removed {shown_template(one)}")
        used += remaining
    if used:
        raise InputError(f"in use, so not removed: {', '.join(map(shown_template, used))}")


def _store(options: TemplateOptions) -> TemplateStore:
    from katz_graph.executor.templates.budget import parse_template_place
    from katz_graph.executor.templates.store import TemplateStore

    folder = Settings.read().cache / TEMPLATES
    place = parse_template_place(folder, options.template_gb, None)
    return TemplateStore(folder, 0, place.disk_bytes)
