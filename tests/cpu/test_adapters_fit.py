"""Headers and configurations decide which LoRA files fit a model, before anything is loaded.
Tensors that fit no layer are skipped with a warning, or refused.
"""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import lora, lora_file, recipes, unet

from katz_graph.adapters.fit import check_loras, fit, parameter_shapes
from katz_graph.adapters.lora import describe, read_lora
from katz_graph.adapters.naming import NETWORK
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import FileIdentity, Lora
from katz_graph.models.families.unet.family import FAMILY as UNETS
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.merge import merged_clip, merged_model
from katz_graph.models.loading.store import ModelStore

NAMINGS = ("diffusers", "peft", "kohya")


def changed(folder, source, change):
    """Writes a LoRA file with changed tensors."""
    with safe_open(source, "pt") as file:
        metadata = file.metadata()
    path = folder / "changed.safetensors"
    save_file(change(load_file(source)), path, metadata)
    return Lora(file_identity(path), 0.5)


def parameters(family):
    return dict(unet(family).named_parameters())


@pytest.mark.parametrize(
    ("naming", "extras"),
    [
        (
            "peft",
            ["bundle_emb.mylora.string_to_param.*", "something.else", "unet.mid_block.strange"],
        ),
        (
            "kohya",
            [
                "bundle_emb.mylora.string_to_param.*",
                "lora_te4_encoder_block_0.lora_down.weight",
                "lora_unet_strange",
            ],
        ),
    ],
)
def test_tensors_of_unknown_names_are_left_out_and_named(tmp_path, monkeypatch, naming, extras):
    source = lora("sd1", naming=naming)
    further = {name: torch.zeros(2) for name in extras}
    more = changed(tmp_path, source.file.path, lambda tensors: tensors | further)
    one, other = (fit(read_lora(used.file), UNETS, parameters("sd1")) for used in (source, more))
    assert one.keys() == other.keys() and one
    for name, method in one.items():
        assert all(map(torch.equal, method.tensors, other[name].tensors))
    for recipe in recipes("sd1")[:2]:
        (note,) = check_loras(recipe.with_lora(more))
        assert note.startswith(more.file.path) and all(name in note for name in extras)
        assert not list(check_loras(recipe.with_lora(Lora(more.file, 0.0))))
        assert not list(check_loras(recipe.with_lora(source)))
        with monkeypatch.context() as patch:
            patch.setenv("KATZ_LORA_KEYS", "strict")
            assert not list(check_loras(recipe.with_lora(source)))
            with pytest.raises(InputError) as caught:
                list(check_loras(recipe.with_lora(more)))
            assert all(words in str(caught.value) for words in (more.file.path, *extras))


def test_layers_that_a_model_does_not_have_are_left_out_and_counted(tmp_path, monkeypatch):
    names = [f"unet.down_blocks.{number}.proj" for number in range(5, 10)]
    further = {
        f"{name}.lora_{factor}.weight": torch.zeros(2, 2) for name in names for factor in ("A", "B")
    }
    used = changed(tmp_path, lora_file("sd1"), lambda tensors: tensors | further)
    model, clip, _ = recipes("sd1")
    (note,) = check_loras(model.with_lora(used))
    assert all(name in note for name in names[:3]) and note.endswith("and 2 more")
    assert not list(check_loras(clip.with_lora(used)))
    monkeypatch.setenv("KATZ_LORA_KEYS", "strict")
    with pytest.raises(InputError, match=r"layers that the model does not have: unet\.down_blocks"):
        list(check_loras(model.with_lora(used)))
    monkeypatch.setenv("KATZ_LORA_KEYS", "perhaps")
    with pytest.raises(InputError, match="KATZ_LORA_KEYS is 'perhaps', expected 'strict' or"):
        list(check_loras(model.with_lora(used)))


def test_a_file_of_which_no_layer_fits_is_refused(tmp_path):
    def elsewhere(tensors):
        return {key.replace("unet.", "unet.mid_block."): value for key, value in tensors.items()}

    used = changed(tmp_path, lora_file("sd1"), elsewhere)
    with pytest.raises(
        InputError,
        match=r"unet\.mid_block\.\S+ \(shape \[.*\]\) and all other layers of the LoRA do not exist in",
    ):
        list(check_loras(recipes("sd1")[0].with_lora(used)))


@pytest.mark.parametrize("naming", NAMINGS)
def test_the_wrong_architecture_is_refused_and_nothing_is_loaded(monkeypatch, naming):
    """Includes merged models with LoRAs on their sources."""
    monkeypatch.setattr(ModelStore, "network", None)
    monkeypatch.setattr(ModelStore, "text_encoder", None)
    model, clip, _ = recipes("sd1")
    wrong = lora("sd2", naming=naming)
    scales = (("", 0.5, 0.5),)
    for recipe in (
        model.with_lora(wrong),
        clip.with_lora(wrong),
        merged_model(model, model.with_lora(wrong), scales),
        merged_clip(clip.with_lora(wrong), clip, scales),
    ):
        with pytest.raises(InputError, match="made for another architecture"):
            list(check_loras(recipe))


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_description_is_the_file_without_its_values(naming):
    file = lora("sdxl", naming=naming).file
    described, whole = describe(file), read_lora(file)
    assert {method.name for method in described.parts[NETWORK].values()} == {"LoRA"}
    for part, methods in whole.parts.items():
        assert methods.keys() == described.parts[part].keys()
        for name, method in methods.items():
            other = described.parts[part][name]
            assert (method.shape, method.rank, method.scale) == (
                other.shape,
                other.rank,
                other.scale,
            )
            assert [(one.shape, one.dtype) for one in method.tensors] == [
                (one.shape, one.dtype) for one in other.tensors
            ]
            assert all(tensor.is_meta for tensor in other.tensors)
    fitted = fit(described, UNETS, parameters("sdxl"))
    assert fitted.keys() == fit(whole, UNETS, parameters("sdxl")).keys()
    assert parameter_shapes(recipes("sdxl")[0].network) == {
        name: tuple(weight.shape) for name, weight in parameters("sdxl").items()
    }


def lying(path, change):
    """Copies a LoRA file with a changed header."""
    content = lora_file("sd1").read_bytes()
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    change([entry for key, entry in entries.items() if key != "__metadata__"])
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    return path


def beyond(entries):
    last = max(entries, key=lambda entry: entry["data_offsets"][1])
    start, end = last["data_offsets"]
    last["shape"][0] *= 2
    last["data_offsets"] = [start, 2 * end - start]


def overlapping(entries):
    first, second = sorted(entries, key=lambda entry: entry["data_offsets"])[:2]
    start, end = second["data_offsets"]
    begin = first["data_offsets"][0]
    second["data_offsets"] = [begin, begin + end - start]


def of_another_type(entries):
    entries[0]["dtype"] = "F16"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (beyond, "truncated"),
        (overlapping, "begins at byte"),
        (of_another_type, r"type, shape and offsets do not agree"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, change, words):
    """Identification, description and reading each refuse the file."""
    path = lying(tmp_path / "lying.safetensors", change)
    status = path.stat()
    named = FileIdentity(str(path), status.st_size, status.st_mtime_ns, "")
    for read, given in ((file_identity, path), (describe, named), (read_lora, named)):
        with pytest.raises(InputError, match=words) as caught:
            read(given)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
