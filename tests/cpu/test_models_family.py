"""Families are detected by configuration alone, and parts that do not fit each other are named."""

import json
import shutil
from types import SimpleNamespace

import pytest
from tiny_models import FAMILIES, control_recipe, pipeline_folder, recipes, unet

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.configuration import prediction_type, scheduler_config
from katz_graph.models.families.unet.architecture import unet_architecture
from katz_graph.models.families.unet.blocks import skip_range
from katz_graph.models.family import check_controlnet
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.text.kinds import kind_of
from katz_graph.models.vae.kinds import latent_space


@pytest.fixture
def changed(tmp_path):
    def change(family, file, **values):
        folder = tmp_path / "model"
        shutil.copytree(pipeline_folder(family), folder)
        path = folder / file
        settings = {
            name: value
            for name, value in (json.loads(path.read_text()) | values).items()
            if value is not ...
        }
        path.write_text(json.dumps(settings))
        return folder

    return change


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    model, clip, vae = recipes(family)
    shape = unet_architecture(model.network)
    assert shape.version == family
    assert len(clip.encoders) == (2 if family == "sdxl" else 1)
    assert shape.pooled_width == (40 if family == "sdxl" else None)
    assert (shape.latent_channels, shape.down_blocks, shape.up_blocks, shape.layers_per_block) == (
        4,
        3,
        3,
        2 if family == "sdxl" else 1,
    )
    assert prediction_type(model) == ("v_prediction" if family == "sd2" else "epsilon")
    assert scheduler_config(model)["beta_schedule"] == "scaled_linear"
    assert (
        latent_space(vae)
        == LatentSpace(4, 8, 0.13025 if family == "sdxl" else 0.18215)
        == model.latent
    )
    check_controlnet(control_recipe(family), model)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_skips_of_a_block_are_known_without_the_module(family):
    module, shape = unet(family), unet_architecture(recipes(family)[0].network)
    assert [shape.skip_range(block) for block in range(3)] == [
        skip_range(module, block) for block in range(3)
    ]
    assert not shape.skip_range(3)


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        (
            "unet/config.json",
            {"cross_attention_dim": [8, 8]},
            r"cross_attention_dim is \[8, 8\], expected a number",
        ),
        (
            "unet/config.json",
            {"block_out_channels": ...},
            "block_out_channels is None, expected a list",
        ),
        (
            "unet/config.json",
            {"down_block_types": ["SimpleCrossAttnDownBlock2D"]},
            "SimpleCrossAttnDownBlock2D is not supported",
        ),
        ("unet/config.json", {"num_class_embeds": 1000}, "num_class_embeds is 1000"),
        ("unet/config.json", {"addition_embed_type": "image"}, "'image', expected none"),
        (
            "unet/config.json",
            {"_class_name": "AuraFlowTransformer2DModel"},
            "describes AuraFlowTransformer2DModel",
        ),
        ("unet/config.json", {"out_channels": 16}, "takes 16 latent channels, the VAE has 4"),
        ("vae/config.json", {"latents_mean": [0.1] * 4}, "has a mean for each channel"),
        (
            "vae/config.json",
            {"_class_name": "AutoencoderTiny"},
            "describes AutoencoderTiny, expected AutoencoderKL",
        ),
        (
            "scheduler/scheduler_config.json",
            {"prediction_type": "sample"},
            "'sample', expected 'epsilon'",
        ),
    ],
)
def test_mismatches_are_named(changed, file, values, words):
    with pytest.raises(InputError, match=words):
        pipeline_recipes(changed("sd1", file, **values))


@pytest.mark.parametrize(
    ("family", "file", "values", "width"),
    [
        ("sd1", "unet/config.json", {"cross_attention_dim": 768}, 768),
        ("sdxl", "model_index.json", {"text_encoder_2": [None, None]}, 80),
    ],
)
def test_text_encoders_that_the_network_does_not_read_are_refused_when_used(
    changed, family, file, values, width
):
    _, clip, _ = pipeline_recipes(changed(family, file, **values))
    words = f"text of width {width}, the pipeline's text encoders give 32: use CLIPLoad"
    with pytest.raises(InputError, match=words):
        kind_of(clip.encoders[0].encoder)


def test_a_name_that_is_neither_folder_nor_hub_id():
    with pytest.raises(InputError, match="no such file or folder"):
        pipeline_recipes("/nowhere/at/all")
    with pytest.raises(InputError, match="no such file or folder"):
        pipeline_recipes("model.safetensors")


def test_hub_id_without_network(monkeypatch):
    import huggingface_hub

    def unreachable(*arguments, **options):
        raise ConnectionError("Name or service not known\nmore")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(
        InputError,
        match=r"^someone/something: no such local folder, .*hub: Name or service not known$",
    ):
        pipeline_recipes("someone/something")


def test_hub_id_is_fetched_without_doubles(monkeypatch):
    import huggingface_hub

    asked = {}

    names = ("unet/m.safetensors", "unet/m.fp16.safetensors", "vae/m.fp16.safetensors")
    info = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])

    def fetch(name, **options):
        asked.update(options, name=name)
        return str(pipeline_folder("sd1"))

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *arguments, **options: info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert pipeline_recipes("someone/something") == recipes("sd1")
    assert asked["name"] == "someone/something"
    assert "unet/m.fp16.safetensors" in asked["ignore_patterns"]
    assert "vae/m.fp16.safetensors" not in asked["ignore_patterns"]
    assert not any("bin" in pattern for pattern in asked["allow_patterns"])
