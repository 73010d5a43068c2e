"""Runs a sampler's request on an engine without a workflow file, for benches and tests that compare
latents.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.graph import Graph
from katz_graph.core.recipe import (
    ConditioningEntry,
    ControlUse,
    FileIdentity,
    Lora,
    Picture,
    Prompt,
)
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.planning import Choices
from katz_graph.executor.start import start_here
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.files.folders import Folders
from katz_graph.ir.region import Region
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.node.types import Context, Engine, NodeType
from katz_graph.packs import builtin_types
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.region import bind_region, region_nodes
from katz_graph.testing.plain_loop import Case


def region_of(begin: str, inputs: Mapping[str, Any], case: Case) -> Region:
    """Builds the region of a sampler for a case. `begin` and `inputs` select the sampler; the case
    supplies everything else.
    """
    model, clip, vae = pipeline_recipes(case.pipeline)
    for path, strength in case.loras:
        lora = Lora(path if isinstance(path, FileIdentity) else file_identity(path), strength)
        model, clip = model.with_lora(lora), clip.with_lora(lora)
    uses = tuple(
        ControlUse(
            controlnet_recipe(control.folder),
            Picture.of(case.image),
            control.strength,
            control.start,
            control.end,
            vae=vae,
        )
        for control in case.controls
    )
    latent: dict[str, Any] = {"samples": case.latent}
    if case.mask is not None:
        latent["noise_mask"] = case.mask.repeat_interleave(8, -2).repeat_interleave(8, -1)[
            None, None
        ]
    positive, negative = (
        (ConditioningEntry(Prompt(clip, text), uses),) for text in (case.prompt, case.negative)
    )
    expansion = expand_sampling(
        begin,
        {**inputs, "model": model, "latent_image": latent},
        model,
        positive,
        negative,
        case.guidance,
    )
    return bind(expansion.graph, expansion.outputs[0].node)


def bind(graph: Graph, end: str) -> Region:
    """Builds a region without inputs from other nodes."""
    return bind_region(graph, builtin_types(), region_nodes(graph, end), {})


def sampler_region(case: Case) -> Region:
    """Builds the region of a KSampler."""
    inputs = {
        "sampler_name": case.sampler,
        "scheduler": "normal",
        "steps": case.steps,
        "seed": case.seed,
        "denoise": case.denoise,
    }
    return region_of("StepBegin", inputs, case)


def sample(engine: DeviceEngine, region: Region, context: Context | None = None) -> Tensor:
    """Samples a region; returns the final latent, unscaled."""
    return engine.sample(region, context or bare_context(engine))[0]["samples"]


def local_engine(
    device: str = "cpu",
    batching: bool | None = None,
    cache: Path | None = None,
    threads: int | None = None,
    model_bytes: int | None = None,
    dtype: torch.dtype = torch.float32,
    shared_rows: SharedRows = ALONE,
) -> DeviceEngine:
    """Starts an engine on one device of this process. `threads` defaults to torch's current thread
    count.
    """
    config = WorkerConfig(
        device,
        device,
        threads or torch.get_num_threads(),
        dtype,
        model_bytes=model_bytes,
        shared_rows=shared_rows,
    )
    return start_here(config, Choices(batching=batching), cache)


def bare_context(engine: Engine, **types: NodeType) -> RunContext:
    """Creates a context that writes no files. `types`: node types in addition to the built-in
    ones.
    """
    return RunContext(engine, Folders(), Path(), types={**builtin_types(), **types})
