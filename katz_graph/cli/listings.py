"""Runs `katz nodes` and `katz models`."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from katz_graph.cli.describe import node_json, node_list, node_page, nodes_json
from katz_graph.errors import InputError
from katz_graph.messages import suggest
from katz_graph.options import FolderOptions
from katz_graph.packs import load_registry

MODEL_KINDS = ("checkpoints", "diffusion_models", "text_encoders", "vae", "loras", "controlnet", "embeddings", "upscale_models")


def show_nodes(options: FolderOptions, name: str | None, as_json: bool) -> None:
    """Prints all node types, or one. InputError for an unknown name."""
    settings = options.settings()
    folders = settings.folders()
    registry, problems = load_registry(settings.packs, folders)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if name is not None and name not in registry:
        raise InputError(f"there is no node {name!r}{suggest(name, registry)}; `katz nodes` lists them")
    if as_json:
        print(json.dumps(nodes_json(registry.values(), folders) if name is None else node_json(registry[name], folders)))
        return
    Console().print(node_list(registry) if name is None else node_page(registry[name], folders))


def show_models(options: FolderOptions, as_json: bool) -> None:
    """Prints the names that loaders accept, by kind."""
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
