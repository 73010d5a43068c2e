"""Files on disk are identified exactly, and their faults are reported in one line before loading."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import controlnet_folder, pipeline_folder

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import digest
from katz_graph.models.loading.component import component
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes, vae_recipe
from katz_graph.models.loading.store import ModelStore

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def pipeline(tmp_path):
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    return tmp_path / "model"


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def write(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_equal_folders_give_equal_recipes_and_a_replaced_file_another(pipeline):
    first = pipeline_recipes(pipeline)
    assert pipeline_recipes(pipeline) == first
    assert pipeline_recipes(pipeline / "unet" / "..") == first
    weights = load_file(pipeline / "vae" / WEIGHTS)
    os.utime(pipeline / "vae" / WEIGHTS, ns=(1, 1))
    assert pipeline_recipes(pipeline)[2] != first[2]
    save_file({name: value.half() for name, value in weights.items()}, pipeline / "vae" / WEIGHTS)
    second = pipeline_recipes(pipeline)
    assert (second[0], second[1]) == (first[0], first[1])
    assert digest(second[2]) != digest(first[2])


def test_a_configuration_that_changes_is_another_identity(pipeline):
    first = component(pipeline / "unet", "network")
    settings = json.loads((pipeline / "unet" / "config.json").read_text())
    (pipeline / "unet" / "config.json").write_text(json.dumps(settings | {"norm_eps": 1e-6}))
    assert component(pipeline / "unet", "network") != first


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"", b"", "0 bytes"),
        (b"[1, 2]", b"", "expected an object"),
        (b"{broken", b"", "not JSON"),
        (b"[" * 5000, b"", "not JSON"),
        (b"\xff\xfe{}", b"", "not JSON"),
        (json.dumps({"a": entry([2], 0, 4)}).encode(), b"0000", "contradicts itself at 'a'"),
        (
            json.dumps({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}).encode(),
            b"0" * 12,
            "'b' begins at byte 8, expected 4",
        ),
        (
            json.dumps({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}).encode(),
            b"0" * 4,
            "'b' begins at byte 0, expected 4",
        ),
        (
            json.dumps({"a": entry([1], 0, 4, "F99")}).encode(),
            b"0" * 4,
            "contradicts itself at 'a'",
        ),
        (json.dumps({"a": entry(["x"], 0, 4)}).encode(), b"0" * 4, "contradicts itself at 'a'"),
        (
            json.dumps({"a": entry(["x", 10**20], 0, 4)}).encode(),
            b"0" * 4,
            "contradicts itself at 'a'",
        ),
        (json.dumps({"a": entry([-1, -1], 0, 4)}).encode(), b"0" * 4, "contradicts itself at 'a'"),
        (
            json.dumps({"__metadata__": ["x"]}).encode(),
            b"",
            "__metadata__ is not an object of texts",
        ),
        (
            json.dumps({"__metadata__": {"modelspec.prediction_type": 3}}).encode(),
            b"",
            "__metadata__ is not an object of texts",
        ),
        (json.dumps({"a": entry([10**12], 0, 4 * 10**12)}).encode(), b"0" * 4, "truncated"),
        (
            json.dumps({"a": entry([2], 0, 8)}).encode(),
            b"0" * 4,
            "truncated: its tensors take 8 bytes, the file has 4",
        ),
        (json.dumps({"a": entry([1], 0, 4)}).encode(), b"0" * 9, "belong to no tensor"),
        (json.dumps({"a": "nothing"}).encode(), b"", "contradicts itself at 'a'"),
    ],
)
def test_lying_headers(tmp_path, header, data, words):
    refused(
        lambda: file_identity(write(tmp_path / "a.safetensors", header, data)),
        "a.safetensors",
        words,
    )


def test_header_longer_than_the_file(tmp_path):
    path = write(tmp_path / "a.safetensors", b"{}", length=2**62)
    refused(lambda: file_identity(path), "4,611,686,018,427,387,904 bytes", "the file has 10")


def test_files_that_are_none(tmp_path):
    (tmp_path / "empty.safetensors").touch()
    (tmp_path / "short.safetensors").write_bytes(b"abc")
    with (tmp_path / "zeros.safetensors").open("wb") as file:
        file.truncate(200_000_000)
    for name in ("empty", "short", "zeros"):
        refused(
            lambda name=name: file_identity(tmp_path / f"{name}.safetensors"),
            f"{name}.safetensors",
            "not a safetensors file",
        )
    refused(lambda: file_identity(tmp_path), "got a folder")
    refused(lambda: file_identity(tmp_path / "missing.safetensors"), "no such file")
    refused(lambda: file_identity(tmp_path / "empty.safetensors" / "below"), "below")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refused(lambda: file_identity(tmp_path / "circle"), "circle")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    refused(lambda: file_identity(tmp_path / "dangling"), "a link to a missing file")
    (tmp_path / "model.ckpt").write_bytes(b"\x80\x04")
    refused(
        lambda: file_identity(tmp_path / "model.ckpt"),
        "a pickle",
        "convert it with",
        "model.safetensors",
    )


def test_pickle_next_to_the_configuration_is_refused_with_the_way_out(pipeline):
    (pipeline / "vae" / WEIGHTS).rename(pipeline / "vae" / "diffusion_pytorch_model.bin")
    refused(
        lambda: pipeline_recipes(pipeline),
        "diffusion_pytorch_model.bin: a pickle",
        "AutoencoderKL as M",
        "save_pretrained",
    )


def test_truncated_weights(pipeline):
    path = pipeline / "unet" / WEIGHTS
    os.truncate(path, path.stat().st_size - 1)
    refused(lambda: pipeline_recipes(pipeline), str(path), "truncated")


def test_a_linked_file_keeps_its_name(pipeline, tmp_path):
    """The hub's cache links to files without extension."""
    blob = tmp_path / "blob"
    (pipeline / "unet" / WEIGHTS).rename(blob)
    (pipeline / "unet" / WEIGHTS).symlink_to(blob)
    model, _, _ = pipeline_recipes(pipeline)
    assert model.network.files[1].path.endswith(WEIGHTS)
    assert ModelStore().network(model.network, "cpu", torch.float32) is not None


def test_variants_and_shards(pipeline):
    whole = load_file(pipeline / "unet" / WEIGHTS)
    (pipeline / "unet" / WEIGHTS).rename(
        pipeline / "unet" / "diffusion_pytorch_model.fp16.safetensors"
    )
    (pipeline / "text_encoder" / "model.safetensors").rename(
        pipeline / "text_encoder" / "model.fp16.safetensors"
    )
    shutil.copy(
        pipeline / "unet" / "diffusion_pytorch_model.fp16.safetensors",
        pipeline / "unet" / "diffusion_pytorch_model.non_ema.safetensors",
    )
    model, clip, _ = pipeline_recipes(pipeline)
    for part in (model.network, clip.encoders[0].encoder):
        assert sum(file.path.endswith(".fp16.safetensors") for file in part.files) == 1
    store = ModelStore()
    assert all(
        torch.equal(value, whole[name])
        for name, value in store.network(model.network, "cpu", torch.float32).state_dict().items()
    )
    store.text_encoder(clip.encoders[0].encoder, "cpu", torch.float32)

    shutil.rmtree(pipeline / "unet")
    store.network(
        pipeline_recipes(pipeline_folder("sd1"))[0].network, "cpu", torch.float32
    ).save_pretrained(pipeline / "unet", max_shard_size="400KB")
    sharded = component(pipeline / "unet", "network")
    assert len(sharded.files) > 3
    assert all(
        torch.equal(value, whole[name])
        for name, value in store.network(sharded, "cpu", torch.float32).state_dict().items()
    )
    Path(sharded.files[-1].path).unlink()
    refused(
        lambda: component(pipeline / "unet", "network"),
        Path(sharded.files[-1].path).name,
        "is missing, one of the",
    )


@pytest.mark.parametrize("suffix", [".json", ".fp16.json"])
def test_index_that_leads_elsewhere(pipeline, suffix):
    (pipeline / "unet" / WEIGHTS).unlink()
    (pipeline / "unet" / f"diffusion_pytorch_model.safetensors.index{suffix}").write_text(
        json.dumps({"weight_map": {"a": "../vae/" + WEIGHTS}})
    )
    refused(lambda: component(pipeline / "unet", "network"), "weight_map")


def test_folders_that_are_something_else(pipeline, tmp_path):
    refused(lambda: pipeline_recipes(tmp_path), "model_index.json is missing")
    refused(lambda: pipeline_recipes(tmp_path / "nowhere"), "no such file or folder")
    refused(
        lambda: controlnet_recipe(pipeline / "unet" / WEIGHTS),
        WEIGHTS,
        "this is a UNet, expected a ControlNet",
        "UNETLoader",
    )
    (tmp_path / "model.ckpt").write_bytes(b"\x80")
    refused(
        lambda: pipeline_recipes(tmp_path / "model.ckpt"),
        "model.ckpt",
        "a pickle, which can run code",
        "save_file",
    )
    refused(
        lambda: controlnet_recipe(pipeline / "unet"),
        "UNet2DConditionModel",
        "expected ControlNetModel",
    )
    refused(
        lambda: vae_recipe(controlnet_folder("sd1")), "ControlNetModel", "expected AutoencoderKL"
    )
    shutil.rmtree(pipeline / "unet")
    refused(lambda: pipeline_recipes(pipeline), "has no unet")


def test_torch_is_not_imported():
    code = (
        "import sys; from katz_graph.models.loading import identity, sources; from "
        "katz_graph.models.text import prompt; "
        "sources.pipeline_recipes(sys.argv[1]); print('torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(pipeline_folder("sdxl"))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "False"
