"""Generates text with a language model, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    ClipRecipe,
    Fill,
    Prompt,
    TextEncoderRecipe,
    TextLayout,
    TextRequest,
    TokenSampling,
)
from katz_graph.host.transfer import to_device
from katz_graph.models.loading.contents import contents_of
from katz_graph.models.text.kinds import EVERY, Chat, called, kind_of, width_of
from katz_graph.models.text.pictures import Shown, check_sees, texts_around
from katz_graph.models.text.prompt import Slot
from katz_graph.models.text.sequence import positions_of, with_rows
from katz_graph.models.text.tokens import with_slots
from katz_graph.models.text.tower import NOTHING, hidden_states

OUTPUT_LAYER = "lm_head.weight"
ENDS = ("<|im_end|>", "<|endoftext|>")
TURN, ANSWER = "<|im_start|>{}\n{}<|im_end|>\n", "<|im_start|>assistant\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"
THOUGHT, END_OF_THOUGHT = "<think>", "</think>"


def generator_of(clip: ClipRecipe) -> TextEncoderRecipe:
    """Returns the language model among text encoders. Raises InputError for other encoders, and
    for a file without the output layer that its model needs.
    """
    if clip.missing:
        raise InputError(clip.missing.reason)
    recipe, *others = clip.encoders
    if others or kind_of(recipe.encoder).chat is None:
        given = " and ".join(called(one.encoder) for one in clip.encoders)
        able = ", ".join(kind.title for kind in EVERY if kind.chat is not None)
        raise InputError(f"{recipe.encoder.folder}: {given} cannot generate text: use {able}")
    output_layer(recipe)
    return recipe


def output_layer(recipe: TextEncoderRecipe) -> str:
    """Returns the tensor of the output layer in a language model's files; empty if the model
    computes scores with its embedding. Raises InputError if the tensor is missing.
    """
    part = recipe.encoder
    names = (name for file in part.weight_files for name in contents_of(file).shapes)
    found = next((name for name in names if name.endswith(OUTPUT_LAYER)), "")
    if not found and width_of(part) >= _chat(recipe).own_output_from:
        raise InputError(
            f"{part.folder}: has no {OUTPUT_LAYER}, so this {called(part)} cannot generate text: "
            "use a complete file"
        )
    return found


def asked(recipe: TextEncoderRecipe, request: TextRequest, pictures: Sequence[Shown] = ()) -> str:
    """Returns the text that a language model continues, without its pictures."""
    return "".join(_texts(recipe, request, pictures))


def _texts(recipe: TextEncoderRecipe, request: TextRequest, pictures: Sequence[Shown]) -> list[str]:
    """Returns the texts before, between and after the pictures."""
    if not request.template:
        return texts_around(request.prompt, TextLayout(template="{}"), pictures)
    system = TURN.format("system", request.system) if request.system else ""
    thought = NO_THOUGHT if _chat(recipe).thinks and not request.thinking else ""
    turn = TURN.format("user", "{}") + ANSWER + thought
    first, *others = texts_around(request.prompt, TextLayout(template=turn), pictures)
    return [system + first, *others]


def seen_in(clip: ClipRecipe, request: TextRequest) -> Prompt:
    """Returns the prompt of a request, with its pictures. Raises InputError if the language model
    sees none.
    """
    if request.pictures:
        check_sees(clip)
    return Prompt(clip, request.prompt, pictures=request.pictures)


def tokens(
    module: Any,
    output: Tensor,
    tokenizer: Any,
    recipe: TextEncoderRecipe,
    request: TextRequest,
    pictures: Sequence[Shown] = (),
) -> Iterator[int]:
    """Yields the tokens that continue a request's text, without the one that ends it. Every token
    is computed when it is asked for.

    output: weights [words, D] from the last hidden state to scores. pictures: with their rows.
    """
    ends = set(tokenizer.convert_tokens_to_ids(list(ENDS)))
    cache, made = DynamicCache(config=module.config), list[int]()
    generator = torch.Generator()
    if request.sampling is not None:
        generator.manual_seed(request.sampling.seed)
    said = with_slots(tokenizer, _texts(recipe, request, pictures), pictures)
    if not said:
        raise InputError("TextGenerate: the prompt is empty: write one, or use the template")
    positions = positions_of(said, 0, Fill(), pictures)
    given = [0 if isinstance(token, Slot) else token for token, _ in said]
    slots = [isinstance(token, Slot) for token, _ in said]
    while len(made) < request.max_tokens:
        with torch.no_grad():
            ids = to_device(torch.tensor([given]), module.device)
            embedded, deep = module.embed_tokens(ids), NOTHING
            if not made:
                embedded, deep = with_rows(embedded, slots, 0, pictures)
            places = to_device(positions, module.device)
            state = hidden_states(module, embedded, positions=places, deep=deep, cache=cache)
            scores = F.linear(state[:, -1], output).float().cpu()
        token = chosen(scores, made, request.sampling, generator)
        if token in ends:
            return
        made.append(token)
        given, positions = [token], positions[..., -1:] + 1  # a text ends with words
        yield token


def chosen(
    scores: Tensor, made: Sequence[int], sampling: TokenSampling | None, generator: torch.Generator
) -> int:
    """Returns the next token from its scores [1, words] in float32 on the CPU. `made`: the tokens
    generated so far.
    """
    if sampling is None:
        return int(scores.argmax())
    before = torch.tensor([list(made)], dtype=torch.long)
    if made and sampling.presence_penalty:
        scores = scores.clone()
        scores[0, list(set(made))] -= sampling.presence_penalty
    adjusted: Tensor = _processors(sampling, bool(made))(before, scores)
    return int(torch.multinomial(adjusted.softmax(dim=-1), 1, generator=generator))


def _processors(sampling: TokenSampling, penalised: bool) -> LogitsProcessorList:
    """Returns transformers' changes to scores, in order."""
    found = LogitsProcessorList()
    if penalised and sampling.repetition_penalty not in (0.0, 1.0):
        found.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    found.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        found.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        found.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        found.append(MinPLogitsWarper(sampling.min_p))
    return found


def parted(text: str, opening: str) -> tuple[str, str]:
    """Returns the answer and the reasoning of a generated text that continues `opening`. Reasoning
    that is not finished leaves no answer.
    """
    stripped = text.lstrip()
    if not (stripped.startswith(THOUGHT) or opening.rstrip().endswith(THOUGHT)):
        return text, ""
    thought, _, answer = stripped.removeprefix(THOUGHT).partition(END_OF_THOUGHT)
    return answer.strip(), thought.strip()


def _chat(recipe: TextEncoderRecipe) -> Chat:
    chat = kind_of(recipe.encoder).chat
    assert chat is not None  # checked by `generator_of`
    return chat
