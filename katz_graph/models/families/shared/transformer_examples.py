"""Builds example calls of transformer stages, on meta tensors to count their cost, or on a device
to time them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component
from katz_graph.ir.values import Step, TextEncoding, Tokens
from katz_graph.models.families.shared.example_inputs import drawn, features
from katz_graph.models.families.shared.transformer import run_blocks, skip_sources, still_read
from katz_graph.models.families.shared.transformer_stack import (
    Fixed,
    KeysValues,
    ReferenceTokens,
    family_of_module,
    padded,
    patch_grid,
    stack_of,
)
from katz_graph.models.family import Architecture, architecture
from katz_graph.models.stages import Example, Sized


def embed(module: Any, sizes: Sized) -> Example:
    stack = stack_of(module)
    x, text, fixed = _inputs(module, sizes)
    context, vectors = stack.context(module, text), stack.vectors(module, text)
    time = torch.rand(sizes.batch, device=module.device, dtype=torch.float64)

    def call() -> list[Tensor]:
        embedding = stack.embedding(module, time, vectors)
        hidden, words = stack.embed(
            module, padded(x, stack.side(module)), context, embedding, fixed
        )
        return [hidden, embedding, *([] if words is None else [words])]

    return call, stack.parts(module, "embed")


def blocks(module: Any, sizes: Sized) -> Example:
    stack = stack_of(module)
    tokens, fixed = drawn_tokens(module, sizes)
    every = stack.blocks(module)
    stop = len(every) if sizes.last_block is None else min(sizes.last_block + 1, len(every))
    numbers = range(sizes.first_block, stop)

    before = still_read(skip_sources(module), numbers.start)
    tokens = replace(tokens, skips=(tokens.hidden,) * len(before))
    stored: Sequence[KeysValues] = ()
    if sizes.prefix:
        assert tokens.text is not None  # the tokens before the picture
        _, stored = stack.prefix(module, numbers, tokens.text[:1], fixed)
        tokens = replace(tokens, text=None)

    def call() -> list[Tensor]:
        made = run_blocks(module, tokens, numbers, fixed, layers=sizes.layers, prefix=stored)
        text = [] if made.text is None else [made.text]
        return [made.hidden, made.embedding, *text, *made.skips]

    return call, every[sizes.first_block : stop]


def prefix(module: Any, sizes: Sized) -> Example:
    """Counts only the tokens, which the next range reads, as output."""
    stack, every = stack_of(module), stack_of(module).blocks(module)
    tokens, fixed = drawn_tokens(module, sizes)
    stop = len(every) if sizes.last_block is None else sizes.last_block + 1
    numbers = range(sizes.first_block, stop)
    before = tokens.text
    assert before is not None  # the family declares a prefix

    def call() -> list[Tensor]:
        return [stack.prefix(module, numbers, before, fixed)[0]]

    return call, every[sizes.first_block : stop]


def head(module: Any, sizes: Sized) -> Example:
    stack = stack_of(module)
    tokens, _ = drawn_tokens(module, sizes)
    grid = patch_grid(stack.side(module), sizes.height, sizes.width)
    return (
        lambda: [stack.head(module, tokens.hidden, tokens.embedding, *grid)],
        stack.parts(module, "head"),
    )


control = embed


def control_tokens(module: Any, sizes: Sized) -> Example:
    stack = stack_of(module)
    tokens, fixed = drawn_tokens(module, sizes)
    _, text, _ = _inputs(module, sizes)
    rows, columns = patch_grid(stack.side(module), sizes.height, sizes.width)
    hint = tokens.hidden.new_empty(sizes.batch, rows * columns, tokens.hidden.shape[-1])
    pad_token = tokens.hidden.new_empty(1, 1, tokens.hidden.shape[-1])
    vectors = stack.vectors(module, text)

    def call() -> list[Tensor]:
        hidden, words, embedding = stack.embed_control(
            module, tokens, hint, vectors, pad_token, fixed
        )
        return [hidden, embedding, *([] if words is None else [words])]

    return call, stack.parts(module, "control")


def control_block(module: Any, sizes: Sized) -> Example:
    """Counts only the residual, which the network reads, as output."""
    stack, number = stack_of(module), sizes.first_block
    if number >= (count := len(stack.blocks(module))):
        raise InputError(
            f"TransformerControlBlock: block {number} does not exist: the ControlNet has 0 to "
            f"{count - 1}"
        )
    tokens, fixed = drawn_tokens(module, sizes)

    def call() -> list[Tensor]:
        hidden, _ = stack.block(module, number, tokens.hidden, tokens.text, tokens.embedding, fixed)
        return [stack.residual(module, number, hidden)]

    return call, [stack.blocks(module)[number]]


def context(module: Any, sizes: Sized) -> Example:
    stack = stack_of(module)
    _, text, _ = _inputs(module, sizes)
    return lambda: [stack.context(module, text)], stack.parts(module, "context")


def _inputs(module: Any, sizes: Sized) -> tuple[Tensor, TextEncoding, Fixed]:
    """Returns a model input, a text encoding and the fixed inputs. Uses the model's text length if
    it is constant.
    """
    shape, stack, family = _shape_of(module), stack_of(module), family_of_module(module)
    tokens = sum(family.text_layout.lengths) or sizes.tokens
    words = family.text_layout.words
    text = TextEncoding(
        drawn(module, sizes, tokens, shape.text_width),
        None if shape.pooled_width is None else drawn(module, sizes, shape.pooled_width),
        drawn(module, sizes, 7),
        guidance=drawn(module, sizes),
        mask=torch.ones(sizes.batch, tokens, device=module.device),
        words=torch.zeros(sizes.batch, words, 2, device=module.device) if words else None,
    )
    grid = patch_grid(stack.side(module), sizes.height, sizes.width)
    seen = tuple(drawn(module, sizes, shape.latent_channels, *one) for one in sizes.references)
    fixed = stack.fixed(module, *grid, tokens, ReferenceTokens(seen))
    return features(module, sizes, shape.input_channels), text, fixed


def _shape_of(module: Any) -> Architecture:
    return architecture(_component(module))


def _component(module: Any) -> Component:
    values = {**module.config, "_class_name": type(module).__name__}
    return Component(values["_class_name"], (), json.dumps(values, default=list))


def drawn_tokens(module: Any, sizes: Sized) -> tuple[Tokens, Fixed]:
    """Returns the input of the first block, and the fixed inputs."""
    stack = stack_of(module)
    x, text, fixed = _inputs(module, sizes)
    controls = family_of_module(module).controls
    if controls is not None and controls.reads_tokens(_component(module)):
        rows, columns = patch_grid(stack.side(module), sizes.height, sizes.width)
        hidden, words, embedding = stack.model_tokens(
            module, sizes.batch, rows * columns, text.hidden.shape[1]
        )
        step = Step.of(x, x, 0.0, 0.0)
        return Tokens(hidden, words, embedding, step), fixed
    time = torch.rand(sizes.batch, device=module.device, dtype=x.dtype)
    embedding = stack.embedding(module, time, stack.vectors(module, text))
    context = stack.context(module, text)
    hidden, words = stack.embed(module, padded(x, stack.side(module)), context, embedding, fixed)
    return Tokens(hidden, words, embedding, Step.of(x, x, 0.0, 0.0)), fixed
