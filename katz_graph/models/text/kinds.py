"""Declares the kinds of text encoders: their classes in transformers, and the keys of their
configurations. Never imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ClipRecipe, Component, TextEncoderRecipe, TextLayout
from katz_graph.models.configuration import config, config_value

USUAL_ROW = 77  # tokens of a CLIP row, unless configured
POSITIONS = "max_position_embeddings"  # configuration key of the tokens of a row
SHORTEST_ROW = 3  # tokens: start, end, and one in between


@dataclass(frozen=True, slots=True)
class Chat:
    """Describes how a language model of Qwen's generates text, in chats of the form ChatML.

    Published models narrower than `own_output_from` compute scores with their embedding, others
    with an output layer of their own.
    """

    own_output_from: int
    thinks: bool = False  # may reason before it answers


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """Declares a kind of text encoder. `model`, `configuration` and `tokenizer` are classes of
    transformers.

    Of a model that also sees pictures, `model` is the part that reads text: it gives the same
    states for text.
    """

    name: str
    title: str  # in messages
    model: str
    configuration: str
    tokenizer: str = ""
    packs: str = ""  # name of its tokens in packs; {} is the size, see `pack_name`
    width: str = "hidden_size"  # configuration key of a token's width
    rows: bool = False  # reads texts in rows of fixed length
    projects: bool = False  # has a text projection
    causal: bool = False  # tokens attend to earlier tokens only
    overflows: bool = False  # in float16
    architectures: tuple[str, ...] = ()  # in configurations, in addition to `model`
    # class of transformers for the configuration of a model that sees pictures, which contains the
    # configuration of its text part
    whole: str = ""
    vocabulary: str = ""  # tensor of single files with the words, if the package does not have them
    sizes: tuple[tuple[int, str], ...] = ()  # published models: width, and size in messages
    chat: Chat | None = None  # None if it cannot generate text
    sight: Sight | None = None  # how it sees pictures


@dataclass(frozen=True, slots=True)
class Sight:
    """Declares how a kind of text encoder sees pictures: with a vision tower, in the same file."""

    tower: EncoderKind  # reads pictures instead of texts
    prefixes: tuple[str, ...]  # of its tensors
    mean: tuple[float, float, float]  # of a picture's channels
    deviation: tuple[float, float, float]
    patch: int  # side in pixels, unless configured
    # frequencies of rotary positions for time, rows and columns, unless configured
    section: tuple[int, int, int]
    interleaved: bool  # axes take turns, instead of one range of frequencies each
    words: tuple[str, str, str] = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    """Words before, in place of, and after a picture."""

    def axes(self, section: Sequence[int], count: int) -> list[int]:
        """Returns the axis of each of `count` frequencies: 0 is time, 1 rows, 2 columns."""
        if not self.interleaved:
            ranges = ([axis % 3] * size for axis, size in enumerate(section))
            return [axis for one in ranges for axis in one][:count]
        return [number % 3 if number < 3 * section[number % 3] else 0 for number in range(count)]


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
    "qwen3_{}",
    causal=True,
    overflows=True,
    architectures=("Qwen3ForCausalLM",),
    sizes=((1024, "0.6B"), (2560, "4B"), (4096, "8B")),
    chat=Chat(own_output_from=4096, thinks=True),
)
QWEN3_VISION = EncoderKind(
    "qwen3_vision",
    "Qwen3-VL's vision tower",
    "Qwen3VLVisionModel",
    "Qwen3VLVisionConfig",
    overflows=True,
)
QWEN3_VL = replace(
    QWEN3,
    name="qwen3_vl",
    title="Qwen3-VL",
    packs="qwen3vl_{}",
    architectures=("Qwen3VLForConditionalGeneration", "Qwen3VLModel"),
    whole="Qwen3VLConfig",
    sizes=((2560, "4B"), (4096, "8B")),
    sight=Sight(
        QWEN3_VISION,
        ("model.visual.", "visual."),
        mean=(0.5, 0.5, 0.5),
        deviation=(0.5, 0.5, 0.5),
        patch=16,
        section=(24, 20, 20),
        interleaved=True,
    ),
)
QWEN2_5_VISION = EncoderKind(
    "qwen2_5_vision",
    "Qwen2.5-VL's vision tower",
    "Qwen2_5_VisionTransformerPretrainedModel",
    "Qwen2_5_VLVisionConfig",
    overflows=True,
)
QWEN2_5_VL = EncoderKind(
    "qwen2_5_vl",
    "Qwen2.5-VL",
    "Qwen2Model",
    "Qwen2Config",
    "Qwen2Tokenizer",
    "qwen25_7b",
    causal=True,
    overflows=True,
    architectures=("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLModel"),
    whole="Qwen2_5_VLConfig",
    sizes=((3584, "7B"),),
    chat=Chat(own_output_from=3584),
    sight=Sight(
        QWEN2_5_VISION,
        ("visual.", "model.visual."),
        mean=(0.48145466, 0.4578275, 0.40821073),  # CLIP's
        deviation=(0.26862954, 0.26130258, 0.27577711),
        patch=14,
        section=(16, 24, 24),
        interleaved=False,
    ),
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
MISTRAL3 = EncoderKind(
    "mistral3",
    "Mistral 3",
    "MistralModel",
    "MistralConfig",
    "PreTrainedTokenizerFast",
    "mistral3_24b",
    causal=True,
    overflows=True,
    architectures=("Mistral3ForConditionalGeneration", "Mistral3Model"),
    whole="Mistral3Config",
    vocabulary="tekken_model",
    sizes=((5120, "Small"),),
)
EVERY = (CLIP, PROJECTING, T5, MT5, QWEN3, QWEN3_VL, QWEN2_5_VL, MISTRAL3, BERT)
SEEING = tuple(kind for kind in EVERY if kind.sight)
TOWERS = {kind.sight.tower.model: kind for kind in SEEING if kind.sight}
"""Maps the classes of vision towers to the kinds that see with them."""
MODULES = {kind.model: kind for kind in reversed(EVERY)}
KINDS = {
    name: kind
    for kind in EVERY
    for name in (*([] if kind.whole else [kind.model]), *kind.architectures)
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
    """Returns the kind of text encoder or vision tower named by a configuration; CLIP without a
    name. Raises KeyError if unsupported.
    """
    name = (values.get("architectures") or [CLIP.model])[0]
    if name in TOWERS and (sight := TOWERS[name].sight):
        return sight.tower
    return KINDS[name]


def kind_of_module(module: Any) -> EncoderKind:
    """Returns the kind of a loaded text encoder; for the text part of a model that sees pictures,
    possibly a kind with the same text part.
    """
    return MODULES[type(module).__name__]


def width_of(encoder: Component) -> int:
    """Returns the width of an encoder's hidden states."""
    return text_value(encoder, kind_of(encoder).width)


def text_value(encoder: Component, name: str) -> int:
    """Returns a number of an encoder's configuration: of its text part, if it has parts."""
    part = config(encoder).get("text_config")
    if isinstance(part, dict) and name in part:
        encoder = replace(encoder, configuration=json.dumps(part))
    return int(config_value(encoder, name, int))


def used_configuration(encoder: Component, layout: TextLayout) -> Mapping[str, Any]:
    """Returns an encoder's configuration without the layers after the last state that is read."""
    values = config(encoder)
    if not layout.states:
        return values
    text = values.get("text_config", values)
    last = min(max(layout.states), text_value(encoder, "num_hidden_layers"))
    used = {**text, "num_hidden_layers": last}
    if "layer_types" in text:
        used["layer_types"] = text["layer_types"][:last]
    return used if text is values else {**values, "text_config": used}


def size_of(encoder: Component) -> str:
    """Returns the size of a published encoder, by its width; empty for other encoders."""
    sizes = dict(kind_of(encoder).sizes)
    return sizes.get(width_of(encoder), "") if sizes else ""


def called(encoder: Component) -> str:
    """Returns the title of an encoder with its size."""
    return f"{kind_of(encoder).title} {size_of(encoder)}".strip()


def pack_name(encoder: Component) -> str:
    """Returns the name of an encoder's tokens in packs, and of its parts in LoRA files."""
    size = size_of(encoder) or "4B"
    return kind_of(encoder).packs.format(size.replace(".", "").lower())


def titles(names: Iterable[str]) -> str:
    """Returns the titles of kinds, for messages."""
    known = {kind.name: kind.title for kind in EVERY}
    return " and ".join(known[name] for name in names)


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
    return max([clip_width, *(width_of(one) * clip.layout.state_count for one in long)])


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
