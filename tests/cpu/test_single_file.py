"""Single files as distributed give the modules and values of the folder that they were made from."""

import json

import pytest
import torch
from single_files import checkpoint, controlnet, pipeline_folder, save, union_controlnet
from tiny_models import random_step, random_text, rows

from katz_graph.core.errors import InputError
from katz_graph.models.configuration import (
    config,
    prediction_type,
    scheduler_config,
    union_types,
)
from katz_graph.models.families.unet.architecture import unet_architecture
from katz_graph.models.families.unet.control_blocks import control, embed_reference
from katz_graph.models.families.unet.random_models.original import original_unet, transformers_text
from katz_graph.models.families.unet.stand_ins import KINDS, checkpoint_tensors, parts
from katz_graph.models.loading.sources import (
    clip_recipe,
    controlnet_recipe,
    network_recipe,
    pipeline_recipes,
    vae_recipe,
)
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.text import encoder as text
from katz_graph.models.text.tokens import load_tokenizer
from katz_graph.models.vae.kinds import latent_space, overflows

STORE = ModelStore()
CPU = ("cpu", torch.float32)


def same(module, expected):
    mine, theirs = module.state_dict(), expected.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[name], theirs[name]) for name in mine
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_the_folder_it_was_made_of(kind):
    (model, clip, vae), made = pipeline_recipes(checkpoint(kind)), parts(kind)
    folder_model, _, folder_vae = pipeline_recipes(pipeline_folder(kind))
    assert same(STORE.network(model.network, *CPU), made["unet"])
    assert same(STORE.vae(vae.vae, *CPU), made["vae"])
    encoders = [made[name] for name in ("text_encoder", "text_encoder_2") if name in made]
    for recipe, expected in zip(clip.encoders, encoders, strict=True):
        assert same(STORE.text_encoder(recipe.encoder, *CPU), expected)
    assert unet_architecture(model.network) == unet_architecture(folder_model.network)
    assert latent_space(vae) == latent_space(folder_vae) and overflows(vae) == overflows(folder_vae)
    assert (
        model.latent.scale
        == folder_model.latent.scale
        == (0.13025 if kind in ("sdxl", "refiner") else 0.18215)
    )
    common = scheduler_config(folder_model).keys() & scheduler_config(model).keys() - {
        "prediction_type"
    }
    assert all(
        scheduler_config(model)[name] == scheduler_config(folder_model)[name] for name in common
    )
    assert len(common) > 5


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_encoded_alike(kind):
    encodings = []
    for source in (checkpoint(kind), pipeline_folder(kind)):
        _, clip, _ = pipeline_recipes(source)
        encoders = [
            (STORE.text_encoder(one.encoder, *CPU), load_tokenizer(one)) for one in clip.encoders
        ]
        encodings.append(
            text.encode(encoders, "a photo of an (astronaut:1.2) riding a horse on mars")
        )
    assert torch.equal(encodings[0].hidden, encodings[1].hidden)
    if kind in ("sdxl", "refiner"):
        assert torch.equal(encodings[0].pooled, encodings[1].pooled)
    else:
        assert encodings[0].pooled is None


def test_the_shipped_vocabulary_is_clips():
    """A prompt's ids are those of OpenAI's and Stability's examples; the two kinds of encoder pad
    differently.
    """
    _, clip, _ = pipeline_recipes(checkpoint("sdxl"))
    first, second = (load_tokenizer(one) for one in clip.encoders)
    expected = [49406, 320, 1125, 539, 550, 18376, 6765, 320, 4558, 525, 7496, 49407]
    for tokenizer, pad in ((first, 49407), (second, 0)):
        prompt = "a photo of an astronaut riding a horse on mars"
        assert tokenizer(prompt).input_ids == expected
        assert tokenizer(prompt, padding="max_length").input_ids == expected + [pad] * 65


def change(tmp_path, kind, tensors=None, metadata=None, in_channels=4, yaml=None):
    path = tmp_path / "model.safetensors"
    save(path, checkpoint_tensors(kind, in_channels) | (tensors or {}), metadata)
    if yaml:
        path.with_suffix(".yaml").write_text(yaml)
    return pipeline_recipes(path)[0]


SPREAD = "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.norm1.bias"
SPREAD_SCALES = {SPREAD: torch.linspace(-1, 1, 64)}
MARKS = {"v_pred": torch.tensor([]), "ztsnr": torch.tensor([])}
YAML = "model:\n  target: ldm\n  params:\n    parameterization: '{}'\n"


@pytest.mark.parametrize(
    ("kind", "changes", "prediction", "zero_terminal_snr"),
    [
        ("sd1", {}, "epsilon", False),
        ("sd1", {"tensors": SPREAD_SCALES}, "epsilon", False),
        ("sd2", {"tensors": {SPREAD: torch.zeros(64)}}, "epsilon", False),
        ("sd2", {"tensors": SPREAD_SCALES}, "v_prediction", False),
        ("sd2", {"tensors": {SPREAD: SPREAD_SCALES[SPREAD].bfloat16()}}, "v_prediction", False),
        (
            "sd2",
            {"tensors": {SPREAD: SPREAD_SCALES[SPREAD].to(torch.float8_e4m3fn)}},
            "v_prediction",
            False,
        ),
        (
            "sd2",
            {"tensors": {SPREAD: (SPREAD_SCALES[SPREAD] * 0.1).to(torch.float8_e4m3fn)}},
            "epsilon",
            False,
        ),
        ("sd2", {"tensors": SPREAD_SCALES, "in_channels": 9}, "epsilon", False),
        ("sd2", {"tensors": SPREAD_SCALES, "yaml": YAML.format("eps")}, "epsilon", False),
        (
            "sd2",
            {"tensors": SPREAD_SCALES, "metadata": {"modelspec.prediction_type": "epsilon"}},
            "epsilon",
            False,
        ),
        ("sd1", {"yaml": YAML.format("v")}, "v_prediction", False),
        ("sdxl", {}, "epsilon", False),
        ("sdxl", {"tensors": MARKS}, "v_prediction", True),
        ("sdxl", {"tensors": {"v_pred": MARKS["v_pred"]}}, "v_prediction", False),
        ("sdxl", {"metadata": {"modelspec.predict_key": "v"}}, "v_prediction", False),
        ("sdxl", {"metadata": {"modelspec.prediction_type": "v"}}, "v_prediction", False),
    ],
)
def test_checkpoint_prediction_types(tmp_path, kind, changes, prediction, zero_terminal_snr):
    model = change(tmp_path, kind, **changes)
    assert prediction_type(model) == prediction
    assert scheduler_config(model)["rescale_betas_zero_snr"] is zero_terminal_snr


@pytest.mark.parametrize(("kind", "channels"), [("sd1", 9), ("sd2", 9), ("sdxl", 9), ("sd1", 8)])
def test_models_that_see_a_picture_too(kind, channels):
    model, _, _ = pipeline_recipes(checkpoint(kind, channels))
    shape = unet_architecture(model.network)
    assert (shape.input_channels, shape.latent_channels, shape.version) == (channels, 4, kind)
    assert same(STORE.network(model.network, *CPU), parts(kind, channels)["unet"])


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_files_of_their_own(tmp_path, kind):
    made = parts(kind)
    save(tmp_path / "original.safetensors", original_unet(made["unet"]))
    save(tmp_path / "diffusers.safetensors", made["unet"].state_dict())
    for name in ("original", "diffusers"):
        model = network_recipe(tmp_path / f"{name}.safetensors")
        assert same(STORE.network(model.network, *CPU), made["unet"])
        assert model.latent == pipeline_recipes(checkpoint(kind))[0].latent
    assert same(STORE.network(network_recipe(checkpoint(kind)).network, *CPU), made["unet"])
    save(tmp_path / "vae.safetensors", made["vae"].state_dict())
    assert same(STORE.vae(vae_recipe(tmp_path / "vae.safetensors").vae, *CPU), made["vae"])
    assert same(STORE.vae(vae_recipe(checkpoint(kind)).vae, *CPU), made["vae"])
    assert clip_recipe([checkpoint(kind)]) == pipeline_recipes(checkpoint(kind))[1]


def test_old_names_of_a_vae_in_diffusers_layout(tmp_path):
    expected = parts("sd1")["vae"]
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = {}
    for name, tensor in expected.state_dict().items():
        for ours, theirs in old.items():
            name = name.replace(f"attentions.0.{ours}.", f"attentions.0.{theirs}.")
        tensors[name] = tensor
    save(tmp_path / "vae.safetensors", tensors)
    assert same(STORE.vae(vae_recipe(tmp_path / "vae.safetensors").vae, *CPU), expected)


def test_text_encoders_in_files_of_their_own(tmp_path):
    save(
        tmp_path / "l.safetensors",
        transformers_text(parts("sd1")["text_encoder"]) | {"text_projection.weight": torch.eye(64)},
    )
    (encoder,) = clip_recipe([tmp_path / "l.safetensors"]).encoders
    assert same(STORE.text_encoder(encoder.encoder, *CPU), parts("sd1")["text_encoder"])
    assert config(encoder.encoder)["hidden_act"] == "quick_gelu"
    with pytest.raises(
        InputError,
        match=r"not the two text encoders of one model: expected CLIP-L .* and OpenCLIP's bigG",
    ):
        clip_recipe([tmp_path / "l.safetensors", tmp_path / "l.safetensors"])


@pytest.mark.parametrize("kind", ["sd1", "sd2", "sdxl"])
def test_controlnets_in_either_layout(tmp_path, kind):
    expected = controlnet(kind)
    original = original_unet(expected)
    save(
        tmp_path / "whole.safetensors",
        {f"control_model.{name}": tensor for name, tensor in original.items()},
    )
    save(tmp_path / "bare.safetensors", original)
    save(tmp_path / "diffusers.safetensors", expected.state_dict())
    for name in ("whole", "bare", "diffusers"):
        recipe = controlnet_recipe(tmp_path / f"{name}.safetensors")
        assert same(STORE.controlnet(recipe.control_net, *CPU), expected)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "averages"),
    [
        ("control_v11e_sd15_shuffle", True),
        ("control_v11e_sd15_shuffle_fp16", True),
        ("control_sd15_shuffle_canny", False),
    ],
)
def test_a_controlnet_of_shuffled_pictures_averages_as_its_folder_does(tmp_path, name, averages):
    controlnet("sd1").save_pretrained(tmp_path / "folder")
    settings = json.loads((tmp_path / "folder" / "config.json").read_text()) | {
        "global_pool_conditions": averages
    }
    (tmp_path / "folder" / "config.json").write_text(json.dumps(settings))
    save(tmp_path / f"{name}.safetensors", original_unet(controlnet("sd1")))
    step, image = random_step(1, 16, 16), torch.rand(1, 3, 128, 128)
    residuals = []
    for place in ("folder", f"{name}.safetensors"):
        module = STORE.controlnet(controlnet_recipe(tmp_path / place).control_net, *CPU)
        residuals.append(
            control(
                module,
                step,
                random_text(module, 1),
                embed_reference(module, image),
                rows(step, 1.0),
            )
        )
    folder, file = residuals
    assert torch.equal(file.mid, folder.mid) and all(
        torch.equal(one, other) for one, other in zip(file.down, folder.down, strict=True)
    )
    assert (folder.mid.shape[-1] == 1) is averages


def test_a_controlnet_for_several_kinds_of_reference(tmp_path):
    save(tmp_path / "union.safetensors", union_controlnet().state_dict())
    recipe = controlnet_recipe(tmp_path / "union.safetensors")
    assert union_types(recipe) == 8
    assert same(STORE.controlnet(recipe.control_net, *CPU), union_controlnet())


def test_a_controlnet_of_differences(tmp_path):
    expected, unet = controlnet("sd1"), parts("sd1")["unet"].state_dict()
    differences = {
        name: tensor - unet[name] if name in unet else tensor
        for name, tensor in expected.state_dict().items()
    }
    save(tmp_path / "differences.safetensors", differences | {"difference": torch.tensor([])})
    with pytest.raises(InputError, match="load it with DiffControlNetLoader"):
        controlnet_recipe(tmp_path / "differences.safetensors")
    model, _, _ = pipeline_recipes(checkpoint("sd1"))
    recipe = controlnet_recipe(tmp_path / "differences.safetensors", model.network)
    store = ModelStore()
    with torch.no_grad():
        for weight in store.network(model.network, *CPU).parameters():
            weight += 0.1  # like a LoRA in the live UNet
    module = store.controlnet(recipe.control_net, *CPU, recipe.base)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_eight_bits(tmp_path, kind):
    """A file of 8-bit numbers loads like a wider file that is rounded to 8 bits when loaded."""
    unet = original_unet(parts("sd1")["unet"])
    save(tmp_path / "eight.safetensors", {name: tensor.to(kind) for name, tensor in unet.items()})
    save(tmp_path / "whole.safetensors", unet)
    read = STORE.network(network_recipe(tmp_path / "eight.safetensors").network, *CPU)
    rounded = STORE.network(
        network_recipe(tmp_path / "whole.safetensors", str(kind).removeprefix("torch.")).network,
        *CPU,
    )
    assert read.dtype == torch.float32
    assert same(read, rounded)
    assert not same(read, parts("sd1")["unet"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "model.diffusion_model.joint_blocks.0.context_block.attn.qkv.weight",
            "incomplete: ",
        ),
        (
            "distilled_guidance_layer.0.norms.0.scale",
            "this is a Chroma checkpoint; Katz Graph runs SD1.5, SD2 and SDXL, SD3 and SD3.5",
        ),
        (
            "lora_unet_down_blocks_0.lora_up.weight",
            "this is a LoRA, expected a checkpoint; load it with LoraLoader",
        ),
        (
            "first_stage_model.decoder.conv_in.weight",
            "a checkpoint without a UNet or a transformer: load its parts with VAELoader",
        ),
        (
            "input_hint_block.0.weight",
            "this is a ControlNet, expected a checkpoint; load it with ControlNetLoader",
        ),
        (
            "body.0.block1.weight",
            "this is a T2I-adapter, expected a checkpoint; which is not supported",
        ),
        ("emb_params", "this is a textual inversion, expected a checkpoint"),
        (
            "something.else",
            "not a checkpoint of Stable Diffusion 1, 2 or XL, Stable Diffusion 3 or 3.5, FLUX.1, "
            "Z-Image, HunyuanDiT, Qwen-Image, Krea 2, FLUX.2, Qwen-Image 2.1 or Anima: its tensors "
            "are called something.else",
        ),
    ],
)
def test_other_files_than_checkpoints_are_named(tmp_path, name, words):
    save(tmp_path / "model.safetensors", {name: torch.zeros(4, 4, 3, 3)})
    with pytest.raises(InputError, match=f"^{tmp_path / 'model.safetensors'}: {words}"):
        pipeline_recipes(tmp_path / "model.safetensors")


@pytest.mark.parametrize("read", [controlnet_recipe, network_recipe, pipeline_recipes])
def test_mistoline_is_refused_by_its_name(tmp_path, read):
    names = (
        "controlnet_blocks.0.linear.weight",
        "double_blocks.0.img_attn.norm.key_norm.scale",
        "double_blocks.0.img_attn.norm.query_norm.scale",
        "img_in.weight",
        "input_hint_block.0.weight",
        "pos_embed_input.weight",
    )
    save(tmp_path / "model.safetensors", {name: torch.zeros(4, 4) for name in names})
    with pytest.raises(
        InputError, match=r"this is a MistoLine ControlNet, expected .*; which is not supported"
    ):
        read(tmp_path / "model.safetensors")


def test_a_controlnet_that_lost_its_text_is_incomplete(tmp_path):
    names = (
        "controlnet_blocks.0.weight",
        "pos_embed_input.proj.weight",
        "transformer_blocks.0.attn.add_q_proj.weight",
    )
    save(tmp_path / "model.safetensors", {name: torch.zeros(4, 4, 2, 2) for name in names})
    with pytest.raises(InputError, match=r"context_embedder\.weight is missing: download it again"):
        controlnet_recipe(tmp_path / "model.safetensors")


def test_a_control_lora_is_no_controlnet(tmp_path):
    save(
        tmp_path / "model.safetensors",
        original_unet(controlnet("sd1")) | {"lora_controlnet": torch.tensor([])},
    )
    with pytest.raises(InputError, match="this is a Control-LoRA, expected a ControlNet"):
        controlnet_recipe(tmp_path / "model.safetensors")


def test_files_that_are_broken(tmp_path):
    whole = checkpoint("sd1").read_bytes()
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="truncated: its tensors take"):
        pipeline_recipes(path)
    for start, words in (
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"\n<!DOCTYPE html>", "a web page, not a model"),
        (b"PK\x03\x04", "a pickle, which can run code"),
        (b"GGUF\x03", "a GGUF file"),
    ):
        path.write_bytes(start + b"name" * 20)
        with pytest.raises(InputError, match=words):
            pipeline_recipes(path)
    (tmp_path / "model.ckpt").write_bytes(b"\x80\x02}")
    with pytest.raises(InputError, match="a pickle, which can run code"):
        pipeline_recipes(tmp_path / "model.ckpt")
    tensors = checkpoint_tensors("sd1")
    del tensors["model.diffusion_model.input_blocks.1.0.out_layers.3.weight"]
    save(path, tensors)
    with pytest.raises(
        InputError,
        match=r"incomplete: "
        r"model\.diffusion_model\.input_blocks\.1\.0\.out_layers\.3\.weight is missing",
    ):
        pipeline_recipes(path)
    tensors = checkpoint_tensors("sd1")
    del tensors["model.diffusion_model.middle_block.1.norm.bias"]
    save(path, tensors)
    with pytest.raises(
        InputError,
        match=r"is not a complete UNet2DConditionModel: missing: mid_block\.attentions\.0\.norm\.bias$",
    ):
        STORE.network(pipeline_recipes(path)[0].network, *CPU)


def test_a_vocabulary_that_is_not_clips(tmp_path):
    tensors = checkpoint_tensors("sd1")
    tensors["cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"] = (
        torch.zeros(514, 64)
    )
    save(tmp_path / "model.safetensors", tensors)
    with pytest.raises(
        InputError, match="a text encoder with a vocabulary of 514 tokens, expected CLIP's 49,408"
    ):
        pipeline_recipes(tmp_path / "model.safetensors")
