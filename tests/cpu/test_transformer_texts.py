"""Families of transformers encode texts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from node_calls import call
from transformers import CLIPTextModelWithProjection, T5EncoderModel
from transformers_made import EACH, in_stages, inputs

from katz_graph.adapters.encoders import text_parts
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ClipRecipe, ConditioningEntry, Prompt, TextLayout, Zeroed
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.models.loading.merge import merged_clip
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.text.kinds import kind_of, pooled_text_width
from katz_graph.models.text.tokens import load_tokenizer, prompt_length, sequence
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import Kind, draw_network
from katz_graph.testing.requests import bare_context, bind, local_engine, sample


@pytest.mark.parametrize("kind", EACH)
def test_a_text_is_as_long_as_planned(folders: dict[Kind, Path], kind: Kind) -> None:
    _, clip, _ = pipeline_recipes(folders[kind])
    for text in ("", "a (red:1.3) circle", "sand " * 300):
        recipe = Prompt(clip, text)
        with local_engine() as engine:
            hidden = engine.encode_text(recipe, bare_context(engine)).hidden
        assert hidden.shape[1] == prompt_length(recipe)


def test_weights_move_t5_s_tokens_from_those_of_an_empty_text(folders: dict[Kind, Path]) -> None:
    _, clip, _ = pipeline_recipes(folders["flux"])
    with local_engine() as engine:
        plain, weighed, empty = (
            engine.encode_text(Prompt(clip, text), bare_context(engine)).hidden
            for text in ("red sand", "(red:1.5) sand", "")
        )
    count = len(load_tokenizer(clip.encoders[1])("red").input_ids) - 1
    wanted = (plain - empty) * 1.5 + empty
    assert (weighed[:, :count] - wanted[:, :count]).abs().max() < 1e-5
    assert (weighed[:, count:] - plain[:, count:]).abs().max() < 1e-5
    assert (weighed - plain)[:, :count].abs().max() > 1e-3


def test_a_language_model_reads_parentheses_as_they_stand(folders: dict[Kind, Path]) -> None:
    _, clip, _ = pipeline_recipes(folders["z_image"])
    text = "a (red:1.2) circle"
    with local_engine() as engine:
        made = [
            engine.encode_text(Prompt(clip, one), bare_context(engine)).hidden
            for one in (text, text.replace("(", "\\(").replace(")", "\\)"), "a red circle")
        ]
    assert torch.equal(made[0], made[1])
    assert made[2].shape != made[0].shape


def test_each_text_encoder_may_have_its_own_text(folders: dict[Kind, Path]) -> None:
    _, clip, _ = pipeline_recipes(folders["flux"])
    with local_engine() as engine:
        first, second, both = (
            engine.encode_text(prompt, bare_context(engine))
            for prompt in (
                Prompt(clip, "sand"),
                Prompt(clip, "a circle"),
                Prompt(clip, "sand", ("a circle",)),
            )
        )
    assert torch.equal(both.hidden, second.hidden) and torch.equal(both.pooled, first.pooled)
    assert not torch.equal(first.hidden, second.hidden)


def test_a_text_of_one_length_is_cut_behind_its_words_and_masked_where_it_is_filled(
    folders: dict[Kind, Path],
) -> None:
    _, clip, _ = pipeline_recipes(folders["hunyuan_dit"])
    with local_engine() as engine:
        short, long = (
            engine.encode_text(Prompt(clip, text), bare_context(engine))
            for text in ("a (red:1.3) circle", "sand " * 300)
        )
    words = [len(load_tokenizer(one)("a red circle").input_ids) for one in clip.encoders]
    assert short.hidden.shape == long.hidden.shape == (1, 77 + 256, 96)
    assert short.mask[0].nonzero().flatten().tolist() == [
        *range(words[0]),
        *range(77, 77 + words[1]),
    ]
    assert long.mask.all()
    for number, length in enumerate((77, 256)):
        tokenizer = load_tokenizer(clip.encoders[number])
        ids = [one for one, _ in sequence(tokenizer, "sand " * 300, clip.layout, length)]
        cut = tokenizer("sand " * 300, truncation=True, max_length=length).input_ids
        assert ids == cut


def test_padding_is_read_by_the_pooler_only() -> None:
    module = draw_network("hunyuan_dit", 3)
    step, text = inputs(module, 1, torch.float32)
    wanted = in_stages(module, step, text, [])

    def changed(place: int) -> float:
        hidden = text.hidden.clone()
        hidden[:, place] += 1.0
        return float(
            (in_stages(module, step, replace(text, hidden=hidden), []) - wanted).abs().max()
        )

    assert changed(76) == 0.0 and changed(6) > 1e-3  # BERT's rows
    assert changed(77 + 255) > 1e-4 and changed(77 + 4) > 1e-3  # mT5's
    assert not torch.equal(in_stages(module, step, replace(text, mask=None), []), wanted)


@pytest.mark.parametrize(
    ("padding", "least", "padded"), [(0, 0, 0), (3, 0, 3), (0, 20, None), (3, 20, None), (5, 8, 5)]
)
def test_t5_reads_as_many_tokens_as_its_options_set(
    padding: int, least: int, padded: int | None, folders: dict[Kind, Path]
) -> None:
    """Padding comes first, then the minimum length; the model reads padding."""
    _, clip, _ = pipeline_recipes(folders["flux"])
    optioned = call("T5TokenizerOptions", clip=clip, min_padding=padding, min_length=least)
    prompt = Prompt(optioned, "a red circle above sand")
    ids = load_tokenizer(clip.encoders[1])(prompt.text).input_ids
    ids += [0] * ((least - len(ids)) if padded is None else padded)
    stock = T5EncoderModel.from_pretrained(folders["flux"] / "text_encoder_2")
    with torch.no_grad():
        wanted = stock(torch.tensor([ids])).last_hidden_state
    with local_engine() as engine:
        hidden = engine.encode_text(prompt, bare_context(engine)).hidden
    assert prompt_length(prompt) == len(ids)
    assert torch.equal(hidden, wanted)


def test_options_of_t5_are_for_texts_of_any_length(folders: dict[Kind, Path]) -> None:
    options = {"min_padding": 1, "min_length": 8}
    qwen, fixed = (pipeline_recipes(folders[kind])[1] for kind in ("z_image", "hunyuan_dit"))
    assert call("T5TokenizerOptions", clip=qwen, **options) == qwen
    with pytest.raises(InputError, match="reads texts of 77 and 256 tokens only: remove"):
        call("T5TokenizerOptions", clip=fixed, **options)


def test_an_empty_text_is_read_as_its_end_and_padding(folders: dict[Kind, Path]) -> None:
    """It is not zero. ConditioningZeroOut gives zeros, with zero pooled text."""
    _, clip, _ = pipeline_recipes(folders["flux"])
    stock = T5EncoderModel.from_pretrained(folders["flux"] / "text_encoder_2")
    with torch.no_grad():
        wanted = stock(torch.tensor([[1] + [0] * 255])).last_hidden_state
    with local_engine() as engine:
        empty, zeros = (
            engine.encode_text(one, bare_context(engine))
            for one in (Prompt(clip, ""), Zeroed(Prompt(clip, "sand")))
        )
    assert torch.equal(empty.hidden, wanted) and wanted.abs().min(dim=2).values.max() > 0
    assert empty.pooled.abs().max() > 0
    assert not zeros.hidden.any() and not zeros.pooled.any()
    assert zeros.hidden.shape == empty.hidden.shape and zeros.pooled.shape == empty.pooled.shape


def test_one_text_encoder_pools_unprojected_for_one_model_and_projected_for_another(
    folders: dict[Kind, Path],
) -> None:
    """FLUX.1 does not project a CLIP's pooled text, SDXL does."""
    _, clip, _ = pipeline_recipes(folders["sd35"])
    projecting = next(one for one in clip.encoders[::-1] if kind_of(one.encoder).projects)
    stock = CLIPTextModelWithProjection.from_pretrained(projecting.encoder.folder)
    rows = load_tokenizer(projecting)("sand", padding="max_length", max_length=77)
    with torch.no_grad():
        pooled = stock.text_model(torch.tensor([rows["input_ids"]])).pooler_output
        projected = stock.text_projection(pooled)
    made = {}
    with local_engine() as engine:
        for how in ("plain", "last"):
            one = ClipRecipe((projecting,), layout=TextLayout(pooled=how))
            made[how] = engine.encode_text(Prompt(one, "sand"), bare_context(engine)).pooled
            assert made[how].shape[-1] == pooled_text_width(one)
    assert torch.equal(made["plain"], pooled) and pooled.shape != projected.shape
    # one matrix product, summed in any order
    assert (made["last"] - projected).abs().max() <= 1e-6 * projected.abs().max()


def test_each_side_gets_the_guidance_of_its_own_entry(folders: dict[Kind, Path]) -> None:
    """In one step to 0 the picture is the combined prediction; the default is 3.5."""
    model, clip, _ = pipeline_recipes(folders["flux"])

    def picture(*config: float | None, cfg: float = 1.0) -> torch.Tensor:
        sides = [
            (ConditioningEntry(Prompt(clip, "sand"), guidance=guidance),) for guidance in config
        ]
        begin = {"steps": 1, "seed": 7, "latent_image": {"samples": torch.zeros(1, 16, 8, 8)}}
        begin |= {"model": model, "sampler_name": "euler", "scheduler": "simple"}
        expansion = expand_sampling("StepBegin", begin, model, sides[0], sides[-1], cfg)
        return sample(engine, bind(expansion.graph, expansion.outputs[0].node))

    with local_engine(batching=False) as engine:
        strong, usual = picture(7.0), picture(None)
        assert torch.equal(usual, picture(3.5)) and (strong - usual).abs().max() > 1e-3
        both = picture(7.0, None, cfg=3.0)
    assert (both - (usual + 3.0 * (strong - usual))).abs().max() <= 1e-5 * both.abs().max()


@pytest.mark.parametrize("kind", EACH)
def test_half_precision_overflows_are_computed_wider(kind: Kind, folders: dict[Kind, Path]) -> None:
    """FLUX, Z-Image, Qwen-Image, Krea 2, T5 and language models overflow; tests merged ones too."""
    model, clip, _ = pipeline_recipes(folders[kind])
    models = DeviceModels("cpu", torch.float16)
    wide = kind in ("flux", "z_image", "qwen_image", "krea2", "klein", "qwen_image_21", "anima")
    assert models.dtype_of(model.network) == (torch.float32 if wide else torch.float16)
    for recipe in (clip, merged_clip(clip, clip, (("", 0.5, 0.5),))):
        encoders = recipe.encoders
        for one, parts in zip(encoders, text_parts(one.encoder for one in encoders), strict=True):
            long = kind_of(one.encoder).name in ("t5", "mt5", "qwen3", "qwen3_vl", "qwen2_5_vl")
            wanted = torch.float32 if long else torch.float16
            assert models.text_dtype_of(one.encoder) == wanted
            live = models.residents.get(models._loadable(one.encoder, parts))
            assert live.dtype == wanted


def test_a_text_zeroed_keeps_its_mask(folders: dict[Kind, Path]) -> None:
    _, clip, _ = pipeline_recipes(folders["hunyuan_dit"])
    prompt = Prompt(clip, "a red circle")
    with local_engine() as engine:
        text, zeroed = (
            engine.encode_text(one, bare_context(engine)) for one in (prompt, Zeroed(prompt))
        )
    assert torch.equal(zeroed.mask, text.mask) and not zeroed.hidden.any()


def test_an_mt5_of_its_own_class_is_the_same_text_encoder(
    folders: dict[Kind, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders["hunyuan_dit"], tmp_path / "other")
    file = tmp_path / "other" / "text_encoder_2" / "config.json"
    config = {"architectures": ["MT5EncoderModel"], "model_type": "mt5"}
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    clips = [pipeline_recipes(place)[1] for place in (folders["hunyuan_dit"], tmp_path / "other")]
    assert [kind_of(one.encoders[1].encoder).title for one in clips] == ["T5", "mT5"]
    with local_engine() as engine:
        made = [
            engine.encode_text(Prompt(clip, "sand"), bare_context(engine)).hidden for clip in clips
        ]
    assert torch.equal(*made)
