"""Runs `katz convert`: writes a workflow in another format, and prints a line for each part that
the conversion changes or loses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from katz_graph.cli.options import ConvertOptions
from katz_graph.core.errors import InputError, RunError
from katz_graph.files.folders import Folders
from katz_graph.formats.api import to_api, with_defaults
from katz_graph.formats.object_info import read_object_info
from katz_graph.formats.read import read_workflow
from katz_graph.formats.signature import Signatures, signatures, titled, unknown_types
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import Workflow, to_native
from katz_graph.node.types import NodeType
from katz_graph.packs import load_registry

WRITERS: Mapping[str, Callable[[Workflow, Signatures], dict[str, Any]]] = {
    "api": lambda workflow, known: to_api(titled(workflow.graph, known)),
    "ui": to_ui,
    "katz": lambda workflow, known: to_native(workflow),
}


def convert(source: Path, target: Path, options: ConvertOptions) -> None:
    """Reads `source` and writes it to `target` (`-` is standard output). InputError if the workflow
    cannot be read or converted; nothing is written in that case.
    """
    to, object_info = options.to, options.object_info
    if to not in WRITERS:
        raise InputError(f"--to {to}: no such format; choose one of {', '.join(WRITERS)}")
    settings = options.settings()
    registry, problems = load_registry(settings.packs, settings.folders())
    foreign = read_object_info(object_info) if object_info is not None else {}
    known = signatures(registry, foreign)
    workflow = read_workflow(source, registry, foreign, verbatim=to == "ui")
    try:
        for sampler in options.unfold:
            workflow = _unfolded(workflow, sampler, registry, settings.folders())
        if to == "api" and not workflow.is_prompt:
            workflow = replace(workflow, graph=with_defaults(workflow.graph, registry))
        document = WRITERS[to](workflow, known)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    unknown = unknown_types(workflow.graph, known)
    around = {"run options": workflow.run, "parts outside the graph": workflow.extra}
    lost = [
        f"{name} were left out: the API format has no place for them"
        for name, part in around.items()
        if part and to == "api"
    ]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in dict.fromkeys(
        [*map(str, problems), *workflow.notes, *([unknown] if unknown else []), *lost]
    ):
        console.print(f"[yellow]warning:[/] {escape(line)}")
    _write(target, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _unfolded(
    workflow: Workflow, sampler: str, types: Mapping[str, NodeType], folders: Folders
) -> Workflow:
    from katz_graph.executor.rehearsal import Rehearsal
    from katz_graph.planner.written_step import with_step

    step = Rehearsal(types, folders).step(workflow.graph, sampler)
    return replace(workflow, graph=with_step(workflow.graph, sampler, step))


def _write(target: Path, text: str) -> None:
    if str(target) == "-":
        sys.stdout.write(text)
        return
    file = target.resolve()
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        if file.exists() and not file.is_file():  # a pipe or device
            file.write_text(text, encoding="utf-8")
        else:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"{target}: cannot write the workflow ({error.strerror or error})") from None
