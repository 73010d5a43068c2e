"""Presents text encoders to packs: tokens, and text encodings that store their prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from katz_graph.comfy.facades.conditioning import ConditioningList, encoded, to_list
from katz_graph.comfy.missing import refuse
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ClipRecipe, ConditioningEntry, Prompt
from katz_graph.node.scope import current

if TYPE_CHECKING:
    from torch import Tensor

SECOND = "g"  # name of the token rows of a model's second CLIP encoder


class TokenRows(list[Any]):
    """The rows of (token, weight) of one text for one encoder, including start and end tokens."""

    def __init__(self, text: str, rows: Iterable[Sequence[Any]], empty: Sequence[Any]) -> None:
        super().__init__(map(list, rows))
        self.text, self.empty = text, list(empty)
        self.original = [list(row) for row in self]

    def is_of_its_text(self) -> bool:
        """Returns whether the pack changed no row. It may append empty rows, which the encoder adds
        anyway.
        """
        count = len(self.original)
        return self[:count] == self.original and all(row == self.empty for row in self[count:])


class Tokens(dict[str, TokenRows]):
    """Maps each encoder's name to its rows."""


class ClipFacade:
    """Represents the text encoders of a recipe."""

    def __init__(self, recipe: ClipRecipe) -> None:
        self.recipe = recipe

    @property
    def layer_idx(self) -> int | None:
        return self.recipe.last_layer

    def clone(self) -> ClipFacade:
        return ClipFacade(self.recipe)

    def clip_layer(self, layer_idx: int) -> None:
        """Selects the layer of the hidden state: -1 is the last."""
        self.recipe = replace(self.recipe, last_layer=layer_idx)

    def tokenize(self, text: str, return_word_ids: bool = False, **_: Any) -> Tokens:
        clip = self._learned(text)
        made, empty = _rows(clip, text, return_word_ids), _rows(clip, "", return_word_ids)
        return Tokens(
            {
                name: TokenRows(text, rows, none[0])
                for name, rows, none in zip(self._names(), made, empty, strict=True)
            }
        )

    def encode_from_tokens(
        self, tokens: Any, return_pooled: Any = False, return_dict: bool = False, **_: Any
    ) -> Any:
        """Returns hidden [1, T, D], with pooled [1, P] on request, both marked with their text."""
        hidden, pooled = encoded(self._prompt(tokens))
        if return_dict:
            return {"cond": hidden, "pooled_output": pooled}
        return (hidden, pooled) if return_pooled else hidden

    def encode_from_tokens_scheduled(
        self,
        tokens: Any,
        unprojected: bool = False,
        add_dict: dict[str, Any] | None = None,
        show_pbar: bool = True,
    ) -> ConditioningList:
        conditioning = to_list((ConditioningEntry(self._prompt(tokens)),))
        if add_dict:
            for pair in conditioning:
                pair[1].update(add_dict)
        return conditioning

    def encode(self, text: str) -> Tensor:
        hidden: Tensor = self.encode_from_tokens(self.tokenize(text))
        return hidden

    def load_model(self, *_: Any, **__: Any) -> None:
        """Does nothing: the engine loads models when they run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"comfy.sd.CLIP.{name}")

    def _names(self) -> tuple[str, ...]:
        """Returns the names of the encoders' token rows."""
        from katz_graph.models.text.kinds import CLIP, kind_of, pack_name

        encoders = [one.encoder for one in self.recipe.encoders]
        return tuple(
            (SECOND if number else CLIP.packs) if kind_of(one).rows else pack_name(one)
            for number, one in enumerate(encoders)
        )

    def _prompt(self, tokens: Any) -> Prompt:
        rows = [tokens.get(name) for name in self._names()] if isinstance(tokens, dict) else [None]
        texts = [one.text for one in rows if isinstance(one, TokenRows) and one.is_of_its_text()]
        if len(texts) < len(rows):
            raise InputError(
                "the pack changed the tokens of a text; only unchanged tokens from "
                "`clip.tokenize` can be encoded"
            )
        others = () if len(set(texts)) == 1 else tuple(texts[1:])
        return Prompt(self._learned(*texts), texts[0], others)

    def _learned(self, *texts: str) -> ClipRecipe:
        """Returns the recipe with the textual inversions named in the texts."""
        from katz_graph.models.text.textual_inversion import with_learned_words

        now = current()
        return (
            self.recipe
            if now is None
            else with_learned_words(self.recipe, texts, now.context.folders, now.context.warn)
        )


def _rows(clip: ClipRecipe, text: str, with_words: bool) -> list[list[list[tuple[Any, ...]]]]:
    """Builds each encoder's rows of (token, weight); `with_words` adds a third number, always 0."""
    from katz_graph.models.text.kinds import kind_of, row_of, width_of
    from katz_graph.models.text.prompt import weighted_segments
    from katz_graph.models.text.textual_inversion import vectors
    from katz_graph.models.text.tokens import load_tokenizer, sequence, token_rows

    ending = (0,) if with_words else ()
    found = []
    for number, encoder in enumerate(clip.encoders):
        tokenizer = load_tokenizer(encoder)
        if not kind_of(encoder.encoder).rows:
            whole = sequence(tokenizer, text, clip.layout, clip.layout.length(number))
            found.append([[(*token, *ending) for token in whole]])
            continue
        row_length = row_of(encoder.encoder)
        learned = vectors(clip.learned, number, width_of(encoder.encoder))
        start, end, filler = (
            (token, 1.0, *ending)
            for token in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        )
        rows = token_rows(tokenizer, row_length, weighted_segments(text), learned)
        ended = [[start, *((*token, *ending) for token in row), end] for row in rows]
        found.append([row + [filler] * (row_length - len(row)) for row in ended])
    return found
