"""`katz bench templates`: runs ComfyUI's official image templates on small random files with the
requested names, layouts and formats. Needs the package `comfyui-workflow-templates-json`.

Counts the templates of type `image` that load a diffusion model or a checkpoint. A template is
changed only in sizes (at most 256 px) and steps (at most 2). It runs if every output that its
stored values ask for is made, and if each output changes when a LoRA, a reference picture or a
ControlNet of the template is left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from katz_graph.api.engine import Engine
from katz_graph.api.engine import open as open_engine
from katz_graph.api.prepare import SEEDS
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError, KatzError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.messages import first_line
from katz_graph.formats.read import parse_workflow
from katz_graph.formats.ui_to_prompt import Sending
from katz_graph.node.types import NodeType
from katz_graph.packs import Registry, load_registry
from katz_graph.testing.stand_ins.catalogue import write_stand_in

PACKAGE = "comfyui_workflow_templates_json"
SIDE, STEPS, PICTURE_SIDE = 256, 2, 96  # pixels of results, steps, pixels of input pictures
SHARE_BOUND = 0.9  # of the uses of all templates
SENDING = Sending(datetime.min, lambda _: 0)
PICTURES = "input"  # kind of folder
LEFT_OUT: Mapping[str, tuple[str, ...]] = {  # the inputs that replace a node's outputs, in order
    "LoraLoaderModelOnly": ("model",),
    "LoraLoader": ("model", "clip"),
    "ControlNetApplyAdvanced": ("positive", "negative"),
    "ControlNetApplySD3": ("positive", "negative"),
    "ControlNetInpaintingAliMamaApply": ("positive", "negative"),
    "QwenImageDiffsynthControlnet": ("model",),
    "AnimaLLLiteApply": ("model",),
    "ReferenceLatent": ("conditioning",),
}
PICTURED = ("TextEncodeQwenImageEdit", "TextEncodeQwenImage21", "ReferenceMultiLatent")
"""Beginnings of the types whose inputs `image...` are references."""
SIZES = ("width", "height", "resolution", "largest_size", "target_size")
MAX_VALUES: Mapping[str, float] = dict.fromkeys(SIZES, SIDE) | {
    "megapixels": 0.1,
    "steps": STEPS,
}
"""By input name."""


@dataclass(frozen=True, slots=True)
class Template:
    """Holds an official template."""

    name: str
    uses: int
    graph: Graph
    networks: tuple[str, ...]  # files of diffusion models


def run(seed: int = 0, part: str = "") -> BenchResult:
    """Runs the templates with `part` in their name or in a file's. Returns the templates and uses
    that run.
    """
    registry = load_registry()[0]
    rows, ran, uses = [], 0, 0
    found = [one for one in templates(registry) if _named(one, part)]
    for one in found:
        problem = tried(one, registry, seed)
        ran, uses = ran + (not problem), uses + (0 if problem else one.uses)
        rows.append([one.name, one.uses, problem or "runs"])
        print(f"{one.uses:6} {one.name}: {problem or 'runs'}", file=sys.stderr, flush=True)
    all_uses = sum(one.uses for one in found)
    share = uses / max(all_uses, 1)
    metrics = {
        "templates": len(found),
        "uses": all_uses,
        "templates_run": ran,
        "uses_run": uses,
        "share_of_uses": share,
    }
    bounds = {"share_of_uses": f">= {SHARE_BOUND}"}
    ok = share >= SHARE_BOUND
    return BenchResult("templates", ok, metrics, bounds, ("template", "uses", "result"), rows)


def templates(registry: Registry) -> Iterator[Template]:
    """Yields the counted templates, in the order of the package's index. InputError without it."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError("katz bench templates needs `pip install comfyui-workflow-templates-json`")
    folder = Path(spec.submodule_search_locations[0]) / "templates"
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    entries = {
        entry["name"]: entry
        for group in index
        if group.get("type") == "image"
        for entry in group["templates"]
    }
    for name, entry in entries.items():
        if (file := folder / f"{name}.json").exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            graph = flat(document, registry)
            networks = tuple(
                name for node, _, name in files(graph, registry) if makes_models(registry[node])
            )
            if networks:
                yield Template(name, entry.get("usage", 0), graph, networks)


def flat(document: Mapping[str, Any], registry: Registry) -> Graph:
    """Converts a template to a graph, without its muted and bypassed nodes."""
    extra = {**(document.get("extra") or {}), "katz": {"ids_stay": True}}
    return parse_workflow({**document, "extra": extra}, registry, None, SENDING).graph


def tried(template: Template, registry: Registry, seed: int) -> str:
    """Runs a template; returns the reason if it does not count as running, else an empty string."""
    graph = small(template.graph, seed)
    unknown = sorted({graph.nodes[one].type for one in asked(graph, registry)} - registry.keys())
    if unknown:
        return f"unknown nodes: {', '.join(unknown)}"
    with tempfile.TemporaryDirectory() as place:
        models, pictures, output = (Path(place) / one for one in ("models", "input", "output"))
        for folder in (models, pictures, output):
            folder.mkdir()
        lacking = _write_files(graph, registry, models, pictures)
        if lacking:
            return f"no stand-in for {', '.join(lacking)}"
        with open_engine(models=str(models), input=str(pictures), output=str(output)) as engine:
            try:
                engine.run(graph)
                whole = _pictures(engine, graph, registry)
                for what, name, changed in variants(graph, registry):
                    those = _pictures(engine, changed, registry)
                    if any(
                        torch.equal(whole[link], those[link])
                        for link in whole.keys() & those.keys()
                        if name in upstream(graph, [link.node])
                    ):
                        return f"the pictures do not change without {what}"
            except KatzError as error:
                return first_line(error)
    return _fault(list(whole.values()))


def _fault(pictures: Sequence[Tensor]) -> str:
    """Returns the reason if pictures [B, H, W, C] are not those of a model; an empty string."""
    if not pictures:
        return "no picture"
    for one in pictures:
        if not one.isfinite().all():
            return "a picture has NaN or infinity"
        if one.ndim != 4 or one.shape[-1] not in (1, 3, 4):
            return f"a picture has the shape {list(one.shape)}"
        if one.amax() - one.amin() < 1 / 255:
            return "a picture is blank"
    return ""


def small(graph: Graph, seed: int) -> Graph:
    """Returns a graph with sizes of at most 256 px, at most two steps, and this seed."""
    nodes = graph.nodes.items()
    return Graph({name: replace(node, inputs=_smaller(node, seed)) for name, node in nodes})


def _smaller(node: NodeCall, seed: int) -> dict[str, Any]:
    seeds = [name for name in SEEDS if isinstance(node.inputs.get(name), int)]
    inputs = {**node.inputs, **dict.fromkeys(seeds, seed)}
    for name, value in node.inputs.items():
        if name in MAX_VALUES and isinstance(value, (int, float, Link)):
            inputs[name] = (
                MAX_VALUES[name] if isinstance(value, Link) else min(value, MAX_VALUES[name])
            )
    if node.type == "KSamplerAdvanced":  # the second of two samplers begins at the second step
        first, end = (inputs[name] for name in ("start_at_step", "end_at_step"))
        inputs |= {"start_at_step": min(first, 1), "end_at_step": 1 if end < 1000 else end}
    return inputs


def asked(graph: Graph, registry: Registry) -> set[str]:
    """Returns the nodes that the outputs need, with the stored values of switches."""
    return upstream(graph, _outputs(graph, registry))


def _outputs(graph: Graph, registry: Registry) -> list[str]:
    nodes = graph.nodes.items()
    return [name for name, one in nodes if one.type in registry and registry[one.type].is_output]


def upstream(graph: Graph, names: Sequence[str]) -> set[str]:
    """Returns the nodes that these nodes need, and themselves."""
    waiting = list(names)
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in found or name not in graph.nodes:
            continue
        found.add(name)
        node = graph.nodes[name]
        unused = _unused_branch(graph, node)
        waiting += [link.node for socket, link in node.links() if socket != unused]
    return found


def _unused_branch(graph: Graph, node: NodeCall) -> str:
    """Returns the input that a switch with a stored value does not read; empty otherwise."""
    chosen = node.inputs.get("switch")
    if isinstance(chosen, Link):
        chosen = graph.nodes[chosen.node].inputs.get("value")
    if node.type != "ComfySwitchNode" or not isinstance(chosen, bool):
        return ""
    return "on_false" if chosen else "on_true"


def variants(graph: Graph, registry: Registry) -> Iterator[tuple[str, str, Graph]]:
    """Yields a description, a node, and the graph without it, for each LoRA, reference and
    ControlNet of a graph. Nodes that give the same one, and all prompts with references, are left
    out at once, because a negative prompt has no effect without guidance.
    """
    needed = asked(graph, registry)
    blind = Graph({name: _without_pictures(node) for name, node in graph.nodes.items()})
    done: set[str] = set()
    for name, node in graph.nodes.items():
        if name not in needed or name in done:
            continue
        if (replacing := LEFT_OUT.get(node.type)) is not None:
            alike = _alike(graph, node, replacing)
            done.update(alike)
            changed = reduce(lambda left, one: _without(left, one, replacing), alike, graph)
            yield f"{node.type} {' and '.join(alike)}", name, changed
        elif node.type.startswith(PICTURED) and blind.nodes[name] != node:
            yield f"the pictures of {node.type} {name}", name, blind


def _without_pictures(node: NodeCall) -> NodeCall:
    """Returns a node without its links to references."""
    if not node.type.startswith(PICTURED):
        return node
    links = {name for name, _ in node.links() if name.startswith("image")}
    return replace(node, inputs={one: node.inputs[one] for one in node.inputs if one not in links})


def _alike(graph: Graph, node: NodeCall, replacing: tuple[str, ...]) -> list[str]:
    """Returns the nodes of a node's type whose inputs equal its inputs, except for `replacing`."""

    def rest(one: NodeCall) -> tuple[str, dict[str, Any]]:
        return one.type, {
            name: value for name, value in one.inputs.items() if name not in replacing
        }

    return [name for name, one in graph.nodes.items() if rest(one) == rest(node)]


def _without(graph: Graph, name: str, replacing: tuple[str, ...]) -> Graph:
    """Returns the graph with links to a node's outputs replaced by the node's own inputs."""
    inputs = graph.nodes[name].inputs

    def changed(value: Any) -> Any:
        leads_here = isinstance(value, Link) and value.node == name
        return inputs[replacing[value.output]] if leads_here else value

    return Graph(
        {
            one: replace(node, inputs={key: changed(value) for key, value in node.inputs.items()})
            for one, node in graph.nodes.items()
            if one != name
        }
    )


def makes_models(node: NodeType) -> bool:
    """Returns whether a node loads a diffusion model, unlike a LoRA for a given one."""
    sockets = [one.socket for one in node.inputs.values()]
    return "MODEL" in [one.socket for one in node.outputs] and "MODEL" not in sockets


def files(graph: Graph, registry: Registry) -> Iterator[tuple[str, str, str]]:
    """Yields the files that nodes choose: the node's type, the kind of folder, and the name."""
    for node in graph.nodes.values():
        inputs = registry[node.type].inputs if node.type in registry else {}
        for name, value in node.inputs.items():
            if name in inputs and (kind := inputs[name].folder) and isinstance(value, str):
                yield node.type, kind, value


def _write_files(graph: Graph, registry: Registry, models: Path, pictures: Path) -> list[str]:
    """Writes the files that a graph names; returns the names of those without a stand-in."""
    lacking = set()
    for number, (_, kind, name) in enumerate(files(graph, registry)):
        if kind == PICTURES:
            if not (path := pictures / Path(name).name).exists():
                _draw(path, number)
        elif not write_stand_in(models, kind, name):
            lacking.add(name)
    return sorted(lacking)


def _draw(path: Path, number: int) -> None:
    """Writes a random picture; with alpha if its format has it."""
    mode = "RGB" if path.suffix.lower() in (".jpg", ".jpeg") else "RGBA"
    drawn = np.random.default_rng(number).integers(0, 256, (8, 8, len(mode)), dtype=np.uint8)
    Image.fromarray(drawn, mode).resize((PICTURE_SIDE, PICTURE_SIDE)).save(path)


def _pictures(engine: Engine, graph: Graph, registry: Registry) -> dict[Link, Tensor]:
    """Runs a graph; returns the pictures [B, H, W, C] that its outputs show, by their link."""
    shown = [
        link
        for name in _outputs(graph, registry)
        for socket, link in graph.nodes[name].links()
        if socket in ("image", "images")
    ]
    result = engine.run(graph, targets=sorted({link.node for link in shown}))
    values = ((link, result.outputs[link.node][link.output]) for link in shown)
    return {link: value for link, value in values if isinstance(value, Tensor)}


def _named(template: Template, part: str) -> bool:
    return any(part in name for name in (template.name, *template.networks))
