"""Options of the commands. Each is a field; a command inherits those that it shares with others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from katz_graph.options import (
    CACHE,
    DeviceOptions,
    FolderOptions,
    ModelBytes,
    Option,
    PlacementOptions,
)
from katz_graph.settings import TOKEN

WORKFLOW = "a workflow of any format, or a picture that carries one"
Sets = Annotated[tuple[str, ...], Option("NODE.INPUT=VALUE, for example 3.steps=30", "--set")]
Output = Annotated[Path | None, Option("where pictures go")]
Json = Annotated[bool, Option("print JSON for scripts", "--json")]


@dataclass(frozen=True)
class GraphOptions:
    """Name a workflow, and change its inputs."""

    workflow: Annotated[Path, typer.Argument(help=WORKFLOW, show_default=False)]
    sets: Sets = ()
    seed: Annotated[int | None, Option("for every seed in the workflow", min=0)] = None


@dataclass(frozen=True)
class WorkflowOptions(FolderOptions, PlacementOptions, GraphOptions):
    """Say which workflow is read from where, and where it runs. The last base is listed first."""


@dataclass(frozen=True)
class RunOptions(WorkflowOptions):
    """Options of `katz run`."""

    model_bytes: ModelBytes = None
    output: Output = None
    trace: Annotated[Path | None, Option("write a trace for Perfetto")] = None
    why: Annotated[bool, Option("say for every node why it ran")] = False
    targets: Annotated[
        tuple[str, ...],
        Option("run only what this node needs, and it", "--target", metavar="NODE"),
    ] = ()
    cache: Annotated[str, CACHE] = "classic"
    as_json: Json = False


@dataclass(frozen=True)
class PlanOptions(WorkflowOptions):
    """Options of `katz plan`."""

    after: Annotated[
        str,
        Option(
            "stop behind this pass: expand, variants, fit, hoist, decompose, cost, search, segment, emit",
        ),
    ] = "emit"
    svg: Annotated[Path | None, Option("draw two evaluations")] = None
    as_json: Json = False


@dataclass(frozen=True)
class ProfileOptions(FolderOptions, DeviceOptions):
    """Options of `katz profile` that are read with a workflow and without."""

    sets: Sets = ()


@dataclass(frozen=True)
class SubmitOptions(GraphOptions):
    """Options of `katz submit`."""

    server: Annotated[
        str,
        Option("of a running katz serve", metavar="URL"),
    ] = "http://127.0.0.1:8188"
    token: Annotated[
        str | None,
        Option(
            "what the server asks for; on the command line others here can read it",
            envvar=TOKEN,
        ),
    ] = None
    output: Output = None
    no_wait: Annotated[bool, Option("print the job's id and leave")] = False
    deadline: Annotated[
        float | None,
        Option("refuse or give up what cannot be done by then", metavar="SECONDS", min=0),
    ] = None
    priority: Annotated[
        float | None,
        Option("place in the queue: the lowest goes first; others count up from 1"),
    ] = None
    as_json: Json = False


@dataclass(frozen=True, slots=True)
class ServeAliases:
    """Other ways to give options of `katz serve`, most of them ComfyUI's."""

    token_file: Annotated[Path | None, Option("a file with the token")] = None
    cpu: Annotated[bool, Option("the same as --devices cpu")] = False
    cache_classic: Annotated[bool, Option("the same as --cache classic")] = False
    cache_lru: Annotated[
        int | None,
        Option("the same as --cache lru:N; 0: classic", metavar="N", min=0),
    ] = None
    cache_none: Annotated[bool, Option("the same as --cache none")] = False
