"""Anima: the padding mask, rotary positions, T5's words with their weights, files that hold both
modules, text encoders by their size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from diffusers.loaders.single_file_utils import convert_cosmos_transformer_checkpoint_to_diffusers
from diffusers.models.transformers.transformer_cosmos import CosmosRotaryPosEmbed
from safetensors.torch import save_file
from transformers_made import anima_words, forward, in_stages, inputs

from katz_graph.core.recipe import Component, Prompt, Zeroed
from katz_graph.executor.engine import DeviceEngine
from katz_graph.ir.values import TextEncoding
from katz_graph.models.families.anima import stack
from katz_graph.models.families.anima.stand_ins import anima
from katz_graph.models.families.shared.random_parts import shipped
from katz_graph.models.family import text_set
from katz_graph.models.loading.sources import network_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.text.kinds import T5
from katz_graph.testing.random_models import Kind, draw_network
from katz_graph.testing.requests import bare_context, local_engine

END = 1  # T5's last word

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


# Stages


@pytest.mark.parametrize("batch", [1, 2])
def test_stages_match_forward_in_bfloat16(batch: int) -> None:
    module = draw_network("anima", 3).bfloat16()
    step, text = inputs(module, batch, torch.bfloat16)
    assert torch.equal(in_stages(module, step, text, [0]), forward(module, step, text))


def test_the_padding_mask_is_zero() -> None:
    module = draw_network("anima", 3)
    step, text = inputs(module, 1, torch.float32)
    whole = in_stages(module, step, text, [])
    module.patch_embed.proj.weight[:, -4:] = 9.0  # of the mask's channel
    assert torch.equal(in_stages(module, step, text, []), whole)


def test_positions_are_extrapolated_by_row_and_column() -> None:
    """diffusers ends at 120 patches; the files' models do not."""
    module = draw_network("anima", 3)
    like = torch.zeros(1, 1, 1, 12, 20)
    rope = CosmosRotaryPosEmbed(16, rope_scale=(1.0, 4.0, 4.0))
    for ours, wanted in zip(stack.fixed(module, 6, 10, 9), rope(like), strict=True):
        assert torch.equal(ours[0], wanted)
    assert stack.fixed(module, 2, 300, 9)[0].shape == (1, 600, 16)


# Texts


def test_rows_of_words_have_the_prompt_s_weights_and_end_in_zeros() -> None:
    module = draw_network("anima", 3)
    _, text = inputs(module, 2, torch.float32)
    rows, words = stack.context(module, text), text.words
    assert rows.shape == (2, 512, 32) and words is not None
    for row, count in enumerate((7, 5)):
        numbers, _ = anima_words(text)
        alone = module.llm_adapter(text.hidden[row : row + 1], numbers[row : row + 1, :count])
        wanted = alone[:, :count] * words[row, :count, 1:]
        assert (rows[row, :count] - wanted).abs().max() <= 1e-6 * wanted.abs().max()
        assert not rows[row, count:].any() and rows[row, :count].any(1).sum() >= count - 2


def test_a_text_without_words_is_read_as_it_is() -> None:
    hidden = torch.randn(1, 9, 32)
    assert torch.equal(stack.context(draw_network("anima", 3), TextEncoding(hidden)), hidden)


@pytest.fixture(scope="module")
def engine(costs: Path) -> Iterator[DeviceEngine]:
    with local_engine(cache=costs) as opened:
        yield opened


def words(text: TextEncoding) -> tuple[list[int], list[float]]:
    """Returns the numbers and weights of a text's words, without its fill."""
    assert text.words is not None and text.words.shape == (1, 512, 2)
    numbers, weights = text.words[0].T.tolist()
    count = sum(one >= 0 for one in numbers)
    assert set(numbers[count:]) <= {-1} and not any(weights[count:])
    return [int(one) for one in numbers[:count]], weights[:count]


def test_weights_are_those_of_t5_s_words_alone(
    engine: DeviceEngine, folders: dict[Kind, Path]
) -> None:
    clip, tokenizer = pipeline_recipes(folders["anima"])[1], shipped(T5)

    def encoded(text: str) -> TextEncoding:
        return engine.encode_text(Prompt(clip, text), bare_context(engine))

    plain, weighted = encoded("a red circle, flat"), encoded("a (red circle:1.5), flat")
    whole = encoded("(a red circle, flat:0.5)")
    assert torch.equal(whole.hidden, plain.hidden)
    assert words(whole)[0] == words(plain)[0] and set(words(whole)[1]) == {0.5, 1.0}
    numbers, weights = words(plain)
    assert numbers == tokenizer("a red circle, flat").input_ids and set(weights) == {1.0}
    parts = [tokenizer(one).input_ids[:-1] for one in ("a ", "red circle", ", flat")]
    numbers, weights = words(weighted)
    assert numbers == [*parts[0], *parts[1], *parts[2], END]
    wanted = zip((1.0, 1.5, 1.0), parts, strict=True)
    assert weights == [*(weight for weight, part in wanted for _ in part), 1.0]


def test_empty_and_long_texts(engine: DeviceEngine, folders: dict[Kind, Path]) -> None:
    clip = pipeline_recipes(folders["anima"])[1]
    empty = engine.encode_text(Prompt(clip, ""), bare_context(engine))
    assert empty.hidden.shape[1] == 1 and words(empty) == ([END], [1.0])
    long = engine.encode_text(Prompt(clip, "sand " * 600), bare_context(engine))
    numbers, _ = words(long)
    assert len(numbers) == 512 and numbers[-1] == END and long.hidden.shape[1] > 512
    zeroed = engine.encode_text(Zeroed(Prompt(clip, "sand")), bare_context(engine))
    assert not zeroed.hidden.any() and len(words(zeroed)[0]) > 1  # as ComfyUI


@pytest.mark.parametrize(
    ("type", "width", "title"),
    [
        ("stable_diffusion", 1024, "Anima"),
        ("lumina2", 1024, "Anima"),
        ("stable_diffusion", 2560, "Z-Image"),
    ],
)
def test_the_file_decides_which_model_a_text_encoder_is_for(
    type: str, width: int, title: str
) -> None:
    values = {"architectures": ["Qwen3Model"], "hidden_size": width}
    family, one = text_set(type, [Component("", (), json.dumps(values))])
    assert family.title == title
    assert (one.layout or family.text_layout).words == (512 if title == "Anima" else 0)


# Files


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "net."])
def test_a_file_has_the_weights_of_both_modules(prefix: str, tmp_path: Path) -> None:
    tensors = anima()
    path = tmp_path / "model.safetensors"
    more = {"pos_embedder.seq": torch.zeros(3)}
    save_file({prefix + name: one for name, one in (tensors | more).items()}, path)
    module = ModelStore().network(network_recipe(path).network, "cpu", torch.float32)
    adapter = {name: one for name, one in tensors.items() if name.startswith("llm_adapter.")}
    others = {name: one for name, one in tensors.items() if name not in adapter}
    wanted = adapter | convert_cosmos_transformer_checkpoint_to_diffusers(others)
    state = module.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(one, wanted[name]) for name, one in state.items())
    frequencies = module.llm_adapter.rotary_emb.inv_freq  # in no file
    assert frequencies.tolist() == pytest.approx([10_000 ** (-i / 16) for i in range(16)])
