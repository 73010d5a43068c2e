"""Models that differ merge their common weights, with a warning, or are refused before loading;
computed buffers are not rounded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel
from node_calls import call, context_in
from transformers import Qwen3Config, Qwen3Model

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    MergedComponent,
    ModelRecipe,
    TextEncoderRecipe,
)
from katz_graph.executor.weights.weight_set import merged_module
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.models.loading.component import component
from katz_graph.models.loading.merge import merge_notes, merged_clip
from katz_graph.testing.random_models import draw_network

HALF = (("", 0.5, 0.5),)


def flux(folder: Path, seed: int = 1, **changed: Any) -> ModelRecipe:
    """Saves a FLUX.1 of another configuration."""
    module = draw_network("flux", seed)
    if changed:
        torch.manual_seed(seed)
        module = FluxTransformer2DModel.from_config(
            {**module.config, **changed, "_use_default_values": []}
        )
    module.save_pretrained(folder)
    network = component(folder, "network")
    return ModelRecipe(network, network)


def merge(folder: Path, first: ModelRecipe, second: ModelRecipe) -> tuple[Any, list[str]]:
    context = context_in(folder)
    merged = call("ModelMergeSimple", context, model1=first, model2=second, ratio=0.5)
    assert isinstance(merged.network, MergedComponent)
    return dict(merged_module(merged.network, ()).named_parameters()), context.warnings


@pytest.mark.defect(11)
@pytest.mark.parametrize(
    ("lacking", "name"),
    [
        ({"guidance_embeds": False}, "time_text_embed.guidance_embedder.linear_1.bias"),
        ({"num_layers": 2}, "transformer_blocks.2.attn.add_k_proj.bias"),
        ({"num_single_layers": 1}, "single_transformer_blocks.1.attn.norm_k.weight"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_weights_missing_in_one_model_are_the_first_s_with_a_warning(
    lacking: dict[str, Any], name: str, tmp_path: Path
) -> None:
    whole, part = flux(tmp_path / "whole"), flux(tmp_path / "part", 2, **lacking)
    first, second = (
        dict(FluxTransformer2DModel.from_pretrained(tmp_path / one).named_parameters())
        for one in ("whole", "part")
    )
    merged, (note,) = merge(tmp_path, whole, part)
    assert merged.keys() == first.keys()
    for key, weight in merged.items():
        wanted = first[key] * 0.5 + second[key] * 0.5 if key in second else first[key]
        assert torch.allclose(weight, wanted, atol=1e-6)
    missing = len(first.keys() - second.keys())
    assert f"part: lacks {missing} of the {len(first)} weights of" in note
    assert name in note and "which stay as they are" in note and "\n" not in note
    merged, (note,) = merge(tmp_path, part, whole)
    assert merged.keys() == second.keys() and "which are left out" in note


@pytest.mark.defect(11)
def test_models_of_other_sizes_are_refused_before_they_are_loaded(tmp_path: Path) -> None:
    one = flux(tmp_path / "one")
    other = flux(tmp_path / "other", num_attention_heads=4)
    words = r"other: does not merge with .*one: its \S+ has shape \[.*\], the other's \[.*\]; merge"
    with pytest.raises(InputError, match=words) as caught:
        call("ModelMergeSimple", context_in(tmp_path), model1=one, model2=other, ratio=0.5)
    assert "\n" not in str(caught.value)


@pytest.mark.defect(11)
def test_weights_with_other_input_channels_are_skipped_with_a_warning(tmp_path: Path) -> None:
    """(inpainting - base) + mine: ComfyUI's recipe for inpainting models."""
    filling = flux(tmp_path / "filling", 1, in_channels=128, out_channels=64)
    base, mine = flux(tmp_path / "base", 2), flux(tmp_path / "mine", 3)
    context = context_in(tmp_path)
    difference = call("ModelMergeSubtract", context, model1=filling, model2=base, multiplier=1.0)
    merged = call("ModelMergeAdd", context, model1=difference, model2=mine)
    assert [note.split(": ")[-1] for note in context.warnings] == ["x_embedder.weight"] * 2
    assert "so that 1 of its weights are left out" in context.warnings[0]
    first, second, third = (
        dict(FluxTransformer2DModel.from_pretrained(tmp_path / one).named_parameters())
        for one in ("filling", "base", "mine")
    )
    for name, weight in merged_module(merged.network, ()).named_parameters():
        wanted = first[name]
        if name != "x_embedder.weight":
            wanted = wanted - second[name] + third[name]
        assert torch.allclose(weight, wanted, atol=1e-6)


@pytest.mark.defect(11)
def test_buffers_that_files_hold_are_merged(tmp_path: Path) -> None:
    """LoRAs may change SD3's table of positions."""
    parts = []
    for seed in (1, 2):
        module = draw_network("sd35", seed)
        module.pos_embed.pos_embed += seed
        module.save_pretrained(tmp_path / str(seed))
        part = component(tmp_path / str(seed), "network")
        parts.append(ModelRecipe(part, part))
    context = context_in(tmp_path)
    merged = call("ModelMergeSimple", context, model1=parts[0], model2=parts[1], ratio=0.25)
    table = draw_network("sd35", 1).pos_embed.pos_embed
    found = merged_module(merged.network, ()).pos_embed.pos_embed
    assert torch.allclose(found, table + 1.75, atol=1e-6)


def language_model(folder: Path, seed: int, **changed: Any) -> Component:
    """Saves a small float32 Qwen3; no file has its computed rotary frequencies."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    settings = {**sizes, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 1}
    settings |= {"vocab_size": 16, **changed}
    Qwen3Model(Qwen3Config(**settings)).save_pretrained(folder)
    return component(folder, "text_encoder")


@pytest.mark.defect(11)
def test_a_merge_rounds_no_buffer_that_is_computed(tmp_path: Path) -> None:
    parts = [language_model(tmp_path / str(seed), seed) for seed in (1, 2)]
    one, other = (ClipRecipe((TextEncoderRecipe(part, part),)) for part in parts)
    merged = merged_clip(one, other, HALF)
    assert not list(merge_notes(one, other))
    models = DeviceModels("cpu", torch.bfloat16)
    modules = [
        models.residents.get(models._loadable(clip.encoders[0].encoder, ("qwen3",)))
        for clip in (one, merged)
    ]
    plain, live = (module.rotary_emb.inv_freq for module in modules)
    assert next(modules[1].parameters()).dtype == torch.bfloat16
    assert live.dtype == torch.float32 and torch.equal(live, plain)
    weights = [dict(Qwen3Model.from_pretrained(part.folder).named_parameters()) for part in parts]
    for name, weight in modules[1].named_parameters():
        wanted = (weights[0][name] * 0.5 + weights[1][name] * 0.5).to(torch.bfloat16)
        assert torch.equal(weight, wanted)


@pytest.mark.defect(11)
def test_text_encoders_of_other_sizes_are_refused(tmp_path: Path) -> None:
    parts = [
        language_model(tmp_path / "one", 1),
        language_model(tmp_path / "other", 1, num_key_value_heads=2),
    ]
    one, other = (ClipRecipe((TextEncoderRecipe(part, part),)) for part in parts)
    with pytest.raises(InputError, match=r"its \S+k_proj\S+ has shape \[32, 32\], the other's"):
        merged_clip(one, other, HALF)
