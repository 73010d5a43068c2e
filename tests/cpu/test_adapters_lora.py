"""LoRA files in three namings are equal; other files, and LoRAs of other models, are refused."""

import json

import pytest
import torch
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, lora, lora_file, recipes, unet

from katz_graph.adapters.encoders import text_parts
from katz_graph.adapters.fit import fit
from katz_graph.adapters.layers import layouts
from katz_graph.adapters.lora import read_lora
from katz_graph.adapters.naming import NETWORK
from katz_graph.core.errors import InputError
from katz_graph.models.families.unet.family import FAMILY as UNETS
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.store import ModelStore

NAMINGS = ("diffusers", "peft", "kohya")


def encoders(family):
    store = ModelStore()
    return [
        store.text_encoder(one.encoder, "cpu", torch.float32) for one in recipes(family)[1].encoders
    ]


def changed(tmp_path, source, change, metadata=None):
    """Copies a LoRA file with changed tensors."""
    tensors = load_file(source)
    if metadata is None:
        with safe_open(source, "pt") as file:
            metadata = file.metadata()
    path = tmp_path / "changed.safetensors"
    save_file({key: value.contiguous() for key, value in change(tensors).items()}, path, metadata)
    return path


def weights(module):
    return dict(module.named_parameters())


def refused(path, words, family="sd1"):
    with pytest.raises(InputError, match=words) as caught:
        fit(read_lora(file_identity(path)), UNETS, weights(unet(family)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_three_namings_are_one_file(family):
    files = [read_lora(lora(family, naming=naming).file) for naming in NAMINGS]
    parts = [UNETS, *text_parts(one.encoder for one in recipes(family)[1].encoders)]
    modules = [unet(family), *encoders(family)]
    for part, module in zip(parts, modules, strict=True):
        fitted = [fit(file, part, weights(module)) for file in files]
        assert fitted[0].keys() == fitted[1].keys() == fitted[2].keys()
        assert fitted[0]
        assert {method.rank for method in fitted[0].values()} == {3}
        assert {method.scale for method in fitted[0].values()} == {2.0 / 3}
        for other in fitted[1:]:
            same_methods(fitted[0], other)
    shapes = {len(method.shape) for method in fit(files[0], UNETS, weights(unet(family))).values()}
    assert shapes == {2, 4}
    assert ("clip_g" in files[0].parts) == (family == "sdxl")


def test_a_lora_without_text_encoder():
    parts = read_lora(lora("sdxl", text_encoder=False).file).parts
    assert parts.keys() == {NETWORK}


def test_old_diffusers_names(tmp_path):
    def old(tensors):
        attention = {key: value for key, value in tensors.items() if ".attn" in key}
        return {
            key.replace(".to_out.0.", ".to_out.")
            .replace(".lora.", "_lora.")
            .replace("attn1.", "attn1.processor."): v
            for key, v in attention.items()
        }

    source = lora_file("sd1", naming="diffusers", text_encoder=False)
    path = changed(tmp_path, source, old)
    got, expected = (
        read_lora(file_identity(path)).parts[NETWORK],
        read_lora(file_identity(source)).parts[NETWORK],
    )
    assert got
    assert all(tensors_equal(method, expected[name]) for name, method in got.items())
    bare = changed(
        tmp_path,
        path,
        lambda tensors: {key.removeprefix("unet."): value for key, value in tensors.items()},
    )
    assert read_lora(file_identity(bare)).parts[NETWORK].keys() == got.keys()


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
    path = changed(
        tmp_path,
        lora_file("sd1"),
        dict,
        {"lora_adapter_metadata": json.dumps(metadata)} if metadata else {},
    )
    method = read_lora(file_identity(path)).parts[NETWORK][
        "mid_block.attentions.0.transformer_blocks.0.attn1.to_q.weight"
    ]
    assert method.scale == pytest.approx(alpha / 3)


def test_files_of_peft_itself(tmp_path):
    tensors = load_file(lora_file("sd1", text_encoder=False))
    path = tmp_path / "adapter_model.safetensors"
    save_file(
        {f"base_model.model.{key.removeprefix('unet.')}": value for key, value in tensors.items()},
        path,
    )
    assert scales(path) == {1.0}
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"lora_alpha": 12, "r": 3, "peft_type": "LORA"})
    )
    assert scales(path) == {4.0}


def test_alpha_next_to_the_factors(tmp_path):
    def with_alpha(tensors):
        return tensors | {
            key.replace(".lora_A.weight", ".alpha"): torch.tensor(9.0)
            for key in tensors
            if ".lora_A." in key
        }

    path = changed(tmp_path, lora_file("sd1"), with_alpha)
    assert scales(path) == {3.0}


@pytest.mark.parametrize("naming", NAMINGS)
def test_made_for_another_architecture(naming):
    path = lora_file("sdxl", naming=naming)
    refused(
        path,
        r"made for another architecture: unet\.\S+ .*(do not exist in this model|has shape "
        r"\[.*\], this model \[.*\])",
        "sd1",
    )
    refused(
        lora_file("sd1", naming=naming),
        r"made for another architecture: unet\.\S+ (\(shape|has shape) \[",
        "sd2",
    )


def test_a_lora_of_another_kind_of_network_is_refused(tmp_path):
    tensors = {
        f"lora_unet_double_blocks_0_img_attn_qkv.lora_{side}.weight": torch.ones(shape)
        for side, shape in (("down", (2, 32)), ("up", (96, 2)))
    }
    save_file(tensors, tmp_path / "flux.safetensors")
    refused(
        tmp_path / "flux.safetensors",
        r"made for FLUX.1 or FLUX.2, not for Stable Diffusion 1, 2 or XL: unet\.double_blocks_0_img_attn_qkv "
        r"\(shape \[96, 32\]\) and all other layers",
    )


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path):
    key = "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight"
    path = changed(tmp_path, lora_file("sd1"), lambda tensors: tensors | {key: torch.zeros(3, 77)})
    refused(
        path,
        r"unet\.mid_block\.attentions\.0\.transformer_blocks\.0\.attn2\.to_k has shape \[32, 77\], "
        r"this model \[32, 32\]",
    )


def test_one_by_one_convolutions_and_linear_layers_stand_for_each_other(tmp_path):
    """SD1 projects with convolutions; many trainers write linear layers, and the reverse."""

    def flat(tensors):
        return {
            key: value.flatten(1) if ".proj_in." in key or ".proj_out." in key else value
            for key, value in tensors.items()
        }

    fitted = fit(
        read_lora(file_identity(changed(tmp_path, lora_file("sd1"), flat))),
        UNETS,
        weights(unet("sd1")),
    )
    original = fit(read_lora(lora("sd1").file), UNETS, weights(unet("sd1")))
    name = "mid_block.attentions.0.proj_in.weight"
    shape = original[name].shape
    assert fitted[name].shape == shape[:2]
    totals = [torch.ones(shape) for _ in range(2)]
    for one, total in zip((fitted, original), totals, strict=True):
        one[name].add_to(total, 0.5)
    assert torch.equal(*totals) and not torch.equal(totals[0], torch.ones(shape))


def drop_up(tensors):
    return {
        key: value
        for key, value in tensors.items()
        if not (key.endswith("lora_B.weight") and "mid_block" in key)
    }


def add(key):
    return lambda tensors: tensors | {key: torch.zeros(2, 2)}


def rename(old, new):
    return lambda tensors: {key.replace(old, new): value for key, value in tensors.items()}


@pytest.mark.parametrize(
    ("change", "naming", "words"),
    [
        (
            add("lora_unet_mid_block_attentions_0_norm.oft_blocks"),
            "kohya",
            r"OFT is not supported \(lora_unet_mid_block_attentions_0_norm\.oft_blocks\)",
        ),
        (add("lora_unet_mid_block_attentions_0_norm.on_input"), "kohya", r"IA3 is not supported"),
        (
            add("lora_unet_mid_block_attentions_0_norm.a1.weight"),
            "kohya",
            r"GLoRA is not supported",
        ),
        (
            add("lora_unet_mid_block_attentions_0_norm.hada_w1_a"),
            "kohya",
            r"has no hada_w1_b: the file is incomplete",
        ),
        (
            add("lora_unet_mid_block_attentions_0_norm.lokr_t2"),
            "kohya",
            r"has no lokr_w1: the file is incomplete",
        ),
        (
            add("lora_unet_mid_block_attentions_0_norm.dora_scale"),
            "kohya",
            r"has no lora_A: the file is incomplete",
        ),
        (
            add("lora_unet_mid_block_attentions_0_norm.lora_B.bias"),
            "kohya",
            r"has no lora_B: the file is incomplete",
        ),
        (
            add("lora_unet_mid_block_attentions_0_norm.w_norm"),
            "kohya",
            r"unet\.mid_block_attentions_0_norm has shape \[2, 2\], this model \[32\]",
        ),
        (
            add("lora_unet_mid_block_attentions_0_norm.b_norm"),
            "kohya",
            r"unet\.mid_block_attentions_0_norm\.bias has shape \[2, 2\], this model \[32\]",
        ),
        (
            add("lora_unet_mid_block_attentions_0_proj_in.hada_w1_a"),
            "kohya",
            r"lora_unet_mid_block_attentions_0_proj_in has tensors of several methods: hada_w1_a, lor",
        ),
        (
            add("unet.mid_block.attentions.0.proj_in.lora_magnitude_vector"),
            "peft",
            r"unet\.mid_block\.attentions\.0\.proj_in has a magnitude of 4 values for a weight",
        ),
        (
            add("lora_unet_mid_block_resnets_0_conv1.lora_mid.weight"),
            "kohya",
            "do not form a weight",
        ),
        (
            lambda tensors: {
                key: torch.ones(2) if key.endswith(".alpha") else value
                for key, value in tensors.items()
            },
            "kohya",
            r"alpha has shape \[2\]",
        ),
        (
            lambda tensors: {
                key: value.to(torch.int8) if "lora_up" in key else value
                for key, value in tensors.items()
            },
            "kohya",
            "has dtype I8, expected F64, F32",
        ),
        (
            add("model.diffusion_model.out.0.weight"),
            "peft",
            "this is a checkpoint, expected a LoRA; load it with CheckpointLoaderSimple",
        ),
        (
            lambda tensors: {"something.else": torch.zeros(2, 2)},
            "peft",
            r"something\.else is unknown",
        ),
        (
            add("down_blocks.9.proj.lora_A.weight"),
            "peft",
            r": down_blocks\.9\.proj has no lora_B",
        ),
        (
            add("unet.mid_block.resnets.0.conv1.lora_A.other.weight"),
            "peft",
            r"has unet\.mid_block\.resnets\.0\.conv1 twice",
        ),
        (drop_up, "peft", r"unet\.mid_block\.\S+ has no lora_B: the file is incomplete"),
        (rename("lora_up", "lora_sideways"), "kohya", "unknown parts"),
        (
            lambda tensors: {
                key.replace("unet.", "prior."): value
                for key, value in tensors.items()
                if key.startswith("unet.")
            },
            "peft",
            r"no LoRA for Stable Diffusion .*: prior\.\S+ is unknown",
        ),
        (lambda tensors: {}, "peft", "has no tensors"),
        (
            lambda tensors: {
                key: value[:, :1] if "lora_B" in key else value for key, value in tensors.items()
            },
            "peft",
            "do not form a weight",
        ),
    ],
)
def test_unknown_tensors_are_named(tmp_path, change, naming, words):
    refused(changed(tmp_path, lora_file("sd1", naming=naming), change), words)


def scales(path):
    return {method.scale for method in read_lora(file_identity(path)).parts[NETWORK].values()}


def tensors_equal(one, other):
    return all(map(torch.equal, one.tensors, other.tensors))


def same_methods(one, other):
    assert one.keys() == other.keys() and one
    for name, method in one.items():
        assert tensors_equal(method, other[name]) and method.scale == other[name].scale


def originally_named(family):
    """Maps UNet modules to their names in Stable Diffusion's original code, by diffusers'
    checkpoint converter.
    """
    names = layouts(tuple(weights(unet(family))), UNETS.lora).original
    checkpoint = {f"model.diffusion_model.{name}": name.rpartition(".")[0] for name in names}
    converted = convert_ldm_unet_checkpoint(checkpoint, unet(family).config)
    return {
        name.removesuffix(".weight"): alias
        for name, alias in converted.items()
        if name.endswith(".weight")
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_every_module_is_found_by_all_its_names(tmp_path, family):
    """Tests paths with underscores and the original code's names, also of rarely trained modules
    such as SDXL's size embedding.
    """
    originals = originally_named(family)
    modules = {
        name.removesuffix(".weight"): weight
        for name, weight in weights(unet(family)).items()
        if weight.ndim > 1
    }
    assert originals.keys() >= modules.keys()
    for names in (dict(zip(modules, modules, strict=True)), originals):
        tensors = {}
        for path, weight in modules.items():
            name = f"lora_unet_{names[path].replace('.', '_')}"
            tensors |= {f"{name}.lora_down.weight": torch.ones(1, *weight.shape[1:])}
            tensors |= {
                f"{name}.lora_up.weight": torch.ones(len(weight), 1, *[1] * (weight.ndim - 2)),
                f"{name}.alpha": torch.tensor(1.0),
            }
        save_file(tensors, tmp_path / "all.safetensors")
        fitted = fit(
            read_lora(file_identity(tmp_path / "all.safetensors")), UNETS, weights(unet(family))
        )
        assert fitted.keys() == {f"{path}.weight" for path in modules}


def test_a_file_that_names_blocks_in_both_ways_is_the_file_that_names_them_in_one(tmp_path):
    """Merged files mix names of the original code and of diffusers."""
    source, originals = lora_file("sdxl", naming="kohya"), originally_named("sdxl")
    renamed = {
        f"lora_unet_{name.replace('.', '_')}": f"lora_unet_{path.replace('.', '_')}"
        for path, name in originals.items()
    }

    def mixed(tensors):
        odd = set(sorted({key.partition(".")[0] for key in tensors})[::2])
        return {
            key.replace(module, renamed.get(module, module))
            if (module := key.partition(".")[0]) in odd
            else key: tensors[key]
            for key in tensors
        }

    path = changed(tmp_path, source, mixed)
    names = set(load_file(path))
    assert any("input_blocks" in name for name in names) and any(
        "down_blocks" in name for name in names
    )
    one, other = (
        fit(read_lora(file_identity(file)), UNETS, weights(unet("sdxl"))) for file in (path, source)
    )
    same_methods(one, other)


def test_a_module_under_two_names_is_refused(tmp_path):
    path, name = next(
        (path, name)
        for path, name in originally_named("sdxl").items()
        if path.endswith("attentions.0.proj_in")
    )
    first, second = (f"lora_unet_{one.replace('.', '_')}" for one in (name, path))

    def doubled(tensors):
        return tensors | {
            key.replace(first, second): value.clone()
            for key, value in tensors.items()
            if key.startswith(f"{first}.")
        }

    refused(
        changed(tmp_path, lora_file("sdxl", naming="kohya"), doubled), f"has {path} twice", "sdxl"
    )


def test_metadata_that_is_broken_or_asks_for_more(tmp_path):
    refused(
        changed(tmp_path, lora_file("sd1"), dict, {"lora_adapter_metadata": "["}),
        "not a JSON object",
    )
    refused(
        changed(
            tmp_path, lora_file("sd1"), dict, {"lora_adapter_metadata": '{"unet.use_dora": true}'}
        ),
        "has no lora_magnitude_vector: the file is incomplete",
    )
    refused(
        changed(
            tmp_path, lora_file("sd1"), dict, {"lora_adapter_metadata": '{"unet.lora_alpha": "8"}'}
        ),
        "its alpha is configured as '8', not a number",
    )
    refused(
        changed(
            tmp_path,
            lora_file("sd1"),
            dict,
            {"lora_adapter_metadata": '{"unet.alpha_pattern": [8]}'},
        ),
        r"its alpha_pattern is \[8\], not an object",
    )


def test_a_file_that_was_replaced_after_it_was_named(tmp_path):
    path = changed(tmp_path, lora_file("sd1"), dict)
    identity = file_identity(path)
    changed(tmp_path, lora_file("sd1"), drop_up)
    with pytest.raises(InputError, match="changed since the workflow began"):
        read_lora(identity)
