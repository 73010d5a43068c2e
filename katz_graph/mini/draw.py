"""Draws scenes as pictures of any size, plain or in styles, together with their silhouettes, using
Pillow and NumPy. Must not know captions or models.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from katz_graph.mini.world import Scene, Thing

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Points = list[tuple[float, float]]

NATIVE = 128
SUPERSAMPLING = 4
CENTRES = (30 / NATIVE, 0.5, 98 / NATIVE)  # of the cells, as fractions of the height or width
RADIUS = {"small": 13.0, "medium": 19.0, "large": 27.0}  # pixels at the native size
JITTER = 3.0
COLOUR_VALUES = {
    "red": (214, 30, 38),
    "orange": (247, 138, 28),
    "yellow": (250, 228, 50),
    "green": (20, 120, 50),
    "blue": (35, 80, 220),
    "purple": (140, 45, 175),
    "white": (252, 252, 252),
    "black": (12, 12, 12),
}
DUSK = np.array((255, 60, 170), np.float32)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Holds a picture [H, W, 3] in 0..255 and its silhouette [H, W] in 0..255 (white things on
    black).
    """

    picture: Bytes
    silhouette: Bytes


def _circle(radius: float) -> Points:
    angles = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    return [(radius * float(np.cos(a)), radius * float(np.sin(a))) for a in angles]


def _star() -> Points:
    angles = -np.pi / 2 + np.arange(10) * np.pi / 5
    radii = np.where(np.arange(10) % 2 == 0, 1.12, 0.48)
    return [
        (float(r * np.cos(a)), float(r * np.sin(a)) + 0.06)
        for a, r in zip(angles, radii, strict=True)
    ]


def _heart() -> Points:
    t = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    x = np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) / 15.0
    return [(float(a), float(b) - 0.08) for a, b in zip(x, y, strict=True)]


def _cross() -> Points:
    w = 0.34
    return [
        (-w, -1),
        (w, -1),
        (w, -w),
        (1, -w),
        (1, w),
        (w, w),
        (w, 1),
        (-w, 1),
        (-w, w),
        (-1, w),
        (-1, -w),
        (-w, -w),
    ]


OUTLINES: dict[str, Points] = {
    "circle": _circle(0.97),
    "square": [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)],
    "triangle": [(0.0, -1.0), (1.05, 0.82), (-1.05, 0.82)],
    "star": _star(),
    "heart": _heart(),
    "cross": _cross(),
    "ring": _circle(1.0),
    "moon": _circle(1.0),
}
HOLES: dict[str, Points] = {
    "ring": _circle(0.52),
    "moon": [(x + 0.48, y - 0.12) for x, y in _circle(0.86)],
}


def _thing_mask(
    thing: Thing, height: int, width: int, generator: np.random.Generator
) -> Image.Image:
    """Draws the mask of one thing, an "L" image of the picture's size."""
    scale = min(height, width) / NATIVE
    radius = RADIUS[thing.size] * scale * float(generator.uniform(0.95, 1.05))
    x = CENTRES[thing.column] * width + float(generator.uniform(-JITTER, JITTER)) * scale
    y = CENTRES[thing.row] * height + float(generator.uniform(-JITTER, JITTER)) * scale
    left, top = int(x - 1.3 * radius), int(y - 1.3 * radius)
    side = int(2.6 * radius) + 2
    tile = Image.new("L", (side * SUPERSAMPLING, side * SUPERSAMPLING))
    pen = ImageDraw.Draw(tile)
    for points, ink in ((OUTLINES[thing.shape], 255), (HOLES.get(thing.shape), 0)):
        if points is not None:
            pen.polygon(
                [
                    (
                        SUPERSAMPLING * (x - left + radius * a),
                        SUPERSAMPLING * (y - top + radius * b),
                    )
                    for a, b in points
                ],
                ink,
            )
    mask = Image.new("L", (width, height))
    mask.paste(tile.reduce(SUPERSAMPLING), (left, top))
    return mask


@lru_cache(maxsize=256)
def _background(name: str, height: int, width: int, variant: int) -> Floats:
    """Draws a background [H, W, 3] in 0..255. The grain of its patterns is fixed in pixels at every
    size.
    """
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    generator = np.random.default_rng(variant)
    if name == "grey":
        shade = np.zeros((height, width), np.float32)
        dark = light = np.array((128, 128, 130), np.float32)
    elif name == "sand":  # ripples
        phase = variant * np.pi / 4
        shade = 0.5 + 0.5 * np.sin(
            rows * 2 * np.pi / 16 + phase + 1.2 * np.sin(columns * 2 * np.pi / 48)
        )
        dark, light = np.array((214, 186, 132), np.float32), np.array((238, 216, 170), np.float32)
    elif name == "grass":  # tufts: a zigzag of dark and light
        shade = ((rows + np.abs(columns % 16 - 8) + 8 * (variant % 2)) % 16 < 8).astype(np.float32)
        dark, light = np.array((96, 176, 72), np.float32), np.array((140, 212, 100), np.float32)
    elif name == "sky":
        shade = rows / height
        dark, light = np.array((96, 170, 240), np.float32), np.array((196, 226, 246), np.float32)
    elif name == "night":
        shade = rows / height
        dark, light = np.array((36, 40, 96), np.float32), np.array((70, 70, 140), np.float32)
    elif name == "brick":
        line = np.floor((rows + 8 * (variant % 2)) / 16)
        across = (columns + 16 * (line % 2)) % 32
        shade = (((rows % 16) < 2) | (across < 2)).astype(np.float32)
        dark, light = np.array((158, 88, 68), np.float32), np.array((206, 188, 172), np.float32)
    else:  # checker
        shade = ((rows // 16 + columns // 16 + variant) % 2).astype(np.float32)
        dark, light = np.array((150, 152, 160), np.float32), np.array((206, 208, 214), np.float32)
    picture = dark + shade[..., None] * (light - dark)
    if name == "night":  # a few stars, one per 32-pixel cell
        for top in range(0, height, 32):
            for left in range(0, width, 32):
                y = top + 8 * int(generator.integers(4)) + 2
                x = left + 8 * int(generator.integers(4)) + 2
                picture[y : y + 3, x : x + 3] = (225, 225, 205)
    return np.asarray(picture, np.float32)


def draw(
    scene: Scene, height: int, width: int, seed: int, styles: frozenset[str] = frozenset()
) -> Drawing:
    """Draws the scene at `height` × `width`, with positions jittered by `seed`. `styles` of
    `world.STYLES` can be combined: a white sticker border with a dark rim, diagonal stripes, a dusk
    palette.
    """
    generator = np.random.default_rng(seed)
    picture = _background(scene.background, height, width, int(generator.integers(8))).copy()
    silhouette = np.zeros((height, width), np.uint8)
    for thing in scene.things:
        mask = _thing_mask(thing, height, width, generator)
        if "sticker" in styles:
            for grow, ink in ((11, (20, 16, 24)), (7, (250, 250, 250))):
                border = mask.filter(ImageFilter.MaxFilter(grow)).filter(ImageFilter.BoxBlur(0.6))
                picture += (
                    np.asarray(border, np.float32)[..., None]
                    / 255
                    * (np.array(ink, np.float32) - picture)
                )
        coverage = np.asarray(mask, np.float32)[..., None] / 255
        picture += coverage * (np.array(COLOUR_VALUES[thing.colour], np.float32) - picture)
        silhouette = np.maximum(silhouette, np.asarray(mask))
    if "stripes" in styles:
        rows, columns = np.mgrid[0:height, 0:width]
        picture = 0.78 * picture + 56 * ((rows + columns) % 16 < 8)[..., None]
    if "dusk" in styles:
        picture = 0.55 * picture + 0.45 * DUSK
    return Drawing(np.clip(np.rint(picture), 0, 255).astype(np.uint8), silhouette)
