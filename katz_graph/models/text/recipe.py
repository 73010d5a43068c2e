"""Answers from a text encoding's recipe what it is made of and how long it will be. Never imports
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from katz_graph.core.recipe import Averaged, ClipRecipe, Encoding, Given, Joined, Prompt, Zeroed


@dataclass(frozen=True, slots=True)
class TextSize:
    """How long a text is for the text encoders of a kind, which `encoder` names. CLIP's read its
    tokens in `chunks` of at most `most` each. Others read it at once, in 0 chunks: of any length
    where `most` is 0, else the first so many tokens. What begins and ends a text is not counted.
    """

    encoder: str
    tokens: int
    chunks: int
    most: int


def prompts(encoding: Encoding) -> Iterator[Prompt]:
    """Yields the prompts that an encoding is made of."""
    return (one for one in _leaves(encoding) if isinstance(one, Prompt))


def givens(encoding: Encoding) -> Iterator[Given]:
    """Yields the encodings that somebody made among those that an encoding is made of."""
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
    """Counts the encodings that it is put together from, each as often as it is used."""
    match encoding:
        case Zeroed(encoding=inner):
            return parts(inner)
        case Joined(first=first, second=second) | Averaged(first=first, second=second):
            return parts(first) + parts(second)
    return 1


def clips(encoding: Encoding) -> tuple[ClipRecipe, ...]:
    """Returns the text encoders that an encoding needs, each once."""
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
