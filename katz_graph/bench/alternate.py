"""`katz bench alternate`: generates pictures with three checkpoints on a server with memory for one
model. Pictures must not change and memory must not grow.

Two checkpoints alternate in starting a picture; the third checkpoint finishes every picture. The
reference is a server without a memory budget.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katz_graph.bench.result import BenchResult
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.testing.random_models import make_pipeline, playing, usual_kind
from katz_graph.testing.server_process import Served, resident, serving

GROWTH_BOUND = 0.02
SLACK = 1.01  # memory budget / bytes of the largest checkpoint's weights
TOGETHER = 5  # jobs in the queue at the same time
JOB_TIMEOUT_S = 600.0  # for all jobs in the queue
BASES, FINISHING = ("first", "second"), "finishing"


@dataclass(frozen=True, slots=True)
class Scale:
    pictures: int = 50
    warm_up: int = 10
    channels: tuple[int, ...] = (48, 96, 128)
    steps: int = 4
    side: int = 64


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = write_models(folder / "models" / "checkpoints", scale.channels)
        options = ("--models", str(folder / "models"), "--no-spare")
        with serving(folder / "alone", *options) as server:
            alone, _ = _painted(server, scale)
            server.stop()
        budget = SLACK * max(sizes)
        with serving(folder / "budget", *options, "--model-gb", f"{budget / 2**30:.6f}") as server:
            started = time.perf_counter()
            pictures, looks = _painted(server, scale)
            seconds = time.perf_counter() - started
            figures = _figures(server)
            logged = server.log.count("released ")
            server.stop()
    before = next(look for look in looks if look[0] >= scale.warm_up)
    metrics: dict[str, Any] = {
        "pictures": len(pictures),
        "different": sum(one != other for one, other in zip(pictures, alone, strict=True)),
        "memory_growth": looks[-1][1] / before[1] - 1,
        "evictions": figures["model_evictions_total"],
        "evictions_in_the_log": logged,
        "over_budget": max(0.0, figures["model_bytes"] - budget),
        "models_bytes": sum(sizes),
        "budget_bytes": budget,
        "load_seconds": figures["model_load_seconds_total"],
        "seconds": seconds,
    }
    bounds = {
        "different": "0",
        "memory_growth": f"< {GROWTH_BOUND}",
        "evictions": f">= {len(pictures)}",
        "evictions_in_the_log": f"{metrics['evictions']:.0f}",
        "over_budget": "0",
    }
    flat = metrics["memory_growth"] < GROWTH_BOUND
    evicted = metrics["evictions"] >= len(pictures) and logged == metrics["evictions"]
    ok = not metrics["different"] and not metrics["over_budget"] and flat and evicted
    return BenchResult(
        "alternate",
        ok,
        metrics,
        bounds,
        ("pictures", "MiB"),
        [[number, memory / 2**20] for number, memory in looks],
    )


def write_models(folder: Path, channels: tuple[int, ...]) -> Sequence[int]:
    """Writes two pipelines, and a third that finishes their pictures; returns the bytes of each
    pipeline's weights.
    """
    (kind,) = playing("finishing")
    for number, name in enumerate(BASES):
        make_pipeline(folder / name, usual_kind(), seed=number, channels=channels)
    make_pipeline(folder / FINISHING, kind, seed=len(BASES), channels=channels)
    sizes = []
    for name in (*BASES, FINISHING):
        model, clip, vae = pipeline_recipes(folder / name)
        sizes.append(
            4
            * sum(
                count_values(part)
                for part in (model.network, vae.vae, *(one.encoder for one in clip.encoders))
            )
        )
    return sizes


def painting(base: str, seed: int, scale: Scale) -> dict[str, Any]:
    """Builds a graph: `base` runs the first three quarters of the steps, the third checkpoint the
    rest.
    """
    change = scale.steps * 3 // 4
    shared = {
        "noise_seed": seed,
        "steps": scale.steps,
        "cfg": 3.0,
        "sampler_name": "euler",
        "scheduler": "normal",
    }
    first = {
        "add_noise": "enable",
        "start_at_step": 0,
        "end_at_step": change,
        "return_with_leftover_noise": "enable",
    }
    second = {
        "add_noise": "disable",
        "start_at_step": change,
        "end_at_step": scale.steps,
        "return_with_leftover_noise": "disable",
    }
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": base}},
        "2": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": FINISHING}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a star"}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 1], "text": "a star"}},
        "5": {
            "class_type": "EmptyLatentImage",
            "inputs": {"width": scale.side, "height": scale.side, "batch_size": 1},
        },
        "6": {
            "class_type": "KSamplerAdvanced",
            "inputs": {
                "model": ["1", 0],
                "positive": ["3", 0],
                "negative": ["3", 0],
                "latent_image": ["5", 0],
                **shared,
                **first,
            },
        },
        "7": {
            "class_type": "KSamplerAdvanced",
            "inputs": {
                "model": ["2", 0],
                "positive": ["4", 0],
                "negative": ["4", 0],
                "latent_image": ["6", 0],
                **shared,
                **second,
            },
        },
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["1", 2]}},
        "9": {
            "class_type": "SaveImage",
            "inputs": {"images": ["8", 0], "filename_prefix": "alternate"},
        },
    }


def _painted(server: Served, scale: Scale) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Returns all pictures in order, and after every TOGETHER jobs the number of pictures so far
    and the memory of the server's processes.
    """
    pictures: list[bytes] = []
    looks: list[tuple[int, int]] = []
    prompts = [painting(BASES[seed % len(BASES)], seed, scale) for seed in range(scale.pictures)]
    for start in range(0, len(prompts), TOGETHER):
        ids = [
            server.submit(prompt).data["prompt_id"] for prompt in prompts[start : start + TOGETHER]
        ]
        history = server.wait_for(ids, JOB_TIMEOUT_S)
        pictures += [
            picture for identifier in ids for picture in server.pictures(history[identifier])
        ]
        looks.append((len(pictures), resident(server.family())))
    return pictures, looks


def _figures(server: Served) -> dict[str, float]:
    """Reads the figures of device `cpu` from `/metrics`, by name."""
    text = server.get("/metrics").body.decode()
    return {
        name: float(value)
        for name, value in re.findall(r'^katz_(\w+)\{device="cpu"\} (\S+)$', text, re.MULTILINE)
    }
