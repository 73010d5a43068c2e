"""Runs `katz nodes` and `katz models`: describes node types as text or JSON, and lists model
names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from katz_graph.core.errors import InputError
from katz_graph.core.messages import listed, show, suggest
from katz_graph.files.folders import Folders
from katz_graph.node.literals import expectation
from katz_graph.node.types import Input, NodeType
from katz_graph.packs import load_registry
from katz_graph.settings.options import FolderOptions

MODEL_KINDS = (
    "checkpoints",
    "diffusion_models",
    "text_encoders",
    "vae",
    "loras",
    "controlnet",
    "embeddings",
    "upscale_models",
)
CHOICES_SHOWN = 50


def show_nodes(options: FolderOptions, name: str | None, as_json: bool) -> None:
    """Prints all node types, or a single one. InputError for an unknown name."""
    settings = options.settings()
    folders = settings.folders()
    registry, problems = load_registry(settings.packs, folders)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if name is not None and name not in registry:
        raise InputError(
            f"unknown node type {name!r}{suggest(name, registry)}; `katz nodes` lists all"
        )
    if as_json:
        print(
            json.dumps(
                nodes_json(registry.values(), folders)
                if name is None
                else node_json(registry[name], folders)
            )
        )
        return
    Console().print(node_list(registry) if name is None else node_page(registry[name], folders))


def show_models(options: FolderOptions, as_json: bool) -> None:
    """Prints the model names that loaders accept, by kind."""
    folders = options.settings().folders()
    names = {kind: list(folders.choices(kind)) for kind in MODEL_KINDS}
    if as_json:
        print(json.dumps(names))
        return
    table = Table("kind", "name", box=None, pad_edge=False, header_style="bold")
    for kind, found in names.items():
        for number, name in enumerate(found or ("(none)",)):
            table.add_row(kind if number == 0 else "", Text(name))
    Console().print(table)


def node_list(types: Mapping[str, NodeType]) -> Table:
    """Builds a table of all node types by category, each with the first line of its description."""
    table = Table("node", "pack", "what it does", box=None, pad_edge=False, header_style="bold")
    ordered = sorted(types.values(), key=lambda kind: (kind.category, kind.name))
    for category, kinds in groupby(ordered, key=lambda kind: kind.category):
        table.add_row(Text(category or "(no category)", style="italic"))
        for kind in kinds:
            summary = kind.description.split("\n")[0]
            table.add_row(
                Text(f"  {kind.name}"),
                Text(kind.pack),
                Text(summary + (" (output)" if kind.is_output else "")),
            )
    return table


def node_page(kind: NodeType, folders: Folders | None = None) -> Group:
    """Describes one node type: its purpose, inputs and outputs."""
    called = f" ({kind.display_name})" if kind.display_name != kind.name else ""
    source = ", ".join(
        part
        for part in (
            kind.category,
            f"pack {kind.pack}" if kind.pack else "",
            "output node" if kind.is_output else "",
        )
        if part
    )
    head = Text.assemble(
        (kind.name, "bold"),
        called,
        f"\n{source}" if source else "",
        f"\n\n{kind.description}" if kind.description else "",
    )
    knobs = Table("knob", "takes", "default", "", box=None, pad_edge=False, header_style="bold")
    for knob in (port for port in kind.inputs.values() if port.knob):
        knobs.add_row(*map(Text, (knob.name, _takes(knob, folders), _default(knob), knob.help)))
    wires = Table("wire", "takes", "", box=None, pad_edge=False, header_style="bold")
    for name, wire in _wires(kind):
        notes = [
            note
            for note, holds in (
                ("optional", not wire.required),
                (f"{wire.grows.least} at least" if wire.grows else "", wire.required),
                ("evaluated only if needed", wire.lazy),
            )
            if holds
        ]
        wires.add_row(*map(Text, (name, wire.socket, ", ".join(filter(None, (*notes, wire.help))))))
    outputs = Table("output", "gives", box=None, pad_edge=False, header_style="bold")
    for number, output in enumerate(kind.outputs):
        outputs.add_row(*map(Text, (f"{number} {output.name}", output.socket)))
    tables = (table for table in (wires, knobs, outputs) if table.row_count)
    return Group(head, *(Padding(table, (1, 0, 0, 0)) for table in tables))


def _wires(kind: NodeType) -> Iterator[tuple[str, Input]]:
    """Yields the inputs without widgets by name. A growing group is one range, from its first to
    its last name.
    """
    seen = set()
    for port in kind.inputs.values():
        if port.knob or port.grows in seen:
            continue
        name = port.name
        if port.grows is not None:
            seen.add(port.grows)
            *_, last = (one.own_name for one in kind.inputs.values() if one.grows == port.grows)
            name = f"{port.name} … {last}"
        yield name, port


def node_json(kind: NodeType, folders: Folders | None = None) -> dict[str, Any]:
    """Builds the output of `katz nodes NAME --json`."""
    return {
        "name": kind.name,
        "display_name": kind.display_name,
        "category": kind.category,
        "pack": kind.pack,
        "description": kind.description,
        "output_node": kind.is_output,
        "inputs": {name: _input_json(port, folders) for name, port in kind.inputs.items()},
        "outputs": [{"name": output.name, "type": output.socket} for output in kind.outputs],
    }


def nodes_json(kinds: Iterable[NodeType], folders: Folders | None = None) -> dict[str, Any]:
    """Builds the output of `katz nodes --json`."""
    return {
        kind.name: node_json(kind, folders) for kind in sorted(kinds, key=lambda kind: kind.name)
    }


def _takes(knob: Input, folders: Folders | None) -> str:
    if knob.choices is not None:
        return f"one of {listed(map(str, knob.choices), CHOICES_SHOWN)}"
    if knob.folder and folders:
        choices = folders.choices(knob.folder)
        return f"a file in {knob.folder}: {listed(choices) if choices else 'there is none yet'}"
    return expectation(knob)


def _default(knob: Input) -> str:
    return "(required)" if knob.required else show(knob.default)


def _input_json(port: Input, folders: Folders | None) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": port.socket,
        "kind": "knob" if port.knob else "wire",
        "required": port.required,
    }
    choices = folders.choices(port.folder) if port.folder and folders else port.choices
    optional = {
        "default": port.default if port.knob and not port.required else None,
        "minimum": port.minimum,
        "maximum": port.maximum,
        "choices": None if choices is None else list(choices),
        "folder": port.folder,
        "lazy": port.lazy or None,
        "help": port.help or None,
    }
    return described | {name: value for name, value in optional.items() if value is not None}
