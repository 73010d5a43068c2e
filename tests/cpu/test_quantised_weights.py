"""Weights that files hold as 8-bit numbers stay so in memory. Pictures equal those of wide weights
bit for bit, with and without LoRAs and on two devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_quantised import transformer_files
from test_sd3 import folder  # noqa: F401 - a fixture
from tiny_models import diffusers_arguments, random_step, random_text
from torch import Tensor, nn
from transformers_made import forward, inputs, region_of

from katz_graph.core.errors import InputError, OutOfMemory
from katz_graph.core.recipe import Component, Lora
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.recorded.recorder import Recorder
from katz_graph.executor.weights.host_copies import HostCopies
from katz_graph.executor.weights.weight_set import WeightSets
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.models.families.flux.stand_ins import flux
from katz_graph.models.families.unet.stand_ins import checkpoint_tensors
from katz_graph.models.families.z_image.stand_ins import z_image
from katz_graph.models.loading.fill import refill
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.sources import clip_recipe, network_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.prepare import fuse_projections
from katz_graph.models.quantised_weight import QuantisedWeight
from katz_graph.models.stage_registry import stage
from katz_graph.testing.requests import bare_context, local_engine, sample
from katz_graph.testing.stand_ins import formats, text_encoders
from katz_graph.testing.tapes import Tapes
from katz_graph.testing.worker_threads import WorkerThreads

CPU = ("cpu", torch.float32)
RANK = 3


def quantised(module: nn.Module) -> dict[str, QuantisedWeight]:
    return {
        name: one for name, one in module.named_parameters() if isinstance(one, QuantisedWeight)
    }


def networks(network: Component, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Loads a network as stored, and wide."""
    stored, wide = (ModelStore(widens=widens).network(network, "cpu", dtype) for widens in (0, 1))
    assert quantised(stored) and not quantised(wide)
    return stored, wide


def lora(place: Path, shapes: Mapping[str, tuple[int, ...]]) -> Lora:
    """Makes a LoRA for layers of a network."""
    draw, tensors = torch.Generator().manual_seed(3), {}
    for name, (out, into) in shapes.items():
        tensors[f"transformer.{name}.lora_A.weight"] = torch.randn(RANK, into, generator=draw)
        tensors[f"transformer.{name}.lora_B.weight"] = torch.randn(out, RANK, generator=draw)
    save_file(tensors, place)
    return Lora(file_identity(place), 0.02)


SD3_LAYERS = {
    "transformer_blocks.0.attn.to_k": (256, 256),  # part of a fused layer
    "transformer_blocks.1.ff.net.2": (256, 1024),  # rotated
    "transformer_blocks.2.ff.net.2": (256, 1024),  # wide
    "norm_out.linear": (512, 256),  # swapped halves
}


def test_each_8_bit_layer_of_a_transformer_stays_as_stored(tmp_path: Path) -> None:
    scaled, _ = transformer_files("comfy_quant").save(tmp_path)
    stored, wide = networks(network_recipe(scaled).network)
    blocks, attention = "transformer_blocks", ("to_q", "to_k", "to_v")
    assert quantised(stored).keys() == {
        *(f"{blocks}.0.attn.{name}.weight" for name in attention),
        *(f"{blocks}.0.attn2.{name}.weight" for name in attention),
        *(f"{blocks}.1.attn.add_{name[3]}_proj.weight" for name in attention),
        f"{blocks}.1.ff.net.0.proj.weight",
        f"{blocks}.1.ff.net.2.weight",
        f"{blocks}.2.ff.net.0.proj.weight",
        "norm_out.linear.weight",
    }
    content = load_file(scaled)
    values = content["joint_blocks.0.x_block.attn.qkv.weight"].chunk(3)[1]
    layer = stored.transformer_blocks[0].attn.to_k.weight
    assert layer.codes.dtype == values.dtype and torch.equal(layer.codes, values)
    for name, weight in wide.named_parameters():
        assert torch.equal(stored.get_parameter(name), weight), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["fp8", "scaled_fp8", "convrot"])
@pytest.mark.parametrize("name", ["flux", "z_image"])
def test_a_prediction_is_that_of_wide_weights(
    name: str, form: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    formats.write(file, flux() if name == "flux" else z_image(), form)
    stored, wide = networks(network_recipe(file).network, dtype)
    given = inputs(wide, 2, dtype)
    with torch.inference_mode():
        wanted = forward(wide, *given)
        assert torch.equal(forward(stored, *given), wanted)
        for module in (stored, wide):  # as on a GPU
            fuse_projections(module)
        assert torch.equal(forward(stored, *given), forward(wide, *given))
    assert wanted.isfinite().all() and wanted.std() > 0


def test_a_unet_with_8_bit_convolutions_predicts_the_same(tmp_path: Path) -> None:
    save_file(checkpoint_tensors("sd1"), tmp_path / "sd1.safetensors")
    stored, wide = networks(network_recipe(tmp_path / "sd1.safetensors", "float8_e4m3fn").network)
    assert isinstance(stored.conv_in.weight, QuantisedWeight)
    given = diffusers_arguments(random_step(2, 8, 8), random_text(wide, 2))
    with torch.inference_mode():
        ours, theirs = (one(**given).sample for one in (stored, wide))
    assert torch.equal(ours, theirs) and ours.std() > 0


@pytest.mark.parametrize("form", ["fp8", "scaled_fp8", "convrot"])
@pytest.mark.parametrize("name", ["t5", "qwen3", "clip_l"])
def test_a_text_encoder_reads_8_bit_weights_and_embeddings(
    name: str, form: str, tmp_path: Path
) -> None:
    file = tmp_path / "encoder.safetensors"
    formats.write(file, getattr(text_encoders, name)(), form)
    encoder = clip_recipe([file]).encoders[0].encoder
    stored, wide = (ModelStore(widens=one).text_encoder(encoder, *CPU) for one in (False, True))
    assert quantised(stored) and not quantised(wide)
    if form == "fp8":
        embedding = stored.get_input_embeddings()
        assert isinstance(embedding.weight, QuantisedWeight)
    words = torch.tensor([[1, 5, 7, 5, 2]])
    with torch.inference_mode():
        ours, theirs = (one(input_ids=words).last_hidden_state for one in (stored, wide))
    assert torch.equal(ours, theirs) and ours.std() > 0


def test_pictures_with_loras_on_and_off_are_those_of_wide_weights(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    costs: Path,
) -> None:
    _, clip, _ = pipeline_recipes(folder)
    models = [network_recipe(path) for path in transformer_files("comfy_quant").save(tmp_path)]
    with_loras = (lora(tmp_path / "lora.safetensors", SD3_LAYERS),)
    sets = [(), with_loras, ()]
    latent = torch.zeros(1, 16, 8, 8)
    regions = [
        [region_of(replace(model, loras=one), clip, "sd35", latent, steps=2) for one in sets]
        for model in models
    ]
    with local_engine(batching=False, cache=costs) as engine:
        plain, changed = (sample(engine, one) for one in regions[1][:2])
        pictures = [sample(engine, one) for one in regions[0]]
        assert all(map(torch.equal, pictures, (plain, changed, plain)))
        assert not torch.equal(plain, changed)
        recorder = engine.models.compute = Recorder(Tapes(strict=True), eager=0)
        assert torch.equal(sample(engine, regions[0][0]), plain)
        assert torch.equal(sample(engine, regions[0][1]), changed)
        assert recorder.use.replays > recorder.use.captures > 0 and recorder.use.drops == 1
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        costed = [one.id for one in regions[0][1].operations if stage(one.stage).costed]
        pins = {name: (f"cpu:{number % 2}",) for number, name in enumerate(costed)}
        target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
        program = plan_region(regions[0][1], target)
        assert set(program.placement.values()) == {"cpu:0", "cpu:1"}
        assert torch.equal(engine.cluster.run(program, bare_context(engine)).samples, changed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lora_takes_wide_memory_while_it_is_merged(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KATZ_CHECK_WEIGHTS", "1")
    scaled, _ = transformer_files("comfy_quant").save(tmp_path)
    stored, wide = networks(network_recipe(scaled).network, dtype)
    codes = {name: one.codes.clone() for name, one in quantised(stored).items()}
    one = lora(tmp_path / "lora.safetensors", SD3_LAYERS)
    ours, theirs = WeightSets(stored), WeightSets(wide)
    for loras in ((one,), (replace(one, strength=-0.5),), (), (one, one), ()):
        ours.use(loras)
        theirs.use(loras)
        for name, weight in wide.named_parameters():
            assert torch.equal(stored.get_parameter(name), weight), name
        used = {name for name, one in quantised(stored).items() if one.replacement is not None}
        changed = {f"{name}.weight" for name in SD3_LAYERS} & codes.keys()
        assert used == (changed if loras else set())
    for name, weight in quantised(stored).items():
        assert torch.equal(weight.codes, codes[name])
    assert ours.originals.tensors.keys() == {"transformer_blocks.2.ff.net.2.weight"}


def test_a_model_takes_the_place_of_one_with_the_same_formats(tmp_path: Path) -> None:
    paths = []
    for number, form in enumerate(("convrot", "convrot", "scaled_fp8")):
        paths.append(tmp_path / str(number) / "model.safetensors")
        tensors = flux()
        formats.write(paths[-1], {name: (number + 1) * one for name, one in tensors.items()}, form)
    parts = [network_recipe(path).network for path in paths]
    alone = [ModelStore().network(one, *CPU) for one in parts]
    sizes = [ModelStore().network_of(one, *CPU).size() for one in parts]
    store = ModelStore(model_bytes=max(sizes))
    modules = [store.network(one, *CPU) for one in parts[:2]]
    assert modules[0] is modules[1]
    for name, weight in alone[1].named_parameters():
        assert torch.equal(modules[1].get_parameter(name), weight)
    assert store.network(parts[2], *CPU) is not modules[1]


def test_copies_on_the_host_are_8_bit_numbers_without_loras(tmp_path: Path) -> None:
    scaled, _ = transformer_files("comfy_quant").save(tmp_path)
    stored, other = (ModelStore().network(network_recipe(scaled).network, *CPU) for _ in range(2))
    one = lora(tmp_path / "lora.safetensors", SD3_LAYERS)
    sets, copies = WeightSets(stored), HostCopies(lambda: 1e9)
    sets.use((one,))
    copies.keep("model", stored, lambda: sets.use(()) and None)
    size = ModelStore().network_of(network_recipe(scaled).network, *CPU).size()
    assert copies.bytes <= 1.02 * size
    there = copies.get("model")
    assert there is not None
    for weight in quantised(other).values():
        weight.codes.zero_()
    refill(other, there)
    for name, weight in stored.named_parameters():
        assert torch.equal(other.get_parameter(name), weight), name


def test_writing_to_an_8_bit_weight_is_refused(tmp_path: Path) -> None:
    scaled, _ = transformer_files("comfy_quant").save(tmp_path)
    stored, _ = networks(network_recipe(scaled).network)
    weight: Tensor = next(iter(quantised(stored).values()))
    for change in (lambda: weight.mul_(2), lambda: weight.data_ptr(), lambda: weight.copy_(weight)):
        with pytest.raises(TypeError, match="stored as 8-bit numbers"):
            change()


def test_a_model_without_room_is_refused_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled, _ = transformer_files("comfy_quant").save(tmp_path)
    network = network_recipe(scaled).network
    memory = DeviceMemory("cpu")
    store = ModelStore(memory=memory)
    wanted = store.network_of(network, *CPU)
    widening = wanted.widening()
    assert widening is not None and widening.wide_bytes > wanted.size()
    needed = wanted.size() + widening.work_bytes
    monkeypatch.setattr(memory, "free", lambda: needed - 1)
    with pytest.raises(OutOfMemory, match=r"GB as 8-bit numbers \([\d.]+ GB wide\) and [\d.]+ GB"):
        store.network(network, *CPU)
    monkeypatch.setattr(memory, "free", lambda: needed)
    assert quantised(store.network(network, *CPU))


def test_a_plan_counts_the_stored_bytes_unless_loras_make_them_wide(
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    _, clip, _ = pipeline_recipes(folder)
    scaled, wide = map(network_recipe, transformer_files("comfy_quant").save(tmp_path))
    store, latent = ModelStore(), torch.zeros(1, 16, 8, 8)
    text = sum(store.text_encoder_of(one.encoder, *CPU).size() for one in clip.encoders)
    less, whole = (store.network_of(one.network, *CPU).size() for one in (scaled, wide))
    device = Device("gpu", 1e12, 1e11, memory_bytes=text + (less + whole) / 2)
    target = Target((device,), batching=False)
    assert plan_region(region_of(scaled, clip, "sd35", latent), target).placement
    with_lora = replace(scaled, loras=(lora(tmp_path / "lora.safetensors", SD3_LAYERS),))
    for model in (wide, with_lora):
        with pytest.raises(InputError, match="model needs"):
            plan_region(region_of(model, clip, "sd35", latent), target)
