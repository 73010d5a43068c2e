"""Provides a pack of one node over small random models, and graphs around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreign_packs import write

from katz_graph.checks.validate import validate
from katz_graph.core.events import Event
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import GraphResult, run_graph
from katz_graph.files.folders import Folders
from katz_graph.formats.api import from_api
from katz_graph.packs import load_registry

NODE = """
import torch, comfy.utils, nodes, node_helpers

class Change:
    @classmethod
    def INPUT_TYPES(s):
        return {{"required": {{}}, "optional": {{{inputs}}}}}

    RETURN_TYPES = ({outputs},)
    FUNCTION = "go"
    CATEGORY = "test"

    def go(self, **given):
        {body}

NODE_CLASS_MAPPINGS = {{"Change": Change}}
"""


@dataclass
class Workshop:
    """Holds a pack of one node over the random models of one family, and graphs that use it."""

    folder: Path
    models: Path
    engine: DeviceEngine
    family: str = "sd1"
    warnings: tuple[str, ...] = ()
    encoded: int = 0

    def run(
        self,
        body: str,
        wires: Mapping[str, str],
        gives: str,
        document: Mapping[str, Any],
        cache: ResultCache | None = None,
        listener: Callable[[Event], None] = lambda _: None,
    ) -> GraphResult:
        """Runs a document with `body` as the function of its Change nodes."""
        inputs = ", ".join(f'"{name}": ("{socket}",)' for name, socket in wires.items())
        lines = "\n        ".join(line for line in body.strip().splitlines())
        outputs = ", ".join(f'"{socket}"' for socket in gives.split())
        packs = write(
            self.folder / "packs", mine=NODE.format(inputs=inputs, outputs=outputs, body=lines)
        )
        folders = Folders((self.models,), self.folder / "input", self.folder / "output")
        registry, problems = load_registry([packs], folders)
        assert problems == []
        loader = {"ckpt": node("CheckpointLoaderSimple", ckpt_name=self.family)}
        graph = from_api({**loader, **document})
        assert [
            problem
            for problem in validate(graph, registry, folders)
            if problem.node and problem.severity == "error"
        ] == []
        context = RunContext(
            self.engine, folders, folders.output, listener=listener, types=registry
        )
        targets = [name for name in document if name in ("out", "other")]
        result = run_graph(
            graph, context, ResultCache() if cache is None else cache, targets=targets
        )
        self.warnings = tuple(context.warnings)
        return result

    def outputs(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Returns the first output of each target."""
        result = self.run(*arguments, **named)
        result.raise_failures()
        return {name: values[0] for name, values in result.outputs.items()}


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def text(words: str) -> dict[str, Any]:
    return node("CLIPTextEncode", text=words, clip=["ckpt", 1])


def sampled(
    positive: str, model: list[Any] | None = None, steps: int = 2, cfg: float = 4.0, seed: int = 1
) -> dict[str, Any]:
    return node(
        "KSampler",
        **{
            "model": model or ["ckpt", 0],
            "seed": seed,
            "steps": steps,
            "cfg": cfg,
            "sampler_name": "euler",
            "scheduler": "normal",
        },
        **{
            "positive": [positive, 0],
            "negative": ["empty", 0],
            "latent_image": ["latent", 0],
            "denoise": 1.0,
        },
    )


AROUND = {"empty": text(""), "latent": node("EmptyLatentImage", width=64, height=64, batch_size=1)}
PASS = 'return (given["c"],)'
COND = {"c": "CONDITIONING"}
MODEL = {"model": "MODEL"}
