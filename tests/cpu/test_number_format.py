"""`--dtype`: the number format of a run, its reports, and the pictures of a CPU in half precision."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from command import Katz
from PIL import Image
from safetensors.torch import load_file, save_file

from katz_graph.core.devices import number_format
from katz_graph.core.errors import InputError, RunError
from katz_graph.executor.start import assigned
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore

WORKFLOWS = Path(__file__).parents[2] / "workflows"
CONTROLNET_AND_LORA = WORKFLOWS / "controlnet_lora.json"
# maximum and mean, relative to the picture's range; measured: 0.02, 0.002
NEAR, NEAREST = 0.06, 0.006


def painted(katz: Katz, *options: object) -> tuple[Any, Any, Any]:
    """Returns the picture in 0..1, its metadata, and the plan."""
    result = katz(
        "run", CONTROLNET_AND_LORA, "--threads", 1, "--set", "5.steps=5", *options, "--json"
    )
    assert result.code == 0, result.err
    with Image.open(result.data["outputs"][0]) as picture:
        return numpy.asarray(picture) / 255, json.loads(picture.text["katz"]), result.data["plan"]


def test_bfloat16_paints_nearly_the_picture_of_float32_and_both_are_recorded(katz: Katz) -> None:
    """Covers LoRA, ControlNet, UNet and VAE."""
    full, made, plan = painted(katz)
    assert made["dtype"] == plan["dtype"] == "float32"
    half, made, plan = painted(katz, "--dtype", "bfloat16")
    assert made["dtype"] == plan["dtype"] == "bfloat16"
    difference = numpy.abs(half - full)
    assert difference.max() <= NEAR and 0 < difference.mean() <= NEAREST
    assert "computed in bfloat16\n" in katz("plan", CONTROLNET_AND_LORA, "--dtype", "bfloat16").out


def test_the_number_format_is_read_from_the_files_wrapper(katz: Katz) -> None:
    graph = json.loads(CONTROLNET_AND_LORA.read_text())
    Path("kept.json").write_text(
        json.dumps({"format": "katz", "version": 1, "graph": graph, "run": {"dtype": "bfloat16"}})
    )
    assert "computed in bfloat16\n" in katz("plan", "kept.json").out
    assert "computed in float32\n" in katz("plan", "kept.json", "--dtype", "float32").out


@pytest.mark.parametrize(
    "command",
    [("run", CONTROLNET_AND_LORA), ("plan", CONTROLNET_AND_LORA), ("serve",), ("profile",)],
)
@pytest.mark.parametrize("dtype", ["float16", "half"])
def test_formats_unsupported_on_cpus_are_refused_early(
    katz: Katz, command: tuple[object, ...], dtype: str
) -> None:
    result = katz(*command, "--dtype", dtype)
    assert result.code == 2 and len(result.errors) == 1
    assert result.errors[0].startswith(f"error: --dtype {dtype}") and "bfloat16" in result.errors[0]


def test_all_devices_of_a_run_compute_in_one_format() -> None:
    mixed = assigned({"a": "cuda:0", "b": "cpu"}, WorkerConfig())
    assert [one.dtype for one in mixed] == [torch.float32] * 2
    assert [
        one.dtype for one in assigned({"a": "cuda:0", "b": "cpu"}, WorkerConfig(), "bfloat16")
    ] == [torch.bfloat16] * 2
    assert [number_format(["cuda:0"], dtype) for dtype in ("auto", "float16", "float32")] == [
        "float16",
        "float16",
        "float32",
    ]
    with pytest.raises(InputError, match="--dtype float16 is"):
        assigned({"a": "cuda:0", "b": "cpu"}, WorkerConfig(), "float16")


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [("bfloat16", "try --dtype float32, another VAE"), ("float32", "try another VAE")],
)
def test_numbers_that_become_infinite_name_the_way_out(
    katz: Katz, model_folder: Path, dtype: str, advice: str
) -> None:
    shutil.copytree(model_folder / "checkpoints" / "sd1", "models/checkpoints/sd1")
    file = Path("models/checkpoints/sd1/unet/diffusion_pytorch_model.safetensors")
    save_file(
        {
            name: weight * (torch.inf if name == "conv_out.bias" else 1)
            for name, weight in load_file(file).items()
        },
        file,
    )
    checkpoint = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd1"}}
    graph = json.loads((WORKFLOWS / "txt2img.json").read_text())
    name = next(
        name for name, node in graph.items() if node["class_type"] == "CheckpointLoaderSimple"
    )
    Path("broken.json").write_text(json.dumps({**graph, name: checkpoint}))
    result = katz("run", "broken.json", "--models", "models", "--dtype", dtype)
    assert result.code == 1 and len(result.errors) == 1
    assert "NaN or infinite in step 1" in result.errors[0] and advice in result.errors[0]


def test_weights_that_do_not_fit_name_the_option_that_makes_them_smaller(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    model, _, _ = pipeline_recipes(model_folder / "checkpoints" / "sd1")
    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(RunError, match=r"out of memory.*\(--dtype\) or a smaller model"):
        ModelStore().network(model.network, "cpu", torch.float32)
