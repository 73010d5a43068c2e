"""Computes text encodings from recipes: joins, averages, zeros. Takes the encoding of prompts as a
function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Averaged, Encoding, Given, Joined, Prompt, Sizes, Zeroed
from katz_graph.host.transfer import to_device
from katz_graph.ir.values import TextEncoding

SCORE = 6.0  # default aesthetic score, for models conditioned on one


def evaluate(
    encoding: Encoding, encode: Callable[[Prompt], TextEncoding], place: Callable[[Tensor], Tensor]
) -> TextEncoding:
    """Computes the encoding [1, T, D], with pooled text [1, P] if available. Raises InputError if
    two encodings do not fit each other.

    `place` moves a tensor to the device and dtype of encoded prompts.
    """
    match encoding:
        case Prompt():
            return encode(encoding)
        case Given(hidden=hidden, pooled=pooled):
            return TextEncoding(place(hidden), None if pooled is None else place(pooled))
        case Zeroed(encoding=inner):
            one = evaluate(inner, encode, place)
            return replace(
                one,
                hidden=torch.zeros_like(one.hidden),
                pooled=None if one.pooled is None else torch.zeros_like(one.pooled),
            )
        case Joined(first=first, second=second):
            one = evaluate(first, encode, place)
            other = _like(evaluate(second, encode, place), one)
            both = None
            if one.mask is not None and other.mask is not None:
                both = torch.cat([one.mask, other.mask], dim=1)
            hidden = torch.cat([one.hidden, other.hidden], dim=1)
            length = one.hidden.shape[1]
            slots = (*one.slots, *(length + slot for slot in other.slots))
            return replace(one, hidden=hidden, mask=both, slots=slots)
        case Averaged(first=first, second=second, share=share):
            one = evaluate(first, encode, place)
            other = _like(evaluate(second, encode, place), one)
            length = one.hidden.shape[1]
            cut = pad(other.hidden[:, :length], (0, 0, 0, max(0, length - other.hidden.shape[1])))
            return replace(
                one,
                hidden=one.hidden * share + cut * (1 - share),
                pooled=_average(one.pooled, other.pooled, share),
            )


def with_sizes(
    encoding: TextEncoding, sizes: Sizes | None, height: int, width: int
) -> TextEncoding:
    """Adds size conditioning, for a picture of this size in pixels, if the encoding has pooled text
    or `sizes` are given. Otherwise returns it unchanged.
    """
    if encoding.pooled is None and sizes is None:
        return encoding
    given_sizes = sizes or Sizes()
    original_height, original_width = given_sizes.height or height, given_sizes.width or width
    target = (
        given_sizes.target_height or original_height,
        given_sizes.target_width or original_width,
    )
    score = SCORE if given_sizes.aesthetic_score is None else given_sizes.aesthetic_score
    numbers = [
        original_height,
        original_width,
        given_sizes.crop_top,
        given_sizes.crop_left,
        *target,
        score,
    ]
    hidden = encoding.hidden
    row = to_device(torch.tensor([numbers], dtype=hidden.dtype), hidden.device)
    return replace(encoding, sizes=row.expand(len(hidden), -1).contiguous())


def _average(first: Tensor | None, second: Tensor | None, share: float) -> Tensor | None:
    if first is None or second is None:
        return first if second is None else second
    return first * share + second * (1 - share)


def _like(encoding: TextEncoding, other: TextEncoding) -> TextEncoding:
    """Returns the encoding unchanged. Raises InputError if its width differs from the other's."""
    if encoding.hidden.shape[-1] != other.hidden.shape[-1]:
        raise InputError(
            f"two conditionings do not fit: their texts are {other.hidden.shape[-1]} and "
            f"{encoding.hidden.shape[-1]} wide; "
            "encode both with the text encoders of one checkpoint"
        )
    return encoding
