"""Encodes a prompt for a network: tokens, chunks, a layer of each encoder, weights.

Unweighted prompts of up to 75 tokens are bit-equal to diffusers' pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import pad

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import DEFAULT_LAYOUT, LearnedWords, TextLayout
from katz_graph.host.transfer import to_device
from katz_graph.ir.values import TextEncoding
from katz_graph.models.loading.identity import check_unchanged
from katz_graph.models.text.kinds import joined_length, kind_of_module
from katz_graph.models.text.pictures import Shown
from katz_graph.models.text.prompt import Learned, Token, weighted_segments
from katz_graph.models.text.sequence import encode_sequence, weigh
from katz_graph.models.text.textual_inversion import tensor_name, vectors
from katz_graph.models.text.tokens import token_rows, words_of

NO_PICTURES: Mapping[int, Sequence[Shown]] = MappingProxyType({})
NO_WORD = -1
STAND_IN = 0  # placeholder id at the position of a learned vector
# of OpenCLIP's ViT-H as trained; diffusers' folders omit the last layer
OPEN_CLIP_LAYERS = 24


@dataclass(frozen=True, slots=True)
class Layer:
    """Selects a hidden state: the n-th from the end, with or without the encoder's final norm."""

    from_end: int  # 1 is the last layer's output
    normed: bool


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """Pairs a text encoder and tokenizer with textual inversions' vectors [n, D] by name."""

    module: Any
    tokenizer: Any
    learned: Mapping[str, Tensor]


def encode(
    encoders: Sequence[tuple[Any, Any]],
    text: str,
    last_layer: int | None = None,
    further: Sequence[str] = (),
    learned: Sequence[LearnedWords] = (),
    layout: TextLayout = DEFAULT_LAYOUT,
    absent: Sequence[int] = (),
    pictures: Mapping[int, Sequence[Shown]] = NO_PICTURES,
) -> TextEncoding:
    """Encodes a prompt with pairs (text encoder, tokenizer). CLIP encoders read rows of fixed
    length, 77 tokens or as configured; their states [1, length · chunks, D] are concatenated along
    D. The other encoders' states are appended along the tokens, padded to equal width, as the
    layout declares. The pooled text is the first chunk's.

    last_layer: of CLIP encoders: -1 is the last layer of the encoder as trained, -2 the one before;
    below the first layer, the last is used. None: the default. further: texts for the second and
    later encoders. absent: numbers of encoders without a text. Their pooled texts are zeros. The
    states of such a CLIP are zeros if another CLIP has a text; states of other encoders are
    omitted, or are masked zeros if the layout has `lengths`. pictures: those that an encoder of
    this number sees, with their rows. learned: textual inversions for CLIP
    prompts. Raises InputError for a non-negative last_layer, and if no encoder has a text.
    """
    if last_layer is not None and last_layer >= 0:
        raise InputError(
            f"stop_at_clip_layer is {last_layer}, expected a negative number: -1 is the last layer"
        )
    texts = [text, *further, *[text] * len(encoders)]
    each = [(*pair, said) for pair, said in zip(encoders, texts, strict=False)]
    in_rows = [number for number, one in enumerate(each) if kind_of_module(one[0]).rows]
    parts, masks, pooled, slots = [], [], None, list[int]()
    if in_rows:
        mute = [number in absent for number in in_rows]
        those = [each[number] for number in in_rows]
        hidden, pooled = _encode_rows(those, last_layer, learned, layout, mute)
        parts = [hidden] if layout.clip_rows and not all(mute) else []
    for number, (module, tokenizer, said) in enumerate(each):
        if number in in_rows or (number in absent and not layout.lengths):
            continue
        hidden, mask, rows = encode_sequence(
            module, tokenizer, said, layout, layout.length(number), pictures.get(number, ())
        )
        slots += [sum(part.shape[1] for part in parts) + row for row in rows]
        silent = number in absent
        parts.append(torch.zeros_like(hidden) if silent else hidden)
        masks.append(torch.zeros_like(mask) if silent else mask)
    if not parts:
        raise InputError("the conditioning has no text for any text encoder: write a prompt")
    widths = (_width(encoder) * layout.state_count for encoder in encoders)
    width = max(*(part.shape[-1] for part in parts), *widths)
    padded_length = [pad(part, (0, width - part.shape[-1])) for part in parts]
    return TextEncoding(
        padded_length[0] if len(padded_length) == 1 else torch.cat(padded_length, dim=1),
        pooled,
        mask=torch.cat(masks, dim=1) if layout.lengths else None,
        slots=tuple(slots),
        words=_words(text, layout, parts[0].device) if layout.words else None,
    )


def _words(text: str, layout: TextLayout, device: torch.device) -> Tensor:
    """Returns the words that the network embeds [1, N, 2], filled up: numbers and weights."""
    words = words_of(text, layout)
    filled = [*words, *[(NO_WORD, 0.0)] * (layout.words - len(words))]
    return to_device(torch.tensor([filled]), device)


def _width(encoder: tuple[Any, Any]) -> int:
    """Returns the width of a long-text encoder's tokens; 0 for CLIP."""
    module, _ = encoder
    kind = kind_of_module(module)
    return 0 if kind.rows else int(getattr(module.config, kind.width))


def _encode_rows(
    encoders: Sequence[tuple[Any, Any, str]],
    last_layer: int | None,
    learned: Sequence[LearnedWords],
    layout: TextLayout,
    mute: Sequence[bool],
) -> tuple[Tensor, Tensor | None]:
    """Returns the hidden states of the CLIP encoders, concatenated along D, and pooled text. Mute
    encoders output zeros.
    """
    rows = [
        token_rows(
            tokenizer,
            module.config.max_position_embeddings,
            weighted_segments(said),
            vectors(learned, number, module.config.hidden_size),
        )
        for number, (module, tokenizer, said) in enumerate(encoders)
    ]
    lengths = [module.config.max_position_embeddings for module, *_ in encoders]
    tokens = joined_length([(len(one), row) for one, row in zip(rows, lengths, strict=True)])
    projects = hasattr(encoders[-1][0], "text_projection")
    encoded = [
        _encode(
            Encoder(
                module,
                tokenizer,
                {words.name: _vectors(words, number, module) for words in learned},
            ),
            [*one, *[[]] * (-(-tokens // row) - len(one))],
            _layer(module.config, projects, last_layer),
        )
        for number, ((module, tokenizer, _), one, row) in enumerate(
            zip(encoders, rows, lengths, strict=True)
        )
    ]
    pooled = [vector for _, vector in encoded]
    if projects and layout.pooled != "plain":
        pooled[-1] = encoders[-1][0].text_projection(pooled[-1])
    states = [
        torch.zeros_like(one[:, :tokens]) if off else one[:, :tokens]
        for (one, _), off in zip(encoded, mute, strict=True)
    ]
    pooled = [torch.zeros_like(one) if off else one for one, off in zip(pooled, mute, strict=True)]
    hidden = torch.cat(states, dim=-1)
    if layout.pooled == "last":
        return hidden, pooled[-1] if projects else None
    return hidden, torch.cat(pooled, dim=-1)


def _layer(config: Any, projects: bool, last_layer: int | None) -> Layer:
    """Selects the layer. The default is the last for CLIP-L alone; the last but one of each,
    without norm, if an encoder projects; and for OpenCLIP alone the last but one as trained, which
    is the last in diffusers' folders.
    """
    absent = (
        1
        if not projects
        and config.hidden_act == "gelu"
        and config.num_hidden_layers != OPEN_CLIP_LAYERS
        else 0
    )
    if last_layer is None:
        last_layer = -2 if projects or config.hidden_act == "gelu" else -1
    if -last_layer > config.num_hidden_layers + absent:
        return Layer(1, normed=True)
    return Layer(max(1, -last_layer - absent), normed=not projects)


def _encode(
    encoder: Encoder, rows: Sequence[Sequence[Token]], layer: Layer
) -> tuple[Tensor, Tensor]:
    """Returns hidden states [1, length · rows, D] with weights applied, and the first row's pooled
    text [1, D], not projected.

    Weighs states relative to the empty prompt's at the same position: (z - z_empty) · w + z_empty.
    """
    runs = [_run(encoder, [token for token, _ in row], layer) for row in rows]
    states, pooled = [hidden for hidden, _ in runs], runs[0][1]
    if any(weight != 1.0 for row in rows for _, weight in row):
        empty, _ = _run(encoder, [], layer)
        states = [
            weigh(hidden, empty, [1.0, *(weight for _, weight in row)])
            for hidden, row in zip(states, rows, strict=True)
        ]
    return torch.cat(states, dim=1), pooled


def _run(encoder: Encoder, tokens: Sequence[int | Learned], layer: Layer) -> tuple[Tensor, Tensor]:
    """Runs one encoder on one row. Returns hidden states [1, length, D] and pooled text [1, D]."""
    module, tokenizer = encoder.module, encoder.tokenizer
    vectors = {
        place: encoder.learned[token[0]][token[1]]
        for place, token in enumerate(tokens, start=1)
        if isinstance(token, tuple)
    }
    ids = [
        tokenizer.bos_token_id,
        *(STAND_IN if isinstance(token, tuple) else token for token in tokens),
        tokenizer.eos_token_id,
    ]
    ids += [tokenizer.pad_token_id] * (module.config.max_position_embeddings - len(ids))
    with torch.no_grad(), _placed(module, vectors):
        inner = getattr(module, "text_model", module)  # encoders with a projection have it
        output = inner(to_device(torch.tensor([ids]), module.device), output_hidden_states=True)
        hidden = output.hidden_states[-layer.from_end]
        if layer.normed:
            hidden = inner.final_layer_norm(hidden)
    return hidden, output.pooler_output


@contextmanager
def _placed(module: Any, vectors: Mapping[int, Tensor]) -> Iterator[None]:
    """Replaces token embeddings of one row by vectors, by position, inside the `with` statement."""

    def place(_: Any, __: Any, embedded: Tensor) -> Tensor:  # [1, length, D]
        embedded = embedded.clone()
        for position, vector in vectors.items():
            embedded[0, position] = vector
        return embedded

    if not vectors:
        yield
        return
    hook = module.get_input_embeddings().register_forward_hook(place)
    try:
        yield
    finally:
        hook.remove()


def _vectors(words: LearnedWords, number: int, module: Any) -> Tensor:
    """Reads the vectors [n, D] of a textual inversion for one text encoder; n may be 0."""
    width = module.config.hidden_size
    name = tensor_name(words, number, width)
    if name is None:
        return torch.empty(0, width)
    check_unchanged(words.file)
    with safe_open(words.file.path, framework="pt") as content:
        found: Tensor = content.get_tensor(name)
    return to_device(found.reshape(-1, width).to(module.dtype), module.device)
