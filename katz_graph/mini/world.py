"""Defines the small world of the miniature models: shapes, colours, backgrounds, places, sizes and
styles. Samples scenes, captions them and decides which are held out. Must not know pixels.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

SHAPES = ("circle", "square", "triangle", "star", "heart", "cross", "ring", "moon")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
BACKGROUNDS = ("grey", "sand", "grass", "sky", "night", "brick", "checker")
SIZES = ("small", "medium", "large")
STYLES = ("sticker", "stripes", "dusk")
PLACES = (
    "top left",
    "top",
    "top right",
    "left",
    "centre",
    "right",
    "bottom left",
    "bottom",
    "bottom right",
)
RELATIONS = ("above", "below", "left of", "right of")
RELATION_CELLS = {  # (cell of the first object, cell of the second)
    "above": ((0, 1), (2, 1)),
    "below": ((2, 1), (0, 1)),
    "left of": ((1, 0), (1, 2)),
    "right of": ((1, 2), (1, 0)),
}
HELD_OUT_PART = 10  # one combination in ten is never trained on


@dataclass(frozen=True, slots=True)
class Thing:
    """Describes an object; row and column count the cells of a 3×3 grid from the top left."""

    shape: str
    colour: str
    size: str
    row: int
    column: int

    @property
    def place(self) -> str:
        return PLACES[3 * self.row + self.column]


@dataclass(frozen=True, slots=True)
class Scene:
    background: str
    things: tuple[Thing, ...]

    @property
    def relation(self) -> str | None:
        if len(self.things) < 2:
            return None
        cells = tuple((thing.row, thing.column) for thing in self.things)
        return next(name for name, pair in RELATION_CELLS.items() if pair == cells)

    @property
    def held_out(self) -> bool:
        """Returns whether the scene belongs to the fixed tenth of attribute combinations that is
        held out. A hash of its content decides, regardless of the order of its things.
        """
        things = sorted(f"{t.shape} {t.colour} {t.size} {t.row} {t.column}" for t in self.things)
        digest = hashlib.sha256("|".join([self.background, *things]).encode()).digest()
        return digest[0] % HELD_OUT_PART == 0


def _pick(generator: np.random.Generator, names: tuple[str, ...]) -> str:
    return names[int(generator.integers(len(names)))]


def sample_scene(
    generator: np.random.Generator, count: int | None = None, held_out: bool = False
) -> Scene:
    """Samples a random scene of `count` things (by default one or two), from the training or the
    held-out share.
    """
    while True:
        number = count if count is not None else int(generator.integers(1, 3))
        one = number == 1
        cells = (
            ((int(generator.integers(3)), int(generator.integers(3))),)
            if one
            else RELATION_CELLS[_pick(generator, RELATIONS)]
        )
        things = tuple(
            Thing(
                _pick(generator, SHAPES),
                _pick(generator, COLOURS),
                _pick(generator, SIZES),
                row,
                column,
            )
            for row, column in cells
        )
        scene = Scene(_pick(generator, BACKGROUNDS), things)
        if scene.held_out == held_out:
            return scene


def _noun(shape: str | None, colour: str | None, size: str | None) -> str:
    words = " ".join(word for word in (size, colour, shape or "shape") if word)
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _where(background: str) -> str:
    return {"sky": "in the sky", "night": "at night"}.get(background, f"on {background}")


def caption(scene: Scene) -> str:
    """Returns the complete sentence, e.g. "a small red star above a large blue circle on sand"."""
    nouns = [_noun(thing.shape, thing.colour, thing.size) for thing in scene.things]
    if scene.relation is not None:
        return f"{nouns[0]} {scene.relation} {nouns[1]} {_where(scene.background)}"
    return f"{nouns[0]} at the {scene.things[0].place} {_where(scene.background)}"


def loose_caption(scene: Scene, generator: np.random.Generator, keep: float = 0.9) -> str:
    """Returns a caption of the same scene as a user might type it: attributes omitted (each
    included with probability `keep`), other orders, tags instead of a sentence.
    """

    def maybe(word: str) -> str | None:
        return word if generator.random() < keep else None

    things = [(maybe(t.shape), maybe(t.colour), maybe(t.size)) for t in scene.things]
    background = maybe(scene.background)
    where = "" if background is None else _where(background)
    if background is not None and generator.random() < 0.25:
        where = _pick(
            generator,
            (f"with a {background} background", f"{background} background", f"on {background}"),
        )
    nouns = [_noun(*thing) for thing in things]
    if scene.relation is None:
        place = maybe(scene.things[0].place)
        said = "" if place is None else f"at the {place}"
        if place is not None and generator.random() < 0.3:
            said = _pick(generator, (f"in the {place}", place, f"on the {place}"))
            if place == "centre":
                said = _pick(
                    generator, ("in the middle", "in the center", "in the centre", "centered")
                )
        parts = [nouns[0], said, where]
    else:
        relation: str = scene.relation
        if generator.random() < 0.3 and relation in ("left of", "right of"):
            relation = f"to the {relation}"
        if maybe(relation) is None:
            relation = "and"
        parts = [f"{nouns[0]} {relation} {nouns[1]}", where]
    parts = [part for part in parts if part]
    choice = generator.random()
    if choice < 0.15:
        generator.shuffle(parts)
        return ", ".join(parts)
    if choice < 0.25:
        return (
            f"{_pick(generator, ('a picture of', 'a drawing of', 'an image of'))} {' '.join(parts)}"
        )
    if choice < 0.30:
        return ", ".join(part.removeprefix("a ").removeprefix("an ") for part in parts)
    return " ".join(parts)
