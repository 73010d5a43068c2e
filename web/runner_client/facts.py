"""Defines the runner's reports: one when it is ready, others when somebody asks. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from katz_graph.models.text.recipe import TextSize
from katz_graph.planner.written_step import WrittenStep

TextSizes = Mapping[str, Mapping[str, tuple[TextSize, ...]]]
"""How long the texts of prompts are, by node and input; see `TextSize`."""


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """A sampler's step as nodes, or the lines that say why it cannot be written out."""

    step: WrittenStep | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device of the runner: its name in plans, what torch calls it, and what it is sold as."""

    name: str
    device: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class PackFacts:
    """A pack: how many node types it brings, whether it has scripts for ComfyUI's front end, and
    why it, or a node of it, was left out.
    """

    name: str
    nodes: int = 0
    scripts: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """Facts of the last start. `problems`: packs and nodes left out, and why. `workers`: processes
    by device, spares included; None on other hosts. `gone`: devices that are left out, as earlier
    runners lost them; `stranded`: stages that --place keeps on these.
    """

    devices: tuple[DeviceFacts, ...] = ()
    nodes: int = 0
    problems: tuple[str, ...] = ()
    torch: str = ""
    python: str = ""
    version: str = ""
    pid: int = 0
    workers: Mapping[str, int | None] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    stranded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """Bytes of memory, of the GPU or of the host; `reserved` and `unused` as torch has them. Counts
    are since the worker started: models loaded and evicted, with the seconds of loading; how often
    memory ran out; ControlNet hits, loads and evictions; the same of LoRA files; how often LoRAs
    were merged anew, and the seconds of that; calls of stages that were recorded, replayed, or
    computed as they are, and those that ran beside another.
    """

    name: str
    type: str
    index: int | None
    total: int
    free: int
    reserved: int = 0
    unused: int = 0
    model_bytes: int = 0
    model_budget_bytes: float = 0.0
    model_reserve_bytes: float = 0.0
    model_loads: int = 0
    model_fills: int = 0
    model_returns: int = 0
    model_load_seconds: float = 0.0
    model_evictions: int = 0
    model_evicted_seconds: float = 0.0
    out_of_memory: int = 0
    controlnet_hits: int = 0
    controlnet_misses: int = 0
    controlnet_evictions: int = 0
    controlnet_load_seconds: float = 0.0
    controlnet_bytes: int = 0
    lora_hits: int = 0
    lora_misses: int = 0
    lora_evictions: int = 0
    lora_load_seconds: float = 0.0
    lora_bytes: int = 0
    lora_budget_bytes: float = 0.0
    lora_merges: int = 0
    lora_seconds: float = 0.0
    calls_recorded: int = 0
    calls_replayed: int = 0
    calls_beside: int = 0
    calls_eager: int = 0
    recordings_dropped: int = 0
    recordings_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """`devices` are those whose worker answered in time. Counts are since the runner's start."""

    devices: tuple[DeviceStats, ...] = ()
    results_kept: int = 0
    worker_restarts: int = 0


@dataclass(frozen=True, slots=True)
class CheckedPrompt:
    """The outcome of a check. `prompt` in API format, literals with the types of their inputs; None
    with an `error`, which says why nothing can run.

    `targets` are the outputs that can run, `refused` those that cannot: `node_errors` says why.
    `notes` are lines for the person that stop nothing. `workflow` is the editor's document that
    belongs into pictures, where one came.
    """

    prompt: Mapping[str, Any] | None = None
    targets: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None
    node_errors: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    workflow: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DrawnWorkflow:
    """A workflow as editors open it, with lines for the person; or why it cannot be read."""

    document: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str = ""


PlanRefusal = Literal["", "replaced", "late", "busy"]
"""Says why a request for plans has no answer: a newer one of its client came, it took too long, too
many wait.
"""


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """The plans of a graph's samplers, as `katz plan --json` prints them, with lines for the person
    about what could not be planned.
    """

    plans: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    refusal: PlanRefusal = ""
