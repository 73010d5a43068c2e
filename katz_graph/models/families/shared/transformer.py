"""Computes the stages of transformers, and calls them on modules without memory to count what they
cost: with the stack of parts that a family names.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from katz_graph.errors import InputError
from katz_graph.ir.values import Tokens
from katz_graph.models.families.shared.compute import UNPOOLED
from katz_graph.models.family import family_of_class
from katz_graph.models.stages import Example, Loop, Outputs, Sized
from katz_graph.sampling.prediction import to_denoised


class Stack(Protocol):
    """Computes a transformer in parts; `families.sd3.stack` says what each takes and gives."""

    def context(self, module: Any, hidden: Tensor) -> Tensor: ...
    def pooled(self, module: Any, vector: Tensor) -> Tensor: ...
    def position(self, module: Any, rows: int, columns: int) -> Tensor: ...
    def embed(self, module: Any, x: Tensor, position: Tensor) -> Tensor: ...
    def embedding(self, module: Any, timestep: Tensor, pooled: Tensor) -> Tensor: ...
    def block(
        self, module: Any, number: int, hidden: Tensor, text: Tensor | None, embedding: Tensor
    ) -> tuple[Tensor, Tensor | None]: ...
    def head(
        self, module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int
    ) -> Tensor: ...


def stack_of(module: Any) -> Stack:
    family = family_of_class(type(module).__name__)
    assert family is not None  # only networks of families are loaded
    return cast(Stack, import_module(family.network.stack))


def context(module: Any, given: Mapping[str, Any]) -> Outputs:
    return (stack_of(module).context(module, given["text"].hidden),)


def pooled(module: Any, given: Mapping[str, Any]) -> Outputs:
    if given["text"].pooled is None:
        raise InputError(UNPOOLED)
    return (stack_of(module).pooled(module, given["text"].pooled),)


def embed(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the tokens of the latent, filled up with what lies on its other side where it is no
    multiple of the patch, and of the text.
    """
    step, stack = given["step"], stack_of(module)
    rows, columns = _grid(module, step.x)
    x = _filled(step.model_input, module.config.patch_size)
    hidden = stack.embed(module, x, stack.position(module, rows, columns))
    embedding = stack.embedding(module, step.timestep, given["pooled"])
    return (Tokens(hidden, given["context"], embedding, step),)


def blocks(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Runs a range of blocks, -1 as the last one meaning the model's. InputError without a text
    where the blocks before gave none.
    """
    tokens: Tokens = given["features"]
    count, stack = len(module.transformer_blocks), stack_of(module)
    first, last = given["first_block"], given["last_block"]
    last = count - 1 if last == -1 else last
    if not first <= last < count:
        raise InputError(
            f"TransformerBlocks: blocks {first} to {last} are not there: the model has 0 to "
            f"{count - 1}"
        )
    hidden, text = tokens.hidden, tokens.text
    for number in range(first, last + 1):
        if text is None:
            raise InputError(
                f"TransformerBlocks: block {number} reads the text, which ended with the last "
                "block: link features from before it"
            )
        hidden, text = stack.block(module, number, hidden, text, tokens.embedding)
    return (Tokens(hidden, text, tokens.embedding, tokens.step),)


def bind_head(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"parametrisation": loop.parametrisation}


def head(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the prediction: denoised, or raw under a diffusers scheduler."""
    tokens: Tokens = given["features"]
    x = tokens.step.x
    whole = stack_of(module).head(module, tokens.hidden, tokens.embedding, *_grid(module, x))
    raw = whole[..., : x.shape[-2], : x.shape[-1]]
    return (to_denoised(raw, tokens.step, given["parametrisation"]),)


def _grid(module: Any, x: Tensor) -> tuple[int, int]:
    """Returns rows and columns of patches."""
    side = module.config.patch_size
    return -(-x.shape[-2] // side), -(-x.shape[-1] // side)


def _filled(x: Tensor, side: int) -> Tensor:
    missing = -x.shape[-1] % side, -x.shape[-2] % side
    return pad(x, (0, missing[0], 0, missing[1]), mode="circular") if any(missing) else x


# Examples


def embed_example(module: Any, sizes: Sized) -> Example:
    stack, tokens = stack_of(module), _tokens(module, sizes)
    position = torch.empty(1, *tokens.hidden.shape[1:], device="meta")
    x = torch.empty(
        sizes.batch, module.config.in_channels, sizes.height, sizes.width, device="meta"
    )
    time = torch.empty(sizes.batch, device="meta")

    def call() -> list[Tensor]:
        hidden = stack.embed(module, _filled(x, module.config.patch_size), position)
        embedding = stack.embedding(module, time, tokens.embedding)
        return [hidden, embedding, _text(tokens)]

    return call, [module.pos_embed.proj, module.time_text_embed.timestep_embedder]


def blocks_example(module: Any, sizes: Sized) -> Example:
    tokens, stack = _tokens(module, sizes), stack_of(module)
    count = len(module.transformer_blocks)
    stop = count if sizes.last_block is None else min(sizes.last_block + 1, count)
    numbers = range(sizes.first_block, stop)

    def call() -> list[Tensor]:
        hidden, text = tokens.hidden, tokens.text
        for number in numbers:
            hidden, text = stack.block(module, number, hidden, text, tokens.embedding)
        return [hidden, tokens.embedding, *([] if text is None else [text])]

    return call, [module.transformer_blocks[number] for number in numbers]


def head_example(module: Any, sizes: Sized) -> Example:
    tokens, stack = _tokens(module, sizes), stack_of(module)
    side = module.config.patch_size
    grid = -(-sizes.height // side), -(-sizes.width // side)
    return (
        lambda: [stack.head(module, tokens.hidden, tokens.embedding, *grid)],
        [module.norm_out, module.proj_out],
    )


def context_example(module: Any, sizes: Sized) -> Example:
    text = torch.empty(sizes.batch, sizes.tokens, module.config.joint_attention_dim, device="meta")
    return lambda: [stack_of(module).context(module, text)], [module.context_embedder]


def _tokens(module: Any, sizes: Sized) -> Tokens:
    side, width = module.config.patch_size, module.inner_dim
    grid = -(-sizes.height // side) * -(-sizes.width // side)
    x = torch.empty(sizes.batch, 1, device="meta")
    step: Any = x  # no example reads it
    return Tokens(
        torch.empty(sizes.batch, grid, width, device="meta"),
        torch.empty(sizes.batch, sizes.tokens, width, device="meta"),
        torch.empty(sizes.batch, width, device="meta"),
        step,
    )


def _text(tokens: Tokens) -> Tensor:
    assert tokens.text is not None  # as made
    return tokens.text
