"""Measures a finished training with stock diffusers pipelines instead of the engine: with the
judge, and as a contact sheet of painted pictures with their captions.
"""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DiffusionPipeline
from PIL import Image, ImageDraw

from katz_graph.mini.draw import draw
from katz_graph.mini.evaluate import HINTS, Paint, evaluate, failures, held_out_scenes
from katz_graph.mini.judge import load_judge
from katz_graph.mini.text import LENGTH
from katz_graph.mini.train_judge import examine
from katz_graph.mini.train_noise import NOISE
from katz_graph.mini.train_transformer import FLOW, load_flow_painter
from katz_graph.mini.train_transformer_lora import ALPHA, RANK, STYLE, attach, load_lora
from katz_graph.mini.training import load_model
from katz_graph.mini.world import STYLES, caption
from katz_graph.picture.filters import canny

COLUMNS = 8
SIDE, LABEL, GAP = 128, 34, 4


def measure(weights: Path, few: bool, transformer_alone: bool = False) -> None:
    """Examines the judge on drawn pictures, then judges stock diffusers on both families, or on the
    transformer alone. Prints a table, then one line of JSON.
    """
    model = load_judge(weights / "judge")
    figures = {f"judge_{name}": value for name, value in examine(model).items()}
    counts = (60, 40, 20, 20) if few else (200, 100, 50, 50)
    families: list[tuple[str, Paint, Sequence[str], Sequence[str]]] = [
        ("flow_", StockFlowPaint(weights), HINTS[:1], (STYLE,))
    ]
    if not transformer_alone:
        paint = StockPaint(weights)
        families.insert(0, ("", paint, HINTS, STYLES))
        contact_sheet(paint, weights.parent / "contact_sheet.png")
    missed = list[str]()
    for prefix, painter, hints, styles in families:
        found = evaluate(painter, model, *counts, hints=hints, styles=styles)
        figures |= {prefix + name: value for name, value in found.items()}
        missed += [prefix + one for one in failures(found)]
    for name, value in figures.items():
        print(f"{name:32} {value:.3f}")
    print(json.dumps({"bench": "mini", "ok": not missed, "metrics": figures, "missed": missed}))


def drawn(channels: int, height: int, width: int, seeds: Sequence[int]) -> torch.Tensor:
    """Draws noise [B, channels, height / 8, width / 8], each picture's noise from its seed."""
    shape = 1, channels, height // 8, width // 8
    return torch.cat(
        [torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in seeds]
    )


class StockPaint:
    """Paints with the stock pipeline of the noise-predicting miniature over a `weights` folder,
    Euler, fp32; with a ControlNet if one is requested.
    """

    def __init__(self, weights: Path, guidance: float = 4.0) -> None:
        self.weights, self.guidance = weights, guidance
        self.pipeline = DiffusionPipeline.from_pretrained(
            weights / "pipeline", torch_dtype=torch.float32
        )
        self.pipeline.set_progress_bar_config(disable=True)
        self.loaded: tuple[str, ...] = ()

    def __call__(
        self,
        captions: list[str],
        seeds: list[int],
        control: tuple[str, torch.Tensor] | None = None,
        loras: Sequence[tuple[str, float]] = (),
        steps: int = 20,
        height: int = 128,
        width: int = 128,
    ) -> torch.Tensor:
        """Paints pictures [B, height, width, 3] in 0..1."""
        names = tuple(name for name, _ in loras)
        if names != self.loaded:
            self.pipeline.unload_lora_weights()
            for name in names:
                self.pipeline.load_lora_weights(
                    self.weights / "loras" / f"{name}.safetensors", adapter_name=name
                )
            self.loaded = names
        if names:
            self.pipeline.set_adapters(list(names), [strength for _, strength in loras])
        common = {
            "prompt": captions,
            "height": height,
            "width": width,
            "num_inference_steps": steps,
            "guidance_scale": self.guidance,
            "latents": drawn(4, height, width, seeds),
            "output_type": "pt",
        }
        if control is None:
            pictures = self.pipeline(**common).images
        else:
            kind, hints = control
            model = load_model(self.weights / "controlnet" / kind)
            guided = NOISE.control_pipeline(**self.pipeline.components, controlnet=model)
            guided.set_progress_bar_config(disable=True)
            pictures = guided(**common, image=hints.permute(0, 3, 1, 2)).images
        return pictures.permute(0, 2, 3, 1).float()  # type: ignore[no-any-return]


class StockFlowPaint:
    """Paints with the stock pipeline of the miniature transformer in a `weights` folder: Euler with
    a shift of 3, fp32, and a ControlNet if requested. Encodes captions as training does: the
    pipeline needs a projection in its first CLIP encoder, which is shared with a family that must
    not have one.
    """

    def __init__(self, weights: Path, guidance: float = 5.0) -> None:
        self.weights, self.guidance = weights, guidance
        flow = weights / "flow"
        vae = AutoencoderKL.from_pretrained(flow / "vae", torch_dtype=torch.float32)
        # The pipeline samples a hint's latents; training and ComfyUI use their mean. Hence zero
        # variance.
        self.channels = vae.config.latent_channels
        vae.encoder.conv_out.weight.data[self.channels :] = 0.0
        vae.encoder.conv_out.bias.data[self.channels :] = -30.0
        self.painter = load_flow_painter(weights / "pipeline", flow)
        self.styled = attach(self.painter.transformer)
        load_lora(self.styled, weights / "loras" / f"flow-{STYLE}.safetensors")
        self.parts = {
            FLOW.part: self.painter.transformer,
            "vae": vae,
            "scheduler": type(FLOW.scheduler()).from_pretrained(flow / "scheduler"),
        } | {
            f"{part}{number}": None
            for part in ("text_encoder", "tokenizer")
            for number in ("", "_2", "_3")
        }

    @torch.no_grad()
    def __call__(
        self,
        captions: list[str],
        seeds: list[int],
        control: tuple[str, torch.Tensor] | None = None,
        loras: Sequence[tuple[str, float]] = (),
        steps: int = 20,
    ) -> torch.Tensor:
        """Paints pictures [B, 128, 128, 3] in 0..1. Supports only the LoRA of `STYLE`."""
        for layer in self.styled.values():
            layer.scale = dict(loras).get(STYLE, 0.0) * ALPHA / RANK
        hidden, pooled = self.painter.encode(captions, LENGTH)
        no_hidden, no_pooled = self.painter.encode([""] * len(captions), LENGTH)
        common = {
            "prompt_embeds": hidden,
            "pooled_prompt_embeds": pooled,
            "negative_prompt_embeds": no_hidden,
            "negative_pooled_prompt_embeds": no_pooled,
            "height": SIDE,
            "width": SIDE,
            "num_inference_steps": steps,
            "guidance_scale": self.guidance,
            "latents": drawn(self.channels, SIDE, SIDE, seeds),
            "output_type": "pt",
        }
        if control is None:
            pipeline = FLOW.pipeline(**self.parts)
        else:
            kind, hints = control
            model = load_model(self.weights / "controlnet" / f"flow-{kind}")
            pipeline = FLOW.control_pipeline(**self.parts, controlnet=model)
            common["control_image"] = 2 * hints.permute(0, 3, 1, 2) - 1  # range of tensor input
        pipeline.set_progress_bar_config(disable=True)
        return pipeline(**common).images.permute(0, 2, 3, 1).float()  # type: ignore[no-any-return]


def contact_sheet(paint: Paint, output: Path) -> None:
    """Paints pictures of one and of two things, with hints for both ControlNets, in each style and
    in a pair of styles; all captions are held out.
    """
    ones, twos = held_out_scenes(2 * COLUMNS, 1, 11), held_out_scenes(2 * COLUMNS, 2, 12)
    rows: list[list[Image.Image]] = []
    for scenes in (ones[:COLUMNS], ones[COLUMNS:], twos[:COLUMNS], twos[COLUMNS:]):
        captions = [caption(scene) for scene in scenes]
        rows.append(row(paint, captions, captions))
    half = COLUMNS // 2
    drawings = [draw(scene, SIDE, SIDE, index) for index, scene in enumerate(ones[:2] + twos[:2])]
    silhouettes = (
        torch.from_numpy(np.stack([drawing.silhouette for drawing in drawings])).float() / 255
    )
    edges = canny(
        torch.from_numpy(np.stack([drawing.picture for drawing in drawings])).float() / 255,
        0.4,
        0.8,
    )
    for kind, maps in (("silhouette", silhouettes), ("edges", edges)):
        hints = maps.unsqueeze(-1).expand(-1, -1, -1, 3)
        captions = [caption(scene) for scene in ones[:2] + twos[:2]]
        shown = row(
            paint, captions, [f"{kind}: {text}" for text in captions], control=(kind, hints)
        )
        asked = [tile(hint, f"{kind} asked for") for hint in hints]
        rows.append([image for pair in zip(asked[:half], shown, strict=True) for image in pair])
    captions = [caption(scene) for scene in ones[:half] + twos[:half]]
    for loras in (
        (("sticker", 1.0),),
        (("stripes", 1.0),),
        (("dusk", 1.0),),
        (("sticker", 1.0), ("stripes", 1.0)),
    ):
        name = " + ".join(style for style, _ in loras)
        rows.append(row(paint, captions, [f"{name}: {text}" for text in captions], loras=loras))
    sheet = Image.new("RGB", (COLUMNS * (SIDE + GAP), len(rows) * (SIDE + LABEL)), "white")
    for y, images in enumerate(rows):
        for x, image in enumerate(images):
            sheet.paste(image, (x * (SIDE + GAP), y * (SIDE + LABEL)))
    # MAXCOVERAGE preserves rare colours
    colours = sheet.quantize(160, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    colours.save(output, optimize=True)


def row(paint: Paint, captions: list[str], labels: list[str], **how: object) -> list[Image.Image]:
    settings = {"control": None, "loras": (), "steps": 20, **how}
    pictures = paint(captions, list(range(len(captions))), **settings)  # type: ignore[arg-type]
    return [tile(picture, label) for picture, label in zip(pictures, labels, strict=True)]


def tile(picture: torch.Tensor, label: str) -> Image.Image:
    """Draws a picture [128, 128, 3] in 0..1 above two or three lines of text."""
    image = Image.new("RGB", (SIDE + GAP, SIDE + LABEL), "white")
    image.paste(Image.fromarray((picture * 255).round().clamp(0, 255).byte().numpy()), (0, 0))
    ImageDraw.Draw(image).text(
        (0, SIDE + 1), "\n".join(textwrap.wrap(label, 26)[:3]), "black", font_size=10, spacing=1
    )
    return image
