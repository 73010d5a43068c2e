"""What `katz run` and `katz plan` share: settings, nodes, a checked workflow with its overrides, and the device."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from katz_graph.cli.overrides import find_node, set_inputs, set_seed
from katz_graph.errors import InputError
from katz_graph.folders import Folders
from katz_graph.formats.read import read_workflow
from katz_graph.formats.workflow import Workflow
from katz_graph.graph import Graph
from katz_graph.packs import Registry, load_registry
from katz_graph.settings import Settings
from katz_graph.validate import check

APPROXIMATIONS = ("stale-controlnet", "async-lora")
STAGES = ("text_encoder", "unet_encoder", "unet_mid", "unet_decoder", "controlnet", "vae_encode", "vae_decode")
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    workflow: Path
    sets: Sequence[str] = ()
    seed: int | None = None
    devices: str | None = None
    threads: int | None = None
    place: Sequence[str] = ()
    allow: str = ""
    models: Sequence[Path] = ()
    packs: Sequence[Path] = ()
    input: Path | None = None
    output: Path | None = None
    extra_model_paths: Sequence[Path] = ()
    targets: Sequence[str] = ()


@dataclass(slots=True)
class Session:
    """A workflow ready to run. `targets` are the outputs that can run, `refused` those that cannot, `problems` the lines that say why."""

    options: Options
    settings: Settings
    registry: Registry
    workflow: Workflow
    graph: Graph
    folders: Folders
    targets: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True))

    def say(self, message: str) -> None:
        """Print a line for people, on standard error."""
        self.console.print(escape(message))

    def warn(self, message: str) -> None:
        self.console.print(f"[yellow]warning:[/] {escape(message)}")

    @property
    def device(self) -> str:
        return one_device(self.options.devices or self.workflow.run.get("devices") or "cpu")


def open_session(options: Options, partial: bool = False) -> Session:
    """Read, change and check a workflow. InputError with a line per problem; warnings are printed.

    With `partial` it is enough that one output can run.
    """
    check_allowed(options.allow)
    settings = Settings.read(options.models, options.packs, options.input, options.output, extra_model_paths=options.extra_model_paths)
    folders = settings.folders()
    registry, pack_problems = load_registry(settings.packs, folders)
    workflow = read_workflow(options.workflow, registry)
    check_run_options(workflow.run)
    check_allowed(workflow.run.get("allow") or "")
    graph, notes = set_inputs(workflow.graph, registry, options.sets)
    seed = options.seed if options.seed is not None else workflow.run.get("seed")
    if seed is not None:
        graph, changed = set_seed(graph, registry, seed)
        notes += changed
    session = Session(options, settings, registry, workflow, graph, folders)
    for note in notes:
        session.say(f"set {note}")
    for problem in pack_problems:
        session.warn(str(problem))
    for note in workflow.notes:
        session.warn(note)
    targets = [find_node(graph, name, f"--target {name}") for name in options.targets]
    with contextlib.redirect_stdout(sys.stderr):  # what packs print; standard output is for scripts
        checked = check(graph, registry, folders, targets=targets or None)
    for warning in checked.warnings:
        session.warn(str(warning))
    session.graph, session.targets, session.refused = checked.graph, checked.targets, checked.refused
    session.problems = tuple(f"{options.workflow}: {problem}" for problem in checked.errors)
    if session.problems and not (partial and session.targets):
        raise InputError("\n".join(session.problems))
    for place in options.place:
        check_place(place, session.device)
    return session


RUN_OPTIONS: dict[str, type] = {"seed": int, "devices": str, "allow": str, "batching": bool}


def check_run_options(run: Mapping[str, Any]) -> None:
    """InputError when an option in the file's wrapper is not of its type."""
    for name, kind in RUN_OPTIONS.items():
        value = run.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise InputError(f"run option {name}: got {value!r}, expected {kind.__name__}")


def check_writable(folder: Path, option: str) -> None:
    """InputError when files cannot be written to a folder, which need not exist yet."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{option}: {existing} is not a folder")
    if not os.access(existing, os.W_OK):
        raise InputError(f"{option}: {existing} cannot be written to")


def one_device(devices: str) -> str:
    """The one device that this version plans for. InputError for several, for unknown ones and for those that are not there."""
    name = devices.strip()
    if "," in name or "*" in name or name == "ray":
        raise InputError(f"--devices {devices}: plans for several devices are not built yet; give one: cpu, cuda:0")
    if name == "cpu":
        return name
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdigit()):
        raise InputError(f"--devices {devices}: not a device; give cpu, or cuda:0")
    import torch

    if int(number or 0) >= torch.cuda.device_count():
        raise InputError(f"--devices {devices}: torch sees {torch.cuda.device_count()} CUDA devices here; give cpu")
    return f"cuda:{int(number or 0)}"


def check_allowed(names: str) -> None:
    """InputError for an approximation that does not exist."""
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name not in APPROXIMATIONS:
            raise InputError(f"--allow {name}: no such approximation; choose from {', '.join(APPROXIMATIONS)}")


def check_link(link: str | None) -> None:
    """InputError unless a link reads GBPS[,MS]. One device has no links, so nothing else comes of it yet."""
    try:
        numbers = [float(part) for part in (link or "1").split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(math.isfinite(number) for number in numbers) or numbers[0] <= 0:
        raise InputError(f"--link {link}: expected GBPS or GBPS,MS, for example 25,0.05")


def check_place(place: str, device: str) -> None:
    """InputError unless a pin reads STAGE=DEVICE with the device of this run."""
    stage, equals, where = place.partition("=")
    if not (equals and stage and where):
        raise InputError(f"--place {place}: expected STAGE=DEVICE, for example controlnet=cpu")
    if stage not in STAGES:
        raise InputError(f"--place {place}: there is no stage {stage!r}; choose one of {', '.join(STAGES)}")
    if one_device(where) != device:
        raise InputError(f"--place {place}: this run has the device {device} only")


def use_threads(device: str, threads: int | None) -> None:
    """One worker with as many threads as cores, unless told."""
    import torch

    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise InputError(f"--threads {threads}: expected 1 to {MOST_THREADS}")
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(threads or available)


def dtype_of(device: str) -> Any:
    """Half precision where a GPU runs it fast, float32 elsewhere."""
    import torch

    return torch.float16 if device.startswith("cuda") else torch.float32
