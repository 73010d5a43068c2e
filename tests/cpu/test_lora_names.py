"""Trainers' names map to the meant layers: each line of `lora_names.txt` is a case. Every tensor of
a file is used, or named in a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from katz_graph.adapters.encoders import taken_by_texts, text_parts
from katz_graph.adapters.fit import check_fits, check_loras, parameter_shapes
from katz_graph.adapters.layers import layouts
from katz_graph.adapters.lora import read_lora
from katz_graph.adapters.methods import Difference, Method
from katz_graph.adapters.methods import Lora as LoraMethod
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ClipRecipe, Component, Lora, ModelRecipe, TextEncoderRecipe
from katz_graph.models.families.unet.stand_ins import unet_settings
from katz_graph.models.family import family_of
from katz_graph.models.loading.identity import file_identity
from katz_graph.testing.random_models import draw_network

CLIP = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "vocab_size": 8}
CLIP |= {"num_hidden_layers": 2, "projection_dim": 16, "max_position_embeddings": 7}
CLIP_L = CLIP | {"hidden_act": "quick_gelu", "architectures": ["CLIPTextModel"]}
CLIP_H = CLIP | {"hidden_act": "gelu", "architectures": ["CLIPTextModel"]}
CLIP_G = CLIP | {"hidden_act": "gelu", "architectures": ["CLIPTextModelWithProjection"]}
T5_CONFIG = {"vocab_size": 8, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
T5 = T5_CONFIG | {"feed_forward_proj": "gated-gelu", "architectures": ["T5EncoderModel"]}
MT5 = T5 | {"architectures": ["MT5EncoderModel"]}
LANGUAGE = {"num_key_value_heads": 2, "head_dim": 8, "architectures": ["Qwen3Model"]}
QWEN3 = CLIP | LANGUAGE
BERT = CLIP | {"architectures": ["BertModel"]}
MODELS: Mapping[str, tuple[str, tuple[Mapping[str, Any], ...]]] = {
    "flux": ("flux", (CLIP_L, T5)),
    "sd3": ("sd35", (CLIP_L | {"architectures": CLIP_G["architectures"]}, CLIP_G, T5)),
    "z_image": ("z_image", (QWEN3,)),
    "hunyuan_dit": ("hunyuan_dit", (BERT, MT5)),
    "qwen_image": ("qwen_image", ()),
    "krea2": ("krea2", ()),
    "qwen_image_21": ("qwen_image_21", ()),
    "flux2": ("flux2", (QWEN3,)),
    "anima": ("anima", (QWEN3,)),
    "sd1": ("", (CLIP_L,)),
    "sd2": ("", (CLIP_H,)),
    "sdxl": ("", (CLIP_L, CLIP_G)),
    "refiner": ("", (CLIP_G,)),
}
"""Maps a model name to a kind of random network and its text encoders."""
CLASSES = {
    "flux": "FluxTransformer2DModel",
    "sd35": "SD3Transformer2DModel",
    "z_image": "ZImageTransformer2DModel",
    "hunyuan_dit": "HunyuanDiT2DModel",
    "qwen_image": "QwenImageTransformer2DModel",
    "krea2": "Krea2Transformer2DModel",
    "qwen_image_21": "QwenImage21Transformer2DModel",
    "flux2": "Flux2Transformer2DModel",
    "anima": "AnimaTransformer",
}
DIFFERENCES = ("diff", "diff_b", "w_norm", "b_norm")
LEVELS = ("text_model.", "model.")
PLACES = ("{}", "{last}", "{rest}")
MAX_BLOCKS = 8


@cache
def model(kind: str) -> tuple[ModelRecipe, ClipRecipe]:
    """Makes recipes without files: names need only configurations."""
    drawn, texts = MODELS[kind]
    settings = dict(draw_network(drawn, 1).config) if drawn else unet_settings(kind)
    settings["_class_name"] = CLASSES.get(drawn, "UNet2DConditionModel")
    network = Component(kind, (), json.dumps(settings))
    encoders = [Component("", (), json.dumps(values)) for values in texts]
    return ModelRecipe(network, network), ClipRecipe(
        tuple(TextEncoderRecipe(one, one) for one in encoders)
    )


def shapes_of(kind: str, encoder: str) -> Mapping[str, Any]:
    network, clip = model(kind)
    part = clip.encoders[int(encoder)].encoder if encoder else network.network
    return parameter_shapes(part)


@dataclass(frozen=True)
class Case:
    """Maps a name in a file to parameters of the network or of a text encoder."""

    name: str
    encoder: str
    parameters: tuple[str, ...]
    swapped: bool


@dataclass(frozen=True)
class Section:
    kind: str
    trainer: str
    ends: tuple[str, ...]
    lines: tuple[str, ...]

    def cases(self) -> Iterator[Case]:
        """Yields a case for each line and each of its blocks that the small model has."""
        for line in self.lines:
            name, meant = line.split(" = ")
            swapped, (encoder, layers) = "~" in meant, _without_encoder(meant.replace("~", ""))
            shapes = shapes_of(self.kind, encoder)
            place = next((one for one in PLACES if one in layers), "")
            numbered = {
                number: parameters
                for number in (map(str, range(MAX_BLOCKS)) if place else [""])
                if all(
                    parameters := tuple(
                        _parameter(one.replace(place, number), shapes)
                        for one in layers.split(" + ")
                    )
                )
            }
            *rest, last = numbered or [""]
            taken = {"{last}": [last], "{rest}": rest}.get(place, numbered)
            for number in taken:
                # a table may name norms, which have no products
                if not name.endswith(DIFFERENCES) and len(shapes[numbered[number][0]]) < 2:
                    continue
                yield Case(name.replace(place, number), encoder, numbered[number], swapped)


def _without_encoder(meant: str) -> tuple[str, str]:
    match = re.match(r"(\d):(.*)", meant)
    return (match[1], match[2]) if match else ("", meant)


def _parameter(name: str, shapes: Mapping[str, Any]) -> str:
    """Returns the module's name of a parameter, "" if it has none."""
    whole = name if name.endswith((".bias", ".")) else f"{name}.weight"
    bare = whole.removesuffix(".")
    choices = (bare, *(bare.removeprefix(level) for level in LEVELS))
    return next((one for one in choices if one in shapes), "")


def sections() -> list[Section]:
    text = (Path(__file__).parent / "lora_names.txt").read_text()
    found = []
    for block in re.split(r"\n(?=\[)", text)[1:]:
        head, *lines = block.strip().splitlines()
        kind, trainer, ends = re.fullmatch(r"\[(\w+)\] (.+): (.+)", head).groups()  # type: ignore[union-attr]
        found.append(Section(kind, trainer, tuple(ends.split()), tuple(filter(None, lines))))
    return sorted(found, key=lambda one: one.kind)  # modules are cached


TENSORS: Mapping[str, Any] = {
    "alpha": lambda rows, inputs: torch.tensor(1.0),
    "down": lambda rows, inputs: torch.ones(1, *inputs),
    "up": lambda rows, inputs: numbered(rows, 1, *[1] * (len(inputs) - 1)),
    "lokr_w1": lambda rows, inputs: torch.ones(1, 1),
    "lokr_w2": lambda rows, inputs: numbered(rows, *inputs),
    "hada_w1_a": lambda rows, inputs: numbered(rows, 1),
    "hada_w2_a": lambda rows, inputs: torch.ones(rows, 1),
    "b": lambda rows, inputs: torch.ones(1, inputs.numel()),
}


def numbered(*shape: int) -> Tensor:
    """Numbers the rows of a tensor."""
    return torch.arange(float(shape[0])).view(-1, *[1] * (len(shape) - 1)).expand(shape).clone()


def tensors(case: Case, kind: str, ends: tuple[str, ...]) -> dict[str, Tensor]:
    shapes = [torch.Size(shapes_of(kind, case.encoder)[one]) for one in case.parameters]
    rows, inputs = sum(shape[0] for shape in shapes), shapes[0][1:]
    if case.name.endswith(DIFFERENCES):
        return {case.name: numbered(rows, *inputs)}
    kinds = {
        "lora_A.weight": "down",
        "lora_B.weight": "up",
        "lora_down.weight": "down",
        "lora_up.weight": "up",
        "lora_A.default.weight": "down",
        "lora_B.default.weight": "up",
        "down.weight": "down",
        "up.weight": "up",
        "hada_w1_b": "b",
        "hada_w2_b": "b",
    }
    return {f"{case.name}.{end}": TENSORS[kinds.get(end, end)](rows, inputs) for end in ends}


def rows_of(method: Method) -> list[float]:
    """Returns the number in each row of a method."""
    shape = method.shape
    if isinstance(method, LoraMethod):
        return method.product.left[:, 0].tolist()
    if isinstance(method, Difference):
        return (
            method.difference.flatten(1)[:, 0].tolist()
            if len(shape) > 1
            else method.difference.tolist()
        )
    total = torch.zeros(shape)
    method.add_to(total, 1.0)
    return total.flatten(1)[:, 0].tolist()


SECTIONS = sections()


@pytest.mark.defect(5)
@pytest.mark.defect(6)
@pytest.mark.defect(16)
@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: f"{one.kind}-{one.trainer}")
def test_a_trainer_s_names_map_to_its_layers(
    section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = list(section.cases())
    assert len({case.name for case in cases}) == len(cases) >= len(section.lines) / 2
    made = {
        name: tensor
        for case in cases
        for name, tensor in tensors(case, section.kind, section.ends).items()
    }
    save_file(made, tmp_path / "lora.safetensors")
    used = Lora(file_identity(tmp_path / "lora.safetensors"), 1.0)
    file, (network, clip) = read_lora(used.file), model(section.kind)
    encoders = [one.encoder for one in clip.encoders]
    targets = {"": (family_of(network.network), network.network)}
    targets |= {
        str(place): (parts, encoder)
        for place, (parts, encoder) in enumerate(zip(text_parts(encoders), encoders, strict=True))
    }
    for encoder, (target, component) in targets.items():
        expected = {}
        for case in (case for case in cases if case.encoder == encoder):
            shapes = [parameter_shapes(component)[one] for one in case.parameters]
            numbers = numbered(sum(shape[0] for shape in shapes))
            numbers = numbers.roll(len(numbers) // 2, 0) if case.swapped else numbers
            pieces = numbers.split([shape[0] for shape in shapes])
            expected |= {
                one: rows.tolist() for one, rows in zip(case.parameters, pieces, strict=True)
            }
        fitted = check_fits(file, target, parameter_shapes(component)).methods
        assert {name: rows_of(method) for name, method in fitted.items()} == expected
    assert taken_by_texts(used.file) == any(case.encoder for case in cases)
    monkeypatch.setenv("KATZ_LORA_KEYS", "strict")
    assert not list(check_loras(network.with_lora(used), clip.with_lora(used)))


@pytest.mark.parametrize("kind", MODELS)
def test_a_name_with_underscores_stands_for_one_parameter(kind: str) -> None:
    network, _ = model(kind)
    both = layouts(tuple(parameter_shapes(network.network)), family_of(network.network).lora)
    for named in (both.own, both.original):
        flat: dict[str, Any] = {}
        for name, rows in named.items():
            layer, _, parameter = name.rpartition(".")
            assert flat.setdefault(f"{layer.replace('.', '_')}.{parameter}", rows) == rows


def text_lora(path: Path, kind: str, *prefixes: str) -> Lora:
    """Writes a LoRA of one network layer, and one text encoder layer per prefix."""
    own = next(name for name in shapes_of(kind, "") if name.endswith("to_q.weight"))
    rows, inputs = shapes_of(kind, "")[own]
    layer = f"{family_of(model(kind)[0].network).network.part}.{own.removesuffix('.weight')}"
    made = {f"{layer}.lora_A.weight": torch.ones(1, inputs)}
    made |= {f"{layer}.lora_B.weight": torch.ones(rows, 1)}
    for prefix in prefixes:
        for end, shape in (("lora_A", (1, 16)), ("lora_B", (24 if "fc1" in prefix else 16, 1))):
            made[f"{prefix}.{end}.weight"] = torch.ones(shape)
    save_file(made, path)
    return Lora(file_identity(path), 1.0)


FC1 = "text_model_encoder_layers_0_mlp_fc1"
SELF_Q = "encoder_block_0_layer_0_SelfAttention_q"


@pytest.mark.defect(5)
@pytest.mark.parametrize(
    ("kind", "present", "absent", "title"),
    [
        ("sd1", f"lora_te_{FC1}", f"lora_te2_{FC1}", "CLIP-G"),
        ("sd1", f"lora_te1_{FC1}", "text_encoders.clip_h.transformer.text_model.a", "CLIP-H"),
        ("sd3", f"lora_te2_{FC1}", "text_encoders.qwen3_4b.transformer.model.a", "Qwen3"),
        ("flux", f"lora_te3_{SELF_Q}", f"lora_te2_{FC1}", "CLIP-G"),
        ("refiner", f"lora_te2_{FC1}", "text_encoders.clip_l.transformer.text_model.a", "CLIP-L"),
        ("z_image", "lora_te1_layers_0_self_attn_q_proj", f"lora_te3_{SELF_Q}", "T5"),
        ("flux", f"lora_te1_{FC1}", "text_encoders.llama.transformer.model.a", "llama"),
    ],
)
def test_names_for_a_missing_encoder_are_reported(
    kind: str,
    present: str,
    absent: str,
    title: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = text_lora(tmp_path / "lora.safetensors", kind, present, absent)
    network, clip = model(kind)
    (note,) = check_loras(network.with_lora(used), clip.with_lora(used))
    words = f"without 1 of its 3 layers, for a text encoder that the model does not have ({title})"
    assert words in note and note.endswith(f": {absent}") and note.startswith(used.file.path)
    assert not list(check_loras(network.with_lora(used)))  # without a text encoder
    monkeypatch.setenv("KATZ_LORA_KEYS", "strict")
    with pytest.raises(InputError, match="has 1 of its 3 layers, for a text encoder that"):
        list(check_loras(network.with_lora(used), clip.with_lora(used)))


@pytest.mark.defect(5)
def test_layers_used_by_one_model_of_a_request_count_as_used(tmp_path: Path) -> None:
    """One file has a part for both SDXL encoders; the refiner has one."""
    used = text_lora(tmp_path / "lora.safetensors", "sdxl", f"lora_te1_{FC1}", f"lora_te2_{FC1}")
    (_, both), (_, one) = model("sdxl"), model("refiner")
    assert list(check_loras(one.with_lora(used)))
    assert not list(check_loras(one.with_lora(used), both.with_lora(used)))


@pytest.mark.defect(5)
def test_the_third_encoder_s_part_is_used_in_addition_to_the_second_s(tmp_path: Path) -> None:
    """Trainers call FLUX's T5 its second or its third encoder."""
    names = (f"lora_te2_{SELF_Q}", f"lora_te3_{SELF_Q.replace('_q', '_k')}")
    used = text_lora(tmp_path / "lora.safetensors", "flux", *names)
    _, clip = model("flux")
    assert not list(check_loras(clip.with_lora(used)))
    same = text_lora(tmp_path / "lora.safetensors", "flux", names[0], f"lora_te3_{SELF_Q}")
    with pytest.raises(InputError, match=r"has lora_te3\S+ twice"):
        list(check_loras(clip.with_lora(same)))
