"""Marigold's workflow: a conditioning from a file, and one step from a picture to its prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from node_calls import call, context_in
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers_made import in_stages

import katz_graph as katz
from katz_graph.core.errors import InputError
from katz_graph.core.patches import FlowSampling
from katz_graph.core.recipe import Given, References
from katz_graph.ir.values import Step, TextEncoding
from katz_graph.models.loading.sources import network_recipe
from katz_graph.models.loading.store import ModelStore
from katz_graph.sampling.noise_table import flow_table
from katz_graph.testing.stand_ins.catalogue import write_stand_in

FILES = {
    "unet": "qwen_image_edit_2509_int8_convrot.safetensors",
    "vae": "marigold_v2_depth_log_stage2_vae.safetensors",
    "embeddings": "marigold_v2_depth_conditioning.safetensors",
}
LEVEL = 0.5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    assert all(write_stand_in(folder, kind, name) for kind, name in FILES.items())
    return folder


def workflow(sampling: str, noise: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    nodes: dict[str, tuple[str, dict[str, Any]]] = {
        "image": ("EmptyImage", {"width": 32, "height": 48, "batch_size": 1, "color": 0x305070}),
        "vae": ("VAELoader", {"vae_name": FILES["vae"]}),
        "start": ("VAEEncode", {"pixels": ["image", 0], "vae": ["vae", 0]}),
        "unet": ("UNETLoader", {"unet_name": FILES["unet"], "weight_dtype": "default"}),
        "model": (
            "ModelSamplingAuraFlow",
            {"model": ["unet", 0], "shift": 1.73, "sampling": sampling},
        ),
        "text": ("ConditioningLoader", {"conditioning_name": FILES["embeddings"]}),
        "guider": ("BasicGuider", {"model": ["model", 0], "conditioning": ["text", 0]}),
        "noise": noise,
        "sampler": ("KSamplerSelect", {"sampler_name": "euler"}),
        "sigmas": ("ManualSigmas", {"sigmas": f"{LEVEL}, 0"}),
        "sample": (
            "SamplerCustomAdvanced",
            {
                "noise": ["noise", 0],
                "guider": ["guider", 0],
                "sampler": ["sampler", 0],
                "sigmas": ["sigmas", 0],
                "latent_image": ["start", 0],
            },
        ),
    }
    return {name: {"class_type": kind, "inputs": given} for name, (kind, given) in nodes.items()}


def test_one_step_leads_from_the_picture_to_the_prediction(models: Path) -> None:
    """The network sees the picture's latent as it is, and its output is taken from that latent, at
    any noise; a flow's levels would halve both.
    """
    silent: tuple[str, dict[str, Any]] = ("DisableNoise", {})
    loud: tuple[str, dict[str, Any]] = ("RandomNoise", {"noise_seed": 3})
    with katz.open(models=str(models)) as engine:
        given, noisy, flow = (
            engine.run(workflow(sampling, noise), targets=["sample", "start"]).outputs
            for sampling, noise in (
                ("img_to_img_velocity", silent),
                ("img_to_img_velocity", loud),
                ("flow", silent),
            )
        )
    start, made, other = (
        outputs[name][0]["samples"]
        for outputs, name in ((given, "start"), (given, "sample"), (flow, "sample"))
    )
    model = network_recipe(models / "diffusion_models" / FILES["unet"])
    module = ModelStore().network(model.network, "cpu", torch.float32)
    text = TextEncoding(load_file(models / "embeddings" / FILES["embeddings"])["conditioning"])
    x = model.latent.normalised(start)
    with torch.no_grad():
        velocity = in_stages(module, Step.of(x, x, LEVEL, LEVEL), text, [])
    wanted = model.latent.restored(x - velocity)
    assert (made - wanted).abs().max() <= 1e-5 * (wanted.max() - wanted.min())
    assert torch.equal(noisy["sample"][0]["samples"], made)
    assert (other - made).abs().max() > 0.1


def test_recipes_of_flows_between_noise_and_pictures_have_their_old_digest() -> None:
    assert repr(FlowSampling(2.0)) == "FlowSampling(shift=2.0, levels=1000, multiplier=1000.0)"
    assert "between_pictures=True" in repr(FlowSampling(2.0, between_pictures=True))
    assert flow_table(2.0).parametrisation == "flow_prediction"


# Files of conditionings


def loaded(folder: Path, tensors: dict[str, Tensor], options: Any = None) -> tuple[Any, list[str]]:
    """Returns the entry of a file that the node loads, and its warnings."""
    place = folder / "models" / "embeddings"
    place.mkdir(parents=True)
    words = options if isinstance(options, str) else json.dumps(options)
    metadata = {} if options is None else {"conditioning_options": words}
    save_file(tensors, place / "x.safetensors", metadata)
    context = context_in(folder)
    (entry,) = call("ConditioningLoader", context, conditioning_name="x.safetensors")
    return entry, context.warnings


def test_options_and_numbered_tensors_are_restored(tmp_path: Path) -> None:
    hidden = torch.randn(1, 7, 32).bfloat16()
    latents = [torch.randn(1, 16, 4, 4 + number) for number in range(11)]
    tensors = {"conditioning": hidden, "pooled_output": torch.randn(1, 8)}
    tensors |= {f"reference_latents.{number}": one for number, one in enumerate(latents)}
    options = {"guidance": 3, "reference_latents_method": "index", "sparkle": True}
    entry, warnings = loaded(tmp_path, tensors, options)
    assert entry.encoding == Given.of(hidden.float(), tensors["pooled_output"])
    assert entry.guidance == 3.0
    assert isinstance(entry.references, References) and entry.references.placing == "index"
    shown = [one.pixels for one in entry.references.latents]
    assert [one.shape for one in shown] == [one.shape for one in latents]
    assert warnings == ["x.safetensors: options without effect: sparkle"]
    plain, warnings = loaded(tmp_path / "plain", {"conditioning": hidden})
    assert plain.references is None and plain.guidance is None and warnings == []


@pytest.mark.parametrize(
    ("tensors", "options", "words"),
    [
        ({"clip_l": torch.zeros(2, 8)}, None, "expected a file of SaveConditioning"),
        ({"conditioning": torch.zeros(1, 2, 8)}, [1], "options as a JSON object"),
        ({"conditioning": torch.zeros(1, 2, 8)}, "{", "conditioning_options are not JSON"),
        ({"conditioning": torch.zeros(2, 8)}, None, r"\[2, 8\] for a text encoding"),
        ({"conditioning": torch.zeros(1, 2, 8)}, {"guidance": "a"}, "an option is not of its type"),
        ({"conditioning": torch.zeros(1, 2, 8)}, {"mask": 1}, "an option is not of its type"),
    ],
)
def test_other_files_are_refused_in_a_line(
    tensors: dict[str, Tensor], options: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        loaded(tmp_path, tensors, options)
    assert "x.safetensors" in str(caught.value) and "\n" not in str(caught.value)
