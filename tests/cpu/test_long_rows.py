"""CLIP text encoders with rows of other than 77 tokens follow the file's configuration."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from node_calls import call, context_in
from safetensors.torch import save_file
from tiny_models import folder
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from katz_graph.comfy.facades.clip import ClipFacade
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ClipRecipe, Prompt
from katz_graph.models.costs.counts import Counts
from katz_graph.models.loading.sources import clip_recipe
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.stages import Sized
from katz_graph.models.text.encoder import encode
from katz_graph.models.text.tokens import load_tokenizer, prompt_length, text_size

WORDS = 49408
START, END = 49406, 49407


@cache
def module(row: int, projects: bool = False) -> Any:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(row)
        config = CLIPTextConfig(
            vocab_size=WORDS,
            hidden_size=128 if projects else 64,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2 if projects else 1,
            max_position_embeddings=row,
            projection_dim=64,
            hidden_act="gelu" if projects else "quick_gelu",
            bos_token_id=START,
            eos_token_id=END,
            initializer_factor=4.0,
        )
        return (CLIPTextModelWithProjection if projects else CLIPTextModel)(config).eval()


@cache
def file(row: int) -> Path:
    """Saves a text encoder as published."""
    path = folder() / f"clip-{row}.safetensors"
    tensors = {
        f"text_model.{name.removeprefix('text_model.')}": tensor.detach().clone()
        for name, tensor in module(row).state_dict().items()
    }
    tensors["text_model.embeddings.position_ids"] = torch.arange(row)[None]
    save_file(tensors, path)
    return path


@cache
def place(row: int, projects: bool = False) -> Path:
    """Saves a text encoder with a tokenizer limit of 77."""
    path = folder() / f"clip-{row}-{projects}"
    module(row, projects).save_pretrained(path)
    load_tokenizer(clip_recipe([file(248)]).encoders[0]).save_pretrained(path)
    settings = path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 77}))
    return path


def encoded(clip: ClipRecipe, text: str) -> Any:
    store = ModelStore()
    pairs = [
        (store.text_encoder(one.encoder, "cpu", torch.float32), load_tokenizer(one))
        for one in clip.encoders
    ]
    return encode(pairs, text)


def by_hand(row: int, words: int) -> Tensor:
    """Computes a row of start, words and ends with transformers."""
    ids = [START, *[320] * words]
    ids += [END] * (row - len(ids))
    with torch.no_grad():
        made: Tensor = module(row)(torch.tensor([ids])).last_hidden_state
    return made


@pytest.mark.defect(7)
@pytest.mark.parametrize("row", [77, 248])
@pytest.mark.parametrize("source", ["file", "folder"])
def test_a_prompt_becomes_rows_of_as_many_tokens_as_the_encoder_reads(
    row: int, source: str
) -> None:
    clip = clip_recipe([file(row) if source == "file" else place(row)])
    assert torch.equal(encoded(clip, "a " * 60).hidden, by_hand(row, 60))
    for words in (row - 2, row - 1):
        prompt, rows = Prompt(clip, "a " * words), 1 if words == row - 2 else 2
        assert encoded(clip, prompt.text).hidden.shape == (1, rows * row, 64)
        assert prompt_length(prompt) == rows * row
        size = text_size(prompt, 0)
        assert (size.tokens, size.chunks, size.most) == (words, rows, row - 2)
    full = encoded(clip, "a " * (row - 2)).hidden
    assert torch.equal(full, by_hand(row, row - 2))


@pytest.mark.defect(7)
def test_packs_get_rows_of_the_same_length() -> None:
    tokens = ClipFacade(clip_recipe([file(248)])).tokenize("a " * 100)
    assert [len(row) for row in tokens["l"]] == [248]
    assert [token for token, _ in tokens["l"][0]] == [START, *[320] * 100, *[END] * 147]


@pytest.mark.defect(7)
def test_costs_count_rows_of_that_length() -> None:
    counts = Counts()
    values = module(248).config.to_dict() | {"architectures": ["CLIPTextModel"]}
    one, two = (
        counts.work(values, "text_encoder", Sized(1, 0, 0, count)).flops for count in (248, 496)
    )
    assert two == pytest.approx(2 * one)


@pytest.mark.defect(7)
@pytest.mark.parametrize(
    ("words", "length"),
    [(20, 77), (100, 154), (200, 231), (246, 248)],  # rows of 248 and 77 tokens
)
def test_rows_of_unlike_lengths_side_by_side_are_cut_to_the_shorter(
    words: int, length: int
) -> None:
    clip = clip_recipe([place(248), place(77, True)], ("clip", "clip"))
    text = "a " * words
    hidden = encoded(clip, text).hidden
    assert hidden.shape == (1, length, 192)
    assert prompt_length(Prompt(clip, text)) == length


@pytest.mark.defect(7)
def test_rows_without_room_for_a_word_are_refused(tmp_path: Path) -> None:
    clip = clip_recipe([place(77)])
    narrow = tmp_path / "clip"
    narrow.mkdir()
    for one in place(77).iterdir():
        (narrow / one.name).write_bytes(one.read_bytes())
    config = narrow / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2}))
    with pytest.raises(InputError, match="max_position_embeddings is 2, expected at least 3"):
        prompt_length(Prompt(clip_recipe([narrow]), "a"))
    assert prompt_length(Prompt(clip, "a")) == 77


@pytest.mark.defect(7)
def test_a_text_node_takes_such_an_encoder(tmp_path: Path) -> None:
    (tmp_path / "models/text_encoders").mkdir(parents=True)
    (tmp_path / "models/text_encoders/long.safetensors").hardlink_to(file(248))
    context = context_in(tmp_path)
    clip = call("CLIPLoader", context, clip_name="long.safetensors", type="stable_diffusion")
    (entry,) = call("CLIPTextEncode", context, clip=clip, text="a " * 200)
    assert prompt_length(entry.encoding) == 248
