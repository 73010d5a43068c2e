"""Declares the kinds of text encoders: their classes in transformers, and the keys of their
configurations. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ClipRecipe, Component, TextEncoderRecipe
from katz_graph.models.configuration import config, config_value

USUAL_ROW = 77  # tokens of a CLIP row, unless configured
POSITIONS = "max_position_embeddings"  # configuration key of the tokens of a row
SHORTEST_ROW = 3  # tokens: start, end, and one in between


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """Declares a kind of text encoder. `model`, `configuration` and `tokenizer` are classes of
    transformers.
    """

    name: str
    title: str  # in messages
    model: str
    configuration: str
    tokenizer: str
    packs: str  # name of its tokens in packs
    width: str = "hidden_size"  # configuration key of a token's width
    rows: bool = False  # reads texts in rows of fixed length
    projects: bool = False  # has a text projection
    causal: bool = False  # tokens attend to earlier tokens only
    overflows: bool = False  # in float16


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
"""Maps architectures in configurations to kinds."""


def kind_of(encoder: Component) -> EncoderKind:
    """Returns the kind of a text encoder. Raises InputError for an unsupported kind."""
    try:
        return kind_named(config(encoder))
    except KeyError as error:
        raise InputError(
            f"{encoder.folder}: config.json describes {error.args[0]}, expected "
            f"{' or '.join(KINDS)}"
        ) from None


def kind_named(values: Mapping[str, Any]) -> EncoderKind:
    """Returns the kind named by a configuration; CLIP without a name. Raises KeyError if
    unsupported.
    """
    return KINDS[(values.get("architectures") or [CLIP.model])[0]]


def kind_of_module(module: Any) -> EncoderKind:
    """Returns the kind of a loaded text encoder."""
    return KINDS[type(module).__name__]


def width_of(encoder: Component) -> int:
    """Returns the width of an encoder's hidden states."""
    return int(config_value(encoder, kind_of(encoder).width, int))


def row_of(encoder: Component) -> int:
    """Returns the tokens per row of a CLIP encoder, including start and end. Raises InputError for
    too few.
    """
    row = int(config_value(encoder, POSITIONS, int, USUAL_ROW))
    if row < SHORTEST_ROW:
        raise InputError(
            f"{encoder.folder}: config.json: {POSITIONS} is {row}, expected at least {SHORTEST_ROW}"
        )
    return row


def row_in(values: Mapping[str, Any]) -> int:
    """Returns the tokens per row from a configuration, unchecked."""
    return int(values.get(POSITIONS, USUAL_ROW))


def joined_length(rows: Sequence[tuple[int, int]]) -> int:
    """Returns the number of tokens of encoders concatenated along D. `rows`: (number of rows,
    tokens per row) of each encoder. Encoders with fewer rows get empty rows. If row lengths differ,
    longer texts are cut instead, as in ComfyUI.
    """
    counts = [count * length for count, length in rows]
    unlike = len({length for _, length in rows}) > 1
    return (min if unlike else max)(counts, default=0)


def split(encoders: Iterable[TextEncoderRecipe]) -> tuple[list[Component], list[Component]]:
    """Returns the encoders that read rows (CLIP), and the encoders of long texts."""
    every = [one.encoder for one in encoders]
    return (
        [one for one in every if kind_of(one).rows],
        [one for one in every if not kind_of(one).rows],
    )


def text_width(clip: ClipRecipe) -> int:
    """Returns D of the text encoding [B, T, D]."""
    rows, long = split(clip.encoders)
    clip_width = sum(map(width_of, rows)) if clip.layout.clip_rows else 0
    return max([clip_width, *map(width_of, long)])


def pooled_text_width(clip: ClipRecipe) -> int | None:
    """Returns P of the pooled text [B, P]; None without pooled text."""
    rows, _ = split(clip.encoders)
    if not rows:
        return None
    *others, last = rows
    projects = kind_of(last).projects and clip.layout.pooled != "plain"
    own = int(config_value(last, "projection_dim", int)) if projects else width_of(last)
    if clip.layout.pooled == "last":
        return own if projects else None
    return own + sum(map(width_of, others))
