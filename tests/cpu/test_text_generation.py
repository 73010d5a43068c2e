"""Text generation equals transformers' `generate`, follows a seed, and stops within one token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import katz_graph as katz
from katz_graph.core.errors import Cancelled, InputError
from katz_graph.core.events import Progress
from katz_graph.core.recipe import TextRequest, TokenSampling
from katz_graph.models.loading.sources import clip_recipe
from katz_graph.models.text.generation import ENDS, asked, chosen, generator_of, parted
from katz_graph.models.text.tokens import load_tokenizer
from katz_graph.testing.stand_ins import text_encoders

PROMPT = "A red fox in the snow"
GREEDY = {"sampling_mode": "off"}


def graph(file: str, **changed: Any) -> Any:
    made = katz.Graph()
    clip = made.CLIPLoader(clip_name=file, type="lumina2")
    inputs = {"prompt": PROMPT, "max_length": 12, **changed}
    text, _ = made.TextGenerate(clip=clip, **inputs)
    made.PreviewAny(source=text)
    return made


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes language models with and without an output layer."""
    place = tmp_path_factory.mktemp("models")
    folder = place / "text_encoders"
    folder.mkdir()
    # so wide apart that texts differ
    tied = {name: 6 * one for name, one in text_encoders.qwen3().items()}
    own = tied | {"lm_head.weight": tied["model.embed_tokens.weight"].flip(1).contiguous()}
    for name, tensors in {"tied": tied, "own": own}.items():
        save_file(tensors, folder / f"{name}.safetensors")
    return place


@pytest.fixture(scope="module")
def engine(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[katz.Engine]:
    with katz.open(models=str(models), output=str(tmp_path_factory.mktemp("out"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def stock(models: Path) -> dict[str, Any]:
    """Returns transformers' models with the weights of the files."""
    return {name: loaded(models, name) for name in ("tied", "own")}


def loaded(models: Path, name: str) -> Any:
    path = models / "text_encoders" / f"{name}.safetensors"
    values = json.loads(clip_recipe([path]).encoders[0].encoder.configuration or "")
    config = transformers.Qwen3Config(**values, tie_word_embeddings=name == "tied")
    module = transformers.Qwen3ForCausalLM(config).eval()
    missing, unknown = module.load_state_dict(load_file(path), strict=False)
    assert not unknown and set(missing) <= {"lm_head.weight"}
    return module


def texts(result: katz.Result) -> tuple[str, str]:
    return result["2"]


@pytest.mark.parametrize("name", ["tied", "own"])
@pytest.mark.parametrize("template", [True, False])
def test_greedy_text_is_that_of_transformers(
    name: str, template: bool, engine: katz.Engine, models: Path, stock: dict[str, Any]
) -> None:
    clip = clip_recipe([models / "text_encoders" / f"{name}.safetensors"])
    recipe = generator_of(clip)
    words = load_tokenizer(recipe)
    said = asked(recipe, TextRequest(PROMPT, 12, template=template))
    if template:
        assert said == (
            f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
    ids = words(said, return_tensors="pt").input_ids
    with torch.no_grad():
        made = stock[name].generate(
            ids, do_sample=False, max_new_tokens=12, eos_token_id=words.convert_tokens_to_ids(ENDS)
        )[0, ids.shape[1] :]
    assert len(set(made.tolist())) > 1
    result = engine.run(
        graph(f"{name}.safetensors", use_default_template=template, **GREEDY), targets=["2"]
    )
    assert texts(result)[0] == words.decode(made, skip_special_tokens=False)


def test_a_seed_decides_the_text(engine: katz.Engine, models: Path, tmp_path: Path) -> None:
    def made(by: katz.Engine, seed: int) -> str:
        asked_for = graph("tied.safetensors", **{"sampling_mode.seed": seed})
        return texts(by.run(asked_for, targets=["2"]))[0]

    first = made(engine, 1)
    assert first != made(engine, 2)
    with katz.open(models=str(models), output=str(tmp_path)) as other:
        assert made(other, 1) == first


@pytest.mark.parametrize(
    ("changed", "allowed"),
    [
        ({"top_k": 1}, {3}),
        ({"top_k": 2}, {3, 1}),
        ({"top_p": 0.5}, {3}),
        ({"min_p": 0.5}, {3, 1}),
        ({"min_p": 0.99}, {3}),
        ({"presence_penalty": 3.0, "top_k": 1}, {1}),
        ({"repetition_penalty": 5.0, "top_k": 1}, {1}),
        ({"temperature": 0.01}, {3}),
        ({}, {0, 1, 2, 3}),
    ],
)
def test_tokens_are_drawn_among_the_likely_ones(changed: dict[str, Any], allowed: set[int]) -> None:
    scores = torch.tensor([[0.5, 2.5, 1.0, 3.0]])
    generator = torch.Generator().manual_seed(0)
    sampling = TokenSampling(0, **changed)
    drawn = {chosen(scores, [3], sampling, generator) for _ in range(200)}
    assert drawn == allowed


@pytest.mark.parametrize(
    ("text", "opening", "wanted"),
    [
        ("<think>\nhm\n</think>\n\nyes", "", ("yes", "hm")),
        ("hm</think>yes", "...<think>\n", ("yes", "hm")),
        ("<think>hm", "", ("", "hm")),
        ("yes <think>no</think>", "", ("yes <think>no</think>", "")),
    ],
)
def test_reasoning_is_separate(text: str, opening: str, wanted: tuple[str, str]) -> None:
    assert parted(text, opening) == wanted


def test_generation_reports_progress_and_stops_within_a_token(engine: katz.Engine) -> None:
    reported: list[int] = []
    cancelled = threading.Event()

    def listen(event: object) -> None:
        if isinstance(event, Progress) and not cancelled.is_set():
            reported.append(event.value)
            assert event.maximum == 20_000
            if event.value >= 3:
                cancelled.set()
                engine.cancel()

    long = graph("own.safetensors", max_length=20_000, **{"sampling_mode.temperature": 2.0})
    with pytest.raises(Cancelled):
        engine.run(long, progress=listen)
    assert reported == sorted(reported) and reported[0] >= 1
    assert texts(engine.run(graph("own.safetensors"), targets=["2"]))  # the device is free again


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("clip_l", {}, "CLIP cannot generate text: use Qwen3, Qwen3-VL, Qwen2.5-VL"),
        ("wide", {}, "has no lm_head.weight, so this Qwen3 8B cannot generate text"),
        ("tied", {"max_length": 0}, "max_length"),
        ("tied", {"prompt": "", "use_default_template": False}, "the prompt is empty"),
    ],
)
def test_what_cannot_generate_is_refused(
    name: str, changed: dict[str, Any], words: str, engine: katz.Engine, models: Path
) -> None:
    path = models / "text_encoders" / f"{name}.safetensors"
    if name == "clip_l":
        save_file(text_encoders.clip_l(), path)
    elif name == "wide":
        save_file(widened(text_encoders.qwen3()), path)
    with pytest.raises(InputError, match=words) as caught:
        engine.run(graph(f"{name}.safetensors", **changed))
    assert "\n" not in str(caught.value)


def widened(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns zeros in the shapes of a model of one layer that is 4096 wide, with eight words."""
    sides = {64: 4096, 151936: 8}
    return {
        name: torch.zeros([sides.get(side, side) for side in one.shape])
        for name, one in tensors.items()
        if "layers." not in name or "layers.0." in name
    }
