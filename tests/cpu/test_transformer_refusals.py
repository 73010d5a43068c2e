"""Unsupported inputs of transformers are refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers_made import EACH, in_stages, inputs, region

from katz_graph.core.errors import InputError
from katz_graph.core.patches import FreeU
from katz_graph.core.recipe import ConditioningEntry, Joined, Picture, Prompt, References
from katz_graph.models.family import check_text
from katz_graph.models.loading.sources import clip_recipe, pipeline_recipes
from katz_graph.models.text.kinds import kind_of
from katz_graph.models.text.tokens import load_tokenizer
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import Kind, draw_network
from katz_graph.testing.requests import bind, local_engine, sample
from katz_graph.testing.stand_ins.text_encoders import sentence_pieces


def test_a_latent_of_another_model_s_channels_is_refused(folders: dict[Kind, Path]) -> None:
    with pytest.raises(InputError, match="the latent has 4 channels, the model in"):
        region(folders["flux"], "flux", torch.ones(1, 4, 8, 8))


def test_a_latent_of_a_video_is_refused(folders: dict[Kind, Path]) -> None:
    with pytest.raises(InputError, match=r"the latent has 3 frames, expected one: .*LatentCutTo"):
        region(folders["flux"], "flux", torch.zeros(1, 16, 3, 8, 8))
    with pytest.raises(InputError, match="the latent has 3 dimensions, expected 4"):
        region(folders["flux"], "flux", torch.zeros(16, 8, 8))


def test_a_latent_of_one_frame_is_returned_with_its_axis(folders: dict[Kind, Path]) -> None:
    kind, latent = "flux", torch.zeros(1, 16, 8, 8)
    with local_engine() as engine:
        plain = sample(engine, region(folders[kind], kind, latent))
        framed = sample(engine, region(folders[kind], kind, latent.unsqueeze(2)))
        again = sample(engine, region(folders[kind], kind, framed))
    assert torch.equal(framed, plain.unsqueeze(2)) and again.shape == framed.shape


@pytest.mark.parametrize("kind", ["sd35", "z_image"])
def test_guidance_input_of_another_family_is_refused(kind: Kind, folders: dict[Kind, Path]) -> None:
    model, clip, _ = pipeline_recipes(folders[kind])
    guided = (ConditioningEntry(Prompt(clip, ""), guidance=3.5),)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 8)}}
    with pytest.raises(InputError, match="the model has no guidance input"):
        expand_sampling("StepBegin", begin, model, guided, guided, 1.0)


@pytest.mark.parametrize("kind", ["sd35", "z_image", "hunyuan_dit"])
def test_references_for_another_family_are_refused(kind: Kind, folders: dict[Kind, Path]) -> None:
    model, clip, _ = pipeline_recipes(folders[kind])
    seen = References((Picture.of(torch.ones(1, 16, 8, 8)),))
    referring = (ConditioningEntry(Prompt(clip, ""), references=seen),)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 8)}}
    with pytest.raises(InputError, match="reads no references: remove ReferenceLatent"):
        expand_sampling("StepBegin", begin, model, referring, referring, 1.0)


@pytest.mark.parametrize("kind", EACH)
def test_free_u_is_refused(kind: Kind, folders: dict[Kind, Path]) -> None:
    model, clip, _ = pipeline_recipes(folders[kind])
    patched = replace(model, patches=(FreeU(1, 1.1, 1.2, 0.9, 0.2),))
    text = (ConditioningEntry(Prompt(clip, "")),)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 8)}}
    with pytest.raises(InputError, match="FreeU does not act on a transformer"):
        expand_sampling("StepBegin", begin, patched, text, text, 1.0)


def test_text_encoders_of_another_family_do_not_fit(folders: dict[Kind, Path]) -> None:
    model, _, _ = pipeline_recipes(folders["flux"])
    _, clip, _ = pipeline_recipes(folders["z_image"])
    with pytest.raises(InputError, match="text encoders do not fit the transformer"):
        check_text(clip, model)


def test_two_texts_that_are_joined_are_refused_by_a_model_of_one(folders: dict[Kind, Path]) -> None:
    model, clip, _ = pipeline_recipes(folders["hunyuan_dit"])
    prompt = Prompt(clip, "sand")
    text = (ConditioningEntry(Joined(prompt, prompt)),)
    begin = {"sampler_name": "euler", "scheduler": "normal", "steps": 2, "seed": 1}
    begin |= {"latent_image": {"samples": torch.zeros(1, 4, 8, 8)}, "model": model}
    expansion = expand_sampling("StepBegin", begin, model, text, text, 1.0)
    with local_engine() as engine, pytest.raises(InputError, match=r"333 tokens, .* has 666"):
        sample(engine, bind(expansion.graph, expansion.outputs[0].node))


def test_blocks_that_read_earlier_ones_are_refused_other_features() -> None:
    module = draw_network("hunyuan_dit", 3)
    step, text = inputs(module, 1, torch.float32)
    with pytest.raises(
        InputError, match=r"read the outputs of blocks 0, 1: .* features from block 3$"
    ):
        in_stages(module, step, text, [], first=4)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_layers": 5}, "5 blocks, expected an even number"),
        ({"text_len_t5": 512}, "texts of 77 and 512 tokens, expected 77 and 256"),
        ({"hidden_size": 40}, "2 heads of 16 and tokens of width 40, expected 32"),
        ({"cross_attention_dim_t5": 2048}, "takes text of width 2048, the pipeline's .* give 96"),
    ],
)
def test_numbers_that_do_not_fit_are_named(
    changed: dict[str, int], words: str, folders: dict[Kind, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders["hunyuan_dit"], tmp_path / "other")
    file = tmp_path / "other" / "transformer" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(InputError, match=words):  # for text encoders, at encoding
        kind_of(pipeline_recipes(tmp_path / "other")[1].encoders[0].encoder)


def test_a_text_encoder_without_its_tokenizer_is_refused(
    folders: dict[Kind, Path], tmp_path: Path
) -> None:
    alone = tmp_path / "text_encoder"
    shutil.copytree(folders["hunyuan_dit"] / "text_encoder", alone)
    with pytest.raises(InputError, match="text_encoder: a BERT has no tokenizer: expected"):
        clip_recipe([alone])


@pytest.mark.parametrize("suffix", ["", "_2"])
def test_a_text_encoder_uses_the_tokenizer_next_to_it(
    suffix: str, folders: dict[Kind, Path], tmp_path: Path
) -> None:
    whole = folders["hunyuan_dit"]
    (encoder,) = clip_recipe([whole / f"text_encoder{suffix}"]).encoders
    assert encoder.tokenizer.folder == str(whole / f"tokenizer{suffix}")
    moved = tmp_path / "encoder"
    shutil.copytree(whole / f"text_encoder{suffix}", moved)
    for file in (whole / f"tokenizer{suffix}").iterdir():
        shutil.copy(file, moved)
    (encoder,) = clip_recipe([moved]).encoders
    assert encoder.tokenizer.folder == str(moved)


def test_a_folder_s_sentence_pieces_are_read_alone(
    folders: dict[Kind, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders["hunyuan_dit"], tmp_path / "other")
    place = tmp_path / "other" / "tokenizer_2"
    (place / "tokenizer.json").unlink()
    (place / "spiece.model").write_bytes(sentence_pieces())
    of_both = [
        load_tokenizer(pipeline_recipes(folder)[1].encoders[1])("a red circle").input_ids
        for folder in (folders["hunyuan_dit"], tmp_path / "other")
    ]
    assert of_both[0] == of_both[1]


def test_a_transformer_that_lacks_its_tensors_is_no_checkpoint(tmp_path: Path) -> None:
    names = ("model.blocks.0.attn1.Wqkv.weight", "text_encoders.hydit_clip.transformer.x", "vae.x")
    save_file({name: torch.zeros(2, 2) for name in names}, tmp_path / "hydit.safetensors")
    with pytest.raises(InputError, match=r"hydit\.safetensors: incomplete: \S+ is missing"):
        pipeline_recipes(tmp_path / "hydit.safetensors")
