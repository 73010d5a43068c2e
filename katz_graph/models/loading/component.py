"""Finds the files of a component in a folder of diffusers' layout. Never imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, FileIdentity
from katz_graph.files.weights import USUAL_ENDING, is_pickle, is_weights, without_ending
from katz_graph.models.loading.identity import (
    PICKLE,
    configuration_identity,
    file_identity,
    read_header,
    read_json,
    resolve,
)

Kind = Literal["network", "controlnet", "vae", "text_encoder", "tokenizer", "scheduler"]
WEIGHTS_STEM: dict[Kind, str] = {
    "network": "diffusion_pytorch_model",
    "controlnet": "diffusion_pytorch_model",
    "vae": "diffusion_pytorch_model",
    "text_encoder": "model",
}
WORDS: dict[Kind, str] = {"controlnet": "ControlNet", "vae": "VAE", "text_encoder": "text encoder"}
SENTENCE_PIECES = "spiece.model"
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", SENTENCE_PIECES)
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    SENTENCE_PIECES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",  # read, but unused for prompts
)


def component(folder: str | Path, kind: Kind, called: str = "") -> Component:
    """Returns the component in a folder of diffusers' layout: configuration and safetensors (whole
    or in shards), or a tokenizer's files. `called` replaces the kind's name in messages.

    Without unsuffixed weights, uses a variant's (`diffusion_pytorch_model.fp16.safetensors`),
    preferably fp16. Raises InputError if a file is missing, a pickle, truncated or inconsistent.
    """
    folder, called = resolve(folder), called or WORDS.get(kind, kind)
    if not folder.is_dir():
        raise InputError(f"{folder}: a file, expected the folder of a {called}")
    if kind == "scheduler":
        return Component(str(folder), (configuration_identity(folder / "scheduler_config.json"),))
    if kind == "tokenizer":
        present = [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]
        if not has_vocabulary(folder):
            raise InputError(
                f"{folder}: no tokenizer here: expected tokenizer.json, vocab.json with "
                f"merges.txt, vocab.txt or {SENTENCE_PIECES}"
            )
        return Component(str(folder), tuple(configuration_identity(path) for path in present))
    configuration = folder / "config.json"
    if not configuration.exists():
        raise InputError(
            f"{folder}: config.json of the {called} is missing: expected a folder in "
            "diffusers' layout"
        )
    return Component(
        str(folder), (configuration_identity(configuration), *_weights(folder, kind, called))
    )


def has_vocabulary(folder: Path) -> bool:
    """Returns whether a folder has the vocabulary of a tokenizer."""
    return any((folder / name).exists() for name in VOCABULARIES)


def _weights(folder: Path, kind: Kind, called: str) -> list[FileIdentity]:
    stem = WEIGHTS_STEM[kind]
    names = sorted(path.name for path in folder.iterdir())
    whole = [
        name
        for name in names
        if name.startswith(f"{stem}.") and is_weights(name) and "-of-" not in name
    ]
    indices = [
        name
        for name in names
        if name.startswith(f"{stem}.safetensors.index.") and name.endswith(".json")
    ]
    found = [(_suffix(name, stem), name) for name in (*whole, *indices)]
    if not found:
        pickle = next(filter(is_pickle, names), None)
        if pickle is None:
            raise InputError(f"{folder}: no weights of the {called}: expected {stem}{USUAL_ENDING}")
        package, model = "transformers", "CLIPTextModel"
        if kind != "text_encoder":
            package = "diffusers"
            model = read_json(folder / "config.json").get("_class_name", "ModelMixin")
        convert = (
            f"from {package} import {model} as M; M.from_pretrained('{folder}', "
            f"use_safetensors=False).save_pretrained('{folder}')"
        )
        raise InputError(
            f'{folder / pickle}: {PICKLE}: if you trust it, convert it with python -c "{convert}"'
        )
    _, chosen = min(found, key=lambda pair: (pair[0] != "", pair[0] != "fp16", pair[0]))
    if is_weights(chosen):
        return [file_identity(folder / chosen)]
    return [configuration_identity(folder / chosen), *_shards(folder / chosen)]


def _suffix(name: str, stem: str) -> str:
    """Returns the variant in a file name: `fp16` for `model.fp16.safetensors` and
    `model.safetensors.index.fp16.json`, empty without one.
    """
    index = name.removeprefix(f"{stem}.safetensors.index").removesuffix(".json")
    return (index if index != name else without_ending(name).removeprefix(stem)).strip(".")


def _shards(index: Path) -> list[FileIdentity]:
    """Returns the shards listed by an index. Raises InputError if a shard or one of its tensors is
    missing.
    """
    homes = read_json(index).get("weight_map")
    if not isinstance(homes, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in homes.values()
    ):
        raise InputError(
            f"{index}: expected a weight_map from tensor names to files of this folder"
        )
    shards = sorted(set(homes.values()))
    for name in shards:
        if not (index.parent / name).exists():
            raise InputError(
                f"{index.parent / name}: is missing, one of the {len(shards)} files that "
                f"{index.name} lists: download it"
            )
    found = [file_identity(index.parent / name) for name in shards]
    there = {name: read_header(index.parent / name)[1].keys() for name in shards}
    for tensor, name in homes.items():
        if tensor not in there[name]:
            raise InputError(
                f"{index.parent / name}: lacks {tensor}, listed in {index.name}: download both "
                "again"
            )
    return found
