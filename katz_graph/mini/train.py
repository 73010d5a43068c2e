"""`python -m katz_graph.mini.train STAGE --work FOLDER`: trains the miniatures in stages. Each
stage reads the results of earlier stages from the working folder. `all` runs the stages that are
not done, in order, and prints their durations; `ship` collects the weights. `all --beside-shipped`
trains only the transformer and its parts, with the text encoders that the package ships.
"""

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from safetensors.torch import load_file, save_file

from katz_graph.files.folders import MINI
from katz_graph.mini.corpus import Bucket, build_corpus
from katz_graph.mini.draw import draw
from katz_graph.mini.measure import measure
from katz_graph.mini.stage_log import StageLog
from katz_graph.mini.train_controlnet import train_controlnet
from katz_graph.mini.train_judge import train_judge
from katz_graph.mini.train_lora import train_loras
from katz_graph.mini.train_noise import load_painter, new_painter, save_pipeline, train_noise
from katz_graph.mini.train_transformer import (
    FLOW,
    STATE,
    load_flow_painter,
    new_flow_painter,
    train_transformer,
)
from katz_graph.mini.train_transformer_controlnet import train_transformer_controlnet
from katz_graph.mini.train_transformer_lora import STYLE, train_transformer_lora
from katz_graph.mini.train_vae import train_vae
from katz_graph.mini.training import Budget, prepare
from katz_graph.mini.world import Scene, Thing

STAGES = (
    "vae",
    "decoder",
    "flow-vae",
    "judge",
    "noise",
    "flow",
    "flow-silhouette",
    "flow-lora",
    "edges",
    "silhouette",
    "lora",
    "ship",
    "evaluate",
)
# stages of the transformer and its parts, which use existing text encoders
OF_TRANSFORMER = ("flow-vae", "flow", "flow-silhouette", "flow-lora", "ship", "evaluate")
STEPS = {
    "vae": 6000,
    "decoder": 4000,
    "flow-vae": 3000,
    "judge": 2500,
    "noise": 8000,
    "flow": 10000,
    "flow-silhouette": 1200,
    "flow-lora": 1500,
    "edges": 2500,
    "silhouette": 2500,
    "lora": 3000,
}
# measured: after this short training they are faint (recognised in 70 and 87 % of pictures)
GAINS = {"stripes": 1.25, "sticker": 1.15}
# stage -> state file from which an interrupted training resumes
STATES = {"flow": Path("flow") / STATE}
# the scene in examples/*.png
EXAMPLE = Scene(
    "sky", (Thing("star", "red", "large", 0, 1), Thing("heart", "purple", "medium", 2, 1))
)


def strengthen(file: Path, gain: float) -> None:
    """Scales the update of a LoRA, so that its style is clearly visible at strength 1."""
    tensors = load_file(file)
    scaled = {
        name: tensor * gain if "up.weight" in name or "lora_B" in name else tensor
        for name, tensor in tensors.items()
    }
    save_file(scaled, file, metadata={"format": "pt", "style": file.stem})


def load_vae(folder: Path) -> AutoencoderKL:
    vae: AutoencoderKL = AutoencoderKL.from_pretrained(folder, torch_dtype=torch.float32)
    prepare(vae)
    return vae


def load_corpus(work: Path, vae: AutoencoderKL) -> list[Bucket]:
    return build_corpus(vae, work / "corpus.pt", native=14000, other=700, seed=100)


def load_flow_corpus(work: Path, vae: AutoencoderKL) -> list[Bucket]:
    return build_corpus(vae, work / "flow" / "corpus.pt", native=14000, other=700, seed=100)


def finest_vae(work: Path) -> Path:
    """Returns the VAE with the sharpened decoder if that stage has run, else the VAE of the first
    stage.
    """
    sharpened = work / "decoder"
    return sharpened if sharpened.exists() else work / "vae"


def take_shipped(work: Path) -> None:
    """Copies the package's weights into the working folder, where the transformer's stages read
    them.
    """
    others = shutil.ignore_patterns("flow*")
    shutil.copytree(MINI, work / "shipped", ignore=others, dirs_exist_ok=True)
    shutil.copytree(MINI / "pipeline", work / "pipeline", dirs_exist_ok=True)
    shutil.copytree(MINI / "pipeline" / "vae", work / "vae", dirs_exist_ok=True)


def ship(work: Path) -> None:
    """Collects the weights that the package ships in work/weights, in fp16, with example inputs."""
    weights = work / "weights"
    shutil.rmtree(weights, ignore_errors=True)
    if (work / "shipped").exists():
        shutil.copytree(work / "shipped", weights)
    else:
        ship_noise(work, weights)
    ship_transformer(work / "flow", weights)
    for file in weights.rglob("config.json"):  # diffusers records the source folder there
        settings = json.loads(file.read_text("utf-8"))
        if settings.pop("_name_or_path", None) is not None:
            file.write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    size = sum(file.stat().st_size for file in weights.rglob("*") if file.is_file())
    print(f"shipped {size / 1e6:.1f} MB in {weights}")


def ship_transformer(flow: Path, weights: Path) -> None:
    for name in (FLOW.part, "text_encoder_3", "tokenizer_3", "scheduler"):
        shutil.copytree(flow / name, weights / "flow" / name)
    load_vae(flow / "vae").half().save_pretrained(weights / "flow" / "vae")
    shutil.copytree(flow / "silhouette", weights / "controlnet" / "flow-silhouette")
    shutil.copy(flow / "lora.safetensors", weights / "loras" / f"flow-{STYLE}.safetensors")


def ship_noise(work: Path, weights: Path) -> None:
    save_pipeline(load_painter(work / "pipeline"), load_vae(finest_vae(work)), weights / "pipeline")
    for name in ("edges", "silhouette"):
        shutil.copytree(work / "controlnet" / name, weights / "controlnet" / name)
    shutil.copytree(work / "loras", weights / "loras")
    for style, gain in GAINS.items():
        strengthen(weights / "loras" / f"{style}.safetensors", gain)
    shutil.copytree(work / "judge", weights / "judge")
    (weights / "examples").mkdir()
    drawing = draw(EXAMPLE, 128, 128, 0)
    Image.fromarray(drawing.picture).save(weights / "examples" / "edges_source.png", optimize=True)
    white = np.repeat(drawing.silhouette[..., None], 3, axis=2)
    Image.fromarray(white).save(weights / "examples" / "silhouette.png", optimize=True)
    alpha = np.full(drawing.silhouette.shape, 255, np.uint8)
    alpha[72:120, 32:96] = 0  # around the lower thing: repainted by an inpainting workflow
    Image.fromarray(np.dstack([drawing.picture, alpha])).save(
        weights / "examples" / "mask.png", optimize=True
    )


def run(stage: str, work: Path, budget: Budget, seed: int, few: bool, resume: bool) -> None:
    torch.manual_seed(seed)
    if stage == "vae":
        (work / "corpus.pt").unlink(missing_ok=True)  # encoded by another VAE
        train_vae(work / "vae", budget, seed)
    elif stage == "judge":
        train_judge(work / "judge", budget, seed)
    elif stage == "decoder":
        train_vae(
            work / "decoder",
            budget,
            seed + 1,
            peak=1e-3,
            start_from=work / "vae",
            decoder_only=True,
        )
    elif stage == "noise":
        vae = load_vae(work / "vae")
        painter = load_painter(work / "pipeline") if resume else new_painter(work / "tokenizers")
        train_noise(
            painter,
            vae,
            load_corpus(work, vae),
            work / "pipeline",
            budget,
            seed,
            peak=6e-4 if resume else 1.2e-3,
        )
    elif stage in ("edges", "silhouette"):
        corpus = load_corpus(work, load_vae(work / "vae"))
        output = work / "controlnet" / stage
        painter = load_painter(work / "pipeline")
        kind = cast(Literal["edges", "silhouette"], stage)
        train_controlnet(kind, painter, corpus, output, budget, seed, resume=resume)
    elif stage == "lora":
        vae = load_vae(work / "vae")
        native = load_corpus(work, vae)[0]
        train_loras(
            load_painter(work / "pipeline"),
            vae,
            native,
            work / "loras",
            budget,
            seed=seed,
            resume=resume,
        )
    elif stage.startswith("flow"):
        run_flow(stage, work / "flow", work, budget, seed, resume)
    elif stage == "ship":
        ship(work)
    else:
        measure(work / "weights", few, transformer_alone=(work / "shipped").exists())


def run_flow(stage: str, folder: Path, work: Path, budget: Budget, seed: int, resume: bool) -> None:
    """Runs a stage of the transformer and its parts, which are stored in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    clip = work / "pipeline"
    if stage == "flow-vae":
        given = finest_vae(work)
        (folder / "corpus.pt").unlink(missing_ok=True)
        train_vae(folder / "vae", budget, seed, start_from=given, space=FLOW.space)
        return
    vae = load_vae(folder / "vae")
    buckets = load_flow_corpus(work, vae)
    if stage == "flow":
        painter = new_flow_painter(clip, folder / "tokenizer_3")  # resuming replaces the weights
        return train_transformer(painter, buckets, folder, budget, seed, resume=resume)
    painter = load_flow_painter(clip, folder)
    if stage == "flow-silhouette":
        output = folder / "silhouette"
        return train_transformer_controlnet(painter, vae, buckets[0], output, budget, seed=seed)
    train_transformer_lora(painter, vae, buckets[0], folder / "lora.safetensors", budget, seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=(*STAGES, "all"))
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for checkpoints and results"
    )
    parser.add_argument(
        "--steps", type=int, help="updates of this stage; each stage has its own default"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="stop this stage by the clock instead (not repeatable exactly)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--few", action="store_true", help="evaluate on fewer captions")
    parser.add_argument(
        "--resume",
        action="store_true",
        help=(
            "noise, edges, silhouette, lora: train for one more budget from the checkpoint; flow: "
            "continue from there up to the budget"
        ),
    )
    parser.add_argument(
        "--beside-shipped",
        action="store_true",
        help="all: train only the transformer's parts, with the package's text encoders",
    )
    arguments = parser.parse_args()
    if arguments.beside_shipped and arguments.stage != "all":
        parser.error("--beside-shipped: only the stage all takes it")
    # eight picture sizes overflow the default of 1,024
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "20000")
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    arguments.work.mkdir(parents=True, exist_ok=True)
    has_shipped_weights = (arguments.work / "shipped").exists()
    log, together = StageLog(arguments.work, STAGES), arguments.stage == "all"
    if arguments.beside_shipped:
        if any(arguments.work.iterdir()) and not has_shipped_weights:
            parser.error(f"--beside-shipped: {arguments.work} contains another training")
        take_shipped(arguments.work)
    elif has_shipped_weights and arguments.stage not in OF_TRANSFORMER:
        parser.error(f"{arguments.work} was started with --beside-shipped: pass it again")
    every = OF_TRANSFORMER if arguments.beside_shipped else STAGES
    for stage in every if together else (arguments.stage,):
        steps = None if arguments.minutes else arguments.steps or STEPS.get(stage)
        asked: dict[str, Any] = {"updates": steps, "minutes": arguments.minutes}
        asked |= {"few": arguments.few} if stage == "evaluate" else {"seed": arguments.seed}
        if together and log.done(stage, asked):
            continue
        state = arguments.work / STATES[stage] if stage in STATES else None
        goes_on = together and log.cut_off(stage, asked) and state is not None and state.exists()
        resume = arguments.resume or goes_on
        if state is not None and not resume:
            state.unlink(missing_ok=True)  # state of another training
        budget = Budget(steps, arguments.minutes)
        log.begin(stage, asked)
        run(stage, arguments.work, budget, arguments.seed, arguments.few, resume)
        log.end(stage, budget.seconds)
    print(log)


if __name__ == "__main__":
    main()
