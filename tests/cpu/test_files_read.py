"""Recipes identify everything that decides a result: loaders open only the files that a recipe
names, and changing one changes the recipe.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from loaded import load
from node_calls import context_in, registry
from opened_files import opened_files
from safetensors.torch import load_file, save_file
from single_files import checkpoint, controlnet, save
from tiny_models import controlnet_folder, lora_file, pipeline_folder

from katz_graph.adapters.lora import read_lora
from katz_graph.adapters.naming import NETWORK
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    ClipRecipe,
    ControlNetRecipe,
    FileIdentity,
    LearnedWords,
    ModelRecipe,
    VaeRecipe,
    digest,
)
from katz_graph.models.families.unet.random_models.original import original_unet
from katz_graph.models.loading.identity import file_identity, read_header
from katz_graph.models.loading.sources import (
    clip_recipe,
    controlnet_recipe,
    network_recipe,
    pipeline_recipes,
    vae_recipe,
)
from katz_graph.models.text.tokens import load_tokenizer
from katz_graph.testing.random_models import Kind, make_pipeline

# files that libraries may look for in a folder and that recipes may omit
TEMPTING = (
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "quantization_config.json",
    "special_tokens_map.json",
)
PEFT_FILE, PEFT_CONFIGURATION = "adapter_model.safetensors", "adapter_config.json"


def files_in(value: Any) -> Iterator[FileIdentity]:
    """Yields the files that a recipe names."""
    if isinstance(value, FileIdentity):
        yield value
    if is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from files_in(getattr(value, one.name))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from files_in(one)


def tempt(folder: Path) -> None:
    for inner in (folder, *(path for path in folder.iterdir() if path.is_dir())):
        for name in TEMPTING:
            if not (inner / name).exists():
                (inner / name).write_text("{}")


def pipeline(kind: Kind) -> Any:
    def make(folder: Path) -> list[Any]:
        make_pipeline(folder / "model", kind, 1)
        tempt(folder / "model")
        return list(pipeline_recipes(folder / "model"))

    return make


def shards(folder: Path) -> list[Any]:
    place = folder / "unet"
    shutil.copytree(pipeline_folder("sd1") / "unet", place)
    whole = place / "diffusion_pytorch_model.safetensors"
    tensors = load_file(whole)
    homes = {
        name: f"diffusion_pytorch_model-0000{number % 2 + 1}-of-00002.safetensors"
        for number, name in enumerate(tensors)
    }
    for home in set(homes.values()):
        save_file({name: tensors[name] for name in homes if homes[name] == home}, place / home)
    index = {"weight_map": homes}
    (place / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    whole.unlink()
    tempt(place)
    return [network_recipe(place)]


def single_file(folder: Path) -> list[Any]:
    shutil.copy(checkpoint("sd1"), folder / "model.safetensors")
    parameters = {"model": {"params": {"parameterization": "v"}}}
    (folder / "model.yaml").write_text(json.dumps(parameters))
    return list(pipeline_recipes(folder / "model.safetensors"))


def parts(folder: Path) -> list[Any]:
    """Returns a VAE and a text encoder in separate folders, the latter with a tokenizer, and a
    textual inversion.
    """
    shutil.copytree(pipeline_folder("sd1") / "vae", folder / "vae")
    shutil.copytree(pipeline_folder("sd1") / "text_encoder", folder / "clip")
    shutil.copytree(pipeline_folder("sd1") / "tokenizer", folder / "clip", dirs_exist_ok=True)
    tempt(folder)
    clip = clip_recipe([folder / "clip"])
    width = json.loads((folder / "clip/config.json").read_text())["hidden_size"]
    save_file({"emb_params": torch.randn(2, width)}, folder / "word.safetensors")
    learned = (LearnedWords("word", file_identity(folder / "word.safetensors")),)
    return [vae_recipe(folder / "vae"), ClipRecipe(clip.encoders, learned=learned)]


def controls(folder: Path) -> list[Any]:
    shutil.copytree(controlnet_folder("sd1"), folder / "control")
    tempt(folder)
    save(folder / "control.safetensors", original_unet(controlnet("sd1")))
    return [
        controlnet_recipe(folder / "control"),
        controlnet_recipe(folder / "control.safetensors"),
    ]


def peft(folder: Path, alpha: float = 12) -> list[Any]:
    tensors = load_file(lora_file("sd1", text_encoder=False))
    named = {f"base_model.model.{key.removeprefix('unet.')}": one for key, one in tensors.items()}
    if not (folder / PEFT_FILE).exists():
        save_file(named, folder / PEFT_FILE)
    (folder / PEFT_CONFIGURATION).write_text(json.dumps({"lora_alpha": alpha, "r": 3}))
    (folder / "README.md").write_text("")
    return [file_identity(folder / PEFT_FILE)]


CASES = {
    "sd1": pipeline("sd1"),
    "sd35": pipeline("sd35"),
    "z_image": pipeline("z_image"),
    "hunyuan_dit": pipeline("hunyuan_dit"),
    "shards": shards,
    "single file": single_file,
    "parts": parts,
    "ControlNets": controls,
    "PEFT": peft,
}


@pytest.mark.defect(3)
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_loaders_open_no_file_that_the_recipe_does_not_name(tmp_path: Path, make: Any) -> None:
    load_tokenizer.cache_clear()
    for recipe in make(tmp_path):
        named = {Path(file.path) for file in files_in(recipe)}
        with opened_files(tmp_path) as opened:
            load(recipe)
        assert opened
        assert opened <= named


@pytest.mark.defect(3)
@pytest.mark.parametrize("make", [shards, parts, controls, peft])
def test_each_file_that_a_recipe_names_is_part_of_its_identity(tmp_path: Path, make: Any) -> None:
    first = make(tmp_path)
    for file in files_in(first):
        path = Path(file.path)
        if not path.is_relative_to(tmp_path):
            continue  # package file
        content, state = path.read_bytes(), path.stat()
        if path.suffix == ".json":
            path.write_bytes(content + b" ")
        os.utime(path, ns=(1, state.st_mtime_ns + 1))
        again = _again(first, tmp_path)
        assert digest(again) != digest(first), path.name
        path.write_bytes(content)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def _again(recipes: list[Any], folder: Path) -> list[Any]:
    """Makes the recipes again, with unchanged files."""
    made: list[Any] = []
    for recipe in recipes:
        match recipe:
            case ModelRecipe():
                made.append(network_recipe(recipe.network.folder))
            case ClipRecipe():
                learned = tuple(
                    LearnedWords(one.name, file_identity(one.file.path)) for one in recipe.learned
                )
                encoders = clip_recipe([folder / "clip"]).encoders
                made.append(ClipRecipe(encoders, learned=learned))
            case VaeRecipe():
                made.append(vae_recipe(recipe.vae.folder))
            case ControlNetRecipe():
                made.append(controlnet_recipe(recipe.control_net.folder))
            case _:
                made.append(file_identity(recipe.path))
    return made


def scale(file: FileIdentity) -> float:
    name = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q.weight"
    return read_lora(file).parts[NETWORK][name].scale


@pytest.mark.defect(3)
def test_the_alpha_of_a_peft_adapter_is_part_of_a_loras_identity(tmp_path: Path) -> None:
    folder = tmp_path / "models/loras/mine"
    folder.mkdir(parents=True)
    peft(folder, 4)
    kind, context = registry()["LoraLoader"], context_in(tmp_path)
    knobs = {"lora_name": f"mine/{PEFT_FILE}", "strength_model": 1.0, "strength_clip": 1.0}

    def fingerprint() -> Any:
        assert kind.fingerprint is not None
        return kind.fingerprint(context, knobs)

    before, file = fingerprint(), file_identity(folder / PEFT_FILE)
    assert scale(file) == pytest.approx(4 / 3)
    peft(folder, 40)
    assert fingerprint() != before
    with pytest.raises(InputError, match=rf"{PEFT_CONFIGURATION}: changed since the workflow"):
        read_lora(file)
    assert scale(file_identity(folder / PEFT_FILE)) == pytest.approx(40 / 3)
    (folder / PEFT_CONFIGURATION).unlink()
    assert scale(file_identity(folder / PEFT_FILE)) == 1.0


@pytest.mark.defect(3)
@pytest.mark.defect(13)
def test_the_ending_of_a_peft_adapter_may_be_in_capitals(tmp_path: Path) -> None:
    (lower,) = peft(tmp_path, 4)
    upper = Path(lower.path).rename((tmp_path / PEFT_FILE).with_suffix(".SAFETENSORS"))
    assert scale(file_identity(upper)) == pytest.approx(4 / 3)


@pytest.mark.defect(3)
def test_a_folder_of_differences_has_an_identity(tmp_path: Path) -> None:
    folder = tmp_path / "models/controlnet/mine"
    shutil.copytree(controlnet_folder("sd1"), folder)
    kind, context = registry()["DiffControlNetLoader"], context_in(tmp_path)
    assert kind.fingerprint is not None
    before = kind.fingerprint(context, {"control_net_name": "mine"})
    os.utime(folder / "diffusion_pytorch_model.safetensors", ns=(1, 1))
    assert kind.fingerprint(context, {"control_net_name": "mine"}) != before


@pytest.mark.defect(3)
def test_a_tokenizer_that_changed_is_refused(tmp_path: Path) -> None:
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    clip = pipeline_recipes(tmp_path / "model")[1]
    path = tmp_path / "model/tokenizer/tokenizer_config.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: changed since"):
        load_tokenizer(clip.encoders[0])


def test_a_file_is_hashed_again_only_if_it_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.safetensors"
    read: list[Path] = []

    def noted(file: Path) -> Any:
        read.append(file)
        return read_header(file)

    def rewritten(name: str) -> FileIdentity:
        """Writes as many bytes as before, with the same time of change as far as a program can."""
        save_file({name: torch.zeros(2)}, path)
        os.utime(path, ns=(10**18, 10**18))
        return file_identity(path)

    monkeypatch.setattr("katz_graph.models.loading.identity.read_header", noted)
    assert len({rewritten(name) for name in "abcd"}) == 4
    monkeypatch.setattr("katz_graph.models.loading.identity.SETTLED_NS", -(10**12))
    first = file_identity(path)
    read.clear()
    assert file_identity(path) == first and not read
    time.sleep(0.05)  # clocks of file systems tick
    assert rewritten("e") != first and read == [path]
