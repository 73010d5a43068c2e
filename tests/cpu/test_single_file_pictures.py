"""Workflows on single files give the folder's picture, whichever nodes load the parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from command import Katz
from PIL import Image
from safetensors.torch import save_file
from single_files import checkpoint, controlnet, pipeline_folder, save, union_controlnet
from test_cli import write

from katz_graph.models.families.unet.random_models.original import original_unet, transformers_text
from katz_graph.models.families.unet.stand_ins import checkpoint_tensors, parts


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for kind in ("checkpoints", "diffusion_models", "text_encoders", "vae", "controlnet"):
        (root / kind).mkdir()
    for kind in ("sd1", "sd2", "sdxl"):
        (root / "checkpoints" / kind).symlink_to(pipeline_folder(kind))
        (root / "checkpoints" / f"{kind}.safetensors").symlink_to(checkpoint(kind))
        save(root / "vae" / f"{kind}.safetensors", parts(kind)["vae"].state_dict())
        save(root / "diffusion_models" / f"{kind}.safetensors", original_unet(parts(kind)["unet"]))
    save(
        root / "text_encoders" / "sd1.safetensors", transformers_text(parts("sd1")["text_encoder"])
    )
    save(root / "text_encoders" / "l.safetensors", transformers_text(parts("sdxl")["text_encoder"]))
    save(root / "controlnet" / "sd1.safetensors", original_unet(controlnet("sd1")))
    (root / "controlnet" / "sd1").mkdir()
    controlnet("sd1").save_pretrained(root / "controlnet" / "sd1")
    save(root / "controlnet" / "union.safetensors", union_controlnet().state_dict())
    return root


def nodes(model: list[Any], clip: list[Any], vae: list[Any], **loaders: Any) -> dict[str, Any]:
    sampling = {
        "seed": 3,
        "steps": 2,
        "cfg": 3.0,
        "model": model,
        "positive": ["10", 0],
        "negative": ["11", 0],
        "latent_image": ["12", 0],
    }
    return loaders | {
        "10": {"class_type": "CLIPTextEncode", "inputs": {"clip": clip, "text": "a (red:1.2) fox"}},
        "11": {"class_type": "CLIPTextEncode", "inputs": {"clip": clip, "text": ""}},
        "12": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64}},
        "13": {"class_type": "KSampler", "inputs": sampling},
        "14": {"class_type": "VAEDecode", "inputs": {"samples": ["13", 0], "vae": vae}},
        "15": {"class_type": "SaveImage", "inputs": {"images": ["14", 0]}},
    }


def whole(name: str) -> dict[str, Any]:
    return nodes(
        ["1", 0], ["1", 1], ["1", 2], **{"1": loader("CheckpointLoaderSimple", ckpt_name=name)}
    )


def loader(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def picture(katz: Katz, models: Path, workflow: dict[str, Any]) -> numpy.ndarray:
    result = katz("run", write(workflow), "--models", models, "--json")
    assert result.code == 0, result.err
    return numpy.asarray(Image.open(result.data["outputs"][0])).astype(int)


@pytest.mark.parametrize("kind", ["sd1", "sd2", "sdxl"])
def test_a_checkpoint_matches_its_folder(katz: Katz, models: Path, kind: str) -> None:
    assert numpy.array_equal(
        picture(katz, models, whole(f"{kind}.safetensors")), picture(katz, models, whole(kind))
    )


def test_separate_files_match_the_checkpoint(katz: Katz, models: Path) -> None:
    separate = nodes(
        ["1", 0],
        ["2", 0],
        ["3", 0],
        **{
            "1": loader("UNETLoader", unet_name="sd1.safetensors", weight_dtype="default"),
            "2": loader("CLIPLoader", clip_name="sd1.safetensors", type="stable_diffusion"),
            "3": loader("VAELoader", vae_name="sd1.safetensors"),
        },
    )
    expected = picture(katz, models, whole("sd1"))
    assert numpy.array_equal(picture(katz, models, separate), expected)
    separate["1"]["inputs"]["weight_dtype"] = "fp8_e4m3fn"
    rounded = picture(katz, models, separate)
    assert not numpy.array_equal(rounded, expected)


def test_a_text_encoder_of_another_layer(katz: Katz, models: Path) -> None:
    workflow = whole("sd1.safetensors")
    workflow["2"] = loader("CLIPSetLastLayer", clip=["1", 1], stop_at_clip_layer=-1)
    workflow["10"]["inputs"]["clip"] = ["2", 0]
    last = picture(katz, models, workflow)
    assert numpy.array_equal(last, picture(katz, models, whole("sd1")))
    workflow["2"]["inputs"]["stop_at_clip_layer"] = -2
    assert not numpy.array_equal(picture(katz, models, workflow), last)


def controlled(checkpoint: str, control: dict[str, Any], **more: Any) -> dict[str, Any]:
    workflow = whole(checkpoint)
    workflow["13"]["inputs"] |= {"positive": ["5", 0], "negative": ["5", 1]}
    apply = loader(
        "ControlNetApplyAdvanced",
        positive=["10", 0],
        negative=["11", 0],
        control_net=["4" if more else "3", 0],
        image=["6", 0],
    )
    return (
        workflow
        | {"3": control, "5": apply, "6": loader("EmptyImage", width=64, height=64, color=0x80A0C0)}
        | more
    )


def test_a_controlnet_file_matches_its_folder(katz: Katz, models: Path) -> None:
    pictures = [
        picture(katz, models, controlled("sd1", loader(kind, control_net_name=name, **model)))
        for kind, name, model in (
            ("ControlNetLoader", "sd1", {}),
            ("ControlNetLoader", "sd1.safetensors", {}),
            ("DiffControlNetLoader", "sd1.safetensors", {"model": ["1", 0]}),
        )
    ]
    assert numpy.array_equal(pictures[0], pictures[1]) and numpy.array_equal(
        pictures[0], pictures[2]
    )
    assert not numpy.array_equal(pictures[0], picture(katz, models, whole("sd1")))


def test_a_union_controlnet_gets_its_type(katz: Katz, models: Path) -> None:
    def painted(kind: str) -> numpy.ndarray:
        typed = loader("SetUnionControlNetType", control_net=["3", 0], type=kind)
        control = loader("ControlNetLoader", control_net_name="union.safetensors")
        return picture(katz, models, controlled("sdxl", control, **{"4": typed}))

    depth, tile = painted("depth"), painted("tile")
    assert not numpy.array_equal(depth, tile)
    assert not numpy.array_equal(depth, painted("auto"))


def test_foreign_tensors_are_named(katz: Katz, models: Path) -> None:
    result = katz("run", write(nodes(["1", 0], ["2", 0], ["1", 2], **{
        "1": loader("CheckpointLoaderSimple", ckpt_name="sd1.safetensors"),
        "2": loader("CLIPLoader", clip_name="sd1.safetensors", type="flux3"),
    })), "--models", models)  # fmt: skip
    assert result.code == 2
    assert (
        "CLIPLoader, type: flux3 is not supported; Katz Graph runs SD1.5, SD2 and SDXL"
        in result.err
    )
    result = katz("run", write(nodes(["1", 0], ["2", 0], ["1", 2], **{
        "1": loader("CheckpointLoaderSimple", ckpt_name="sd1.safetensors"),
        "2": loader("DualCLIPLoader", clip_name1="l.safetensors", clip_name2="sd1.safetensors", type="sdxl"),
    })), "--models", models)  # fmt: skip
    assert result.code == 2
    assert "not the two text encoders of one model" in result.err


def test_a_checkpoint_of_eight_bits_runs(katz: Katz, models: Path) -> None:
    tensors = checkpoint_tensors("sd1")
    eight = {
        name: tensor.to(torch.float8_e4m3fn) if name.startswith("model.") else tensor
        for name, tensor in tensors.items()
    }
    save_file(
        {name: tensor.contiguous() for name, tensor in eight.items()},
        models / "checkpoints" / "eight.safetensors",
    )
    assert picture(katz, models, whole("eight.safetensors")).std() > 0
