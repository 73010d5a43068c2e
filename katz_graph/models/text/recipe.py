"""Finds the parts and the length of a text encoding from its recipe. Never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from katz_graph.core.recipe import Averaged, ClipRecipe, Encoding, Given, Joined, Prompt, Zeroed


@dataclass(frozen=True, slots=True)
class TextSize:
    """Holds the length of a text for a text encoder. Counts no start and end tokens."""

    encoder: str  # title of the encoder's kind
    tokens: int
    chunks: int  # of a CLIP encoder; 0 for encoders that read the text as one sequence
    most: int  # maximum tokens per chunk or sequence (0: no limit)


def prompts(encoding: Encoding) -> Iterator[Prompt]:
    """Yields the prompts of an encoding."""
    return (one for one in _leaves(encoding) if isinstance(one, Prompt))


def givens(encoding: Encoding) -> Iterator[Given]:
    """Yields the parts of an encoding that packs made."""
    return (one for one in _leaves(encoding) if isinstance(one, Given))


def _leaves(encoding: Encoding) -> Iterator[Prompt | Given]:
    match encoding:
        case Prompt() | Given():
            yield encoding
        case Zeroed(encoding=inner):
            yield from _leaves(inner)
        case Joined(first=first, second=second) | Averaged(first=first, second=second):
            yield from _leaves(first)
            yield from _leaves(second)


def parts(encoding: Encoding) -> int:
    """Counts the prompts and given encodings of an encoding, repetitions included."""
    match encoding:
        case Zeroed(encoding=inner):
            return parts(inner)
        case Joined(first=first, second=second) | Averaged(first=first, second=second):
            return parts(first) + parts(second)
    return 1


def clips(encoding: Encoding) -> tuple[ClipRecipe, ...]:
    """Returns the text encoders needed by an encoding, each once."""
    return tuple(dict.fromkeys(prompt.clip for prompt in prompts(encoding)))


def length(encoding: Encoding, prompt_length: Callable[[Prompt], int]) -> int:
    """Returns T of the encoding [1, T, D]."""
    match encoding:
        case Prompt():
            return prompt_length(encoding)
        case Given(hidden=hidden):
            return int(hidden.shape[1])
        case Zeroed(encoding=inner) | Averaged(first=inner):
            return length(inner, prompt_length)
        case Joined(first=first, second=second):
            return length(first, prompt_length) + length(second, prompt_length)
