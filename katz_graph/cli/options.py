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
    seed: int | None = option("for every seed in the workflow", min=0)


@dataclass(frozen=True)
class WorkflowOptions(FolderOptions, PlacementOptions, GraphOptions):
    """Options that change a workflow, locate its files and place it. The help lists the last base
    first.
    """

    targets: tuple[str, ...] = option(
        "run only what this node needs, and it",
        (),
        "--target",
        metavar="NODE",
    )


@dataclass(frozen=True)
class RunOptions(WorkflowOptions):
    trace: Path | None = option("write a trace for Perfetto")
    why: bool = option("say for every node why it ran", False)
    cache: str = option(CACHE, "classic")


@dataclass(frozen=True)
class PlanOptions(WorkflowOptions):
    after: str = option(
        "stop behind this pass: "  # one of planner.compile.PASSES
        "expand, variants, fit, hoist, late, decompose, cost, search, segment, emit",
        "emit",
    )
    svg: Path | None = option("draw two evaluations")


@dataclass(frozen=True)
class ProfileOptions(WorkflowOptions):
    loras: bool = option(
        "find out how many steps may begin without each LoRA, in place of measuring stages", False
    )
    vary: tuple[str, ...] = option(
        "NODE.INPUT=VALUE: a further prompt (or other change) to find that out with", ()
    )
    seeds: int = option("to find that out with, the workflow's own first", 4, min=1)
    svg: Path | None = option("draw how alike pictures with and without each LoRA are")


@dataclass(frozen=True)
class SubmitOptions(FolderOptions, GraphOptions):
    server: str = option("of a running katz serve", "http://127.0.0.1:8188", metavar="URL")
    token: str | None = option(
        "what the server asks for; on the command line others here can read it",
        envvar=TOKEN,
    )
    no_wait: bool = option("print the job's id and leave", False)
    deadline: float | None = option(
        "refuse or give up what cannot be done by then",
        metavar="SECONDS",
        min=0,
    )
    priority: float | None = option(
        "place in the queue: the lowest goes first; others count up from 1",
    )


@dataclass(frozen=True)
class ConvertOptions(FolderOptions):
    to: str = option("api, ui or katz", "api")
    unfold: tuple[str, ...] = option(
        "write this sampler out as the nodes of its step", (), metavar="NODE"
    )
    object_info: str | None = option(
        "a server's description of its nodes, for those that are not known here",
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
