"""Lists the benches of `katz bench`, and runs one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from inspect import signature
from pathlib import Path

from katz_graph.bench.result import BenchResult, report
from katz_graph.core.errors import InputError, RunError
from katz_graph.core.messages import suggest
from katz_graph.host.garbage import imports_are_done

BENCHES = {
    "graph": "overhead per node of running a graph, cold and cached",
    "parity": "latents against plain loops over diffusers' modules, and against its "
    "stock pipelines",
    "mini": "pictures of the miniature models, scored by the judge",
    "requests": "random workflows unbatched, batched and on two workers: same picture",
    "overhead": "a whole run against the bare diffusers pipeline",
    "pipeline": "a stale ControlNet behind a slow link, and the planner's choice",
    "trace": "cache misses against capacity on a synthetic production trace",
    "controlnet": "a ControlNet on a second worker against the plan's prediction and the "
    "ideal speed-up",
    "streaming": "a transformer's ControlNet on a second worker, block by block: prediction, ideal "
    "speed-up, and a link too slow for it",
    "latent": "the branches of guidance on two workers against the ideal speed-up",
    "sharing": "one ControlNet worker that serves two requests at once",
    "together": "jobs that share the calls of their model: against one after the other; in parts",
    "edit": "edits that read a template's cached activations outside their mask, against full "
    "computation",
    "faults": "workers killed or frozen during requests: detection, replacement, same picture",
    "start": "from `katz serve` to the first answer and the first picture, idle and with two busy "
    "processes",
    "service": "overhead of a server, and the time until a cancelled job stops",
    "overlap": "a server that samples one job while it saves the results of another",
    "planning": "time until a server plans an edited workflow, and its cost for a running job",
    "editor": "the browser editor with 1,000 nodes: opening, and work per frame during gestures",
    "overload": "an overloaded server: refusals, memory, goodput",
    "deadlines": "jobs with due times on a server or on simulated devices: shares on time by "
    "order and load",
    "devices": "one device or all for each job by load, on a server or on simulated devices, "
    "against one device a job",
    "crash": "queued jobs of a server that is killed repeatedly",
    "alternate": "three checkpoints, one after another, on a server with memory for one of them",
    "lora": "patching and restoring weights against a memory copy and PEFT",
    "loading": "LoRAs fetched from a slow store during the first steps",
    "switching": "two concurrent requests with different LoRAs on one worker: switching and "
    "waiting",
    "restore": "random LoRAs, strengths, failures, cancellations: original weights afterwards",
    "recorded": "stages as recorded calls: same bytes, no new recordings after a switch",
    "processor": "networks on a CPU against diffusers' modules",
    "longtail": "hundreds of LoRAs, most of them rare, by URL through a server: memory, budgets, "
    "files read",
    "soak": "thousands of small jobs: memory, descriptors and processes of a server",
    "stale": "pictures with stale ControlNets against synchronous ones, by the judge",
    "templates": "official image templates of ComfyUI on small random files: what runs, and the "
    "reasons of the others",
    "gpu": "full-size models on a GPU, in parts: kernels, steps, starts, servers under load",
    "late": "pictures with deferred LoRAs against synchronous ones, by the judge",
}


MODULES = {"requests": "random_requests"}  # if the module has another name
LACKING = {
    "seed": "uses no random numbers",
    "part": "has no parts",
    "out": "writes no rows",
    "write": "measures no tiles",
    "minutes": "has no parts",
    "peer": "compares no servers",
    "simulate": "simulates nothing",
    "loads": "has no loads to choose",
    "jobs": "has no number of jobs to choose",
}
"""Reasons for which a bench does not accept an option."""


def run_bench(name: str | None, as_json: bool, svg: Path | None = None, **options: object) -> bool:
    """Runs one bench and prints its result, or lists the benches. Returns whether all bounds held.

    `options` that are not None go to the bench. Raises InputError for an option that the bench does
    not have, and for `svg` if it draws no picture.
    """
    if name is None:
        for known, purpose in BENCHES.items():
            print(f"{known:10} {purpose}")
        return True
    if name not in BENCHES:
        raise InputError(f"unknown bench {name!r}{suggest(name, BENCHES)}; `katz bench` lists them")
    run: Callable[..., BenchResult] = importlib.import_module(
        f"katz_graph.bench.{MODULES.get(name, name)}"
    ).run
    imports_are_done()
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - signature(run).parameters.keys():
        raise InputError(f"--{option}: bench {name} {LACKING[option]}")
    result = run(**given)
    if svg is not None:
        if not result.svg:
            raise InputError(f"--svg: bench {name} draws no picture")
        try:
            svg.write_text(result.svg)
        except OSError as error:
            raise RunError(f"{svg}: cannot write the picture ({error.strerror})") from None
    report(result, as_json)
    return result.ok
