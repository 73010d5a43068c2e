"""A LoRA that a workflow names by URL is identified before it is fetched, and equals the file's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Katz
from file_server import FileServer, file_server
from node_calls import call, context_in
from PIL import Image

from katz_graph.adapters.fit import check_loras
from katz_graph.adapters.lora import read_lora
from katz_graph.core.errors import InputError, RunError
from katz_graph.executor.graph.context import RunContext
from katz_graph.files.folders import MINI
from katz_graph.files.urls import ANY
from katz_graph.models.fetching.file_cache import FileCache
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import pipeline_recipes

CHECKPOINT = "katz-mini"
LORA = MINI / "loras" / "dusk.safetensors"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    monkeypatch.setenv("KATZ_CACHE", str(tmp_path))
    made = context_in(tmp_path)
    made.folders = replace(made.folders, fetch=ANY)
    return made


def test_naming_it_fetches_nothing(server: FileServer, context: RunContext) -> None:
    url = server.put("style.safetensors", LORA.read_bytes())
    model, clip, _ = pipeline_recipes(context.folders.resolve("checkpoints", CHECKPOINT))
    patched, _ = call("LoraLoader", context, model=model, clip=clip, lora_name=url)
    alone = call("LoraLoaderModelOnly", context, model=model, lora_name=url)
    (lora,) = patched.loras
    assert alone.loras == (lora,)
    local = file_identity(LORA)
    assert (lora.file.path, lora.file.size, lora.file.header) == (url, local.size, local.header)
    assert list(check_loras(patched)) == []
    cache = FileCache.of_this_machine()
    assert not cache.holds(lora.file)
    expected, found = read_lora(local), read_lora(lora.file)
    assert cache.holds(lora.file)
    assert {part: modules.keys() for part, modules in found.parts.items()} == {
        part: modules.keys() for part, modules in expected.parts.items()
    }
    for part, modules in expected.parts.items():
        for name, method in modules.items():
            for ours, theirs in zip(found.parts[part][name].tensors, method.tensors, strict=True):
                assert torch.equal(ours, theirs)


def test_errors_name_the_url(server: FileServer, context: RunContext) -> None:
    model, _, _ = pipeline_recipes(context.folders.resolve("checkpoints", CHECKPOINT))

    def load(path: str) -> Any:
        return call("LoraLoaderModelOnly", context, model=model, lora_name=server.url(path))

    with pytest.raises(RunError, match=f"^{server.url('none.safetensors')}: could not be fetched"):
        load("none.safetensors?token=secret")
    server.put("adapter_model.safetensors", LORA.read_bytes())
    with pytest.raises(InputError, match=r"adapter_config\.json next to it sets the strength"):
        load("adapter_model.safetensors?token=secret")
    context.folders = replace(context.folders, fetch=replace(ANY, every=False))
    with pytest.raises(InputError, match="may not be fetched here"):
        load("adapter_model.safetensors")


def test_a_workflow_with_it_matches_the_file(
    server: FileServer, katz: Katz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("KATZ_CACHE", str(cache))
    server.put("style.safetensors", LORA.read_bytes())
    url = server.url("style.safetensors?token=secret")

    def run(name: str, *options: str) -> Any:
        (tmp_path / "w.json").write_text(json.dumps(workflow(name)))
        return katz("run", tmp_path / "w.json", "--json", *options)

    pictures = []
    mini = f"katz-mini-{LORA.name}"
    for name, options in ((mini, ()), (url, ()), (mini, ("--set", f"2.lora_name={url}"))):
        result = run(name, *options)
        assert result.code == 0, result.err
        assert "secret" not in result.out + result.err
        (path,) = result.data["outputs"]
        pictures.append(Image.open(path))
    for picture in pictures[1:]:
        assert picture.tobytes() == pictures[0].tobytes()
        assert server.url("style.safetensors") in picture.info["prompt"]
        assert not [text for text in picture.info.values() if "secret" in str(text)]
    refused = run(url, "--fetch", "none")
    assert refused.code == 2
    (line,) = refused.errors
    assert f"{server.url('style.safetensors')}: may not be fetched here" in line
    assert "secret" not in refused.err


def workflow(lora: str) -> dict[str, Any]:
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}},
        "2": {
            "class_type": "LoraLoader",
            "inputs": {"model": ["1", 0], "clip": ["1", 1], "lora_name": lora},
        },
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 1], "text": "red circle"}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64}},
        "5": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["2", 0], "positive": ["3", 0], "negative": ["3", 0],
                "latent_image": ["4", 0], "steps": 2, "seed": 1, "cfg": 1.0,
            },
        },
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
        "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0]}},
    }  # fmt: skip
