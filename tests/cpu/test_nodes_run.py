"""Picture and text nodes in whole `katz run`s: linked values, displayed texts, and outputs without
a client.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from command import Katz
from PIL import Image
from safetensors.torch import save_file

from katz_graph.core.recipe import Compact
from katz_graph.upscale.networks import CompactNet


def write(nodes: dict[str, Any]) -> Path:
    document = {
        name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in nodes.items()
    }
    path = Path("workflow.json")
    path.write_text(json.dumps(document))
    return path


def test_sizes_are_measured_and_used(katz: Katz) -> None:
    nodes: dict[str, Any] = {
        "1": ("EmptyImage", {"width": 30, "height": 20, "color": 255}),
        "2": ("GetImageSize", {"image": ["1", 0]}),
        "3": ("EmptyImage", {"width": ["2", 1], "height": ["2", 0], "color": 0}),
        "4": ("ImageStitch", {"image1": ["1", 0], "image2": ["3", 0], "match_image_size": False}),
        "5": ("SaveImage", {"images": ["4", 0], "filename_prefix": "%width%x%height%"}),
        "6": ("MaskPreview", {"mask": ["7", 0]}),
        "7": ("ImageToMask", {"image": ["5", 0], "channel": "blue"}),
    }
    data = katz("run", write(nodes), "--json").data
    assert [str(Path(path).relative_to(Path.cwd())) for path in data["outputs"]] == [
        "output/50x30_00001_.png",
        "output/temp/preview_00001_.png",
    ]
    again = katz(
        "run",
        write(
            {
                "1": ("LoadImage", {"image": "50x30_00001_.png [output]"}),
                "2": ("PreviewImage", {"images": ["1", 0]}),
            }
        ),
    )
    assert again.code == 0
    assert Image.open("output/temp/preview_00002_.png").size == (50, 30)


def test_texts_are_put_together_and_shown(katz: Katz) -> None:
    nodes: dict[str, Any] = {
        "1": ("PrimitiveString", {"value": "a [red]"}),
        "2": ("StringConcatenate", {"string_a": ["1", 0], "string_b": "moon", "delimiter": " "}),
        "3": ("PreviewAny", {"source": ["2", 0]}),
    }
    result = katz("run", write(nodes))
    assert result.code == 0 and "a [red] moon" in result.err.splitlines()


def test_pictures_for_a_client_are_refused_without_one(katz: Katz) -> None:
    nodes: dict[str, Any] = {
        "1": ("EmptyImage", {}),
        "2": ("SaveImageWebsocket", {"images": ["1", 0]}),
    }
    result = katz("run", write(nodes))
    assert result.code == 2
    assert result.errors == [
        "error: node 2 (SaveImageWebsocket): sends pictures to a server's client, and this "
        "run has no server; use SaveImage instead"
    ]


def test_a_bad_upscaler_is_one_line_before_anything_runs(katz: Katz) -> None:
    nodes: dict[str, Any] = {
        "1": ("UpscaleModelLoader", {"model_name": "4x.pth"}),
        "2": ("ImageUpscaleWithModel", {"upscale_model": ["1", 0], "image": ["3", 0]}),
        "3": ("EmptyImage", {}),
        "4": ("SaveImage", {"images": ["2", 0]}),
    }
    result = katz("run", write(nodes))
    assert result.code == 2 and len(result.errors) == 1 and "is a pickle" in result.errors[0]


def test_an_upscaler_before_a_sampler_is_run_and_planned(katz: Katz, monkeypatch: Any) -> None:
    monkeypatch.setenv("KATZ_MODELS", "models")
    Path("models/upscale_models").mkdir(parents=True)
    torch.manual_seed(0)
    save_file(CompactNet(Compact(4, 1, 4)).state_dict(), "models/upscale_models/4x.safetensors")
    nodes: dict[str, Any] = {
        "1": ("CheckpointLoaderSimple", {"ckpt_name": "katz-mini"}),
        "2": ("CLIPTextEncode", {"clip": ["1", 1], "text": "a red moon"}),
        "3": ("UpscaleModelLoader", {"model_name": "4x.safetensors"}),
        "4": ("EmptyImage", {"width": 16, "height": 16, "color": 0x8080FF}),
        "5": ("ImageUpscaleWithModel", {"upscale_model": ["3", 0], "image": ["4", 0]}),
        "6": ("VAEEncode", {"pixels": ["5", 0], "vae": ["1", 2]}),
        "7": (
            "KSampler",
            {
                "model": ["1", 0],
                "positive": ["2", 0],
                "negative": ["2", 0],
                "latent_image": ["6", 0],
                "steps": 2,
                "denoise": 0.5,
            },
        ),
        "8": ("VAEDecode", {"samples": ["7", 0], "vae": ["1", 2]}),
        "9": ("SaveImage", {"images": ["8", 0]}),
    }
    path = write(nodes)
    assert katz("plan", path, "--json").data["latent"][2:] == [8, 8]
    (made,) = katz("run", path, "--json").data["outputs"]
    assert Image.open(made).size == (64, 64)


def test_lists_of_batches_are_saved_one_by_one(katz: Katz) -> None:
    """Five pictures in batches of two: three calls of a node that takes one batch, with a linked
    knob.
    """
    nodes: dict[str, Any] = {
        "1": ("EmptyImage", {"width": 8, "height": 8, "batch_size": 5}),
        "2": ("PrimitiveInt", {"value": 2}),
        "3": ("RebatchImages", {"images": ["1", 0], "batch_size": ["2", 0]}),
        "4": ("GetImageSize", {"image": ["3", 0]}),
        "5": ("PreviewAny", {"source": ["4", 2]}),
        "6": ("SaveImage", {"images": ["3", 0]}),
    }
    result = katz("run", write(nodes), "--json")
    assert result.code == 0 and len(result.data["outputs"]) == 5
    assert [line for line in result.err.splitlines() if line.isdigit()] == ["2", "2", "1"]


def test_a_switch_evaluates_the_chosen_side_alone(katz: Katz) -> None:
    for switch, chosen in ((False, "1"), (True, "2")):
        nodes: dict[str, Any] = {
            "1": ("EmptyImage", {"width": 24, "height": 8}),
            "2": ("EmptyImage", {"width": 40, "height": 8}),
            "3": ("ComfySwitchNode", {"switch": switch, "on_false": ["1", 0], "on_true": ["2", 0]}),
            "4": ("SaveImage", {"images": ["3", 0]}),
        }
        result = katz("run", write(nodes), "--why")
        ran = [line.split()[1] for line in result.err.splitlines() if line.startswith("node ")]
        assert ran == [chosen, "3", "4"]
        made = Path(f"output/ComfyUI_{1 + switch:05}_.png")
        assert Image.open(made).size == (nodes[chosen][1]["width"], 8)


def test_sizes_of_proportions_are_multiples_near_the_megapixels(katz: Katz) -> None:
    """At 1024² pixels, 16:9 is 1365.3 x 768, or 1376 x 768 in multiples of 32. At a tenth of the
    pixels, 2:3 is 264.4 x 396.6.
    """
    for inputs, size in (
        ({}, (1024, 1024)),
        ({"aspect_ratio": "16:9 (Widescreen)"}, (1368, 768)),
        ({"aspect_ratio": "16:9 (Widescreen)", "multiple": 32}, (1376, 768)),
        ({"aspect_ratio": "2:3 (Portrait Photo)", "megapixels": 0.1, "multiple": 16}, (272, 400)),
    ):
        nodes: dict[str, Any] = {
            "1": ("ResolutionSelector", inputs),
            "2": ("EmptyImage", {"width": ["1", 0], "height": ["1", 1]}),
            "3": ("PreviewImage", {"images": ["2", 0]}),
        }
        (path,) = katz("run", write(nodes), "--json").data["outputs"]
        assert Image.open(path).size == size


def test_two_pictures_are_shown_side_by_side(katz: Katz) -> None:
    nodes: dict[str, Any] = {
        "1": ("EmptyImage", {"width": 24, "height": 8}),
        "2": ("ImageCompare", {"image_a": ["1", 0], "image_b": ["1", 0]}),
    }
    made = katz("run", write(nodes), "--json").data["outputs"]
    assert [Path(path).name for path in made] == ["compare.a_00001_.png", "compare.b_00001_.png"]
    nodes["2"] = ("ImageCompare", {})
    assert katz("run", write(nodes)).code == 0
