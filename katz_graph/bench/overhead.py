"""`katz bench overhead`: times the miniature workflow with one ControlNet against the bare
diffusers pipeline.

Both use the same modules in memory and the same threads, start from prompt and image, and end with
a PNG on disk. Their runs alternate. The bench also times transformers against stock pipelines
(`stock`), and runs next to busy processes (`busy_neighbours`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLControlNetPipeline
from diffusers.models.attention_processor import AttnProcessor2_0

from katz_graph.bench import busy_neighbours, stock
from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult, medians
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.files.folders import MINI, Folders
from katz_graph.files.images import COMPRESS_LEVEL, load_image
from katz_graph.formats.api import from_api
from katz_graph.models.family import family_of
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.testing.requests import local_engine

RUNS, STARTS, STEPS = 9, 5, 20
PROMPT = "a large red star on grass"
RATIO_BOUND, NODES_BOUND = 1.0, 0.6


def workflow(image: str) -> dict[str, Any]:
    """Returns a workflow with one ControlNet, one sampler and one picture."""
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "katz-mini"}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": PROMPT}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": ""}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 128, "height": 128}},
        "5": {"class_type": "LoadImage", "inputs": {"image": image}},
        "6": {
            "class_type": "ControlNetLoader",
            "inputs": {"control_net_name": "katz-mini-silhouette"},
        },
        "7": {
            "class_type": "ControlNetApplyAdvanced",
            "inputs": {
                "positive": ["2", 0],
                "negative": ["3", 0],
                "control_net": ["6", 0],
                "image": ["5", 0],
            },
        },
        "8": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0],
                "positive": ["7", 0],
                "negative": ["7", 1],
                "latent_image": ["4", 0],
                "steps": STEPS,
                "cfg": 4.0,
            },
        },
        "9": {"class_type": "VAEDecode", "inputs": {"samples": ["8", 0], "vae": ["1", 2]}},
        "10": {
            "class_type": "SaveImage",
            "inputs": {"images": ["9", 0], "filename_prefix": "ours"},
        },
    }


def run() -> BenchResult:
    torch.set_num_threads(1)
    with quiet(), tempfile.TemporaryDirectory() as folder, local_engine() as engine:
        ours, theirs = _whole_run(engine, Path(folder)), _pipeline_run(engine, Path(folder))
        ours(), theirs()  # load and warm up
        seconds = medians({"katz": ours, "diffusers": theirs}, RUNS)
    starts = medians(
        {
            "nodes": _start([sys.argv[0], "nodes"]),
            "torch": _start([sys.executable, "-c", "import torch"]),
        },
        STARTS,
    )
    imported = _imported(["nodes"]) | _imported(["plan", "--help"]) | _imported(["models"])
    with quiet():
        transformers = stock.measure()
    among = busy_neighbours.measure()
    ratio, started = seconds["katz"] / seconds["diffusers"], starts["nodes"] / starts["torch"]
    metrics = {
        "katz_seconds": seconds["katz"],
        "diffusers_seconds": seconds["diffusers"],
        "ratio": ratio,
        "nodes_over_import_torch": started,
        "heavy_imports": sorted(imported),
        **transformers,
        **among,
    }
    ok = (
        ratio <= RATIO_BOUND
        and started <= NODES_BOUND
        and not imported
        and stock.within_bounds(transformers)
        and busy_neighbours.within_bounds(among)
    )
    bounds = {
        "ratio": f"<= {RATIO_BOUND}",
        "nodes_over_import_torch": f"<= {NODES_BOUND}",
        "heavy_imports": "none",
        **stock.bounds(),
        **busy_neighbours.BOUNDS,
    }
    rows = [
        [f"whole run, {STEPS} steps, 1 ControlNet", seconds["katz"], seconds["diffusers"]],
        ["katz nodes / import torch", starts["nodes"], starts["torch"]],
        *stock.rows(transformers),
        *busy_neighbours.rows(among),
    ]
    return BenchResult("overhead", ok, metrics, bounds, ("median seconds", "katz", "against"), rows)


def _whole_run(engine: DeviceEngine, folder: Path) -> Callable[[], object]:
    """Returns a function that reads the workflow, runs every node and writes the PNG. Models stay
    loaded; results are not cached.
    """
    text = json.dumps(workflow(_silhouette().name))

    def once() -> object:
        graph = from_api(json.loads(text))
        context = RunContext(engine, Folders(), folder, {"prompt": text})
        result = run_graph(graph, context, ResultCache("none"))
        result.raise_failures()
        return result

    return once


def _pipeline_run(engine: DeviceEngine, folder: Path) -> Callable[[], object]:
    """Returns a function that runs the stock pipeline from prompt to PNG, with the engine's modules
    and diffusers' attention.
    """
    model, clip, vae = pipeline_recipes(MINI / "pipeline")
    control = controlnet_recipe(MINI / "controlnet" / "silhouette")
    store, device, dtype = engine.models.store, engine.models.device, engine.models.dtype
    network, control_net = (
        store.network(model.network, device, dtype),
        engine.models.module(control),
    )
    pipeline = StableDiffusionXLControlNetPipeline(
        vae=store.vae(vae.vae, device, dtype),
        text_encoder=store.text_encoder(clip.encoders[0].encoder, device, dtype),
        text_encoder_2=store.text_encoder(clip.encoders[1].encoder, device, dtype),
        tokenizer=store.tokenizer(clip.encoders[0]),
        tokenizer_2=store.tokenizer(clip.encoders[1]),
        **{family_of(model.network).network.part: network},
        controlnet=control_net,
        scheduler=EulerDiscreteScheduler.from_pretrained(MINI / "pipeline" / "scheduler"),
        force_zeros_for_empty_prompt=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    image = load_image(_silhouette())[0].movedim(-1, 1)
    processors = {id(module): dict(module.attn_processors) for module in (network, control_net)}

    def once() -> object:
        for module in (network, control_net):
            module.set_attn_processor(AttnProcessor2_0())
        try:
            picture = pipeline(
                PROMPT,
                image=image,
                negative_prompt="",
                height=128,
                width=128,
                num_inference_steps=STEPS,
                guidance_scale=4.0,
            ).images[0]
        finally:
            for module in (network, control_net):
                module.set_attn_processor(dict(processors[id(module)]))
        picture.save(folder / "theirs.png", compress_level=COMPRESS_LEVEL)
        return picture

    return once


def _silhouette() -> Path:
    return next(iter(sorted((MINI / "examples").glob("*silhouette*.png"))))


def _start(command: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, capture_output=True)


def _imported(arguments: list[str]) -> set[str]:
    """Returns the large libraries that a command of `katz` imports."""
    code = (
        "import sys\nsys.argv = ['katz', *sys.argv[1:]]\nfrom katz_graph.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('heavy:', *sorted({'torch', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    ).stdout
    return set(output.rsplit("heavy:", 1)[1].split())
