"""Draws the contact sheet: rows of painted pictures with their captions written underneath."""

import textwrap
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from katz_graph.mini.draw import draw
from katz_graph.mini.evaluate import Paint, held_out_scenes
from katz_graph.mini.world import caption
from katz_graph.picture.filters import canny

COLUMNS = 8
SIDE, LABEL, GAP = 128, 34, 4


def tile(picture: torch.Tensor, label: str) -> Image.Image:
    """Draws a picture [128, 128, 3] in 0..1 above two or three lines of text."""
    image = Image.new("RGB", (SIDE + GAP, SIDE + LABEL), "white")
    image.paste(Image.fromarray((picture * 255).round().clamp(0, 255).byte().numpy()), (0, 0))
    ImageDraw.Draw(image).text((0, SIDE + 1), "\n".join(textwrap.wrap(label, 26)[:3]), "black", font_size=10, spacing=1)
    return image


def row(paint: Paint, captions: list[str], labels: list[str], **how: object) -> list[Image.Image]:
    settings = {"control": None, "loras": (), "steps": 20, **how}
    pictures = paint(captions, list(range(len(captions))), **settings)  # type: ignore[arg-type]
    return [tile(picture, label) for picture, label in zip(pictures, labels, strict=True)]


def contact_sheet(paint: Paint, output: Path) -> None:
    """Paints one thing, two things, both ControlNets under their hints, each style and a pair; all
    held-out captions.
    """
    ones, twos = held_out_scenes(2 * COLUMNS, 1, 11), held_out_scenes(2 * COLUMNS, 2, 12)
    rows: list[list[Image.Image]] = []
    for scenes in (ones[:COLUMNS], ones[COLUMNS:], twos[:COLUMNS], twos[COLUMNS:]):
        captions = [caption(scene) for scene in scenes]
        rows.append(row(paint, captions, captions))
    half = COLUMNS // 2
    drawings = [draw(scene, SIDE, SIDE, index) for index, scene in enumerate(ones[:2] + twos[:2])]
    silhouettes = torch.from_numpy(np.stack([drawing.silhouette for drawing in drawings])).float() / 255
    edges = canny(torch.from_numpy(np.stack([drawing.picture for drawing in drawings])).float() / 255, 0.4, 0.8)
    for kind, maps in (("silhouette", silhouettes), ("edges", edges)):
        hints = maps.unsqueeze(-1).expand(-1, -1, -1, 3)
        captions = [caption(scene) for scene in ones[:2] + twos[:2]]
        shown = row(paint, captions, [f"{kind}: {text}" for text in captions], control=(kind, hints))
        asked = [tile(hint, f"{kind} asked for") for hint in hints]
        rows.append([image for pair in zip(asked[:half], shown, strict=True) for image in pair])
    captions = [caption(scene) for scene in ones[:half] + twos[:half]]
    for loras in ((("sticker", 1.0),), (("stripes", 1.0),), (("dusk", 1.0),), (("sticker", 1.0), ("stripes", 1.0))):
        name = " + ".join(style for style, _ in loras)
        rows.append(row(paint, captions, [f"{name}: {text}" for text in captions], loras=loras))
    sheet = Image.new("RGB", (COLUMNS * (SIDE + GAP), len(rows) * (SIDE + LABEL)), "white")
    for y, images in enumerate(rows):
        for x, image in enumerate(images):
            sheet.paste(image, (x * (SIDE + GAP), y * (SIDE + LABEL)))
    colours = sheet.quantize(160, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # keeps rare colours true
    colours.save(output, optimize=True)
