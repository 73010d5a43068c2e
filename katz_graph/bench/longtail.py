"""`katz bench longtail`: sends a server with two workers requests for hundreds of LoRAs, most of
them rare. Each worker runs a part of the network, and therefore reads every LoRA.

LoRAs are fetched by URL. The disk caches a fraction of all LoRAs, each worker's memory caches a
smaller one. After the warm-up, memory, descriptors and shared memory must not grow, and the caches
must stay within their budgets. Workers must read as many files as a replay of the same requests
through the same eviction policy predicts.
"""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from katz_graph.bench.loading import slow_store
from katz_graph.bench.result import BenchResult
from katz_graph.bench.trace import misses
from katz_graph.bench.trace_requests import Service, requests
from katz_graph.core.eviction import POLICIES
from katz_graph.files.folders import MINI
from katz_graph.host.environment import environment
from katz_graph.models.loading.identity import read_header
from katz_graph.testing.placement import NETWORK
from katz_graph.testing.server_process import (
    Served,
    alive,
    carry_out,
    descriptors,
    painting,
    resident,
    serving,
    shared_memory,
)

GROWTH_BOUND = 0.02  # of memory, relative
MISSES_BOUND = 0.05  # difference of the measured miss rate from the replay's
RANKS = (1, 2, 4, 8, 16, 32)
ROUND = 50  # requests between samples, maximum
ON_DISK, IN_MEMORY = 0.3, 0.1  # shares of all LoRAs
GB = 2**30  # bytes
RATE = 10**9  # bytes per second of the store
COMMON = 14  # popular LoRAs, as in the trace
STEPS, SIDE = 2, 64
DEVICES = ("cpu:0", "cpu:1")
PLACES = tuple(
    f"{stage}={device}" for stage, device in zip(NETWORK, ("cpu:0", "cpu:1", "cpu:1"), strict=True)
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the numbers of requests and LoRAs."""

    requests: int = 500
    warm_up: int = 1250  # requests that fill the caches first
    loras: int = 300

    @property
    def total(self) -> int:
        return self.warm_up + self.requests


@dataclass(frozen=True, slots=True)
class Look:
    """Samples a server's use of resources after a number of requests."""

    requests: int
    memory: int  # bytes
    descriptors: int
    shared: int  # shared memory objects
    read: float  # bytes of LoRAs cached in memory, largest worker
    files: int  # bytes of LoRAs on the disk


def run(scale: Scale | None = None, cache: Path | None = None) -> BenchResult:
    """Runs the requests. `cache`: folder of the machine's measurements, if they exist."""
    scale = scale or Scale()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loras = make_loras(folder / "store", scale.loras)
        total = sum(path.stat().st_size for path in loras)
        on_disk, in_memory = int(ON_DISK * total), int(IN_MEMORY * total)
        sizes = {path.name: _bytes(path) for path in loras}
        wanted = chosen(loras, scale.total)
        with (
            slow_store(loras) as port,
            environment({"KATZ_FETCHED_GB": str(on_disk / GB)}),
            serving(
                folder / "server",
                *("--devices", "cpu*2"),
                *(word for place in PLACES for word in ("--place", place)),
                *("--fetch", f"http://127.0.0.1:{port}/", "--lora-gb", str(in_memory / GB)),
                cache=cache,
            ) as server,
        ):
            began = time.perf_counter()
            looks = list(_looks(server, port, wanted, scale))
            seconds = time.perf_counter() - began
            used = [_figures(server, device) for device in DEVICES]
            family = server.family()
            status, _ = server.stop()
            left = alive(family)
    uses = [path.name for paths in wanted for path in paths]
    predicted = misses(uses, in_memory, POLICIES["lru"](), sizes) / len(uses)
    found = [figures["misses"] / (figures["hits"] + figures["misses"]) for figures in used]
    counted = [look for look in looks if look.requests >= scale.warm_up]
    # means, because a single sample depends on the cached LoRAs and on recent downloads
    halves = counted[: len(counted) // 2], counted[len(counted) // 2 :]
    earlier, later = (fmean(look.memory for look in half) for half in halves)
    opened, left_open = (min(look.descriptors for look in half) for half in halves)
    metrics: dict[str, Any] = {
        "requests_per_second": scale.total / seconds,
        "uses": len(uses),
        "different": len(set(uses)),
        "uses_told": min(figures["hits"] + figures["misses"] for figures in used) / len(uses),
        "memory_growth": later / earlier - 1,
        "descriptor_growth": left_open - opened,
        "shared_memory_growth": counted[-1].shared - counted[0].shared,
        "read_of_budget": max(look.read for look in looks) / in_memory,
        "files_of_budget": max(look.files for look in looks) / on_disk,
        "predicted_misses": predicted,
        "misses_off": max(abs(share - predicted) for share in found),
        **{f"misses_{device}": share for device, share in zip(DEVICES, found, strict=True)},
        "processes_left": len(left),
        "exit_status": status,
    }
    most = {
        "memory_growth": GROWTH_BOUND,
        "descriptor_growth": 0,
        "shared_memory_growth": 0,
        "read_of_budget": 1,
        "files_of_budget": 1,
        "misses_off": MISSES_BOUND,
        "processes_left": 0,
        "exit_status": 0,
    }
    return BenchResult(
        "longtail",
        metrics["uses_told"] == 1 and all(metrics[name] <= bound for name, bound in most.items()),
        metrics,
        {"uses_told": "1"} | {name: f"<= {bound}" for name, bound in most.items()},
        ("requests", "MiB", "descriptors", "shared memory", "MiB of LoRAs read", "MiB fetched"),
        [
            [
                look.requests,
                look.memory / 2**20,
                look.descriptors,
                look.shared,
                look.read / 2**20,
                look.files / 2**20,
            ]
            for look in looks
        ],
    )


def make_loras(folder: Path, number: int) -> list[Path]:
    """Writes LoRAs for the miniature model, with random ranks and values. They patch the same
    modules as its `sticker` LoRA.
    """
    folder.mkdir()
    template = load_file(MINI / "loras" / "sticker.safetensors")
    draw, made = random.Random(0), []
    for index in range(number):
        rank, generator = draw.choice(RANKS), torch.Generator().manual_seed(index)
        made.append(folder / f"lora-{index}.safetensors")
        save_file(
            {
                key: value if value.ndim < 2 else _of_rank(rank, key, value, generator)
                for key, value in template.items()
            },
            made[-1],
        )
    return made


def chosen(loras: Sequence[Path], number: int) -> list[list[Path]]:
    """Draws the LoRAs of each request, distributed as in the trace's service B, from `loras`."""
    service = Service(
        "B", 1, 1, 1.0, (1.0,), len(loras), min(COMMON, len(loras) // 2), (0.072, 0.736, 0.192)
    )
    return [
        [loras[int(name.rpartition("-")[2])] for name in request.loras]
        for request in requests(service, number)
    ]


def _of_rank(rank: int, key: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    shape = list(value.shape)
    shape[0 if key.endswith("lora_A.weight") else 1] = rank
    return (torch.randn(shape, generator=generator) * 0.01).to(value.dtype)


def _looks(
    server: Served, port: int, wanted: Sequence[Sequence[Path]], scale: Scale
) -> Iterator[Look]:
    for first in range(0, scale.total, ROUND):
        last = min(first + ROUND, scale.total)
        carry_out(server, (_prompt(port, number, wanted[number]) for number in range(first, last)))
        family = server.family()
        yield Look(
            last,
            resident(family),
            len(descriptors(family)),
            shared_memory(family),
            max(_figures(server, device)["bytes"] for device in DEVICES),
            sum(path.stat().st_size for path in server.fetched()),
        )


def _prompt(port: int, number: int, loras: Sequence[Path]) -> dict[str, Any]:
    prompt, model, clip = painting(number, STEPS, SIDE, "tail"), ["1", 0], ["1", 1]
    for index, path in enumerate(loras):
        name = f"lora-{index}"
        prompt[name] = {
            "class_type": "LoraLoader",
            "inputs": {
                "model": model,
                "clip": clip,
                "lora_name": f"http://127.0.0.1:{port}/{RATE}/{path.name}",
                "strength_model": 0.5,
                "strength_clip": 0.5,
            },
        }
        model, clip = [name, 0], [name, 1]
    prompt["5"]["inputs"]["model"] = model
    for encoder in ("2", "3"):
        prompt[encoder]["inputs"]["clip"] = clip
    return prompt


def _figures(server: Served, device: str) -> Mapping[str, float]:
    """Reads the LoRA figures of a device from `/metrics`, by name."""
    said = server.get("/metrics").body.decode()
    samples = re.findall(rf'^katz_lora_(\w+?)(?:_total)?{{device="{device}"}} (\S+)$', said, re.M)
    return {name: float(value) for name, value in samples}


def _bytes(path: Path) -> int:
    """Returns the total bytes of a file's tensors."""
    return path.stat().st_size - 8 - len(read_header(path)[0])
