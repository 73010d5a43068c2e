"""Language models give a network the states, tokens and fill of its layout, as the stock encoders of
transformers do, which also see pictures and predict words.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from katz_graph.adapters.encoders import text_parts
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    Fill,
    ModelRecipe,
    Prompt,
    TextEncoderRecipe,
    TextLayout,
)
from katz_graph.models.costs.counts import Counts
from katz_graph.models.families.shared.stages import text_work
from katz_graph.models.family import TextSet, check_text, families, text_set
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.sources import clip_recipe
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.stages import Extent
from katz_graph.models.text.encoder import encode
from katz_graph.models.text.kinds import pack_name, text_width
from katz_graph.models.text.tokens import load_tokenizer, prompt_length, sequence, text_size
from katz_graph.models.text.tower import hidden_states

EXTENT = Extent((1, 4, 8, 8), 64, 4)
LAYERS, PAD = 4, "<|endoftext|>"
WORDS = (PAD, "<|im_start|>", "<|im_end|>")
SIZES = {
    "vocab_size": 256 + len(WORDS),
    "hidden_size": 128,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
SYSTEM = "<|im_start|>system\nSay it:<|im_end|>\n"
USER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
CHAT = TextLayout(template=SYSTEM + USER, opening="<|im_start|>")
OWN = "<|im_start|>system\nDraw.<|im_end|>\n<|im_start|>user\na cube"  # a prompt with its template
LAYOUTS = {
    "last, normed": replace(CHAT, dropped="prefix"),
    "last, raw": replace(CHAT, dropped="system", raw=True, empty=" "),
    "side by side": replace(CHAT, states=(1, 2, LAYERS), dropped="prefix"),
    "before the last": TextLayout(template=USER, from_end=2),
    "filled at the right": TextLayout(template=USER, states=(1, 3), fill=Fill(least=60)),
    "filled at the left": TextLayout(template=USER, states=(2, LAYERS), fill=Fill(60, left=True)),
    "filled to a multiple": TextLayout(template=USER, states=(2,), fill=Fill(0, 40, position=1)),
}


def qwen2_5_vl() -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    text = {**SIZES, "rms_norm_eps": 1e-6, "rope_parameters": rope}
    sees = {"depth": 1, "hidden_size": 16, "intermediate_size": 8, "num_heads": 2}
    config = transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config={**sees, "out_hidden_size": 128}
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl() -> Any:
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2]}
    sees = {"depth": 1, "hidden_size": 16, "intermediate_size": 8, "num_heads": 2}
    sees |= {"out_hidden_size": 128, "num_position_embeddings": 16}
    config = transformers.Qwen3VLConfig(
        text_config={**SIZES, "head_dim": 16, "rope_parameters": rope},
        vision_config={**sees, "deepstack_visual_indexes": [0]},
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


def qwen3() -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    config = transformers.Qwen3Config(**SIZES, head_dim=16, rope_parameters=rope)
    return transformers.Qwen3ForCausalLM(config)


def mistral3() -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e9}
    text = {**SIZES, "model_type": "mistral", "head_dim": 128, "rms_norm_eps": 1e-5}
    sees = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 8, "head_dim": 8}
    sees |= {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    config = transformers.Mistral3Config(
        text_config={**text, "rope_parameters": rope}, vision_config=sees
    )
    return transformers.Mistral3ForConditionalGeneration(config)


STOCK: dict[str, Callable[[], Any]] = {
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3": qwen3,
    "mistral3": mistral3,
}
IN_FILES = {  # prefixes of parts in transformers' modules, and in ComfyUI's files
    "qwen2_5_vl": {"model.language_model.": "model.", "model.visual.": "visual."},
    "mistral3": {
        "model.language_model.": "model.",
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    },
}


@pytest.fixture(scope="module")
def stock() -> dict[str, Any]:
    made = {}
    for name, make in STOCK.items():
        torch.manual_seed(5)
        made[name] = make().eval().requires_grad_(False)
        for called, weight in made[name].named_parameters():
            weight.normal_(1.0 if "norm" in called else 0.0, 0.2)
    return made


@pytest.fixture(scope="module")
def places(stock: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder and a file of each encoder."""
    folder = tmp_path_factory.mktemp("encoders")
    words = tokenizer()
    for name, module in stock.items():
        module.save_pretrained(folder / name)
        words.save_pretrained(folder / name)
        tensors = {}
        for key, tensor in module.state_dict().items():
            for before, after in IN_FILES.get(name, {}).items():
                key = key.replace(before, after)
            tensors[key] = tensor.clone()
        if name == "mistral3":
            tensors["tekken_model"] = tekken()
        save_file(tensors, folder / f"{name}.safetensors")
    return folder


def tokenizer() -> Any:
    """Builds a tokenizer of bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True) for word in WORDS])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token=PAD)


def tekken(**changed: Any) -> Tensor:
    """Returns a vocabulary of bytes and a word of two, as Mistral's files have it."""
    words = [bytes([byte]) for byte in range(256)] + [b" a"]
    special = {1: "<s>", 3: "[INST]", 4: "[/INST]", 11: "<pad>"}
    model = {
        "config": {"pattern": r" ?\w+|\s+|.", "default_vocab_size": 300},
        "vocab": [
            {"rank": rank, "token_bytes": b64encode(word).decode()}
            for rank, word in enumerate(words)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": special.get(rank, f"<{rank}>")} for rank in range(20)
        ],
    }
    return torch.frombuffer(bytearray(json.dumps(model | changed).encode()), dtype=torch.uint8)


def loaded(place: Path, layout: TextLayout) -> ClipRecipe:
    """The recipe of an encoder, with the tokenizer of its folder."""
    clip = clip_recipe([place], layout=layout)
    (words,) = clip_recipe([place.with_suffix("")]).encoders
    return replace(clip, encoders=(replace(clip.encoders[0], tokenizer=words.tokenizer),))


def encoded(clip: ClipRecipe, text: str) -> Tensor:
    (one,) = clip.encoders
    module = ModelStore().text_encoder(one.encoder, "cpu", torch.float32)
    hidden = encode([(module, load_tokenizer(one))], text, layout=clip.layout).hidden
    assert hidden.shape[1:] == (prompt_length(Prompt(clip, text)), text_width(clip))
    return hidden


@torch.no_grad()
def expected(module: Any, layout: TextLayout, text: str) -> Tensor:
    """Runs the whole model as pipelines do: states of all layers, the last one raw if asked."""
    whole = text if text.startswith("<|im_start|>") else layout.template.format(text)
    words = tokenizer()
    ids, fill = words(whole).input_ids, layout.fill or Fill()
    missing = -(-max(len(ids), fill.least) // fill.multiple) * fill.multiple - len(ids)
    pads, ones = [words.pad_token_id] * missing, [1] * len(ids)
    options: dict[str, Any] = {}
    if missing:
        mask = [0] * missing + ones if fill.left else ones + [0] * missing
        options["attention_mask"] = torch.tensor([mask])
    if fill.position is not None:
        positions = [*range(len(ids)), *[fill.position] * missing]
        options["position_ids"] = torch.tensor([positions])
    given = torch.tensor([pads + ids if fill.left else ids + pads])
    last = []
    layers = getattr(module.model, "language_model", module.model).layers
    hook = layers[-1].register_forward_hook(lambda _, __, output: last.append(output))
    states = list(module(given, output_hidden_states=True, **options).hidden_states)
    hook.remove()
    if layout.raw or layout.states:
        states[-1] = last[0]
    hidden = torch.cat([states[one] for one in layout.states or (-layout.from_end,)], dim=-1)
    start = {"": 0, "system": whole.find("<|im_start|>", 1), "prefix": whole.find("user\n") + 5}
    return hidden[:, len(words(whole[: max(0, start[layout.dropped])]).input_ids) :]


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("ending", ["", ".safetensors"])
def test_files_and_folders_give_the_stock_model_s_states(
    name: str, ending: str, stock: dict[str, Any], places: Path
) -> None:
    layout = LAYOUTS["last, normed"]
    clip = loaded(places / f"{name}{ending}", layout)
    for text in ("a (red:1.3) cube", "\nsand", OWN):
        assert torch.equal(encoded(clip, text), expected(stock[name], layout, text)), text


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_layout_reads_the_stock_model_s_states(
    name: str, kind: str, stock: dict[str, Any], places: Path
) -> None:
    layout = LAYOUTS[kind]
    clip = loaded(places / name, layout)
    for text in ("a cube", "sand " * 20):
        assert torch.equal(encoded(clip, text), expected(stock[name], layout, text)), text


def test_an_empty_prompt_may_become_a_blank(stock: dict[str, Any], places: Path) -> None:
    layout = LAYOUTS["last, raw"]
    clip = loaded(places / "qwen3_vl", layout)
    assert torch.equal(encoded(clip, ""), expected(stock["qwen3_vl"], layout, " "))
    sizes = [text_size(Prompt(clip, text), 0).tokens for text in ("", "a cube")]
    assert sizes == [0, len("a cube")]


def test_a_prompt_s_own_template_is_dropped_by_its_words(places: Path) -> None:
    """Turns may be missing, or be longer than the layout's."""
    for dropped, text, left in (
        ("prefix", OWN, "a cube"),
        ("prefix", "<|im_start|>user\na cube", "a cube"),
        ("prefix", "<|im_start|>system\na cube", "<|im_start|>system\na cube"),
        ("system", OWN, "<|im_start|>user\na cube"),
        (
            "system",
            "<|im_start|>user\na cube<|im_start|>b",
            "<|im_start|>user\na cube<|im_start|>b",
        ),
    ):
        clip = loaded(places / "qwen3", replace(CHAT, dropped=dropped))
        assert prompt_length(Prompt(clip, text)) == len(tokenizer()(left).input_ids), text


def test_weights_that_texts_do_not_use_are_not_counted(stock: dict[str, Any], places: Path) -> None:
    for name, module in stock.items():
        text = getattr(module.model, "language_model", module.model)
        wanted = sum(weight.numel() for weight in text.parameters())
        for place in (places / name, places / f"{name}.safetensors"):
            assert count_values(clip_recipe([place]).encoders[0].encoder) == wanted


def test_a_checkpoint_holds_the_text_encoder_s_file_under_a_prefix(
    stock: dict[str, Any], places: Path, tmp_path: Path
) -> None:
    prefix = "text_encoders.qwen25_7b.transformer."
    tensors = load_file(places / "qwen2_5_vl.safetensors")
    whole = {prefix + name: tensor for name, tensor in tensors.items()}
    save_file(whole | {"first_stage_model.a": torch.ones(1)}, tmp_path / "whole.safetensors")
    (one,) = clip_recipe([tmp_path / "whole.safetensors"]).encoders
    (alone,) = clip_recipe([places / "qwen2_5_vl.safetensors"]).encoders
    assert count_values(one.encoder) == count_values(alone.encoder)
    module = ModelStore().text_encoder(one.encoder, "cpu", torch.float32)
    wanted = stock["qwen2_5_vl"].model.language_model
    assert torch.equal(module.norm.weight, wanted.norm.weight)


def test_scaled_8_bit_weights_of_the_text_part_are_widened(places: Path, tmp_path: Path) -> None:
    """Also if the other parts have scales, too."""
    tensors = load_file(places / "qwen3_vl.safetensors")
    stored, wide = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if weight.ndim == 2 and name.endswith(("_proj.weight", "fc1.weight")):
            scale = weight.abs().max() / 448
            stored[name] = (weight / scale).to(torch.float8_e4m3fn)
            stored[name.replace(".weight", ".scale_weight")] = scale
            wide[name] = stored[name].float() * scale
    stored["scaled_fp8"] = torch.zeros(2, dtype=torch.float8_e4m3fn)
    states = []
    for kind, content in (("stored", stored), ("wide", wide)):
        save_file(content, tmp_path / f"{kind}.safetensors")
        (one,) = clip_recipe([tmp_path / f"{kind}.safetensors"]).encoders
        module = ModelStore().text_encoder(one.encoder, "cpu", torch.float32)
        states.append(hidden_states(module, torch.ones(1, 3, 128)))
    assert torch.equal(*states)


QWEN_IMAGE = json.dumps({"_class_name": "QwenImageTransformer2DModel", "joint_attention_dim": 3584})


@pytest.mark.parametrize(
    ("architecture", "width", "layers", "states", "problem"),
    [
        ("Qwen3VLModel", 2560, 4, (), "width 2560 .* takes 3584 .*; use Qwen2.5-VL 7B"),
        ("Qwen3Model", 2560, 4, (1, 2, 3), "width 7680 .* takes 3584 .*; use Qwen2.5-VL 7B"),
        ("Qwen2_5_VLModel", 3584, 4, (), ""),
        ("Qwen2_5_VLModel", 3584, 4, (6,), "Qwen2.5-VL 7B of 4 layers, .* output of layer 6"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused_with_the_one_that_does(
    architecture: str, width: int, layers: int, states: tuple[int, ...], problem: str
) -> None:
    sizes = {"hidden_size": width, "num_hidden_layers": layers}
    values = {"architectures": [architecture], "text_config": sizes}
    part = Component("/clip/it.safetensors", (), json.dumps(values))
    clip = ClipRecipe((TextEncoderRecipe(part, part),), layout=TextLayout(states=states))
    model = ModelRecipe(Component("/unet", (), QWEN_IMAGE), part)
    if not problem:
        check_text(clip, model)
        return
    with pytest.raises(InputError, match=f"^/clip/it.safetensors: .*{problem}$"):
        check_text(clip, model)


MISTRAL = TextLayout(template="<s>[INST]{}[/INST]", states=(1, 3), fill=Fill(12, left=True))


def test_mistral_s_words_are_in_its_file_and_the_made_tokenizer_is_stored(
    places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KATZ_CACHE", str(tmp_path))
    (one,) = clip_recipe([places / "mistral3.safetensors"]).encoders
    expected = [11] * 6 + [1, 3, 20 + ord("i"), 20 + 256, 20 + ord("!"), 4]
    stored = tmp_path / "tokenizers"
    for damaged in (False, False, True):  # converted, read, and converted again
        load_tokenizer.cache_clear()
        for made in stored.glob("*" if damaged else "none"):
            made.write_text("{")
        assert [token for token, _ in sequence(load_tokenizer(one), "i a!", MISTRAL)] == expected
    (made,) = stored.iterdir()
    assert json.loads(made.read_text())["model"]["type"] == "BPE"


@pytest.mark.parametrize("norm", [True, False])
def test_a_cut_mistral_gives_its_last_layer_s_output(
    norm: bool, stock: dict[str, Any], places: Path, tmp_path: Path
) -> None:
    """Files of the layers up to the last state in use may lack the final norm."""
    tensors = load_file(places / "mistral3.safetensors")
    without = "model.layers.3." if norm else ("model.layers.3.", "model.norm.")
    left = {name: one for name, one in tensors.items() if not name.startswith(without)}
    save_file(left, tmp_path / "cut.safetensors")
    whole = loaded(places / "mistral3.safetensors", MISTRAL)
    cut = clip_recipe([tmp_path / "cut.safetensors"], layout=MISTRAL)
    words = whole.encoders[0].tokenizer
    cut = replace(cut, encoders=(replace(cut.encoders[0], tokenizer=words),))
    for clip in (whole, cut):
        assert torch.equal(encoded(clip, "a cube"), expected(stock["mistral3"], MISTRAL, "a cube"))


def test_a_mistral_without_words_is_refused(places: Path, tmp_path: Path) -> None:
    tensors = load_file(places / "mistral3.safetensors")
    path = tmp_path / "mistral.safetensors"
    for name, words in (
        ("broken", torch.frombuffer(bytearray(b'{"config": '), dtype=torch.uint8)),
        ("no words", tekken(vocab=None)),
        ("no <pad>", tekken(special_tokens=[{"rank": 0, "token_str": "<s>"}])),
    ):
        save_file(tensors | {"tekken_model": words}, path)
        problem = r"mistral\.safetensors: its tensor tekken_model cannot .*: (not )?a tekken vocab"
        with pytest.raises(InputError, match=problem):
            prompt_length(Prompt(clip_recipe([path]), name))
    layer = "model.layers.0.self_attn.{}_proj.weight"
    shapes = {layer.format("q"): 128, layer.format("k"): 128, "model.embed_tokens.weight": 2}
    shapes["model.layers.0.mlp.gate_proj.weight"] = 1
    save_file({name: torch.zeros(rows, 5120) for name, rows in shapes.items()}, path)
    with pytest.raises(InputError, match=r"mistral\.saf.* a Mistral 3 has no tok.* tekken_model"):
        clip_recipe([path])


def test_layers_after_the_last_state_in_use_are_neither_computed_nor_counted(
    places: Path,
) -> None:
    for name in STOCK:
        clip = loaded(places / name, LAYOUTS["last, normed"])
        part = clip.encoders[0].encoder
        works = [
            text_work({"encoding": Prompt(replace(clip, layout=layout), "a")}, EXTENT, Counts())
            for layout in (clip.layout, TextLayout(states=(1, LAYERS)), TextLayout(states=(1,)))
        ]
        assert works[1].flops == pytest.approx(works[0].flops, rel=0.02)
        assert works[2].flops == pytest.approx(works[0].flops / LAYERS, rel=0.02)
        module = ModelStore().text_encoder(part, "cpu", torch.float32)
        module.layers[2].register_forward_hook(lambda *_: pytest.fail("layer 3 was computed"))
        hidden_states(module, torch.ones(1, 3, 128), TextLayout(states=(0, 2)))


@pytest.mark.parametrize(
    ("architecture", "width", "name"),
    [
        ("Qwen3Model", 1024, "qwen3_06b"),
        ("Qwen3Model", 2560, "qwen3_4b"),
        ("Qwen3Model", 64, "qwen3_4b"),
        ("Qwen3VLModel", 4096, "qwen3vl_8b"),
        ("Qwen2_5_VLModel", 3584, "qwen25_7b"),
        ("Mistral3Model", 5120, "mistral3_24b"),
    ],
)
def test_packs_call_tokens_by_the_encoder_s_size(architecture: str, width: int, name: str) -> None:
    part = encoder(architecture, width)
    assert pack_name(part) == name
    assert name in next(text_parts([part]))


def encoder(architecture: str, width: int) -> Component:
    sizes = {"hidden_size": width, "d_model": width}
    return Component(architecture, (), json.dumps({"architectures": [architecture], **sizes}))


VL3, VL2, Q3 = "Qwen3VLModel", "Qwen2_5_VLModel", "Qwen3Model"
SETS = {
    "first": TextSet("both", ("qwen2_5_vl",), sizes=("7B",)),
    "second": TextSet("both", ("qwen3_vl",), sizes=("8B",)),
    "third": TextSet("three", ("qwen3_vl",), sizes=("4B",)),
    "fourth": TextSet("four", ("qwen3_vl",), sizes=("4B",)),
    "chat": TextSet("chat", ("qwen3",), sizes=("4B",)),
    "two": TextSet("two", ("qwen3",), sizes=("4B", "8B")),
    "small": TextSet("plain", ("qwen3",), sizes=("0.6B",)),
}


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch) -> None:
    family = next(one for one in families() if one.files is not None)
    made = [replace(family, title=name, text_sets=(one,)) for name, one in SETS.items()]
    monkeypatch.setattr("katz_graph.models.family.families", lambda: made)


@pytest.mark.parametrize(
    ("type", "architecture", "width", "title"),
    [
        ("both", VL2, 3584, "first"),
        ("both", VL3, 4096, "second"),
        ("both", VL3, 2560, "third"),
        ("both", VL3, 64, "second"),
        ("three", VL3, 2560, "third"),
        ("four", VL3, 2560, "fourth"),
        ("four", VL3, 4096, "second"),
        ("plain", Q3, 1024, "small"),
        ("chat", Q3, 1024, "small"),
        ("plain", Q3, 2560, "chat"),
        ("two", Q3, 2560, "two"),
        ("both", Q3, 4096, "two"),
    ],
)
def test_a_file_that_contradicts_the_loader_s_type_decides(
    type: str, architecture: str, width: int, title: str, sets: None
) -> None:
    family, _ = text_set(type, [encoder(architecture, width)])
    assert family.title == title


def test_an_encoder_of_no_model_is_refused_with_those_of_its_type(sets: None) -> None:
    words = "T5EncoderModel: not the text .* expected Qwen2.5-VL or Qwen3-VL, got T5"
    with pytest.raises(InputError, match=words):
        text_set("both", [encoder("T5EncoderModel", 4096)])
