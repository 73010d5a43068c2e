"""Tests that the digests of recipes do not change: cached results and templates on disks have
them as keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from katz_graph.core.added_fields import ADDED, Growing
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    ConditioningEntry,
    ControlNetRecipe,
    ControlUse,
    FileIdentity,
    LearnedWords,
    Lora,
    ModelRecipe,
    Picture,
    Prompt,
    References,
    TextEncoderRecipe,
    TextLayout,
    VaeRecipe,
    digest,
)
from katz_graph.models.family import families

FILE = FileIdentity("/models/a.safetensors", 5, 7, "ab")
PART = Component("/models", (FILE,), '{"a": 1}', "model.", "float8_e4m3fn")
WORDS = (LearnedWords("cat", FILE),)
CLIP = ClipRecipe((TextEncoderRecipe(PART, PART),), (Lora(FILE, 0.5),), -2, WORDS)
PICTURE = Picture("0f", None)  # type: ignore[arg-type]
CONTROL = ControlUse(ControlNetRecipe(PART), PICTURE)
RECORDED = {  # as released
    "e26f560c": ModelRecipe(PART, PART, LatentSpace(16, 8, 0.3611, 0.1159), (Lora(FILE, 0.5),)),
    "4c0c3b22": CLIP,
    "bc3daa2b": ClipRecipe(CLIP.encoders, layout=TextLayout(template="{}!", from_end=2)),
    "0d069b43": VaeRecipe(PART),
    "07c63ca9": Prompt(CLIP, "a (red:1.2) cube", ("second",), (1,)),
    "0f9f1e56": ConditioningEntry(Prompt(CLIP, "a"), (CONTROL,), references=References((PICTURE,))),
}
LAYOUTS = {  # of families, as released
    "SD1.5, SD2 and SDXL": "a33d40af",
    "SD3 and SD3.5": "b7567b06",
    "FLUX.1": "cbf376e2",
    "Z-Image": "e1514f30",
    "HunyuanDiT": "3771db14",
}


@pytest.mark.parametrize("expected", RECORDED)
def test_a_recipe_has_the_digest_that_it_always_had(expected: str) -> None:
    assert digest(RECORDED[expected])[:8] == expected


def test_the_text_layouts_of_older_families_have_their_digests() -> None:
    found = {one.short: digest(one.text_layout)[:8] for one in families()}
    assert found | LAYOUTS == found


@dataclass(frozen=True, slots=True, repr=False)
class Cube(Growing):
    side: int
    paint: str = "red"
    secret: int = field(default=0, repr=False)
    lid: tuple[str, ...] = field(default=(), metadata=ADDED)


def test_an_added_field_shows_only_if_it_differs_from_its_default() -> None:
    assert repr(Cube(2)) == "Cube(side=2, paint='red')"
    assert repr(Cube(2, "blue", 3)) == "Cube(side=2, paint='blue')"
    assert repr(replace(Cube(2), lid=("tin",))) == "Cube(side=2, paint='red', lid=('tin',))"
    assert Cube(2) != Cube(2, lid=("tin",))
