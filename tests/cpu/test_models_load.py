"""Equal components are one module; weights that do not fit their configuration are named."""

import json
import shutil
from pathlib import Path

import pytest
import single_files
import torch
from safetensors.torch import load_file, save_file
from tiny_models import (
    FAMILIES,
    control_recipe,
    controlnet_folder,
    lora_file,
    pipeline_folder,
    recipes,
)

from katz_graph.adapters.lora import read_lora
from katz_graph.adapters.naming import NETWORK
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Compact
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.models.loading import store as load
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.merge import merged_model
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.random_models import make_pipeline
from katz_graph.upscale.files import upscale_model
from katz_graph.upscale.networks import CompactNet, load_upscaler


@pytest.mark.parametrize("family", FAMILIES)
def test_loaded_once_and_frozen(family):
    store = ModelStore()
    model, clip, vae = recipes(family)
    modules = [
        store.network(model.network, "cpu", torch.float32),
        store.vae(vae.vae, "cpu", torch.float16),
        store.controlnet(control_recipe(family).control_net, "cpu", torch.bfloat16),
        *(store.text_encoder(one.encoder, "cpu", torch.float32) for one in clip.encoders),
    ]
    for module in modules:
        assert not module.training
        assert not any(parameter.requires_grad for parameter in module.parameters())
    assert [module.dtype for module in modules[:3]] == [
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ]
    assert (
        store.network(recipes(family)[0].network, torch.device("cpu"), torch.float32) is modules[0]
    )
    assert store.network(model.network, "cpu", torch.float16) is not modules[0]
    assert store.tokenizer(clip.encoders[0]) is store.tokenizer(clip.encoders[0])
    assert store.vae(vae.vae, "cpu", torch.float16) is modules[1]


def test_loading_prints_nothing(capfd):
    store = ModelStore()
    model, clip, _ = recipes("sdxl")
    store.network(model.network, "cpu", torch.float32)
    store.text_encoder(clip.encoders[1].encoder, "cpu", torch.float32)
    assert capfd.readouterr() == ("", "")


def change_shape(weights, key):
    weights[key] = torch.zeros(3, 3)


def remove(weights, key):
    del weights[key]


def add(weights, key):
    weights[f"{key}.surplus"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_shape, r"of another shape: {} is \[3, 3\], expected \["),
        (remove, "missing: {}$"),
        (add, r"unknown: {}\.surplus$"),
    ],
)
@pytest.mark.parametrize(
    ("part", "file", "key"),
    [
        ("unet", "diffusion_pytorch_model.safetensors", "conv_in.weight"),
        ("vae", "diffusion_pytorch_model.safetensors", "decoder.conv_in.weight"),
        ("text_encoder", "model.safetensors", "final_layer_norm.weight"),
    ],
)
def test_weights_that_do_not_fit(tmp_path, part, file, key, change, words):
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    path = tmp_path / "model" / part / file
    weights = load_file(path)
    change(weights, key)
    save_file(weights, path, {"format": "pt"})
    model, clip, vae = pipeline_recipes(tmp_path / "model")
    store = ModelStore()
    with pytest.raises(
        InputError, match=f"^{path}: does not fit its config.json .*" + words.format(key)
    ):
        store.network(model.network, "cpu", torch.float32)
        store.vae(vae.vae, "cpu", torch.float32)
        store.text_encoder(clip.encoders[0].encoder, "cpu", torch.float32)


def test_text_encoders_with_the_old_names_load_too(tmp_path):
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    path = tmp_path / "model" / "text_encoder" / "model.safetensors"
    weights = load_file(path)
    old = {f"text_model.{name}": value for name, value in weights.items()}
    save_file(
        old | {"text_model.embeddings.position_ids": torch.arange(77)[None]}, path, {"format": "pt"}
    )
    _, clip, _ = pipeline_recipes(tmp_path / "model")
    module = ModelStore().text_encoder(clip.encoders[0].encoder, "cpu", torch.float32)
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("kind", ["sd1", "sdxl", "sd35"])
def test_building_a_text_encoder_leaves_the_default_dtype_of_other_threads(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of half precision say so in their configuration. Threads that check LoRAs build
    encoders while devices compute.
    """
    make_pipeline(tmp_path, kind, 1)
    for path in tmp_path.glob("text_encoder*/config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "float16"}))
    chosen: list[torch.dtype] = []
    monkeypatch.setattr(torch, "set_default_dtype", chosen.append)
    for encoder in pipeline_recipes(tmp_path)[1].encoders:
        blank(encoder.encoder)
    assert chosen == []


def test_a_file_that_changed_since_the_recipe_was_made(tmp_path):
    shutil.copytree(controlnet_folder("sd1"), tmp_path / "control")
    recipe = controlnet_recipe(tmp_path / "control")
    (tmp_path / "control" / "config.json").write_text("{}")
    from katz_graph.models import configuration

    configuration._config.cache_clear()
    with pytest.raises(InputError, match="changed since the workflow began"):
        ModelStore().controlnet(recipe.control_net, "cpu", torch.float32)


def test_whether_a_merged_model_is_loaded_can_be_asked_after_its_files_are_gone(tmp_path):
    """The device's thread asks before the task runs, and only the task reports the missing file."""
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    merged = merged_model(
        pipeline_recipes(tmp_path / "model")[0], recipes("sd1")[0], (("", 1.0, 0.0),)
    )
    shutil.rmtree(tmp_path / "model" / "unet")
    models = DeviceModels()
    assert not models.has([merged])
    with pytest.raises((InputError, OSError)):
        models.patch(merged)


def test_a_tokenizer_that_is_none(tmp_path):
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    for path in (tmp_path / "model" / "tokenizer").iterdir():
        path.write_text("{}")
    _, clip, _ = pipeline_recipes(tmp_path / "model")
    with pytest.raises(InputError, match="cannot be loaded as CLIPTokenizer"):
        ModelStore().tokenizer(clip.encoders[0])


def weights_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def write_in_place(path):
    """Overwrites like `rsync --inplace`, then truncates."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size - size // 2))
    yield
    with path.open("r+b") as file:
        file.truncate(size // 2)
    yield


@pytest.mark.parametrize(
    "part", ["unet", "vae", "text_encoder", "controlnet", "merged", "single file", "upscaler"]
)
def test_in_place_file_writes_change_no_live_weight(tmp_path, part):
    """On CPUs, float32 weights could be views of the file."""
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    shutil.copytree(controlnet_folder("sd1"), tmp_path / "control")
    shutil.copyfile(single_files.checkpoint("sd1"), tmp_path / "one.safetensors")
    save_file(CompactNet(Compact(4, 1, 2)).state_dict(), tmp_path / "net.safetensors")
    models, store = DeviceModels(), ModelStore()
    model, clip, vae = pipeline_recipes(tmp_path / "model")
    folder, stem = tmp_path / "model" / part, "diffusion_pytorch_model"
    match part:
        case "unet":
            module, path = (
                store.network(model.network, "cpu", torch.float32),
                folder / f"{stem}.safetensors",
            )
        case "vae":
            module, path = store.vae(vae.vae, "cpu", torch.float32), folder / f"{stem}.safetensors"
        case "text_encoder":
            module, path = (
                store.text_encoder(clip.encoders[0].encoder, "cpu", torch.float32),
                folder / "model.safetensors",
            )
        case "controlnet":
            control = controlnet_recipe(tmp_path / "control").control_net
            module, path = (
                store.controlnet(control, "cpu", torch.float32),
                tmp_path / "control" / f"{stem}.safetensors",
            )
        case "merged":
            path = tmp_path / "model" / "unet" / f"{stem}.safetensors"
            module = models.patch(merged_model(model, recipes("sd1")[0], (("", 1.0, 0.0),)))
        case "single file":
            path = tmp_path / "one.safetensors"
            module = store.network(pipeline_recipes(path)[0].network, "cpu", torch.float32)
        case "upscaler":
            path = tmp_path / "net.safetensors"
            module = load_upscaler(upscale_model(path), torch.device("cpu"))
    before = weights_of(module)
    for _ in write_in_place(path):
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_lora_that_was_read_stays_what_it_was(tmp_path):
    path = shutil.copyfile(lora_file("sd1"), tmp_path / "lora.safetensors")
    lora = read_lora(file_identity(path))
    before = {
        name: [tensor.clone() for tensor in method.tensors]
        for name, method in lora.parts[NETWORK].items()
    }
    for _ in write_in_place(path):
        assert all(
            all(map(torch.equal, method.tensors, before[name]))
            for name, method in lora.parts[NETWORK].items()
        )


def test_a_file_that_changes_while_it_is_read_is_no_model(tmp_path, monkeypatch):
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    model = pipeline_recipes(tmp_path / "model")[0]
    path = tmp_path / "model" / "unet" / "diffusion_pytorch_model.safetensors"
    read = load.tensors

    def interrupted(*given):
        made = read(*given)
        path.touch()
        return made

    monkeypatch.setattr(load, "tensors", interrupted)
    with pytest.raises(InputError, match="changed since the workflow began"):
        ModelStore().network(model.network, "cpu", torch.float32)
