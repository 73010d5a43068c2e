"""Textual inversions: an inversion of existing tokens equals those tokens, anywhere in a prompt;
unusable files are named.
"""

import pytest
import torch
from node_calls import call, context_in
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, recipes

from katz_graph.core.errors import InputError
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.text.encoder import encode
from katz_graph.models.text.textual_inversion import called, identities, pieces
from katz_graph.models.text.tokens import prompt_length

STORE = ModelStore()
NAMES = {"sd1": ("emb_params",), "sd2": ("<own-token>",), "sdxl": ("clip_l", "clip_g")}


def encoders(clip):
    return [
        (STORE.text_encoder(one.encoder, "cpu", torch.float32), STORE.tokenizer(one))
        for one in clip.encoders
    ]


def write(folder, name, family, text):
    """Writes an inversion with the vectors of a text's tokens."""
    place = folder / "models" / "embeddings"
    place.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for key, (module, tokenizer) in zip(NAMES[family], encoders(recipes(family)[1]), strict=True):
        ids = tokenizer(text).input_ids[1:-1]
        tensors[key] = module.get_input_embeddings().weight.detach()[ids].clone()
    save_file(tensors, place / f"{name}.safetensors")


def encoded(folder, family, text):
    context = context_in(folder)
    (entry,) = call("CLIPTextEncode", context, text=text, clip=recipes(family)[1])
    prompt = entry.encoding
    encoding = encode(encoders(prompt.clip), prompt.text, learned=prompt.clip.learned)
    assert encoding.hidden.shape[1] == prompt_length(prompt)
    return encoding, context.warnings


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("learned", "plain"),
    [
        ("embedding:ab", "a b"),
        ("x embedding:ab y", "x a b y"),
        ("x embedding:ab.safetensors, y", "x a b, y"),
        ("x (embedding:ab:1.3) y", "x (a b:1.3) y"),
        ("x\nembedding:ab embedding:ab y", "x\na b a b y"),
        ("x " * 73 + "embedding:ab", "x " * 73 + "a b"),
        ("x " * 74 + "(embedding:ab)", "x " * 74 + "(a b)"),  # not split at a row's end
    ],
)
def test_an_inversion_of_tokens_is_those_tokens(tmp_path, family, learned, plain):
    write(tmp_path, "ab", family, "a b")
    (got, warnings), (expected, _) = (
        encoded(tmp_path, family, learned),
        encoded(tmp_path, family, plain),
    )
    assert warnings == []
    assert torch.equal(got.hidden, expected.hidden)
    assert (got.pooled is None) == (family != "sdxl")
    assert got.pooled is None or torch.equal(got.pooled, expected.pooled)


def test_one_that_is_not_there_is_left_out_with_a_warning(tmp_path):
    write(tmp_path, "watercolour", "sd1", "a b")
    got, warnings = encoded(tmp_path, "sd1", "x embedding:watercolor, y")
    assert torch.equal(got.hidden, encoded(tmp_path, "sd1", "x , y")[0].hidden)
    assert warnings == [
        'embedding:watercolor is not in embeddings; did you mean "watercolour"?; the prompt '
        "leaves it out"
    ]


def test_one_of_another_family_is_left_out_with_a_warning(tmp_path):
    write(tmp_path, "ab", "sdxl", "a b")
    path = tmp_path / "models" / "embeddings" / "ab.safetensors"
    # the width of SDXL's first text encoder only, like SD1.5's
    save_file({"emb_params": load_file(path)["clip_l"]}, path)
    got, warnings = encoded(tmp_path, "sdxl", "x embedding:ab y")
    assert len(warnings) == 1
    assert "embedding:ab has no vectors of width 48 for text encoder 2" in warnings[0]
    assert torch.equal(
        got.hidden[:, :, :32], encoded(tmp_path, "sdxl", "x a b y")[0].hidden[:, :, :32]
    )
    assert torch.equal(got.hidden[:, :, 32:], encoded(tmp_path, "sdxl", "x y")[0].hidden[:, :, 32:])


def test_a_pickle_is_refused_with_the_way_out(tmp_path):
    place = tmp_path / "models" / "embeddings"
    place.mkdir(parents=True)
    torch.save({"string_to_param": {"*": torch.zeros(2, 32)}}, place / "old.pt")
    for name in ("old", "old.pt"):
        with pytest.raises(
            InputError, match=r"old\.pt: a pickle, which can run code .* convert it with python -c"
        ):
            encoded(tmp_path, "sd1", f"x embedding:{name}")
    # files outside of the folder are not opened
    assert encoded(tmp_path, "sd1", f"x embedding:../../{place.name}/old")[1]


def test_a_replaced_file_is_another_prompt(tmp_path):
    write(tmp_path, "ab", "sd1", "a b")
    folders = context_in(tmp_path).folders
    before = identities(("x embedding:ab",), folders)
    (entry,) = call(
        "CLIPTextEncode", context_in(tmp_path), text="x embedding:ab", clip=recipes("sd1")[1]
    )
    write(tmp_path, "ab", "sd1", "a b c")
    assert identities(("x embedding:ab",), folders) != before
    with pytest.raises(InputError, match="changed since the workflow began"):
        encode(
            encoders(entry.encoding.clip), entry.encoding.text, learned=entry.encoding.clip.learned
        )


def test_embedding_names():
    assert called(
        "a embedding:b, embedding:c/d.safetensors (embedding:e:1.2) noembedding:f embedding:b"
    ) == ["b", "c/d.safetensors", "e"]
    assert list(pieces("")) == [("", False)]
    assert list(pieces("a embedding:b, c")) == [("a ", False), ("b", True), (", c", False)]
