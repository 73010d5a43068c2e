"""Costs from configurations: blocks sum up to the whole, and known models have their known sizes."""

import json
import sqlite3
from contextlib import closing

import pytest
import torch
from tiny_models import FAMILIES, control_recipe, controlnet, recipes, unet

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ConditioningEntry, Prompt
from katz_graph.executor.measure.store import FILE, CostStore
from katz_graph.ir.region import Operation
from katz_graph.models.configuration import config
from katz_graph.models.costs import stage_cost as shapes
from katz_graph.models.costs.counts import Counts
from katz_graph.models.costs.meta_results import result_on_meta
from katz_graph.models.costs.stage_cost import stage_work
from katz_graph.models.stages import Sized
from katz_graph.planner.passes.cost import count_work
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import kinds
from katz_graph.testing.requests import bind, local_engine

SDXL = {
    "_class_name": "UNet2DConditionModel",
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "block_out_channels": [320, 640, 1280],
    "cross_attention_dim": 2048,
    "attention_head_dim": [5, 10, 20],
    "use_linear_projection": True,
    "transformer_layers_per_block": [1, 2, 10],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_sum_up_to_the_whole(family):
    settings = config(recipes(family)[0].network)
    for stage in ("unet_encoder", "unet_decoder"):
        whole = stage_work(settings, stage, Sized(1, 9, 8))
        parts = [
            stage_work(settings, stage, Sized(1, 9, 8, first_block=block, last_block=block))
            for block in range(3)
        ]
        for field in ("flops", "weight_bytes", "activation_bytes", "kernels"):
            assert sum(getattr(part, field) for part in parts) == getattr(whole, field)
    weights = sum(
        stage_work(settings, stage, Sized(1, 9, 8)).weight_bytes
        for stage in ("unet_encoder", "unet_mid", "unet_decoder")
    )
    assert weights == sum(parameter.nbytes for parameter in unet(family).parameters())


def test_sizes_follow_batch_and_precision():
    settings = config(recipes("sdxl")[0].network)
    one, two = (
        stage_work(settings, "unet_mid", Sized(1, 8, 8)),
        stage_work(settings, "unet_mid", Sized(2, 8, 8)),
    )
    assert (two.flops, two.weight_bytes, two.output_bytes) == (
        2 * one.flops,
        one.weight_bytes,
        2 * one.output_bytes,
    )
    half = stage_work(settings, "unet_mid", Sized(1, 8, 8), value_bytes=2)
    assert (half.flops, half.weight_bytes, half.activation_bytes) == (
        one.flops,
        one.weight_bytes / 2,
        one.activation_bytes / 2,
    )
    assert one.output_bytes == 32 * 2 * 2 * 4  # [1, 32, 2, 2] float32
    assert stage_work(settings, "unet_decoder", Sized(1, 8, 8)).output_bytes == 4 * 8 * 8 * 4


@pytest.mark.parametrize("family", FAMILIES)
def test_keeping_keys_and_values_moves_their_work(family):
    settings = config(recipes(family)[0].network)
    stages = ("unet_encoder", "unet_mid", "unet_decoder")
    cached = sum(stage_work(settings, stage, Sized(1, 8, 8)).flops for stage in stages)
    computed = sum(
        stage_work(settings, stage, Sized(1, 8, 8, cached=False)).flops for stage in stages
    )
    assert computed - cached == stage_work(settings, "keys_values", Sized(1, 8, 8)).flops > 0


def test_control_text_and_vae():
    settings = config(control_recipe("sdxl").control_net)
    step, reference = (
        stage_work(settings, "controlnet", Sized(1, 8, 8)),
        stage_work(settings, "controlnet_reference", Sized(1, 8, 8)),
    )
    assert step.weight_bytes + reference.weight_bytes == sum(
        parameter.nbytes for parameter in controlnet("sdxl").parameters()
    )
    assert reference.output_bytes == 16 * 8 * 8 * 4
    _, clip, vae = recipes("sdxl")
    text = stage_work(config(clip.encoders[1].encoder), "text_encoder", Sized(1, 0, 0, tokens=154))
    assert text.output_bytes == 154 * 48 * 4
    assert (
        text.flops
        == 2 * stage_work(config(clip.encoders[1].encoder), "text_encoder", Sized(1, 0, 0)).flops
    )
    assert stage_work(config(vae.vae), "vae_decode", Sized(1, 8, 8)).output_bytes == 3 * 64 * 64 * 4
    assert stage_work(config(vae.vae), "vae_encode", Sized(1, 8, 8)).output_bytes == 4 * 8 * 8 * 4


def test_full_size_sdxl_without_its_weights():
    """Podell et al. 2023 give 2.57 billion parameters; 1024 x 1024 pixels take about 6 TFLOP."""
    works = [
        stage_work(SDXL, stage, Sized(1, 128, 128), value_bytes=2)
        for stage in ("unet_encoder", "unet_mid", "unet_decoder")
    ]
    assert sum(work.weight_bytes for work in works) / 2 == pytest.approx(2.567e9, rel=1e-3)
    assert 5.5e12 < sum(work.flops for work in works) < 7e12
    assert sum(work.activation_bytes for work in works) < 30e9  # attention scores are not stored


WHOLE, SECOND, FROM_SECOND = (0, None), (1, 1), (1, None)
STAGES = [
    ("unet_encoder", WHOLE),
    ("unet_encoder", SECOND),
    ("unet_mid", WHOLE),
    ("unet_decoder", WHOLE),
    ("unet_decoder", FROM_SECOND),
    ("keys_values", WHOLE),
    ("controlnet", WHOLE),
    ("controlnet_reference", WHOLE),
]


@pytest.mark.parametrize(("family", "shift"), [*zip(FAMILIES, range(0, 6, 2), strict=True)])
def test_one_count_gives_the_work_of_all_sizes(family, shift):
    """Sizes have even and odd sides, several pictures and text rows, or a latent one cell high at
    the deepest level. Each stage is tested with three of them, one per family.
    """
    model, clip, _ = recipes(family)
    unet_settings, control_settings = (
        config(model.network),
        config(control_recipe(family).control_net),
    )
    counts = Counts()
    some_sizes = [(1, 8, 8, 77), (2, 16, 24, 154), (3, 13, 19, 77), (1, 9, 31, 231), (2, 3, 40, 77)]
    for number, (stage, blocks) in enumerate(STAGES):
        settings = control_settings if stage.startswith("controlnet") else unet_settings
        sizes = Sized(*some_sizes[(number + shift) % 5], *blocks)
        assert counts.work(settings, stage, sizes) == stage_work(settings, stage, sizes), (
            stage,
            sizes,
        )
    half = stage_work(unet_settings, "unet_mid", Sized(2, 8, 8), value_bytes=2)
    assert counts.work(unet_settings, "unet_mid", Sized(2, 8, 8, 77), value_bytes=2) == half
    for encoder in clip.encoders:
        for batch, tokens in [(1, 77), (2, 231), (1, 9)]:
            settings = config(encoder.encoder)
            assert counts.work(settings, "text_encoder", Sized(batch, 0, 0, tokens)) == stage_work(
                settings, "text_encoder", Sized(batch, 0, 0, tokens)
            )


def test_an_operation_is_computed_once_for_arguments_of_the_same_shapes():
    calls = []

    def called(*args, **kwargs):
        calls.append(args)
        return add(*args, **kwargs)

    add = torch.ops.aten.add.Tensor
    called._schema = add._schema
    given = torch.empty(2, 3, 4, device="meta").transpose(0, 2)
    for other, alpha in ((given, 1), (given, 1), (given, 2), (given.half(), 1), (given[0], 1)):
        made = result_on_meta(called, (given, other), {"alpha": alpha})
        expected = add(given, other, alpha=alpha)
        assert (made.shape, made.stride(), made.dtype, made.device) == (
            (expected.shape, expected.stride(), expected.dtype, expected.device)
        )
    assert len(calls) == 4
    numbers = torch.ones(2)  # have values
    assert torch.equal(result_on_meta(called, (numbers, numbers), {}), torch.full((2,), 2.0))
    view = result_on_meta(torch.ops.aten.view.default, (torch.empty(6, device="meta"), [2, 3]), {})
    assert view._base is not None


def test_full_size_sdxl_is_counted_once_for_all_sizes():
    counts = Counts()
    for sizes in (Sized(1, 128, 128, 77), Sized(4, 104, 152, 154)):
        assert counts.work(SDXL, "unet_mid", sizes) == stage_work(SDXL, "unet_mid", sizes)


def test_another_process_counts_nothing_again(tmp_path, monkeypatch):
    settings = config(recipes("sdxl")[0].network)
    expected = stage_work(settings, "unet_mid", Sized(2, 16, 24, 154))
    Counts(CostStore(tmp_path)).work(settings, "unet_mid", Sized(1, 8, 8, 77))
    monkeypatch.setattr(shapes, "module_on_meta", None)  # no more counting possible
    assert Counts(CostStore(tmp_path)).work(settings, "unet_mid", Sized(2, 16, 24, 154)) == expected


def test_unreadable_counts_are_counted_again(tmp_path):
    settings, store = config(recipes("sdxl")[0].network), CostStore(tmp_path)
    expected = Counts(store).work(settings, "unet_mid", Sized(1, 8, 8, 77))
    with closing(sqlite3.connect(tmp_path / FILE)) as file, file:
        file.execute("update formulas set formula = 'nothing'")
    assert Counts(CostStore(tmp_path)).work(settings, "unet_mid", Sized(1, 8, 8, 77)) == expected


def test_an_engine_plans_a_new_size_from_another_one_s_counts(tmp_path, monkeypatch):
    with local_engine(cache=tmp_path) as engine:
        work = engine.plan(region(16)).work
    monkeypatch.setattr(shapes, "module_on_meta", None)
    with local_engine(cache=tmp_path) as engine:
        larger = engine.plan(region(24)).work
    assert all(
        larger[name].flops > one.flops
        for name, one in work.items()
        if name.startswith("positive") and one.flops
    )


def region(side):
    model, clip, _ = recipes("sdxl")
    text = (ConditioningEntry(Prompt(clip, "a red star")),)
    begin = {"model": model, "latent_image": {"samples": torch.zeros(1, 4, side, side)}, "steps": 2}
    expansion = expand_sampling("StepBegin", begin, model, text, text, 5.0)
    return bind(expansion.graph, expansion.outputs[0].node)


def test_uncounted_work_of_a_stage_is_refused_and_never_free():
    with pytest.raises(
        InputError, match=r"node 5 \(Odd\): its stage 'odd' is unknown, so it cannot be planned"
    ):
        count_work(Operation("5", "odd", "Odd", {}), (1, 4, 8, 8), 77, 4, Counts())


def test_a_module_without_memory_is_in_float32_whatever_another_thread_loads():
    """A library loading in half precision sets torch's dtype of all threads."""
    described = json.dumps(dict(config(recipes("sd1")[0].network)) | {"sample_size": 77})
    torch.set_default_dtype(torch.float16)
    try:
        module = shapes.module_on_meta(described)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {weight.dtype for weight in module.parameters()} == {torch.float32}


def test_work_is_the_same_where_nothing_can_be_learnt() -> None:
    """A program may call an engine inside `torch.inference_mode`."""
    settings = dict(kinds()["sd35"].configuration(3), _class_name=kinds()["sd35"].network)
    shapes.module_on_meta.cache_clear()
    with torch.inference_mode():
        inside = stage_work(settings, "transformer_blocks", Sized(1, 8, 8))
    shapes._work.cache_clear()
    assert inside == stage_work(settings, "transformer_blocks", Sized(1, 8, 8))
    assert inside.flops > 0
