"""Tokens before the picture that no step changes: their keys and values are computed once per
request, in a chain with the ranges of blocks, and give the pictures of the whole sequence. They
count in a plan's time and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache
from test_qwen_image_21 import SIZES, forward, given, made
from torch import Tensor

from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.patches import WholeSequence
from katz_graph.core.recipe import ConditioningEntry, ModelRecipe, Picture, Prompt, References
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.families.shared.transformer_stack import ReferenceTokens, stack_of
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.stage_registry import stage
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.stock_pipelines import TEXTS, Asked, stock
from katz_graph.testing.worker_threads import WorkerThreads

BLOCKS, SIDE, STEPS, GUIDANCE = 4, 8, 4, 4.0

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pipeline")
    make_pipeline(place, "qwen_image_21", 5, BLOCKS)
    return place


def entries(folder: Path, count: int, texts: Sequence[str]) -> list[tuple[ConditioningEntry]]:
    draw = torch.Generator().manual_seed(3)
    seen = tuple(Picture.of(torch.randn(1, 64, SIDE, SIDE, generator=draw)) for _ in range(count))
    clip = pipeline_recipes(folder)[1]
    references = References(seen) if count else None
    return [(ConditioningEntry(Prompt(clip, text), references=references),) for text in texts]


def begin(model: ModelRecipe, batch: int) -> dict[str, Any]:
    return {
        "sampler_name": "euler",
        "scheduler": "simple",
        "steps": STEPS,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(batch, 64, SIDE, SIDE)},
        "model": model,
    }


def region(
    folder: Path,
    references: int = 1,
    whole: bool = False,
    batch: int = 1,
    cfg: float = 1.0,
    texts: Sequence[str] = ("a red circle", "blue"),
) -> Region:
    model = pipeline_recipes(folder)[0]
    model = model.with_patch(WholeSequence()) if whole else model
    sides = entries(folder, references, texts)
    expansion = expand_sampling("StepBegin", begin(model, batch), model, *sides, cfg)
    return bind(expansion.graph, expansion.outputs[0].node)


def in_groups(folder: Path, references: int = 1, whole: bool = False) -> Region:
    """Returns a region with two ranges of blocks."""
    model = pipeline_recipes(folder)[0]
    model = model.with_patch(WholeSequence()) if whole else model
    text = entries(folder, references, ["a red circle"])[0]
    step, common = Link("begin", 0), {"model": model, "conditioning": text}
    first, last = ({"last_block": 1}, {"first_block": 2})
    nodes = {
        "begin": NodeCall("StepBegin", begin(model, 1)),
        "embed": NodeCall("TransformerEmbed", {**common, "step": step}),
        "one": NodeCall("TransformerBlocks", {**common, "features": Link("embed", 0), **first}),
        "two": NodeCall("TransformerBlocks", {**common, "features": Link("one", 0), **last}),
        "head": NodeCall("TransformerHead", {"model": model, "features": Link("two", 0)}),
        "end": NodeCall("StepEnd", {"step": step, "prediction": Link("head", 0)}),
    }
    return bind(Graph(nodes), "end")


def prefixes(program: Program) -> list[Any]:
    return [one for one in program.before if one.stage == "transformer_prefix"]


def close(one: Tensor, other: Tensor) -> None:
    assert (one - other).abs().max() <= 1e-5 * (other.max() - other.min())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("sizes", [(), SIZES])
@torch.no_grad()
def test_blocks_match_the_stock_cached_step(
    sizes: Sequence[Sequence[int]], batch: int, dtype: torch.dtype
) -> None:
    """Bit for bit with equal keys and values, which differ by rounding from the stock's: the stock
    computes them with the picture behind them.
    """
    module = made(dtype)
    step, text, seen = given(batch, dtype, sizes)
    cache = QwenImage21KVCache(3)
    early = replace(step, timestep=torch.full_like(step.timestep, 0.9))
    forward(module, early, text, seen, kv_cache=cache, kv_cache_mode="extract")
    wanted = forward(module, step, text, seen, kv_cache=cache, kv_cache_mode="cached")
    stack, (rows, columns) = stack_of(module), step.x.shape[-2:]
    fixed = stack.fixed(
        module, rows, columns, text.hidden.shape[1], ReferenceTokens(seen, "", text.slots)
    )
    stock = [(one.k, one.v) for one in cache.layer_caches]
    before = stack.before(stack.context(module, text), fixed)
    first, ours = stack.prefix(module, range(2), before, fixed)
    ours += stack.prefix(module, range(2, 3), first, fixed)[1]
    bound = 1e-6 if dtype == torch.float32 else 0.02
    for pair, others in zip(ours, stock, strict=True):
        for one, other in zip(pair, others, strict=True):
            assert (one - other).abs().max() <= bound * max(1.0, float(other.abs().max()))
    embedding = stack.embedding(module, step.timestep, ())
    hidden, none = stack.embed(module, step.model_input, None, embedding, fixed)
    assert none is None
    for number in range(3):
        hidden, _ = stack.block(
            module, number, hidden, None, embedding, fixed, prefix=stock[number]
        )
    assert torch.equal(stack.head(module, hidden, embedding, rows, columns), wanted)


@pytest.mark.parametrize("references", [0, 1, 2])
@pytest.mark.parametrize("cfg", [1.0, 3.0])
def test_keys_and_values_give_the_picture_of_the_whole_sequence(
    references: int, cfg: float, folder: Path
) -> None:
    with local_engine() as engine:
        stored = sample(engine, region(folder, references, cfg=cfg, batch=2))
        whole = sample(engine, region(folder, references, True, cfg=cfg, batch=2))
    close(stored, whole)


def test_sides_of_equal_length_share_calls(folder: Path) -> None:
    texts = "a red circle", "a grey circle"
    with local_engine(batching=True) as engine:
        stored = sample(engine, region(folder, 1, cfg=3.0, batch=2, texts=texts))
        whole = sample(engine, region(folder, 1, True, cfg=3.0, batch=2, texts=texts))
    close(stored, whole)


def test_ranges_on_two_devices_give_the_bits_of_one(folder: Path) -> None:
    drawn = in_groups(folder)
    with local_engine(batching=False) as engine:
        wanted = sample(engine, drawn)
        close(wanted, sample(engine, in_groups(folder, whole=True)))
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    with DeviceEngine(workers, link=NetworkLink(1e9, 1e-4), launchers=launchers) as engine:
        pins = {"embed": ("cpu:0",), "one": ("cpu:0",), "two": ("cpu:1",), "head": ("cpu:1",)}
        devices = engine.cluster.devices
        program = plan_region(drawn, Target(devices, engine.cluster.links, pins, batching=False))
        found = engine.cluster.run(program, bare_context(engine)).samples
    places = {
        call.operations[0]: call.device
        for call in program.before_calls
        if call.stage == "transformer_prefix"
    }
    assert len(prefixes(program)) == 2
    assert [places[one.id] for one in prefixes(program)] == ["cpu:0", "cpu:1"]
    assert torch.equal(found, wanted)


def planned(drawn: Region, **changed: Any) -> Program:
    """Plans a region for a device of 1 GFLOP/s. `changed`: its further properties."""
    return plan_region(drawn, Target((Device("cpu", 1e9, 1e12, **changed),)))


@pytest.mark.parametrize("batch", [1, 4])
@torch.no_grad()
def test_a_batch_of_one_prompt_holds_one_copy(batch: int, folder: Path) -> None:
    drawn = region(folder, 2, batch=batch)
    program = planned(drawn)
    (one,) = prefixes(program)
    tokens = program.tokens[one.id] + 2 * SIDE * SIDE
    width = 32
    assert program.held == {one.id: 2 * BLOCKS * tokens * width * 4}
    module = made()
    step, text, seen = given(batch, sizes=SIZES)
    stack = stack_of(module)
    count, sides = text.hidden.shape[1], step.x.shape[-2:]
    fixed = stack.fixed(module, *sides, count, ReferenceTokens(seen, "", text.slots))
    inputs = {"context": stack.context(module, text), "fixed": fixed, "copies": batch}
    inputs |= {"first_block": 0, "last_block": -1}
    stored, _ = stage("transformer_prefix").computed(module, inputs)
    assert [part.shape[0] for pair in stored for part in pair] == [1] * 6


def test_values_that_do_not_fit_are_computed_in_every_evaluation(folder: Path) -> None:
    drawn = region(folder, 2)
    roomy = planned(drawn)
    (size,) = roomy.held.values()
    operations = (*roomy.before, *roomy.variants[0].operations)
    models = sum(
        roomy.work[one.id].weight_bytes for one in operations if stage(one.stage).holds_weights
    )
    assert prefixes(planned(drawn, room_bytes=models + size))
    tight = planned(drawn, room_bytes=models + size / 2)
    assert not prefixes(tight) and not tight.held
    (note,) = [one for one in tight.notes if one.startswith("text and references")]
    assert f"need {size / 1e9:.2f} GB" in note and "would save" in note
    assert roomy.prediction is not None and tight.prediction is not None
    assert tight.prediction.planned > 1.5 * roomy.prediction.planned


def test_work_before_the_loop_counts_in_the_prediction(folder: Path) -> None:
    """With two references, it is most of the first evaluation."""
    drawn = region(folder, 2)
    before = planned(drawn).prediction
    assert before is not None
    first, *rest = before.evaluations
    assert first > 2 * rest[0]


@pytest.mark.parametrize("whole", [False, True])
def test_a_picture_is_the_stock_pipeline_s_without_its_cache(whole: bool, folder: Path) -> None:
    drawn = region(folder, 0, whole, texts=TEXTS, cfg=GUIDANCE)
    noise = torch.randn(1, 64, SIDE, SIDE, generator=torch.Generator().manual_seed(7))
    asked = Asked(folder, "qwen_image_21", noise, STEPS, arguments={"use_kv_cache": False})
    with local_engine() as engine:
        ours = sample(engine, drawn)
        _, _, vae = pipeline_recipes(folder)
        picture = engine.decode_latent(vae, ours, bare_context(engine))
    assert (picture - stock(asked)()).abs().max() <= 1e-5
