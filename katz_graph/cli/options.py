"""Defines the options of the commands. Commands inherit shared options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from katz_graph.settings.environment import TOKEN
from katz_graph.settings.options import CACHE, FolderOptions, PlacementOptions, option


@dataclass(frozen=True)
class GraphOptions:
    """Options that change inputs of a workflow."""

    sets: tuple[str, ...] = option("NODE.INPUT=VALUE, for example 3.steps=30", (), "--set")
    seed: int | None = option("value for every seed in the workflow", min=0)


@dataclass(frozen=True)
class WorkflowOptions(FolderOptions, PlacementOptions, GraphOptions):
    """Options that change a workflow, locate its files and place its stages. The help lists the
    last base first.
    """

    targets: tuple[str, ...] = option(
        "run only this node and the nodes that it needs",
        (),
        "--target",
        metavar="NODE",
    )


@dataclass(frozen=True)
class RunOptions(WorkflowOptions):
    trace: Path | None = option("write a trace for Perfetto")
    why: bool = option("print for every node why it ran", False)
    cache: str = option(CACHE, "classic")


@dataclass(frozen=True)
class PlanOptions(WorkflowOptions):
    after: str = option(
        "stop after this pass: "  # one of planner.compile.PASSES
        "expand, variants, fit, hoist, late, decompose, cost, search, reuse, segment, emit",
        "emit",
    )
    svg: Path | None = option("draw two evaluations")


@dataclass(frozen=True)
class WarmOptions(WorkflowOptions):
    arch: str | None = option(
        "architecture of the GPU, which may be absent; default: this machine's first GPU",
        metavar="sm90",
    )


@dataclass(frozen=True)
class ProfileOptions(WorkflowOptions):
    loras: bool = option(
        "measure how many steps may begin without each LoRA, instead of measuring stages", False
    )
    similar: bool = option(
        "measure from the pictures of how similar prompts a sampler may begin, for --allow "
        "similar-start",
        False,
    )
    vary: tuple[str, ...] = option(
        "NODE.INPUT=VALUE: a further prompt to measure LoRAs or similar prompts with", ()
    )
    seeds: int = option("number of seeds to measure LoRAs with, the workflow's own first", 4, min=1)
    svg: Path | None = option("draw the similarity of latents with and without each LoRA")


@dataclass(frozen=True)
class SubmitOptions(FolderOptions, GraphOptions):
    server: str = option("URL of a running katz serve", "http://127.0.0.1:8188", metavar="URL")
    token: str | None = option(
        "token of the server; other users of this machine can read the command line",
        envvar=TOKEN,
    )
    no_wait: bool = option("print the job's id and exit", False)
    deadline: float | None = option(
        "refuse or stop the job if it cannot end in this time",
        metavar="SECONDS",
        min=0,
    )
    priority: float | None = option(
        "place in the queue, lowest first; other jobs count up from 1",
    )


@dataclass(frozen=True)
class ConvertOptions(FolderOptions):
    to: str = option("api, ui or katz", "api")
    unfold: tuple[str, ...] = option(
        "replace this sampler with the nodes of its step", (), metavar="NODE"
    )
    object_info: str | None = option(
        "a server's description of its nodes, for node types unknown here",
        metavar="FILE|URL",
    )


@dataclass(frozen=True, slots=True)
class ServeAliases:
    """Aliases of `katz serve` options, most of them ComfyUI's."""

    token_file: Path | None = option("a file with the token")
    cpu: bool = option("the same as --devices cpu", False)
    cache_classic: bool = option("the same as --cache classic", False)
    cache_lru: int | None = option("the same as --cache lru:N; 0: classic", metavar="N", min=0)
    cache_none: bool = option("the same as --cache none", False)
