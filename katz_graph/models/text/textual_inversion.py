"""Resolves textual inversions: names in prompts, files, and numbers of vectors.

Never imports torch. `embedding:NAME` in a prompt, at its start or after a space, marks the position
of the vectors (Gal et al. 2022).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from katz_graph.core.errors import InputError
from katz_graph.core.messages import suggest
from katz_graph.core.recipe import ClipRecipe, LearnedWords
from katz_graph.files.folders import Folders
from katz_graph.files.weights import PICKLE_ENDINGS, USUAL_ENDING, is_pickle, without_ending
from katz_graph.models.loading.contents import contents_of
from katz_graph.models.loading.identity import PICKLE, file_identity
from katz_graph.models.text.kinds import kind_of, width_of
from katz_graph.models.text.prompt import weighted_segments

CALL = re.compile(r"(?<!\S)embedding:(\S+?)(?=,*(?:\s|$))")
KIND = "embeddings"
OWN_NAME = ("clip_l", "clip_g")  # tensors for the first and second text encoder


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Splits a run of a prompt into text (False) and names of textual inversions (True)."""
    parts = CALL.split(text)
    for index, part in enumerate(parts):
        if index % 2:
            yield part, True
        elif part.strip() or len(parts) == 1:
            yield part, False


def called(text: str) -> list[str]:
    """Returns the names of the textual inversions in a prompt, each once."""
    return list(
        dict.fromkeys(
            part
            for segment, _ in weighted_segments(text)
            for part, is_name in pieces(segment)
            if is_name
        )
    )


def with_learned_words(
    clip: ClipRecipe, texts: Sequence[str], folders: Folders, warn: Callable[[str], None]
) -> ClipRecipe:
    """Adds the textual inversions named by the texts to the text encoders. Warns about missing
    ones, because shared prompts name files of other users. Raises InputError for a pickle.
    """
    for encoder in clip.encoders:
        kind_of(encoder.encoder)  # raises if a checkpoint lacks the encoder
    found = []
    for name in dict.fromkeys(name for text in texts for name in called(text)):
        path = find(name, folders)
        if path is None:
            known = list(map(without_ending, folders.choices(KIND)))
            warn(
                f"embedding:{name} is not in {KIND}{suggest(name, known)}; the prompt leaves it out"
            )
            continue
        words = LearnedWords(name, file_identity(path))
        for number, encoder in enumerate(clip.encoders):
            width = width_of(encoder.encoder)
            if kind_of(encoder.encoder).rows and tensor_name(words, number, width) is None:
                warn(
                    f"embedding:{name} has no vectors of width {width} for text encoder "
                    f"{number + 1}, which ignores it: it was made for another family of models"
                )
        found.append(words)
    return replace(clip, learned=tuple(found)) if found else clip


def identities(texts: Sequence[str], folders: Folders) -> list[str | None]:
    """Returns the identities of the files named by the texts, as part of the texts' cache keys."""
    paths = [find(name, folders) for text in texts for name in called(text)]
    return [None if path is None else repr(file_identity(path)) for path in paths]


def find(name: str, folders: Folders) -> Path | None:
    """Finds the file of a textual inversion, whose name may lack the ending. Returns None without
    one. Raises InputError if only a pickle exists.
    """
    choices = folders.choices(KIND)
    meant = [choice for choice in choices if name in (choice, without_ending(choice))]
    chosen = name if name in meant else next(iter(meant), None)
    if chosen is not None:
        return folders.resolve(KIND, chosen)
    for root in folders.searched(KIND):
        for ending in ("", *PICKLE_ENDINGS):
            pickle = root / (name + ending)
            inside = pickle.is_relative_to(root) and ".." not in Path(name).parts
            if inside and is_pickle(pickle) and pickle.is_file():
                load = (
                    "import torch; from safetensors.torch import save_file as s; d = "
                    f"torch.load('{pickle}', weights_only=True)"
                )
                layouts = "d.get('string_to_param', d).values()"
                convert = (
                    f"{load}; s({{'emb_params': next(iter({layouts})).detach()}}, "
                    f"'{pickle.with_suffix(USUAL_ENDING)}')"
                )
                raise InputError(f'{pickle}: {PICKLE}: convert it with python -c "{convert}"')
    return None


def tensor_name(words: LearnedWords, encoder: int, width: int) -> str | None:
    """Returns the file's tensor for a text encoder, by number and width; None without one."""
    shapes = contents_of(words.file).shapes
    fitting = [
        name for name, shape in shapes.items() if shape and shape[-1] == width and len(shape) <= 2
    ]
    own = OWN_NAME[encoder : encoder + 1]
    return next((name for name in fitting if name in own), fitting[0] if fitting else None)


def vectors(learned: Sequence[LearnedWords], encoder: int, width: int) -> dict[str, int]:
    """Counts the vectors of each textual inversion for a text encoder, by name. Omits those without
    any.
    """
    counts = {}
    for words in learned:
        name = tensor_name(words, encoder, width)
        if name is not None:
            shape = contents_of(words.file).shapes[name]
            counts[words.name] = shape[0] if len(shape) == 2 else 1
    return counts
