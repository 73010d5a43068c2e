"""Text encoders that see pictures give the states of the stock encoders of transformers, which are
told the tokens of pictures, and take their vision towers from files and folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ClipRecipe, Fill, Picture, Prompt, TextLayout, TextRequest
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.models.loading.sources import clip_recipe
from katz_graph.models.text import generation
from katz_graph.models.text.generation import ENDS
from katz_graph.models.text.kinds import QWEN2_5_VL, QWEN3_VL
from katz_graph.models.text.pictures import grid, seen_pictures, sight_of, tower_of
from katz_graph.models.text.tokens import prompt_length
from katz_graph.models.text.vision import patches
from katz_graph.testing.stand_ins.formats import Files, write

WORDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
IMAGE = 256 + len(WORDS) + 1  # the id of <|image_pad|>
LAYERS = 4
TEXT = {
    "vocab_size": 256 + len(WORDS + VISION),
    "hidden_size": 128,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
CHAT = TextLayout(
    template="<|im_start|>system\nSay it:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n",
    with_pictures="<|im_start|>system\nSee it:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n",
    opening="<|im_start|>",
)
BLOCK = "".join(VISION)


SEES = {"intermediate_size": 8, "out_hidden_size": 128}


def qwen2_5_vl(section: Sequence[int] = (16, 24, 24), **sees: Any) -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(section)}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**TEXT, "rms_norm_eps": 1e-6, "rope_parameters": rope},
        vision_config={**SEES, "depth": 8, "hidden_size": 80, "num_heads": 1, **sees},
        image_token_id=IMAGE,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl(section: Sequence[int] = (24, 20, 20), **sees: Any) -> Any:
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": list(section)}
    sees = {"hidden_size": 72, "num_heads": 1, "deepstack_visual_indexes": [0, 1, 2], **sees}
    config = transformers.Qwen3VLConfig(
        text_config={**TEXT, "head_dim": 16, "rope_parameters": rope},
        vision_config={**SEES, "depth": 3, "num_position_embeddings": 16, **sees},
        image_token_id=IMAGE,
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


STOCK: dict[str, Callable[[], Any]] = {  # the first two are like published models
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen2_5_vl_other": lambda: qwen2_5_vl(
        (32, 8, 24), num_heads=4, fullatt_block_indexes=[1, 2], window_size=56
    ),
    "qwen3_vl_other": lambda: qwen3_vl((4, 2, 2), num_heads=6, deepstack_visual_indexes=[2]),
}
PREFIXES = {  # in transformers' modules, and in ComfyUI's files
    "qwen2_5_vl": {"model.language_model.": "model.", "model.visual.": "visual."},
    "qwen3_vl": {},
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
    """A folder with a folder of each encoder, and files of those with published values."""
    folder = tmp_path_factory.mktemp("encoders")
    for name, module in stock.items():
        module.save_pretrained(folder / name)
        tokenizer().save_pretrained(folder / name)
    for name, renamed in PREFIXES.items():
        tensors = {}
        for key, tensor in stock[name].state_dict().items():
            for before, after in renamed.items():
                key = key.replace(before, after)
            tensors[key] = tensor.clone()
        save_file(tensors, folder / f"{name}.safetensors")
    return folder


def loaded(place: Path, layout: TextLayout = CHAT) -> ClipRecipe:
    """The recipe of an encoder, with the tokenizer of its folder."""
    clip = clip_recipe([place], layout=layout)
    (words,) = clip_recipe([place.with_suffix("")]).encoders
    return replace(clip, encoders=(replace(clip.encoders[0], tokenizer=words.tokenizer),))


def tokenizer() -> Any:
    """Builds a tokenizer of bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True) for word in WORDS + VISION])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token=WORDS[0])


def picture(height: int, width: int, seed: int = 0) -> Picture:
    generator = torch.Generator().manual_seed(seed)
    return Picture.of(torch.rand(1, height, width, 3, generator=generator))


def encoded(prompt: Prompt) -> Tensor:
    hidden = DeviceModels().encode_text(prompt).hidden
    assert hidden.shape[1] == prompt_length(prompt)
    return hidden


def inputs(
    module: Any, clip: ClipRecipe, whole: str, pictures: Sequence[Picture]
) -> dict[str, Tensor]:
    """Returns the inputs of the whole model for a text with places for pictures."""
    tower = tower_of(clip.encoders[0].encoder)
    unit = {"qwen2_5_vl": 28, "qwen3_vl": 32}[module.config.model_type]
    ids: list[int] = []
    read, sizes = [], []
    first, *others = whole.split(VISION[1])
    ids += tokenizer()(first).input_ids
    for one, then in zip(pictures, others, strict=True):
        height, width = (round(side / unit) * unit for side in one.pixels.shape[1:3])
        pixels = torch.nn.functional.interpolate(
            one.pixels.movedim(-1, 1), (height, width), mode="bilinear", align_corners=False
        ).movedim(1, -1)
        read.append(patches(module.config.vision_config, sight_of(tower), pixels))
        sizes.append([1, 2 * height // unit, 2 * width // unit])
        ids += [IMAGE] * (len(read[-1]) // 4) + tokenizer()(then).input_ids
    given = torch.tensor([ids])
    return {
        "input_ids": given,
        "pixel_values": torch.cat(read),
        "image_grid_thw": torch.tensor(sizes),
        "mm_token_type_ids": (given == IMAGE).int(),
    }


@torch.no_grad()
def expected(
    module: Any, clip: ClipRecipe, whole: str, pictures: Sequence[Picture], counted: bool = False
) -> Sequence[Tensor]:
    """Runs the whole model on a text with places for pictures. Returns the states, and the last
    layer's output. `counted`: positions count all tokens, as without `mm_token_type_ids`.
    """
    given = inputs(module, clip, whole, pictures)
    if counted:
        length = given["input_ids"].shape[1]
        given["mm_token_type_ids"] = torch.zeros(1, length, dtype=torch.int)
        given["position_ids"] = torch.arange(length).expand(3, 1, -1)
    last = []
    hook = module.model.language_model.layers[-1].register_forward_hook(
        lambda _, __, output: last.append(output)
    )
    states = module(**given, output_hidden_states=True).hidden_states
    hook.remove()
    return *states, last[0]


@pytest.mark.parametrize("name", STOCK)
def test_every_state_equals_the_stock_encoder_s(
    name: str, stock: dict[str, Any], places: Path
) -> None:
    """The pictures have several windows and unlike sides; the second is not in whole patches."""
    clip = loaded(places / name)
    pictures = picture(160, 224), picture(70, 100, seed=1)
    captions = "Picture 1: ", "Picture 3: "
    prompt = Prompt(clip, "a cube", pictures=pictures, captions=captions)
    whole = CHAT.with_pictures.format("".join(one + BLOCK for one in captions) + "a cube")
    *states, raw = expected(stock[name], clip, whole, pictures)
    assert torch.equal(encoded(prompt), states[-1])
    for number, state in enumerate([*states[:-1], raw]):
        layout = replace(CHAT, states=(number,))
        assert torch.equal(encoded(replace(prompt, clip=replace(clip, layout=layout))), state)
    *_, last, _ = expected(stock[name], clip, whole, pictures, counted=True)
    assert not torch.allclose(last, states[-1], atol=1e-3)


@pytest.mark.parametrize("name", PREFIXES)
def test_generated_text_about_a_picture_is_that_of_transformers(
    name: str, stock: dict[str, Any], places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy, with a system turn; the tokens of the text follow the picture's longer side."""
    scores, choose = list[Tensor](), generation.chosen

    def chosen(given: Tensor, *others: Any) -> int:
        scores.append(given)
        return choose(given, *others)

    monkeypatch.setattr(generation, "chosen", chosen)
    clip, pictures = loaded(places / name), (picture(160, 224),)
    request = TextRequest("a cube", 12, "Say {} it.", pictures=pictures)
    whole = (
        "<|im_start|>system\nSay {} it.<|im_end|>\n<|im_start|>user\n"
        f"{BLOCK}a cube<|im_end|>\n<|im_start|>assistant\n"
    ) + ("<think>\n\n</think>\n\n" if name == "qwen3_vl" else "")
    given = inputs(stock[name], clip, whole, pictures)
    ends = [256 + WORDS.index(word) for word in ENDS]
    made = stock[name].generate(
        **given,
        do_sample=False,
        max_new_tokens=12,
        eos_token_id=ends,
        output_scores=True,
        return_dict_in_generate=True,
    )
    units = DeviceModels().generate_text(clip, request)
    with pytest.raises(StopIteration) as end:
        while True:
            next(units)
    wanted = made.sequences[0, given["input_ids"].shape[1] :].tolist()
    assert len(set(wanted)) > 3
    assert end.value.value == tokenizer().decode(wanted)
    assert torch.allclose(torch.cat(scores), torch.cat(made.scores), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", PREFIXES)
def test_the_last_state_in_bfloat16_equals_the_stock_encoder_s(
    name: str, stock: dict[str, Any], places: Path
) -> None:
    clip, pictures = loaded(places / name), (picture(120, 150),)
    module = type(stock[name]).from_pretrained(places / name, dtype=torch.bfloat16)
    *_, last, _ = expected(module, clip, CHAT.with_pictures.format(f"{BLOCK}a cube"), pictures)
    prompt = Prompt(clip, "a cube", pictures=pictures)
    made = DeviceModels(dtype=torch.bfloat16).encode_text(prompt)
    assert torch.equal(made.hidden, last)


@pytest.mark.parametrize("name", PREFIXES)
def test_single_files_contain_the_vision_tower(
    name: str, stock: dict[str, Any], places: Path
) -> None:
    clip, pictures = loaded(places / f"{name}.safetensors"), (picture(120, 150),)
    whole = CHAT.with_pictures.format(BLOCK + "a cube")
    *_, last, _ = expected(stock[name], clip, whole, pictures)
    assert torch.equal(encoded(Prompt(clip, "a cube", pictures=pictures)), last)


@pytest.mark.parametrize("name", PREFIXES)
@pytest.mark.parametrize("kind", ["int8_tensorwise", "float8_e4m3fn", "fp8"])
def test_eight_bit_files_give_the_states_of_wide_ones(
    name: str, kind: str, places: Path, tmp_path: Path
) -> None:
    tensors = load_file(places / f"{name}.safetensors")
    if kind == "fp8":  # without scales
        paths = tmp_path / "scaled.safetensors", tmp_path / "wide.safetensors"
        write(paths[0], tensors, "fp8")
        save_file({key: one.float() for key, one in load_file(paths[0]).items()}, paths[1])
    else:
        files, rotated = Files(tensors, "comfy_quant"), 4 if kind == "int8_tensorwise" else 0
        for key, one in tensors.items():
            if "visual" in key and one.ndim == 2 and "embed" not in key:
                files.store(key.removesuffix(".weight"), kind, rotated=rotated)
        paths = files.save(tmp_path)
    words = loaded(places / name).encoders[0].tokenizer
    clips = (clip_recipe([path], layout=CHAT) for path in paths)
    clips = (replace(one, encoders=(replace(one.encoders[0], tokenizer=words),)) for one in clips)
    scaled, wide = (
        encoded(Prompt(clip, "a cube", pictures=(picture(120, 150),))) for clip in clips
    )
    assert torch.equal(scaled, wide) and torch.isfinite(wide).all()


def test_the_vision_tower_is_loaded_for_pictures_alone(places: Path) -> None:
    clip, models = loaded(places / "qwen2_5_vl.safetensors"), DeviceModels()
    models.encode_text(Prompt(clip, "a cube"))
    (tower,) = seen_pictures(prompt := Prompt(clip, "a cube", pictures=(picture(56, 56),)))
    assert not models.has([tower])
    models.encode_text(prompt)
    assert models.has([tower])


def test_the_patches_are_those_of_the_published_processor() -> None:
    pixels = (picture(84, 140).pixels * 255).byte()
    for kind, side in ((QWEN2_5_VL, 14), (QWEN3_VL, 16)):
        assert kind.sight is not None
        whole = pixels[:, : 4 * side, : 6 * side]
        settings = SimpleNamespace(patch_size=side, spatial_merge_size=2, temporal_patch_size=2)
        processor = Qwen2VLImageProcessorPil(
            patch_size=side, image_mean=kind.sight.mean, image_std=kind.sight.deviation
        )
        given = processor(Image.fromarray(whole[0].numpy()), return_tensors="pt")
        made = patches(settings, kind.sight, whole / 255)
        torch.testing.assert_close(made, given["pixel_values"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("size", "rows", "columns"),
    [
        ((384, 384), 14, 14),
        ((1, 1), 2, 2),
        ((1, 4000), 1, 127),
        ((14, 3500), 1, 32),  # half of a patch is none, so the processors resize it
        ((4000, 4000), 128, 128),
        ((30, 100_000), 1, 3571),
    ],
)
def test_pictures_of_any_size_have_rows(
    size: tuple[int, int], rows: int, columns: int, places: Path
) -> None:
    tower = tower_of(loaded(places / "qwen2_5_vl").encoders[0].encoder)
    blank = Picture("", torch.zeros(1, 1, 1, 3).expand(1, *size, 3))
    assert grid(tower, blank) == (rows, columns)


def test_words_for_a_picture_in_the_text_stay_words(places: Path) -> None:
    clip, pictures = loaded(places / "qwen2_5_vl"), (picture(56, 56),)
    said, typed = (encoded(Prompt(clip, text, pictures=pictures)) for text in ("a b", f"a {BLOCK}"))
    assert typed.shape[1] == said.shape[1] - len("b") + len(VISION)
    before = said.shape[1] - len("b") - len(tokenizer()("<|im_end|>\n").input_ids)
    torch.testing.assert_close(typed[:, :before], said[:, :before], atol=1e-4, rtol=0)


def test_a_template_of_the_prompt_has_places_for_pictures(
    stock: dict[str, Any], places: Path
) -> None:
    clip, pictures = loaded(places / "qwen3_vl"), (picture(64, 64), picture(64, 96))
    own = f"<|im_start|>user\n{VISION[1]} and {BLOCK}<|im_end|>"
    *_, last, _ = expected(stock["qwen3_vl"], clip, own, pictures)
    assert torch.equal(encoded(Prompt(clip, own, pictures=pictures)), last)
    with pytest.raises(InputError, match=r"has 2 times <\|image_pad\|>.* expected 1$"):
        prompt_length(Prompt(clip, own, pictures=pictures[:1]))


def test_fill_does_not_change_the_rows_of_pictures_and_text(places: Path) -> None:
    clip, pictures = loaded(places / "qwen3_vl"), (picture(64, 96),)
    alone = encoded(Prompt(clip, "a cube", pictures=pictures))
    for fill in (Fill(least=90), Fill(least=90, left=True), Fill(multiple=90, position=1)):
        layout = replace(CHAT, fill=fill)
        whole = encoded(Prompt(replace(clip, layout=layout), "a cube", pictures=pictures))
        assert whole.shape[1] == 90
        rows = whole[:, -alone.shape[1] :] if fill.left else whole[:, : alone.shape[1]]
        torch.testing.assert_close(rows, alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize("fill", [None, Fill(least=90, left=True)])
def test_an_encoding_names_the_tokens_of_pictures(fill: Fill | None, places: Path) -> None:
    layout = replace(CHAT, states=(0,), dropped="prefix", fill=fill)
    clip, models = loaded(places / "qwen2_5_vl", layout), DeviceModels()
    prompt = Prompt(clip, "a cube", pictures=(picture(56, 84), picture(84, 84)))
    made = models.encode_text(prompt)
    rows = torch.cat([models.see(one).hidden for one in seen_pictures(prompt)], dim=1)
    assert torch.equal(made.hidden[:, list(made.slots)], rows)
    assert models.encode_text(prompt).slots == made.slots  # from the cache


def test_encoders_without_sight_are_refused(places: Path, tmp_path: Path) -> None:
    tensors = load_file(places / "qwen2_5_vl.safetensors")
    blind = tmp_path / "blind.safetensors"
    save_file({key: one for key, one in tensors.items() if not key.startswith("visual")}, blind)
    clip = loaded(places / "qwen2_5_vl")
    encoders = (replace(clip.encoders[0], encoder=clip_recipe([blind]).encoders[0].encoder),)
    prompt = Prompt(replace(clip, encoders=encoders), "a cube", pictures=(picture(56, 56),))
    assert prompt_length(replace(prompt, pictures=()))
    with pytest.raises(InputError, match=r"^\S+blind\.safetensors: a Qwen2\.5-VL without its vis"):
        prompt_length(prompt)
