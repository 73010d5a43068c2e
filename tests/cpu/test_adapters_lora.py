"""LoRA files in three namings are one thing; what is no LoRA, or one for another model, is named."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, lora, lora_file, recipes, unet

from katz_graph.adapters.lora import fit, read_lora
from katz_graph.errors import InputError
from katz_graph.models.identity import file_identity
from katz_graph.models.load import ModelStore

NAMINGS = ("diffusers", "peft", "kohya")


def encoders(family):
    store = ModelStore()
    return [store.text_encoder(one.encoder, "cpu", torch.float32) for one in recipes(family)[1].encoders]


def changed(tmp_path, source, change, metadata=None):
    """A copy of a LoRA file with its tensors changed."""
    tensors = load_file(source)
    if metadata is None:
        with safe_open(source, "pt") as file:
            metadata = file.metadata()
    path = tmp_path / "changed.safetensors"
    save_file({key: value.contiguous() for key, value in change(tensors).items()}, path, metadata)
    return path


def refused(path, words, family="sd1", part="unet"):
    with pytest.raises(InputError, match=words) as caught:
        fit(read_lora(file_identity(path)), part, unet(family))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_three_namings_are_one_file(family):
    files = [read_lora(lora(family, naming=naming).file) for naming in NAMINGS]
    parts = ["unet", "text_encoder", *(["text_encoder_2"] if family == "sdxl" else [])]
    modules = [unet(family), *encoders(family)]
    for part, module in zip(parts, modules, strict=True):
        fitted = [fit(file, part, module) for file in files]
        assert fitted[0].keys() == fitted[1].keys() == fitted[2].keys()
        assert fitted[0]
        for name, factors in fitted[0].items():
            assert factors.alpha == 2.0
            assert factors.rank == 3
            for other in fitted[1:]:
                assert torch.equal(factors.down, other[name].down)
                assert torch.equal(factors.up, other[name].up)
                assert factors.alpha == other[name].alpha
    shapes = {len(factors.shape) for factors in fit(files[0], "unet", unet(family)).values()}
    assert shapes == {2, 4}
    assert bool(files[0].text_encoders[1]) == (family == "sdxl")


def test_a_lora_without_text_encoder():
    assert read_lora(lora("sdxl", text_encoder=False).file).text_encoders == ({}, {})


def test_old_diffusers_names(tmp_path):
    def old(tensors):
        kept = {key: value for key, value in tensors.items() if ".attn" in key}
        return {
            key.replace(".to_out.0.", ".to_out.").replace(".lora.", "_lora.").replace("attn1.", "attn1.processor."): v
            for key, v in kept.items()
        }

    source = lora_file("sd1", naming="diffusers", text_encoder=False)
    path = changed(tmp_path, source, old)
    got, expected = read_lora(file_identity(path)).unet, read_lora(file_identity(source)).unet
    assert got
    assert all(torch.equal(factors.down, expected[name].down) for name, factors in got.items())
    bare = changed(tmp_path, path, lambda tensors: {key.removeprefix("unet."): value for key, value in tensors.items()})
    assert read_lora(file_identity(bare)).unet.keys() == got.keys()


@pytest.mark.parametrize(
    ("metadata", "alpha"),
    [
        ({}, 3.0),
        ({"unet.lora_alpha": 6}, 6.0),
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"attn1.to_q": 1.5}}, 1.5),
        ({"unet.lora_alpha": 6, "unet.use_rslora": True}, 6 * 3**0.5),
    ],
)
def test_alpha_of_peft_files(tmp_path, metadata, alpha):
    path = changed(tmp_path, lora_file("sd1"), dict, {"lora_adapter_metadata": json.dumps(metadata)} if metadata else {})
    factors = read_lora(file_identity(path)).unet["mid_block.attentions.0.transformer_blocks.0.attn1.to_q"]
    assert factors.alpha == pytest.approx(alpha)


def test_files_of_peft_itself(tmp_path):
    tensors = load_file(lora_file("sd1", text_encoder=False))
    path = tmp_path / "adapter_model.safetensors"
    save_file({f"base_model.model.{key.removeprefix('unet.')}": value for key, value in tensors.items()}, path)
    assert {factors.alpha for factors in read_lora(file_identity(path)).unet.values()} == {3.0}
    (tmp_path / "adapter_config.json").write_text(json.dumps({"lora_alpha": 12, "r": 3, "peft_type": "LORA"}))
    assert {factors.alpha for factors in read_lora(file_identity(path)).unet.values()} == {12.0}


def test_alpha_beside_the_factors(tmp_path):
    def with_alpha(tensors):
        return tensors | {key.replace(".lora_A.weight", ".alpha"): torch.tensor(9.0) for key in tensors if ".lora_A." in key}

    path = changed(tmp_path, lora_file("sd1"), with_alpha)
    assert {factors.alpha for factors in read_lora(file_identity(path)).unet.values()} == {9.0}


@pytest.mark.parametrize("naming", NAMINGS)
def test_made_for_another_architecture(naming):
    path = lora_file("sdxl", naming=naming)
    refused(path, r"made for another architecture: unet\.\S+ .*(does not exist in this model|has shape \[.*\], this model \[.*\])", "sd1")
    refused(lora_file("sd1", naming=naming), r"made for another architecture: unet\.\S+ (\(shape|has shape) \[", "sd2")


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path):
    key = "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight"
    path = changed(tmp_path, lora_file("sd1"), lambda tensors: tensors | {key: torch.zeros(3, 77)})
    refused(path, r"unet\.mid_block\.attentions\.0\.transformer_blocks\.0\.attn2\.to_k has shape \[32, 77\], this model \[32, 32\]")


def test_one_by_one_convolutions_and_linear_layers_stand_for_each_other(tmp_path):
    """SD1 projects with convolutions, many trainers write them as linear layers, and the other way round."""

    def flat(tensors):
        return {key: value.flatten(1) if ".proj_in." in key or ".proj_out." in key else value for key, value in tensors.items()}

    fitted = fit(read_lora(file_identity(changed(tmp_path, lora_file("sd1"), flat))), "unet", unet("sd1"))
    original = fit(read_lora(lora("sd1").file), "unet", unet("sd1"))
    name = "mid_block.attentions.0.proj_in.weight"
    shape = original[name].shape
    assert fitted[name].shape == shape[:2]
    deltas = [one[name].delta(0.5, torch.device("cpu"), torch.Size(shape)) for one in (fitted, original)]
    assert torch.equal(*deltas)


def drop_up(tensors):
    return {key: value for key, value in tensors.items() if not (key.endswith("lora_B.weight") and "mid_block" in key)}


def add(key):
    return lambda tensors: tensors | {key: torch.zeros(2, 2)}


def rename(old, new):
    return lambda tensors: {key.replace(old, new): value for key, value in tensors.items()}


@pytest.mark.parametrize(
    ("change", "naming", "words"),
    [
        (add("lora_unet_mid_block_attentions_0_proj_in.hada_w1_a"), "kohya", "LoHa is not supported"),
        (add("lora_unet_mid_block_attentions_0_proj_in.lokr_w1"), "kohya", "LoKr is not supported"),
        (add("unet.mid_block.attentions.0.proj_in.lora_magnitude_vector"), "peft", "DoRA is not supported"),
        (add("lora_unet_mid_block_resnets_0_conv1.lora_mid.weight"), "kohya", "Tucker form is not supported"),
        (add("model.diffusion_model.out.0.weight"), "peft", "this is a checkpoint, expected a LoRA; load it with CheckpointLoaderSimple"),
        (add("something.else"), "peft", r"something\.else is unknown"),
        (add("unet.mid_block.strange"), "peft", r"unet\.mid_block\.strange is unknown"),
        (add("lora_unet_strange"), "kohya", "kohya naming with parts that are not understood: .*lora_unet_strange"),
        (drop_up, "peft", r"unet\.mid_block\.\S+ has no lora_B: the file is incomplete"),
        (rename("lora_up", "lora_sideways"), "kohya", "not understood"),
        (rename("unet.", "transformer."), "peft", "no LoRA for Stable Diffusion"),
        (lambda tensors: {}, "peft", "holds no tensors"),
        (
            lambda tensors: {key: value[:, :1] if "lora_B" in key else value for key, value in tensors.items()},
            "peft",
            "do not make a weight",
        ),
    ],
)
def test_what_is_not_understood_is_named(tmp_path, change, naming, words):
    refused(changed(tmp_path, lora_file("sd1", naming=naming), change), words)


def test_metadata_that_is_broken_or_asks_for_more(tmp_path):
    refused(changed(tmp_path, lora_file("sd1"), dict, {"lora_adapter_metadata": "["}), "not a JSON object")
    refused(changed(tmp_path, lora_file("sd1"), dict, {"lora_adapter_metadata": '{"unet.use_dora": true}'}), "DoRA is not supported")


def test_a_file_that_was_replaced_after_it_was_named(tmp_path):
    path = changed(tmp_path, lora_file("sd1"), dict)
    identity = file_identity(path)
    changed(tmp_path, lora_file("sd1"), drop_up)
    with pytest.raises(InputError, match="changed since the workflow began"):
        read_lora(identity)
