"""Defines the runner's reports: its facts at startup, and its answers to questions. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from katz_graph.core.phases import Phase
from katz_graph.models.text.recipe import TextSize
from katz_graph.planner.written_step import WrittenStep

TextSizes = Mapping[str, Mapping[str, tuple[TextSize, ...]]]
"""The token counts of prompts, by node and input; see `TextSize`."""


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """Holds the nodes that replace a sampler, or the error that prevents it."""

    step: WrittenStep | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Describes a device of the runner: its name in plans, torch's name, and its product name."""

    name: str
    device: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class PackFacts:
    name: str
    nodes: int = 0  # number of node types
    scripts: bool = False  # whether the pack has scripts for ComfyUI's front end
    problems: tuple[str, ...] = ()  # why the pack, or its nodes, were omitted


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """Holds the facts of a runner's start."""

    devices: tuple[DeviceFacts, ...] = ()
    nodes: int = 0
    problems: tuple[str, ...] = ()  # why packs and nodes were omitted
    torch: str = ""
    python: str = ""
    version: str = ""
    pid: int = 0
    # process ids by device, spares included; None for workers on other hosts
    workers: Mapping[str, int | None] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()  # devices that earlier runners lost
    unplaceable: tuple[str, ...] = ()  # stages that --place pins to excluded devices
    preloaded: tuple[str, ...] = ()  # the outcome of each `--preload`
    phases: tuple[Phase, ...] = ()  # of the start of the runner and of its workers on this host


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """Holds a device's memory in bytes (of the GPU or the host) and counters since its worker
    started.
    """

    name: str
    type: str
    index: int | None
    total: int
    free: int
    reserved: int = 0  # as torch reports it
    unused: int = 0  # as torch reports it
    model_bytes: int = 0
    model_budget_bytes: float = 0.0
    model_reserve_bytes: float = 0.0
    model_loads: int = 0
    model_fills: int = 0  # loads that reused the memory of an equally shaped model
    model_returns: int = 0  # loads from a copy in the host's memory
    model_load_seconds: float = 0.0
    model_evictions: int = 0
    model_evicted_seconds: float = 0.0  # seconds that loading the evicted models had taken
    out_of_memory: int = 0  # out-of-memory errors
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
    lora_merges: int = 0  # merges of LoRAs into a model
    lora_seconds: float = 0.0
    calls_recorded: int = 0  # stage calls recorded as CUDA graphs
    calls_replayed: int = 0
    calls_beside: int = 0  # stage calls that ran concurrently with another call
    calls_shared: int = 0  # stage calls with rows of several jobs
    rows_shared: int = 0  # of these calls
    calls_lora_rows: int = 0  # stage calls with LoRAs of some rows
    # of the stage calls that jobs may share and that had a prediction (`--shared-rows`)
    calls_predicted_seconds: float = 0.0
    calls_measured_seconds: float = 0.0
    # relative errors of these predictions
    calls_error_median: float | None = None
    calls_error_p95: float | None = None
    calls_eager: int = 0  # stage calls computed without a recording
    recordings_dropped: int = 0  # recordings evicted for others
    recordings_bytes: int = 0
    # templates of edits
    template_hits: int = 0
    template_misses: int = 0
    template_fills: int = 0
    template_abandoned: int = 0  # fills that stored no template
    template_read_memory_bytes: int = 0
    template_read_disk_bytes: int = 0
    template_memory_evictions: int = 0
    template_disk_evictions: int = 0
    template_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Holds the statistics of the devices whose worker answered in time. Counters start with the
    runner.
    """

    devices: tuple[DeviceStats, ...] = ()
    cached_results: int = 0
    worker_restarts: int = 0
    # requests that began from the picture of a similar prompt
    similar_hits: int = 0
    similar_misses: int = 0
    similar_evaluations_saved: int = 0
    similar_evictions: int = 0
    similar_pictures: int = 0
    similar_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CheckedPrompt:
    """Holds the outcome of a prompt check."""

    # API format; literals have the types of their inputs. None if `error` is set.
    prompt: Mapping[str, Any] | None = None
    targets: tuple[str, ...] = ()  # outputs that can run
    refused: tuple[str, ...] = ()  # outputs that cannot run; `node_errors` has the reasons
    error: Mapping[str, Any] | None = None  # why nothing can run
    node_errors: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # warnings for the user
    # the submitted editor document, to be embedded in pictures
    workflow: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class OpenedWorkflow:
    """Holds a workflow as editors open it and notes for the user, or the reason why it cannot be
    read.
    """

    document: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str = ""


PlanRefusal = Literal["", "replaced", "late", "busy"]
"""The reason why a request for plans has no answer: a newer request of the client replaced it, it
timed out, or too many requests wait.
"""


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """Holds the plans of a graph's samplers, as `katz plan --json` prints them, and notes for the
    user about samplers that could not be planned.
    """

    plans: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    refusal: PlanRefusal = ""
