"""All live modules of a device within one budget: evictions, protection while in use, and unchanged
pictures.
"""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import single_files
import torch
from processes import eventually
from safetensors.torch import save_file
from tiny_models import EvictionLog, control_recipe, lora, pipeline_folder, recipes

from katz_graph.core.errors import InputError, OutOfMemory
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import (
    ClipRecipe,
    Compact,
    ModelRecipe,
    Prompt,
    UpscaleModelRecipe,
    VaeRecipe,
)
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.executor.weights import originals
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.host import memory as host_memory
from katz_graph.ir.device import NetworkLink as DeviceLink
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.loadable import Loadable
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.merge import merged_model
from katz_graph.models.loading.residency import NoRoom
from katz_graph.models.loading.residents import Residents
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.model_files import Models as Files
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region
from katz_graph.testing.worker_threads import WorkerThreads
from katz_graph.upscale.files import upscale_model
from katz_graph.upscale.networks import CompactNet

CPU = ("cpu", torch.float32)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a cost cache, so that devices are measured once."""
    return tmp_path_factory.mktemp("measured")


def bytes_of(*parts: Any) -> int:
    return 4 * sum(count_values(part) for part in parts)


def upscaler(folder: Path) -> UpscaleModelRecipe:
    save_file(CompactNet(Compact(64, 8, 2)).state_dict(), folder / "net.safetensors")
    return upscale_model(folder / "net.safetensors")


class Memory(DeviceMemory):
    """Has `size` bytes; `taken` returns the bytes in use, `peaked` is the workspace's peak."""

    def __init__(self, size: float) -> None:
        super().__init__("cpu")
        self.size, self.taken, self.peaked = size, lambda: 0.0, 0.0

    @property
    def total(self) -> float:
        return self.size

    def free(self) -> float:
        return self.size - self.taken()

    def peak(self) -> float:
        return self.peaked


def on(memory: Memory) -> ModelStore:
    store = ModelStore(memory=memory)
    memory.taken = lambda: float(store.residents._books.resident_bytes)
    return store


def test_every_kind_of_model_goes_when_others_need_the_room(tmp_path: Path) -> None:
    """One of each kind is loaded, and is freed after the next; together they would not fit."""
    (model, clip, vae), net = recipes("sd1"), upscaler(tmp_path)
    merged = merged_model(model, recipes("sd1")[0].with_lora(lora("sd1")), (("", 0.5, 0.5),))
    largest = bytes_of(model.network)
    models = DeviceModels(store=partial(ModelStore, model_bytes=largest))
    uses: dict[str, Callable[[], Any]] = {
        "unet": lambda: models.patch(model),
        "merged": lambda: models.patch(merged),
        "text": lambda: models.encode_text(Prompt(clip, "a star")),
        "vae": lambda: models.decode_latent(vae, torch.zeros(1, 4, 2, 2)),
        "upscaler": lambda: models.upscale(net, torch.zeros(1, 3, 8, 8)),
        "control": lambda: models.module(control_recipe("sd1")),
    }
    seen = weakref.WeakSet[Any]()
    for use in (*uses.values(), uses["unet"]):
        use()
        assert models.residents.use.resident_bytes <= largest
        seen.update(one.module for one in models.residents._here.values())
    gc.collect()
    assert [type(module).__name__ for module in seen] == ["UNet2DConditionModel"]
    assert models.residents.use.evictions >= 4


def test_least_recently_used_models_are_evicted_with_reason_and_cost() -> None:
    model, clip, vae = recipes("sd1")
    encoder = clip.encoders[0].encoder
    evictions = EvictionLog()
    store, said = (
        ModelStore(evictions, model_bytes=bytes_of(model.network, encoder, vae.vae)),
        evictions.lines,
    )
    unet, decoder = store.network(model.network, *CPU), store.vae(vae.vae, *CPU)
    store.text_encoder(encoder, *CPU)
    store.vae(vae.vae, *CPU)
    store.controlnet(control_recipe("sd1").control_net, *CPU)
    assert store.vae(vae.vae, *CPU) is decoder
    assert store.network(model.network, *CPU) is not unet
    assert said[0].startswith("released unet sd1 (0.00 GB, loaded in ") and said[0].endswith(
        " s) for ControlNet sd1-controlnet-10"
    )
    use = store.residents.use
    assert use.evictions == len(said) and 0 < use.evicted_seconds < use.load_seconds


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_of_a_file_that_is_replaced_only_the_newest_stays(tmp_path: Path, kind: str) -> None:
    """Old versions are not needed, even without a budget."""
    checkpoint = tmp_path / "model.safetensors" if kind == "file" else tmp_path / "model"
    models = DeviceModels()
    for _ in range(3):
        if kind == "file":
            shutil.copyfile(single_files.checkpoint("sd1"), checkpoint)
        else:
            shutil.rmtree(checkpoint, ignore_errors=True)
            shutil.copytree(pipeline_folder("sd1"), checkpoint, copy_function=shutil.copyfile)
        model, clip, vae = pipeline_recipes(checkpoint)
        models.patch(model)
        models.encode_text(Prompt(clip, "a star"))
        models.decode_latent(vae, torch.zeros(1, 4, 2, 2))
    assert models.residents.use.resident_bytes == bytes_of(
        model.network, clip.encoders[0].encoder, vae.vae
    )


def test_a_model_with_loras_takes_the_originals_of_its_weights_along() -> None:
    model, other = recipes("sd1")[0], recipes("sd2")[0]
    models = DeviceModels(store=partial(ModelStore, model_bytes=bytes_of(other.network)))
    plain = {name: weight.clone() for name, weight in models.patch(model).named_parameters()}
    models.patch(model.with_lora(lora("sd1")))
    (sets,) = models._sets.values()
    references = [weakref.ref(one) for one in (sets, *sets.originals.tensors.values())]
    del sets
    models.patch(other)
    gc.collect()
    assert len(references) > 10 and not any(one() is not None for one in references)
    assert all(
        torch.equal(weight, plain[name]) for name, weight in models.patch(model).named_parameters()
    )


class Device(Memory):
    """Simulates a GPU, on torch's meta device: only models and originals take memory."""

    def __init__(self, size: float, model_bytes: int | None = None) -> None:
        super().__init__(size)
        self.watched = 0.0
        self.models = DeviceModels(
            "meta", store=partial(ModelStore, model_bytes=model_bytes, memory=self)
        )
        self.taken = lambda: self.models.residents._books.resident_bytes + self.originals

    @property
    def originals(self) -> float:
        return float(sum(sets.originals.device_bytes for sets in self.models._sets.values()))

    def watch(self) -> None:
        self.watched = self.taken()

    def peak(self) -> float:
        return max(0.0, self.taken() - self.watched)


@pytest.fixture
def lora_bytes(monkeypatch: pytest.MonkeyPatch) -> float:
    """Returns the bytes of SD1.5's originals with a LoRA."""
    # the meta device has no values to compare or copy
    monkeypatch.setenv("KATZ_CHECK_WEIGHTS", "0")
    monkeypatch.setattr(originals, "to_host", lambda weight: torch.zeros_like(weight, device="cpu"))
    monkeypatch.setattr(
        "katz_graph.models.loading.room.MOVABLE", 1
    )  # LoRAs change much of so small a model
    model = recipes("sd1")[0]
    device = Device(100 * bytes_of(model.network))
    device.models.patch(model.with_lora(lora("sd1")))
    assert 0 < device.originals < bytes_of(model.network)
    return device.originals


@pytest.mark.parametrize("by_budget", [False, True])
def test_originals_go_to_the_host_before_a_model_is_evicted(
    by_budget: bool, lora_bytes: float
) -> None:
    """The budget is free memory less the reserve, or --model-gb."""
    model, clip, _ = recipes("sd1")
    room = int(bytes_of(model.network) + 1.01 * lora_bytes)
    device = Device(100.0 * room, room) if by_budget else Device(room * 8 / 7)
    live = device.models.patch(model.with_lora(lora("sd1")))
    assert device.originals == lora_bytes
    assert device.models.residents.within_reach() == device.size  # movable memory counts as free
    device.models.store.text_encoder(clip.encoders[0].encoder, "meta", torch.float32)
    assert device.models.patch(model) is live and device.originals < lora_bytes
    assert device.models.residents.use.evictions == 0
    device.models.residents.make_room(device.size - bytes_of(model.network), "a picture")
    assert device.originals == 0 and device.models.patch(model) is live


@pytest.mark.parametrize("by_budget", [False, True])
def test_originals_that_have_no_room_are_on_the_host_and_evict_nothing(
    by_budget: bool, lora_bytes: float
) -> None:
    model = recipes("sd1")[0]
    size = int(bytes_of(model.network) + 0.6 * lora_bytes)
    device = Device(100.0 * size, size) if by_budget else Device(size * 8 / 7)
    live = device.models.patch(model)
    assert device.models.patch(model.with_lora(lora("sd1"))) is live
    assert 0.4 * lora_bytes < device.originals <= 0.6 * lora_bytes
    assert device.models.residents.use.evictions == 0


def test_originals_take_a_share_of_the_memory(
    lora_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = recipes("sd1")[0]
    device = Device(100 * bytes_of(model.network))
    monkeypatch.setattr("katz_graph.models.loading.room.MOVABLE", 0.5 * lora_bytes / device.size)
    device.models.patch(model.with_lora(lora("sd1")))
    assert 0.3 * lora_bytes < device.originals <= 0.5 * lora_bytes
    before = device.originals
    device.models.patch(model)
    device.models.patch(model.with_lora(lora("sd1", seed=2)))
    assert device.originals == before


@pytest.mark.parametrize("by_budget", [False, True])
def test_originals_of_a_model_that_went_count_no_longer(by_budget: bool, lora_bytes: float) -> None:
    model = recipes("sd1")[0]
    room = int(bytes_of(model.network) + 1.01 * lora_bytes)
    device = Device(100.0 * room, room) if by_budget else Device(room * 8 / 7)
    for _ in range(2):
        device.models.patch(model.with_lora(lora("sd1")))
        assert device.originals == lora_bytes
        device.models.unload()
        assert device.models.residents.within_reach() == device.size


def test_originals_are_not_counted_as_workspace(lora_bytes: float) -> None:
    model, clip, _ = recipes("sd1")
    device = Device(bytes_of(model.network) + 3 * lora_bytes)
    device.models.patch(model.with_lora(lora("sd1")))
    assert device.originals == lora_bytes > device.size / 8
    device.models.store.text_encoder(clip.encoders[0].encoder, "meta", torch.float32)
    assert device.models.residents.use.reserve_bytes == device.size / 8


def test_the_reserve_is_the_recent_workspace_limited_by_evictable_memory() -> None:
    model, clip, _ = recipes("sd1")
    encoder = clip.encoders[0].encoder
    both = bytes_of(model.network, encoder)
    memory = Memory(both * 1.5)
    store = on(memory)
    store.network(model.network, *CPU)
    store.text_encoder(encoder, *CPU)
    assert store.residents.use.evictions == 0  # until measured, the reserve is an eighth
    store.residents.drop(store.text_encoder_of(encoder, *CPU).key)
    memory.peaked = both
    with store.residents.using(store.network_of(model.network, *CPU)):
        store.text_encoder(encoder, *CPU)
    assert store.residents.use.evictions == 0  # it is in use: the reserve shrinks
    assert store.residents.use.reserve_bytes == both
    store.residents.drop(store.text_encoder_of(encoder, *CPU).key)
    store.text_encoder(encoder, *CPU)
    assert store.residents.use.evictions == 1


def test_evictable_memory_is_free_for_the_planner() -> None:
    model = recipes("sd1")[0]
    memory = Memory(bytes_of(model.network) * 2)
    store = on(memory)
    empty = store.residents.capacity
    store.network(model.network, *CPU)
    assert store.residents.capacity == empty
    assert ModelStore(model_bytes=5, memory=memory).residents.capacity == 5


def test_a_model_that_does_not_fit_at_all_is_named_with_the_sizes() -> None:
    model = recipes("sd1")[0]
    with pytest.raises(
        OutOfMemory,
        match=r"^unet sd1: takes 0\.00 GB, more than the 0\.00 GB that models may take "
        r"\(--model-gb\)",
    ):
        ModelStore(model_bytes=1000).network(model.network, *CPU)
    with pytest.raises(
        OutOfMemory,
        match=r"of 0\.00 GB of cpu are free, models in use take 0\.00 GB; use a smaller picture",
    ):
        on(Memory(1000)).network(model.network, *CPU)


def test_out_of_memory_during_a_load_releases_other_models_and_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, clip, _ = recipes("sd1")
    models, full = DeviceModels(), []
    models.encode_text(Prompt(clip, "a star"))
    move = torch.nn.Module.to

    def to(self: Any, *arguments: Any, **more: Any) -> Any:
        if not full:
            full.append(models.residents.use.resident_bytes)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return move(self, *arguments, **more)

    monkeypatch.setattr(torch.nn.Module, "to", to)
    models.patch(model)
    assert full == [bytes_of(clip.encoders[0].encoder, model.network)]
    assert models.residents.use.resident_bytes == bytes_of(model.network)
    assert models.residents.use.short == 1


def test_requests_that_do_not_fit_together_wait_for_each_other(
    sd1: Files, tmp_path: Path, measured: Path
) -> None:
    """Four threads, two models, memory for one: pictures are those of running alone."""
    other = tmp_path / "other"
    make_pipeline(other, "sd1", seed=5, layers=1)
    control = ControlCase(sd1.controls[0], 0.8, 0.0, 1.0)
    regions = [
        sampler_region(Case("x", folder, "euler", 3, seed=number, controls=(control,)))
        for number, folder in enumerate((sd1.pipeline, other, sd1.pipeline, other))
    ]
    with local_engine(batching=False, cache=measured) as engine:
        alone = [sample(engine, region) for region in regions]
    most = _request_bytes(sd1)
    with (
        local_engine(batching=False, cache=measured, model_bytes=most) as engine,
        ThreadPoolExecutor(4) as pool,
    ):
        made = list(pool.map(lambda region: sample(engine, region), regions))
        assert engine.models.residents.use.evictions >= 2
        assert not engine.models.residents.in_use
    assert all(torch.equal(one, other) for one, other in zip(made, alone, strict=True))


def _request_bytes(models: Files) -> int:
    model, clip, _ = pipeline_recipes(models.pipeline)
    return bytes_of(
        model.network,
        controlnet_recipe(models.controls[0]).control_net,
        *(one.encoder for one in clip.encoders),
    )


def test_a_request_with_models_that_do_not_fit_is_refused_and_the_next_runs(
    sd1: Files, measured: Path
) -> None:
    model, _, _ = pipeline_recipes(sd1.pipeline)
    region = sampler_region(Case("x", sd1.pipeline, "euler", 2))
    with local_engine(cache=measured, model_bytes=bytes_of(model.network) + 1000) as engine:
        with pytest.raises(
            OutOfMemory,
            match=r"^sampler .*: needs 0\.00 GB: unet sd1 0\.00, text encoder sd1 0\.00; models may "
            r"take 0\.00 GB of cpu \(--model-gb\); use a smaller",
        ):
            sample(engine, region)
        assert not engine.models.residents.in_use
        assert engine.models.patch(model) is not None


def test_models_that_do_not_fit_together_are_listed_with_their_sizes() -> None:
    wanted = [
        Loadable(name, name, lambda size=size: size, lambda: None)
        for name, size in (
            ("text encoder big", 250e6),
            ("unet big", 5.1e9),
            ("ControlNet a", 2.5e9),
        )
    ]
    error = Residents(model_bytes=int(6e9)).too_much("a request", [*wanted, wanted[1]])
    assert str(error).startswith(
        "a request: needs 7.85 GB: unet big 5.10, ControlNet a 2.50, text encoder big 0.25; models "
        "may take 6.00 GB (--model-gb); use a smaller"
    )


def test_caches_are_freed_before_a_model_is_refused(sd1: Files, measured: Path) -> None:
    """Budgets do not count caches such as recordings. Tests one model that is too large, and models
    of a request that are too large together.
    """
    asked = sampler_region(Case("x", sd1.pipeline, "euler", 2))
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    parts = model.network, *(one.encoder for one in clip.encoders)
    with local_engine(cache=measured) as engine:
        residents = engine.models.residents
        for cached in (1 << 16, bytes_of(*parts)):
            memory, recorded = Memory(bytes_of(*parts) + 100), [cached]
            memory.taken = lambda: residents._books.resident_bytes + sum(recorded)  # noqa: B023
            residents.room.memory = memory
            engine.models.release_cached = recorded.clear  # type: ignore[method-assign]
            sample(engine, asked)
            assert recorded == []
            engine.models.unload()
        memory.size -= 200
        with pytest.raises(OutOfMemory, match=r"needs 0\.00 GB: unet sd1"):
            sample(engine, asked)


def test_a_call_waits_for_room_that_a_request_takes(sd1: Files, measured: Path) -> None:
    """A worker's request holds all memory; the call runs after it has ended."""
    models = DeviceModels(
        store=partial(ModelStore, model_bytes=bytes_of(recipes("sd1")[0].network))
    )
    with models.holding(recipes("sd1")[0]), pytest.raises(NoRoom):
        models.decode_latent(recipes("sd1")[2], torch.zeros(1, 4, 2, 2))
    vae = pipeline_recipes(sd1.pipeline)[2]
    region = sampler_region(Case("x", sd1.pipeline, "euler", 20))
    with local_engine(cache=measured, model_bytes=_request_bytes(sd1)) as engine:
        with ThreadPoolExecutor(1) as pool:
            painted = pool.submit(sample, engine, region)
            eventually(lambda: bool(engine.models.residents.in_use), 10)
            picture = engine.decode_latent(vae, torch.zeros(1, 4, 2, 2), bare_context(engine))
        assert picture.shape == (1, 16, 16, 3)
        assert torch.isfinite(painted.result()).all()


def paint(
    engine: DeviceEngine, first: tuple[ModelRecipe, ClipRecipe, VaeRecipe], second: Any, seed: int
) -> torch.Tensor:
    """Samples base and refiner, which continues on the leftover noise."""
    (model, clip, vae), (refiner, words, _) = first, second
    shared = {
        "steps": 4,
        "cfg": 3.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "noise_seed": seed,
    }
    nodes = {
        "text": NodeCall("CLIPTextEncode", {"clip": clip, "text": "a star"}),
        "words": NodeCall("CLIPTextEncode", {"clip": words, "text": "a star"}),
        "empty": NodeCall("EmptyLatentImage", {"width": 64, "height": 64, "batch_size": 1}),
        "base": NodeCall(
            "KSamplerAdvanced",
            {
                **{
                    "model": model,
                    "positive": Link("text", 0),
                    "negative": Link("text", 0),
                    "latent_image": Link("empty", 0),
                    **shared,
                },
                **{
                    "add_noise": "enable",
                    "start_at_step": 0,
                    "end_at_step": 3,
                    "return_with_leftover_noise": "enable",
                },
            },
        ),
        "refined": NodeCall(
            "KSamplerAdvanced",
            {
                **{
                    "model": refiner,
                    "positive": Link("words", 0),
                    "negative": Link("words", 0),
                    "latent_image": Link("base", 0),
                    **shared,
                },
                **{
                    "add_noise": "disable",
                    "start_at_step": 3,
                    "end_at_step": 10,
                    "return_with_leftover_noise": "disable",
                },
            },
        ),
        "out": NodeCall("VAEDecode", {"samples": Link("refined", 0), "vae": vae}),
    }
    result = run_graph(Graph(nodes), bare_context(engine), ResultCache("none"), targets=["out"])
    result.raise_failures()
    return result.outputs["out"][0]


def test_two_checkpoints_and_a_refiner_alternate_in_the_room_of_one(
    tmp_path: Path, measured: Path
) -> None:
    """`katz bench alternate` does it 50 times on a server."""
    make_pipeline(tmp_path / "second", "sd1", seed=5)
    make_pipeline(tmp_path / "refiner", "refiner", seed=6)
    first, second, refiner = (
        recipes("sd1"),
        *(pipeline_recipes(tmp_path / name) for name in ("second", "refiner")),
    )
    with local_engine(batching=False, cache=measured) as engine:
        alone = [
            paint(engine, base, refiner, seed) for seed, base in enumerate((first, second, first))
        ]
    sizes = [
        bytes_of(model.network, vae.vae, *(one.encoder for one in clip.encoders))
        for model, clip, vae in (first, second, refiner)
    ]
    with local_engine(batching=False, cache=measured, model_bytes=max(sizes)) as engine:
        residents, most = engine.models.residents, []
        engine.models.say = lambda line: most.append(residents.use.resident_bytes)
        made = [
            paint(engine, base, refiner, seed) for seed, base in enumerate((first, second, first))
        ]
        assert residents.use.evictions >= 10
        assert max(most) <= max(sizes) and residents.use.resident_bytes <= max(sizes)
    assert all(torch.equal(one, other) for one, other in zip(made, alone, strict=True))


def test_the_planner_gets_the_model_budget(sd1: Files, measured: Path) -> None:
    """The budget is a worker's, or an equal part of a shared one. A model that fits no device is
    refused before the run.
    """
    region = sampler_region(Case("x", sd1.pipeline, "euler", 2))

    def engine(**given: int) -> DeviceEngine:
        assignments = [WorkerConfig(name, **given) for name in ("cpu:0", "cpu:1")]
        launchers = {one.name: WorkerThreads() for one in assignments}
        return DeviceEngine(
            assignments, cache=measured, link=DeviceLink(1e10, 1e-5), launchers=launchers
        )

    with engine(model_bytes=1_000_000) as tight:
        assert [device.memory_bytes for device in tight.cluster.devices] == [1e6, 1e6]
        with pytest.raises(
            InputError, match=r"its model needs 0\.00 GB, more than any allowed device has"
        ):
            tight.plan(region)
    with engine() as shared:
        half = host_memory.free_bytes() / 2
        assert all(
            0.5 * half < device.memory_bytes < half * 1.1 for device in shared.cluster.devices
        )
        assert len({device.memory_bytes for device in shared.cluster.devices}) == 1
