"""Builds the miniature's text models: a byte-complete CLIP tokenizer of under 2,000 tokens, a T5
tokenizer and two small text encoders.
"""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Tokenizer,
)

from katz_graph.mini import world

WIDTH = 96
LENGTH = 77
SHORT = 24  # tokens, enough for every caption of the world
# Width of random token embeddings, as a multiple of CLIP's. At CLIP's width, one update at a high
# rate is a sixteenth of an embedding, and words without a meaning yet become alike. Top and bottom
# were then still painted alike after 6,000 updates; with this width and more one-thing scenes they
# differed after 1,500.
TOKEN_WIDTH = 10.0
EXTRA_WORDS = [
    "a", "an", "the", "on", "in", "at", "to", "of", "and", "with", "left", "right", "above",
    "below", "top", "bottom", "middle", "center", "centered", "background", "shape", "sky", "night",
    "beach", "wall", "picture", "drawing", "image", "painting", "photo", "style", "sticker",
    "stripes", "dusk", "striped", "pink", "grey", "gray", "big", "tiny", "two", "one", "object",
    "objects", "near", "next", "under", "over", "behind", "front", "bright", "dark", "no",
    "without", "empty", "colour", "color",
]  # fmt: skip


def rows_at(progress: float) -> int:
    """Returns the number of encoder rows that training reads: at first enough for captions, and
    near the end all rows, as pipelines pass them. With all rows, updates take up to twice as long.
    """
    return SHORT if progress < 0.9 else LENGTH


def byte_alphabet() -> list[str]:
    """Returns the 256 printable characters for bytes of byte-level BPE (GPT-2's table), "!"
    first.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in printable]
    return [chr(value) for value in printable] + [chr(256 + index) for index in range(len(others))]


def learn_merges(words: list[str]) -> list[tuple[str, str]]:
    """Learns byte-pair merges, most frequent pair first, until every word is one token."""
    pieces = {word: [*word[:-1], word[-1] + "</w>"] for word in words}
    merges: list[tuple[str, str]] = []
    while counts := Counter(pair for parts in pieces.values() for pair in pairwise(parts)):
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        for word, parts in pieces.items():
            joined: list[str] = []
            for part in parts:
                if joined and (joined[-1], part) == best:
                    joined[-1] += part
                else:
                    joined.append(part)
            pieces[word] = joined
    return merges


def vocabulary() -> list[str]:
    """Returns the words that are one token each, sorted."""
    names = " ".join(
        (*world.SHAPES, *world.COLOURS, *world.BACKGROUNDS, *world.SIZES, *world.PLACES)
    )
    return sorted({*names.split(), *EXTRA_WORDS})


def write_tokenizer(folder: Path, pad: str) -> CLIPTokenizer:
    """Writes vocab.json, merges.txt and the settings of a CLIP tokenizer; returns it loaded."""
    words = vocabulary()
    merges = learn_merges([word for word in words if len(word) > 1])
    alphabet = byte_alphabet()
    tokens = [
        *alphabet,
        *(letter + "</w>" for letter in alphabet),
        *dict.fromkeys(a + b for a, b in merges),
    ]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges,
        pad_token=pad,
        model_max_length=LENGTH,
    )
    tokenizer.save_pretrained(folder)
    write_vocabulary(tokenizer, folder)
    loaded: CLIPTokenizer = CLIPTokenizer.from_pretrained(folder)
    return loaded


def write_unigram_tokenizer(folder: Path) -> T5Tokenizer:
    """Writes the settings of a T5 unigram tokenizer and returns it loaded. Its pieces are the words
    of `vocabulary`, each after a space, and the printable characters with and without a space.
    """
    letters = [chr(value) for value in range(33, 127)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -8.0)]
    pieces += [(f"▁{word}", -2.0) for word in vocabulary() if len(word) > 1]
    pieces += [(f"{space}{letter}", -10.0) for letter in letters for space in ("", "▁")]
    tokenizer = T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=LENGTH)
    tokenizer.save_pretrained(folder)
    loaded: T5Tokenizer = T5Tokenizer.from_pretrained(folder)
    return loaded


def write_vocabulary(tokenizer: CLIPTokenizer, folder: Path) -> None:
    """Writes vocab.json and merges.txt next to tokenizer.json, for libraries that read only these
    (transformers before 5).
    """
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (folder / "vocab.json").write_text(
        json.dumps(model["vocab"], ensure_ascii=False) + "\n", "utf-8"
    )
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", "utf-8")


def encoder_config(tokenizer: CLIPTokenizer, layers: int) -> CLIPTextConfig:
    """Configures an encoder of `layers` layers. Pipelines of this family read the second-to-last
    layer, so the last one is unused.
    """
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        hidden_act="quick_gelu",
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
    )


def build_encoders(
    first: CLIPTokenizer, second: CLIPTokenizer
) -> tuple[CLIPTextModel, CLIPTextModelWithProjection]:
    """Makes two encoders of random weights, with two and four used layers."""
    encoders = (
        CLIPTextModel(encoder_config(first, 3)),
        CLIPTextModelWithProjection(encoder_config(second, 5)),
    )
    for encoder in encoders:
        encoder.get_input_embeddings().weight.data.mul_(TOKEN_WIDTH)
    return encoders
