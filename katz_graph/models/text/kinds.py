"""Declares the kinds of text encoders: their classes in transformers, and what their
configurations call things. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ClipRecipe, Component, TextEncoderRecipe
from katz_graph.models.configuration import config, config_value

USUAL_ROW = 77  # tokens of a row of CLIP's, where a configuration does not say it
POSITIONS = "max_position_embeddings"  # what configurations of CLIP's call that number
SHORTEST_ROW = 3  # tokens: start, end, and one between them


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """Declares a kind of text encoder. `title`: in messages; `model`, `configuration`, `tokenizer`:
    classes of transformers; `width`: what the configuration calls the width of a token. `rows`: it
    takes texts in rows of one length. `packs`: what packs call its tokens. `causal`: a token reads
    those before it alone. `overflows`: float16 is too narrow for it.
    """

    name: str
    title: str
    model: str
    configuration: str
    tokenizer: str
    packs: str
    width: str = "hidden_size"
    rows: bool = False
    projects: bool = False
    causal: bool = False
    overflows: bool = False


CLIP = EncoderKind(
    "clip", "CLIP", "CLIPTextModel", "CLIPTextConfig", "CLIPTokenizer", "l", rows=True
)
PROJECTING = replace(CLIP, model="CLIPTextModelWithProjection", packs="g", projects=True)
T5 = EncoderKind(
    "t5",
    "T5",
    "T5EncoderModel",
    "T5Config",
    "T5Tokenizer",
    "t5xxl",
    width="d_model",
    overflows=True,
)
QWEN3 = EncoderKind(
    "qwen3",
    "Qwen3",
    "Qwen3Model",
    "Qwen3Config",
    "Qwen2Tokenizer",
    "qwen3_4b",
    causal=True,
    overflows=True,
)
MT5 = EncoderKind(
    "mt5",
    "mT5",
    "MT5EncoderModel",
    "MT5Config",
    "T5Tokenizer",
    "mt5xl",
    width="d_model",
    overflows=True,
)
BERT = EncoderKind("bert", "BERT", "BertModel", "BertConfig", "BertTokenizer", "hydit_clip")
KINDS = {kind.model: kind for kind in (CLIP, PROJECTING, T5, MT5, QWEN3, BERT)} | {
    "Qwen3ForCausalLM": QWEN3
}
"""Maps the architectures that configurations name to their kinds."""


def kind_of(encoder: Component) -> EncoderKind:
    """Returns the kind of a text encoder. InputError for one that is not supported."""
    try:
        return kind_named(config(encoder))
    except KeyError as error:
        raise InputError(
            f"{encoder.folder}: config.json describes {error.args[0]}, expected "
            f"{' or '.join(KINDS)}"
        ) from None


def kind_named(values: Mapping[str, Any]) -> EncoderKind:
    """Returns the kind that a configuration names, CLIP where none. KeyError for another."""
    return KINDS[(values.get("architectures") or [CLIP.model])[0]]


def kind_of_module(module: Any) -> EncoderKind:
    """Returns the kind of a text encoder that is loaded."""
    return KINDS[type(module).__name__]


def width_of(encoder: Component) -> int:
    """Returns the width of a token of its hidden states."""
    return int(config_value(encoder, kind_of(encoder).width, int))


def row_of(encoder: Component) -> int:
    """Returns the tokens of each row that an encoder of CLIP's reads, start and end included.
    InputError where they are too few.
    """
    row = int(config_value(encoder, POSITIONS, int, USUAL_ROW))
    if row < SHORTEST_ROW:
        raise InputError(
            f"{encoder.folder}: config.json gives {row} as {POSITIONS}, expected at least "
            f"{SHORTEST_ROW}"
        )
    return row


def row_in(values: Mapping[str, Any]) -> int:
    """Returns the same from a configuration."""
    return int(values.get(POSITIONS, USUAL_ROW))


def joined_length(rows: Sequence[tuple[int, int]]) -> int:
    """Returns the tokens of several encoders' rows side by side, of so many rows of so many tokens
    each: those with fewer rows are filled up with empty ones; where rows are of unlike lengths,
    the longer are cut instead, as in ComfyUI.
    """
    counts = [count * length for count, length in rows]
    unlike = len({length for _, length in rows}) > 1
    return (min if unlike else max)(counts, default=0)


def split(encoders: Iterable[TextEncoderRecipe]) -> tuple[list[Component], list[Component]]:
    """Returns those that take texts in rows, CLIP's, and those of long texts."""
    every = [one.encoder for one in encoders]
    return (
        [one for one in every if kind_of(one).rows],
        [one for one in every if not kind_of(one).rows],
    )


def text_width(clip: ClipRecipe) -> int:
    """Returns D of the text encoding [B, T, D]."""
    rows, long = split(clip.encoders)
    beside = sum(map(width_of, rows)) if clip.layout.clip_rows else 0
    return max([beside, *map(width_of, long)])


def pooled_text_width(clip: ClipRecipe) -> int | None:
    """Returns P of the pooled text [B, P]; None where the text encoders give none."""
    rows, _ = split(clip.encoders)
    if not rows:
        return None
    *others, last = rows
    projects = kind_of(last).projects and clip.layout.pooled != "plain"
    own = int(config_value(last, "projection_dim", int)) if projects else width_of(last)
    if clip.layout.pooled == "last":
        return own if projects else None
    return own + sum(map(width_of, others))
