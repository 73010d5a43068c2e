"""`katz bench restore`: runs requests with random LoRAs and strengths, three at a time on one
device. Some have deferred LoRAs, a third is cancelled, a third has a file that fails to load.
Afterwards every weight must be bit-equal to the model file's, in each dtype.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any

import torch

from katz_graph.adapters.lora import LoraFile, read_lora
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import Cancelled, InputError
from katz_graph.core.events import Event, Progress
from katz_graph.core.recipe import FileIdentity
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.start import start_here
from katz_graph.executor.weights.adapters import AdapterStore
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Target
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.model_files import Models, mini_models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, sampler_region

REQUESTS = 200  # per dtype
AT_ONCE = 3
FORMATS = (torch.float32, torch.float16, torch.bfloat16)
FAILING = "failing"  # name prefix of files that fail to load
STRENGTHS = (-1.0, 0.3, 0.8, 1.0)
STEPS, MAX_DEFERRED = 4, 3
SLOWEST = 0.05  # seconds, maximum delay of reading a file
ENDINGS = ("done", "failed", "cancelled")


def run(
    number: int = REQUESTS,
    formats: tuple[torch.dtype, ...] = FORMATS,
    models: Models | None = None,
) -> BenchResult:
    """Runs `number` requests in each dtype."""
    torch.set_num_threads(1)
    models = models or mini_models()
    metrics: dict[str, Any] = {}
    rows = []
    for kind in formats:
        ended, merges, different = carried_out(models, number, kind)
        name = str(kind).removeprefix("torch.")
        metrics |= {f"{name}_different": different, f"{name}_merges": merges}
        metrics |= {f"{name}_{ending}": ended[ending] for ending in ENDINGS}
        rows.append([name, *(ended[ending] for ending in ENDINGS), merges, different])
    columns = ("weights", *ENDINGS, "merges", "weights different")
    least = [name for name in metrics if not name.endswith("_different")]
    bounds = {name: "> 0" if name in least else "0" for name in metrics}
    ok = all((metrics[name] > 0) == (name in least) for name in metrics)
    return BenchResult("restore", ok, metrics, bounds, columns, rows)


def carried_out(
    models: Models, number: int, kind: torch.dtype, cache: Path | None = None
) -> tuple[Counter[str], int, int]:
    """Runs requests in one dtype. Returns the counts of their endings, the number of LoRA merges,
    and the number of weights that differ from the files afterwards.
    """
    draw = random.Random(str(kind))

    def read(file: FileIdentity, unwanted: Callable[[], bool]) -> LoraFile:
        time.sleep(draw.random() * SLOWEST)
        if Path(file.path).name.startswith(FAILING):
            raise InputError(f"{file.path}: cut off")
        return read_lora(file, unwanted)

    config = WorkerConfig("cpu", "cpu", 1, kind)
    with (
        start_here(config, cache=cache) as engine,
        ThreadPoolExecutor(AT_ONCE) as pool,
        TemporaryDirectory() as folder,
    ):
        failing = [Path(folder) / f"{FAILING}_{path.name}" for path in models.loras]
        for path, good in zip(failing, models.loras, strict=True):
            copy(good, path)
        engine.models.adapters = AdapterStore(0, read)  # budget 0, so unused files are read again
        requests = [
            _drawn(models, failing, ENDINGS[place % len(ENDINGS)], draw) for place in range(number)
        ]
        ended = Counter(pool.map(lambda each: _carry_out(engine, each), requests))
        recipe, _, _ = pipeline_recipes(models.pipeline)
        module = engine.models.module(recipe)
        merges = engine.models.lora_merges
        with torch.inference_mode():  # like the device's thread
            engine.models.patch(recipe)
        fresh = ModelStore().network(recipe.network, "cpu", kind)
        different = sum(
            not torch.equal(weight, original)
            for weight, original in zip(module.parameters(), fresh.parameters(), strict=True)
        )
    return ended, merges, different


@dataclass(frozen=True)
class _Request:
    case: Case
    deferred: int  # evaluations that may run before its LoRAs arrive
    cancelled_after: int | None  # evaluations


def _drawn(models: Models, failing: Sequence[Path], ending: str, chance: random.Random) -> _Request:
    """Draws a request that should end with `ending`."""
    number = chance.randint(0, min(2, len(models.loras)))
    paths = chance.sample(models.loras, number)
    if ending == "failed":
        paths[-1:] = [chance.choice(failing)]
    case = Case(
        "restore",
        models.pipeline,
        "euler",
        STEPS,
        controls=(ControlCase(models.controls[0], 0.8, 0.0, 1.0),),
        loras=tuple((path, chance.choice(STRENGTHS)) for path in paths),
    )
    cancelled_after = chance.randint(1, STEPS - 2) if ending == "cancelled" else None
    return _Request(case, chance.randint(0, MAX_DEFERRED), cancelled_after)


def _carry_out(engine: DeviceEngine, request: _Request) -> str:
    """Runs a request; returns its ending."""
    region = sampler_region(request.case)
    allowed = frozenset({f"async-lora={request.deferred}"})
    target = Target(engine.cluster.devices, {}, {}, allowed)
    program = plan_region(region, target, engine.counts)

    def listen(event: Event) -> None:
        if isinstance(event, Progress) and event.value == request.cancelled_after:
            context.cancel()

    context = replace(bare_context(engine), listener=listen)
    try:
        engine.cluster.run(program, context)
    except Cancelled:
        return "cancelled"
    except InputError:
        return "failed"
    return "done"
