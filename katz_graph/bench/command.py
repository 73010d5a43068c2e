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
    "graph": "cost per node of the graph level, cold and cached",
    "parity": "latents against plain loops over diffusers' modules, and against its "
    "stock pipelines",
    "mini": "what the miniature models paint, by the judge",
    "requests": "random workflows one call per branch, batched and over two workers: one picture",
    "overhead": "a whole run against the bare diffusers pipeline",
    "pipeline": "a stale ControlNet behind a slow link, and what the planner chooses there",
    "trace": "cache misses against capacity on a synthetic production trace",
    "controlnet": "a ControlNet on a second worker against the plan's prediction and the "
    "ideal speed-up",
    "streaming": "a transformer's ControlNet on a second worker, block by block: prediction, ideal "
    "speed-up, and a link too slow for it",
    "latent": "the branches of guidance on two workers against the ideal speed-up",
    "sharing": "one ControlNet worker that serves two requests at once",
    "faults": "workers that are killed or frozen in the middle of requests: noticed, replaced, the "
    "same picture",
    "start": "from `katz serve` to the first answer and the first picture, quiet and beside two "
    "busy processes",
    "service": "what a server costs beside the work, and how soon a cancelled job stops",
    "planning": "how soon a server plans an edited workflow, and what that costs a running job",
    "editor": "the browser editor with 1,000 nodes: opening, and work a frame in gestures",
    "overload": "a server that is asked for more than it can do: refusals, memory, goodput",
    "crash": "jobs in the queue of a server that is killed again and again",
    "alternate": "two checkpoints and one that finishes in a server whose budget of memory "
    "holds one of them",
    "lora": "what patching and restoring weights costs against a memory copy and against PEFT",
    "loading": "LoRAs that are fetched from a slow store while the first steps run",
    "switching": "two requests with different LoRAs at a time on one worker: time spent switching, "
    "and what each waits",
    "restore": "random LoRAs, strengths, failures, cancellations: afterwards the files' weights",
    "recorded": "stages as recorded calls: the same bytes, nothing recorded anew by a switch",
    "processor": "networks as a processor computes them against diffusers' own modules",
    "longtail": "hundreds of LoRAs, most of them rare, by URL through a server: memory, budgets, "
    "files read",
    "soak": "thousands of small jobs: memory, descriptors and processes of a server",
    "stale": "pictures whose ControlNets are one evaluation behind against synchronous ones, "
    "by the judge",
    "gpu": "full-size models on a GPU, in parts: peaks, kernels, a step, requests, torch.compile",
    "late": "pictures whose LoRAs arrive after some steps against synchronous ones, by the judge",
}


MODULES = {"requests": "random_requests"}  # where they have other names
LACKING = {
    "seed": "draws nothing by chance",
    "part": "has no parts",
    "out": "writes no rows",
    "write": "measures no tiles",
}
"""Says what a bench does not have that knows nothing of an option."""


def run_bench(name: str | None, as_json: bool, svg: Path | None = None, **options: object) -> bool:
    """Runs one bench and prints it, or lists them; returns whether all bounds held.

    `options` that are not None go to the bench. InputError for one that it does not have, and for a
    picture of a bench that draws none.
    """
    if name is None:
        for known, purpose in BENCHES.items():
            print(f"{known:10} {purpose}")
        return True
    if name not in BENCHES:
        raise InputError(
            f"there is no bench {name!r}{suggest(name, BENCHES)}; `katz bench` lists them"
        )
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
