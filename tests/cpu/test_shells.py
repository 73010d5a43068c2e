"""Loading copies weights into an evicted module of equal form. The module keeps its memory, so that
calls recorded on it stay valid.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import single_files
import torch
from safetensors.torch import load_file, save_file
from test_recorded import case, strict
from tiny_models import (
    EvictionLog,
    control_recipe,
    controlnet_folder,
    folder,
    lora,
    pipeline_folder,
    recipes,
    sizes,
)

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.recipe import ModelRecipe, Prompt
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.recorded.recorder import NOT_DECLARED
from katz_graph.executor.weights.host_copies import HostCopies
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.ir.region import Region
from katz_graph.models.families.unet import stand_ins as unet_files
from katz_graph.models.loading import fill as loading
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.loadable import Loadable
from katz_graph.models.loading.merge import merged_model
from katz_graph.models.loading.residency import NoRoom
from katz_graph.models.loading.sources import controlnet_recipe, network_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore, fill_from_files
from katz_graph.models.prepare import FUSED, fuse_projections
from katz_graph.testing.model_files import Models as Files
from katz_graph.testing.plain_loop import ControlCase
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import local_engine, sample, sampler_region

CPU = ("cpu", torch.float32)
SETTLED = 10  # requests until memory use is stable


def bytes_of(*parts: Any) -> int:
    return 4 * sum(count_values(part) for part in parts)


def pipelines(files: Files, folder: Path) -> list[Path]:
    """Makes three pipelines of one form."""
    for seed in (5, 6):
        make_pipeline(folder / str(seed), "sd1", seed=seed, layers=1)
    return [files.pipeline, folder / "5", folder / "6"]


def model(seed: int) -> ModelRecipe:
    """Returns a network like `recipes("sd1")` with other weights."""
    path = folder() / f"like-{seed}"
    if not path.exists():
        make_pipeline(path, "sd1", seed=seed, **sizes("sd1"))
    return pipeline_recipes(path)[0]


def weights(module: Any) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def same(module: Any, other: Any) -> bool:
    mine, yours = weights(module), weights(other)
    return mine.keys() == yours.keys() and all(
        torch.equal(mine[name], yours[name]) for name in mine
    )


def places(module: Any) -> list[int]:
    return [weight.data_ptr() for weight in loading.memory_of(module).values()]


Kind = tuple[Path, Path, tuple[tuple[Path, float], ...]]
"""A pipeline, a ControlNet, and LoRAs with their strengths."""


def asked(sd1: Files, kind: Kind) -> Region:
    pipeline, control, loras = kind
    controls = (ControlCase(control, 0.8, 0.0, 1.0),)
    return sampler_region(case(sd1, pipeline=pipeline, controls=controls, loras=loras, steps=2))


@pytest.fixture(scope="module")
def expected(
    sd1: Files, tmp_path_factory: pytest.TempPathFactory, costs: Path
) -> dict[Kind, torch.Tensor]:
    """Returns each request's result with memory for all."""
    folders = pipelines(sd1, tmp_path_factory.mktemp("pipelines"))
    loras = ((), ((sd1.loras[1], 0.7),))
    with local_engine(batching=True, cache=costs) as engine:
        return {
            kind: sample(engine, asked(sd1, kind))
            for kind in itertools.product(folders, sd1.controls, loras)
        }


@pytest.mark.parametrize(
    ("room", "switches"), [("one of each", 24), ("two networks", 8), ("two ControlNets", 8)]
)
def test_switching_checkpoints_and_controlnets_causes_no_new_recording(
    sd1: Files, expected: dict[Kind, torch.Tensor], costs: Path, room: str, switches: int
) -> None:
    """Evicted modules may have LoRAs; their originals must not be restored."""
    kinds = list(expected)
    network, clip, _ = pipeline_recipes(sd1.pipeline)
    control = controlnet_recipe(sd1.controls[0]).control_net
    parts = [network.network, clip.encoders[0].encoder, control]
    parts += {"two networks": [network.network], "two ControlNets": [control]}.get(room, [])
    chance = random.Random(0)
    with local_engine(batching=True, cache=costs, model_bytes=bytes_of(*parts)) as engine:
        compute, residents = strict(), engine.models.residents
        engine.models.compute = compute
        for number in range(SETTLED + switches):
            if number == SETTLED:
                settled, fills = _looks(engine), residents.use.fills
                modules = {id(one.module) for one in residents._here.values()}
            kind = chance.choice(kinds)
            assert torch.equal(sample(engine, asked(sd1, kind)), expected[kind]), number
        assert _looks(engine) == settled and residents.use.fills >= fills + switches
        assert {id(one.module) for one in residents._here.values()} == modules
        assert compute.use.drops == 0 and compute.use.eager.keys() <= {NOT_DECLARED}


def _looks(engine: DeviceEngine) -> tuple[int, int, int]:
    """Counts recordings, their bytes and models' bytes."""
    use = engine.models.compute.use
    return use.captures, use.bytes, engine.models.residents.use.resident_bytes


def modules_of(store: ModelStore, *wanted: Loadable) -> list[Any]:
    return [store.residents.get(one) for one in wanted]


def pairs() -> Iterator[tuple[str, Callable[[ModelStore], tuple[Loadable, Loadable]]]]:
    """Yields equal-form pairs per kind."""
    first, second = recipes("sd1")[0], model(5)
    yield (
        "network",
        lambda store: (
            store.network_of(first.network, *CPU),
            store.network_of(second.network, *CPU),
        ),
    )
    yield (
        "rounded",
        lambda store: (
            store.network_of(replace(first.network, rounding="float8_e4m3fn"), *CPU),
            store.network_of(replace(second.network, rounding="float8_e4m3fn"), *CPU),
        ),
    )
    yield (
        "ControlNet",
        lambda store: (
            store.controlnet_of(control_recipe("sd1").control_net, *CPU),
            store.controlnet_of(control_recipe("sd1", 11).control_net, *CPU),
        ),
    )
    yield (
        "differences",
        lambda store: (
            store.controlnet_of(control_recipe("sd1").control_net, *CPU),
            store.controlnet_of(control_recipe("sd1", 11).control_net, *CPU, first.network),
        ),
    )
    yield (
        "VAE",
        lambda store: (
            store.vae_of(recipes("sd1")[2].vae, *CPU),
            store.vae_of(pipeline_recipes(folder() / "like-5")[2].vae, *CPU),
        ),
    )
    yield (
        "text encoder",
        lambda store: (
            store.text_encoder_of(recipes("sd1")[1].encoders[0].encoder, *CPU),
            store.text_encoder_of(
                pipeline_recipes(folder() / "like-5")[1].encoders[0].encoder, *CPU
            ),
        ),
    )
    file = network_recipe(single_files.checkpoint("sd1"))
    other = folder() / "other.safetensors"
    tensors = unet_files.checkpoint_tensors("sd1")
    single_files.save(other, {name: -tensor for name, tensor in tensors.items()})
    yield (
        "single files",
        lambda store: (
            store.network_of(file.network, *CPU),
            store.network_of(network_recipe(other).network, *CPU),
        ),
    )


@pytest.mark.parametrize("kind", [name for name, _ in pairs()])
def test_each_kind_comes_into_the_place_of_one_of_its_form(kind: str) -> None:
    two = dict(pairs())[kind]
    alone = ModelStore()
    fresh = modules_of(alone, *two(alone))
    store = ModelStore(model_bytes=max(one.size() for one in two(alone)))
    first, second = two(store)
    module = store.residents.get(first)
    there = places(module)
    assert same(module, fresh[0])
    for wanted, as_fresh in ((second, fresh[1]), (first, fresh[0])):
        assert store.residents.get(wanted) is module
        assert places(module) == there and same(module, as_fresh)
    assert not same(*fresh) and store.residents.use.fills == 2


def test_a_merged_network_and_a_plain_one_take_each_others_place() -> None:
    plain = recipes("sd1")[0]
    merged = merged_model(plain, model(5), (("", 0.3, 0.7),))
    unbounded = DeviceModels()
    fresh = unbounded.patch(merged)
    models = DeviceModels(store=partial(ModelStore, model_bytes=bytes_of(plain.network)))
    module = models.patch(plain.with_lora(lora("sd1")))
    assert models.patch(merged) is module and same(module, fresh)
    assert models.patch(plain) is module and same(module, unbounded.patch(plain))


def test_where_there_is_room_both_stay() -> None:
    store = ModelStore(model_bytes=2 * bytes_of(model(5).network))
    first, second = (store.network(one.network, *CPU) for one in (model(5), model(6)))
    assert first is not second and store.network(model(5).network, *CPU) is first
    assert store.residents.use.fills == 0


def test_shells_in_use_are_not_taken() -> None:
    store = ModelStore(model_bytes=bytes_of(model(5).network))
    with store.residents.using(store.network_of(model(5).network, *CPU)) as module:
        expected = {name: weight.clone() for name, weight in weights(module).items()}
        with pytest.raises(NoRoom):
            store.network(model(6).network, *CPU)
        assert all(torch.equal(weight, expected[name]) for name, weight in weights(module).items())


@pytest.mark.parametrize("differs", ["configuration", "number format"])
def test_others_get_memory_of_their_own(differs: str, tmp_path: Path) -> None:
    make_pipeline(tmp_path / "seeing", "sd1", seed=1, extra=5)
    other = pipeline_recipes(tmp_path / "seeing")[0].network
    wanted = {
        "configuration": (other, *CPU),
        "number format": (model(6).network, "cpu", torch.bfloat16),
    }[differs]
    store = ModelStore(model_bytes=bytes_of(other))
    module = store.network(model(5).network, *CPU)
    reference = weakref.ref(module)
    assert store.network(*wanted) is not module
    del module
    gc.collect()
    assert reference() is None and store.residents.use.fills == 0


def test_a_file_that_is_replaced_comes_into_its_old_place(tmp_path: Path) -> None:
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    models = DeviceModels()
    recipe = pipeline_recipes(tmp_path / "model")[0]
    module = models.patch(recipe.with_lora(lora("sd1")))
    file = tmp_path / "model" / "unet" / "diffusion_pytorch_model.safetensors"
    save_file({name: 2 * value for name, value in load_file(file).items()}, file)
    newer = pipeline_recipes(tmp_path / "model")[0]
    assert models.patch(newer) is module
    assert same(module, ModelStore().network(newer.network, *CPU))


@pytest.mark.parametrize("error", [InputError, KeyboardInterrupt])
def test_copying_that_stops_midway_leaves_neither_of_both(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture of two models is of no use."""
    models = DeviceModels(store=partial(ModelStore, model_bytes=bytes_of(model(5).network)))
    compute = models.compute = strict()
    first, second = model(5), model(6)
    spoilt = weakref.ref(models.patch(first))
    forgotten: list[Any] = []
    monkeypatch.setattr(compute, "forget", lambda module: forgotten.append(type(module).__name__))

    def stop(module: Any, given: Any) -> None:
        loading.fill(module, dict(list(given.items())[:5]))
        raise error

    with monkeypatch.context() as stopped:
        stopped.setattr("katz_graph.models.loading.store.fill", stop)
        with pytest.raises(error):
            models.patch(second)
    gc.collect()
    use = models.residents.use
    assert spoilt() is None and forgotten == ["UNet2DConditionModel"] and use.resident_bytes == 0
    fresh = ModelStore()
    for one in (first, second):
        assert same(models.patch(one), fresh.network(one.network, *CPU))


def with_copies(room: float, *resident: Any) -> DeviceModels:
    """Evicts models to host memory, as on a GPU."""
    store = partial(ModelStore, model_bytes=bytes_of(*resident))
    return DeviceModels(store=store, copies=HostCopies(lambda: room))


def test_evicted_modules_return_without_reading_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules return as loaded, without LoRAs. Includes a merged model."""
    plain = [model(5), model(6)]
    merged = merged_model(model(5), model(6), (("", 0.3, 0.7),))
    unbounded = DeviceModels()
    fresh = [{**weights(unbounded.patch(one))} for one in (*plain, merged)]
    models = with_copies(math.inf, plain[0].network)
    for one in (*plain, merged):
        models.patch(one.with_lora(lora("sd1")))
    models.encode_text(Prompt(recipes("sd1")[1], "a star"))  # evicts the network
    monkeypatch.setattr("katz_graph.models.loading.store.tensors", None)
    for _ in range(2):
        for one, expected in zip((*plain, merged), fresh, strict=True):
            found = weights(models.patch(one))
            assert all(torch.equal(found[name], expected[name]) for name in expected)
    use = models.residents.use
    assert use.returns == 6 and use.fills == 2 + 5


def test_copies_on_the_host_keep_within_their_room_and_go_with_all_else() -> None:
    size = bytes_of(model(5).network)
    models = with_copies(1.5 * size, model(5).network)
    for one in (model(5), model(6), model(5), model(6)):
        models.patch(one)
        assert models.copies.bytes <= 1.5 * size
    assert models.residents.use.returns == 0  # each replaced the other
    models = with_copies(2 * size, model(5).network)
    for one in (model(5), model(6), model(5)):
        models.patch(one)
    assert models.residents.use.returns == 1 and models.copies.bytes == 2 * size
    models.unload()
    assert models.copies.bytes == 0


def test_an_eviction_fault_is_reported_and_no_partial_module_stays() -> None:
    models = with_copies(math.inf, model(5).network)
    first = models.patch(model(5).with_lora(lora("sd1")))
    (sets,) = models._sets.values()
    sets.use = lambda *_: (_ for _ in ()).throw(RunError("not what it was"))  # type: ignore[method-assign]
    with pytest.raises(RunError, match="not what it was"):
        models.patch(model(6))
    del first
    assert models.residents.use.resident_bytes == 0 and models.copies.bytes == 0
    for one in (model(6), model(5)):
        assert same(models.patch(one), ModelStore().network(one.network, *CPU))


def test_the_replaced_and_the_new_model_are_reported() -> None:
    evictions, size = EvictionLog(), bytes_of(control_recipe("sd1").control_net)
    store = ModelStore(evictions, control_net_bytes=size)
    for seed in (10, 11):
        controlnet_folder("sd1", seed)
        store.controlnet(control_recipe("sd1", seed).control_net, *CPU)
    (line,) = evictions.lines
    assert line.startswith("released ControlNet sd1-controlnet-10 (0.00 GB, loaded in ")
    assert line.endswith(" s) for ControlNet sd1-controlnet-11, its replacement")
    use = store.residents.use
    assert (use.loads, use.fills, use.evictions) == (2, 1, 1)


def test_views_and_other_layouts_are_written_where_they_lie() -> None:
    """GPUs have fused projections and channels-last convolutions."""
    module = ModelStore().network(model(5).network, *CPU)
    module.to(memory_format=torch.channels_last)
    fuse_projections(module)
    there, strides = places(module), module.conv_in.weight.stride()
    fill_from_files(model(6).network, module)
    assert same(module, ModelStore().network(model(6).network, *CPU))
    assert places(module) == there and module.conv_in.weight.stride() == strides
    fused = [layer for layer in module.modules() if hasattr(layer, FUSED)]
    assert fused
    for layer in fused:
        whole, layers = getattr(layer, FUSED), (layer.to_q, layer.to_k, layer.to_v)
        assert torch.equal(whole.weight, torch.cat([one.weight for one in layers]))
        assert whole.bias is None and all(one.bias is None for one in layers)
