"""Prompts are encoded as in diffusers' pipelines; weights, layers and chunks have their usual
meaning.
"""

from functools import cache

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from tiny_models import FAMILIES, pipeline_folder, recipes

from katz_graph.core.errors import InputError
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.text.encoder import encode
from katz_graph.models.text.evaluate import with_sizes

STORE = ModelStore()


def encoders(family, dtype=torch.float32):
    _, clip, _ = recipes(family)
    return [
        (STORE.text_encoder(one.encoder, "cpu", dtype), STORE.tokenizer(one))
        for one in clip.encoders
    ]


@cache
def pipeline(family, dtype=torch.float32):
    kind = StableDiffusionXLPipeline if family == "sdxl" else StableDiffusionPipeline
    made = kind.from_pretrained(pipeline_folder(family), dtype=dtype)
    for name in ("text_encoder", "text_encoder_2"):
        for weight in getattr(made, name).parameters() if hasattr(made, name) else ():
            # ours are not mapped; at other addresses small products round otherwise
            weight.data = weight.data.clone()
    return made


def theirs(family, prompt, dtype=torch.float32, **options):
    result = pipeline(family, dtype).encode_prompt(
        prompt, device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=False, **options
    )
    return (result[0], result[2]) if family == "sdxl" else (result[0], None)


def same(encoding, expected):
    hidden, pooled = expected
    return (
        torch.equal(encoding.hidden, hidden)
        and (pooled is None) == (encoding.pooled is None)
        and (pooled is None or torch.equal(encoding.pooled, pooled))
    )


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "prompt", ["a red square", "", "x" * 75, "a  b\n c, Ünicode 🙂 <|endoftext|> on", " "]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_short_unweighted_prompts_equal_diffusers(family, prompt, dtype):
    assert same(encode(encoders(family, dtype), prompt), theirs(family, prompt, dtype))


@torch.no_grad()
def test_layers_of_sdxl_equal_diffusers_clip_skip():
    for last_layer, clip_skip in ((-2, None), (-3, 1)):
        assert same(
            encode(encoders("sdxl"), "a cat", last_layer),
            theirs("sdxl", "a cat", clip_skip=clip_skip),
        )


@torch.no_grad()
def test_layers_of_sd1_have_the_final_norm():
    ((module, tokenizer),) = encoders("sd1")
    ids = tokenizer("a cat", padding="max_length", return_tensors="pt").input_ids
    states = module(ids, output_hidden_states=True).hidden_states
    for last_layer in (-1, -2, -3):
        assert torch.equal(
            encode([(module, tokenizer)], "a cat", last_layer).hidden,
            module.final_layer_norm(states[last_layer]),
        )
    default = encode([(module, tokenizer)], "a cat").hidden
    assert torch.equal(default, encode([(module, tokenizer)], "a cat", -1).hidden)
    # past the first: the last
    assert torch.equal(default, encode([(module, tokenizer)], "a cat", -20).hidden)


@torch.no_grad()
def test_layers_of_sd2_count_the_one_that_its_folder_leaves_out():
    pair = encoders("sd2")
    default = encode(pair, "a cat").hidden
    assert torch.equal(default, encode(pair, "a cat", -2).hidden)
    assert torch.equal(default, encode(pair, "a cat", -1).hidden)
    assert not torch.equal(default, encode(pair, "a cat", -3).hidden)


def test_a_layer_must_be_negative():
    with pytest.raises(InputError, match="stop_at_clip_layer is 0, expected a negative number"):
        encode(encoders("sd1"), "a", 0)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_interpolate_against_the_empty_prompt(family):
    """Letters are tokens here, but word ends matter: `ab (cd:1.5)` is compared with `ab cd`, of
    equal tokens.
    """
    pair = encoders(family)
    plain, empty, weighted = encode(pair, "ab cd"), encode(pair, ""), encode(pair, "ab (cd:1.5)")
    factors = torch.ones(1, 77, 1)
    factors[:, 3:5] = 1.5
    expected = (plain.hidden - empty.hidden) * factors + empty.hidden
    torch.testing.assert_close(weighted.hidden, expected, rtol=0, atol=1e-5)
    untouched = [position for position in range(77) if position not in (3, 4)]
    assert torch.equal(weighted.hidden[:, untouched], plain.hidden[:, untouched])
    assert not torch.equal(weighted.hidden[:, 3:5], plain.hidden[:, 3:5])
    if family == "sdxl":
        assert torch.equal(weighted.pooled, plain.pooled)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_long_prompts_are_chunks_encoded_apart(family):
    pair = encoders(family)
    long = encode(pair, "a" * 75 + "b" * 10)
    first, second = encode(pair, "a" * 75), encode(pair, "b" * 10)
    assert long.hidden.shape[1] == 2 * 77
    assert torch.equal(long.hidden[:, 78:], second.hidden[:, 1:])
    # The first chunk ends inside a word, so its last token is not that of the word "a…a".
    assert torch.equal(long.hidden[:, :74], first.hidden[:, :74])
    if family == "sdxl":
        assert not torch.equal(long.pooled, second.pooled)


def test_sizes_are_those_of_an_uncropped_picture():
    encoding = with_sizes(encode(encoders("sdxl"), "a"), None, 64, 96)
    assert encoding.sizes[:, :6].tolist() == [[64, 96, 0, 0, 64, 96]]
    assert encoding.sizes.dtype == encoding.hidden.dtype
    assert with_sizes(encode(encoders("sd1"), "a"), None, 64, 96).sizes is None
