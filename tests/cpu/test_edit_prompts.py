"""Prompts with pictures give the text encoder and the VAE pictures of ComfyUI's sizes, in the words
that the models were trained with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    ConditioningEntry,
    Prompt,
    References,
    VaeRecipe,
)
from katz_graph.executor.rehearsal import DEVICE, PlanningEngine
from katz_graph.models.families.qwen_image.family import FAMILY
from katz_graph.models.loading.sources import clip_recipe
from katz_graph.models.text.chat import EDITING
from katz_graph.models.text.pictures import shown
from katz_graph.models.text.tokens import load_tokenizer, prompt_length, said
from katz_graph.models.vae.kinds import QWEN_IMAGE
from katz_graph.nodes.conditioning import ConditioningZeroOut
from katz_graph.nodes.edit_prompts import TextEncodeQwenImageEdit, TextEncodeQwenImageEditPlus
from katz_graph.testing.requests import bare_context

VAE = VaeRecipe(Component("a VAE", (), json.dumps({"_class_name": QWEN_IMAGE.class_name})))
BLOCK = "<|vision_start|><|image_pad|><|vision_end|>"
SHAPES = {  # of the tensors that tell what a Qwen2.5-VL is
    "model.embed_tokens.weight": (8, 128),
    "model.layers.0.self_attn.q_proj.weight": (128, 128),
    "model.layers.0.self_attn.k_proj.weight": (128, 128),
    "model.layers.0.self_attn.k_proj.bias": (128,),
    "model.layers.0.mlp.gate_proj.weight": (8, 128),
    "visual.patch_embed.proj.weight": (80, 3, 2, 14, 14),
    "visual.blocks.0.mlp.gate_proj.weight": (8, 80),
    "visual.merger.mlp.2.weight": (128, 320),
}


@dataclass
class Recording(PlanningEngine[Any]):
    """Records the pictures that a VAE encodes."""

    encoded: list[Tensor] = field(default_factory=list)

    def encode_image(self, vae: VaeRecipe, pixels: Tensor, *rest: Any, **more: Any) -> Tensor:
        self.encoded.append(pixels)
        return PlanningEngine.encode_image(self, vae, pixels, *rest, **more)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> ClipRecipe:
    path = tmp_path_factory.mktemp("clip") / "qwen.safetensors"
    save_file({name: torch.zeros(shape) for name, shape in SHAPES.items()}, path)
    return clip_recipe([path], layout=FAMILY.text_layout)


def made(node: Any, *given: Any, **images: Tensor) -> tuple[ConditioningEntry, list[Tensor]]:
    """Returns a node's conditioning, and the pictures that it gave the VAE."""
    engine = Recording(DEVICE, lambda region: None)
    clip, *vae = given
    (entry,) = node.run(clip, bare_context(engine), *vae, **images)
    return entry, engine.encoded


def prompt_of(entry: ConditioningEntry) -> Prompt:
    assert isinstance(entry.encoding, Prompt)
    return entry.encoding


def references_of(entry: ConditioningEntry) -> References:
    assert entry.references is not None
    return entry.references


def by_area(image: Tensor, height: int, width: int) -> Tensor:
    moved = image[:1, ..., :3].movedim(-1, 1)
    resized: Tensor = torch.nn.functional.interpolate(moved, (height, width), mode="area")
    return resized.movedim(1, -1)


def test_one_picture_has_one_size_for_the_encoder_and_the_vae(clip: ClipRecipe) -> None:
    image = torch.rand(2, 200, 300, 4)  # of a batch the first, without alpha
    entry, encoded = made(TextEncodeQwenImageEdit(prompt="a cube"), clip, VAE, image=image)
    (seen,) = prompt_of(entry).pictures
    whole = by_area(image, 836, 1254)
    assert torch.equal(seen.pixels, whole)
    assert torch.equal(encoded[0], whole[:, 2:834, 3:1251])  # whole cells of the latent
    (latent,) = references_of(entry).latents
    assert latent.pixels.shape == (1, 16, 104, 156)
    tokens = load_tokenizer(clip.encoders[0])
    words = tokens(EDITING.format(f"{BLOCK}a cube")).input_ids
    # 64 tokens of the system's turn are dropped; 30 x 45 rows take the place of one token
    assert prompt_length(prompt_of(entry)) == len(words) - 64 + 30 * 45 - 1


def test_several_pictures_have_a_size_each_and_keep_their_numbers(clip: ClipRecipe) -> None:
    images = {"image2": torch.rand(1, 200, 300, 3), "image3": torch.rand(1, 300, 300, 1)}
    node = TextEncodeQwenImageEditPlus(prompt="a cube")
    entry, encoded = made(node, clip, VAE, **images)
    seen = prompt_of(entry).pictures
    assert torch.equal(seen[0].pixels, by_area(images["image2"], 314, 470))
    assert seen[1].pixels.shape == (1, 384, 384, 3)  # of a grey picture
    assert [one.shape[1:3] for one in encoded] == [(840, 1256), (1024, 1024)]
    assert len(references_of(entry).latents) == 2
    tokens = load_tokenizer(clip.encoders[0])
    text = EDITING.format(f"Picture 2: {BLOCK}Picture 3: {BLOCK}a cube")
    words, prompt = tokens(text).input_ids, prompt_of(entry)
    found = said(tokens, prompt.text, prompt.layout, pictures=shown(prompt, 0))
    (place,) = tokens(BLOCK).input_ids[1:2]
    assert [one for one, _ in found if isinstance(one, int)] == [w for w in words if w != place]
    assert prompt_length(prompt) == len(words) - 64 - 2 + 11 * 17 + 14 * 14


def test_without_pictures_the_nodes_differ_by_their_templates(clip: ClipRecipe) -> None:
    """As in ComfyUI: one of them always has the template of editing models."""
    tokens = load_tokenizer(clip.encoders[0])
    for kind, template, dropped in (
        (TextEncodeQwenImageEdit, clip.layout.template, 34),
        (TextEncodeQwenImageEditPlus, EDITING, 64),
    ):
        entry, encoded = made(kind(prompt="a cube"), clip, VAE)
        assert entry.references is None and not encoded
        length = len(tokens(template.format("a cube")).input_ids) - dropped
        assert prompt_length(prompt_of(entry)) == length


def test_without_a_vae_only_the_encoder_sees_the_pictures(clip: ClipRecipe) -> None:
    for node, name in (
        (TextEncodeQwenImageEdit(prompt=""), "image"),
        (TextEncodeQwenImageEditPlus(prompt=""), "image1"),
    ):
        entry, _ = made(node, clip, **{name: torch.rand(1, 8, 8, 3)})
        assert entry.references is None and len(prompt_of(entry).pictures) == 1


@pytest.mark.parametrize(
    ("size", "seen", "encoded"),
    [
        ((1, 1), [(1024, 1024), (384, 384)], [(1024, 1024), (1024, 1024)]),
        ((1, 4000), [(16, 64763), (6, 24286)], [(16, 64760), (16, 64760)]),
        ((20_000, 1), [(144815, 7), (54306, 3)], [(), (144816, 8)]),
    ],
)
def test_tiny_and_narrow_pictures_are_scaled(
    size: tuple[int, int], seen: list[Any], encoded: list[Any], clip: ClipRecipe
) -> None:
    nodes = (
        (TextEncodeQwenImageEdit(prompt=""), "image"),
        (TextEncodeQwenImageEditPlus(prompt=""), "image1"),
    )
    for (node, name), wanted, given in zip(nodes, seen, encoded, strict=True):
        images = {name: torch.rand(1, *size, 3)}
        entry, _ = made(node, clip, **images)
        assert prompt_of(entry).pictures[0].pixels.shape[1:3] == wanted
        if not given:  # less than a cell of the latent
            with pytest.raises(InputError, match=r"^TextEncodeQwenImageEdit: .* 7x144815, expec"):
                made(node, clip, VAE, **images)
            continue
        assert made(node, clip, VAE, **images)[1][0].shape[1:3] == given


def test_zeros_in_place_of_a_text_keep_its_references(clip: ClipRecipe) -> None:
    node = TextEncodeQwenImageEditPlus(prompt="a cube")
    entry, _ = made(node, clip, VAE, image1=torch.rand(1, 8, 8, 3))
    (zeroed,) = ConditioningZeroOut().run((entry,))
    assert zeroed.references == entry.references and zeroed.encoding != entry.encoding


def test_encoders_that_see_nothing_are_refused_with_a_picture(clip: ClipRecipe) -> None:
    qwen3 = Component("q3", (), json.dumps({"architectures": ["Qwen3Model"], "hidden_size": 2560}))
    blind = replace(clip, encoders=(replace(clip.encoders[0], encoder=qwen3),))
    node, image = TextEncodeQwenImageEdit(prompt="a cube"), torch.rand(1, 8, 8, 3)
    made(node, blind)
    with pytest.raises(InputError, match=r"^q3: Qwen3 4B sees no pictures: .*Qwen3-VL or Qwen2\.5"):
        made(node, blind, image=image)
    with pytest.raises(InputError, match=r"^TextEncodeQwenImageEdit: image has the shape \[0, 8,"):
        made(node, clip, image=image[:0])
