"""Computes the stages of transformers, and calls them on modules without memory to count what they
cost: with the stack of parts that a family names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from katz_graph.errors import InputError
from katz_graph.ir.values import TextEncoding, Tokens, per_row
from katz_graph.models.configuration import config
from katz_graph.models.families.shared.compute import UNPOOLED
from katz_graph.models.families.shared.inputs import fit_reference
from katz_graph.models.families.shared.transformer_region import check_vae
from katz_graph.models.families.shared.transformer_stages import network_of
from katz_graph.models.family import (
    Architecture,
    ModelFamily,
    architecture,
    family_of,
    family_of_class,
)
from katz_graph.models.stages import Example, Loop, Outputs, Sized, named
from katz_graph.picture.batch import repeated
from katz_graph.recipe import Component, ControlNetRecipe, ModelRecipe, References
from katz_graph.sampling.prediction import to_denoised

Fixed = tuple[Tensor, ...]
"""Holds what the blocks read beside tokens: positions [1, ...], for all rows, and further tokens
[B, ...].
"""


@dataclass(frozen=True, slots=True)
class Beside:
    """Holds latents [B, C, h, w] in the model's scale that are read beside the picture, and where
    they stand.
    """

    latents: tuple[Tensor, ...] = ()
    placing: str = "offset"


NOTHING = Beside()


class Stack(Protocol):
    """Computes a transformer in parts, bit-equal to its `forward`; the tokens of a text and of a
    picture are joined where the family joins them.
    """

    def side(self, module: Any) -> int:
        """Returns the cells along one side of a patch."""

    def blocks(self, module: Any) -> Sequence[nn.Module]:
        """Returns all blocks, in order."""

    def parts(self, module: Any, name: str) -> Sequence[nn.Module]:
        """Returns the modules whose weights `context`, `embed` or `head` reads."""

    def context(self, module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
        """Returns the text's tokens [B, T, D]; before them one for each kind of reference that a
        ControlNet for several is told it gets.
        """

    def vectors(self, module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
        """Returns what is added to a timestep's embedding, in order: [B, E] each."""

    def fixed(
        self, module: Any, rows: int, columns: int, tokens: int, beside: Beside = NOTHING
    ) -> Fixed:
        """Returns what blocks read for so many patches, and tokens of a text."""

    def embedding(self, module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
        """Returns the embedding [B, E] of timesteps [B] float64."""

    def embed(
        self, module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the first block's tokens: those of a model input [B, C, h, w], whole patches, and
        of the text, None where the first hold them.
        """

    def block(
        self,
        module: Any,
        number: int,
        hidden: Tensor,
        text: Tensor | None,
        embedding: Tensor,
        fixed: Fixed,
        skip: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs one block: the picture's and the text's tokens. `skip`: what an earlier block gave,
        for those that read it; other families' need not take it.
        """

    def head(
        self, module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int
    ) -> Tensor:
        """Returns the prediction [B, C, rows · side, columns · side]."""

    # of families with ControlNets

    def hint(self, module: Any, reference: Tensor) -> Tensor:
        """Returns the tokens [B, N, D] that a ControlNet makes of a reference: a latent in the
        model's scale, or pixels [B, 3, H, W] in -1..1.
        """

    def residual(self, module: Any, number: int, hidden: Tensor) -> Tensor:
        """Returns what a ControlNet adds to a picture's tokens after its n-th block."""

    def unshifted(self, values: Mapping[str, Any]) -> bool:
        """Tells by its configuration if a ControlNet reads latents that are not shifted."""


def stack_of(module: Any) -> Stack:
    """Returns the parts of a network or ControlNet. InputError for one that is no transformer."""
    name = _family(module).network.stack
    if not name:
        raise InputError(
            f"a node of transformers (TransformerEmbed, ...) is given a {type(module).__name__}, "
            "which has other parts: take the nodes of its own kind"
        )
    return cast(Stack, import_module(name))


def _family(module: Any) -> ModelFamily:
    family = family_of_class(type(module).__name__)
    assert family is not None  # only networks of families are loaded
    return family


def bind_context(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"kinds": _kinds(inputs)}


def context(module: Any, given: Mapping[str, Any]) -> Outputs:
    return (stack_of(module).context(module, _typed(module, given["text"]), given["kinds"]),)


def _kinds(inputs: Mapping[str, Any]) -> tuple[int, ...]:
    recipe = inputs["model"]
    return recipe.types if isinstance(recipe, ControlNetRecipe) else ()


def pooled(module: Any, given: Mapping[str, Any]) -> Outputs:
    text: TextEncoding = given["text"]
    if given["reads_pooled"] and text.pooled is None:
        raise InputError(UNPOOLED)
    return (stack_of(module).vectors(module, _typed(module, text)),)


def bind_pooled(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"reads_pooled": architecture(network_of(inputs)).pooled_width is not None}


def bind_fixed(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Brings references into the model's scale, one for each picture of the batch."""
    seen: References | None = inputs["references"]
    latents = [] if seen is None else [latent.pixels for latent in seen.latents]
    return {
        "cells": inputs["cells"] or loop.shape[2:],
        "before": len(_kinds(inputs)),
        "latents": tuple(
            repeated(loop.latent.normalised(one), loop.shape[0]).to(loop.dtype) for one in latents
        ),
        "placing": "" if seen is None else seen.placing,
    }


def fixed(module: Any, given: Mapping[str, Any]) -> Outputs:
    stack = stack_of(module)
    grid = _grid(stack.side(module), *given["cells"])
    beside = Beside(given["latents"], given["placing"])
    tokens = given["before"] + given["text"].hidden.shape[1]
    return (stack.fixed(module, *grid, tokens, beside),)


def bind_channels(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Makes the input channels beside the latent, for the part of it that is seen."""
    model: ModelRecipe = inputs["model"]
    make = named(family_of(model.network).network.channels)
    extra = architecture(model.network).extra_channels
    whole: Tensor = make(inputs["concatenated"], extra, torch.zeros(loop.shape), model.latent)
    part = inputs["part"]
    if part is not None:
        whole = whole[..., part.top : part.top + part.height, part.left : part.left + part.width]
    return {"channels": whole}


def channels(module: None, given: Mapping[str, Any]) -> Outputs:
    return (given["channels"],)


def bind_reference(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Resizes a reference image to the size of the picture or of the part in question."""
    height, width = map(loop.latent.pixels, inputs["cells"] or loop.shape[2:])
    part = inputs["control_net"].control_net
    check_vae(part, inputs.get("vae"), loop.latent)  # of one that was drawn by hand
    stack = import_module(family_of(part).network.stack)
    unshifted = stack.unshifted(config(part))
    space = replace(loop.latent, shift=0.0) if unshifted else loop.latent
    pixels = fit_reference(inputs["image"].pixels, loop.shape[0], height, width)
    return {"pixels": pixels, "space": (space.scale, space.shift), "dtype": str(loop.dtype)}


def reference(encode: Callable[[Tensor], Tensor] | None, given: Mapping[str, Any]) -> Outputs:
    """Returns a reference as a ControlNet reads it: encoded by a VAE, or its pixels in -1..1."""
    pixels: Tensor = given["pixels"]
    dtype = getattr(torch, given["dtype"].removeprefix("torch."))
    if encode is None:
        return ((pixels * 2 - 1).to(dtype),)
    scale, shift = given["space"]
    latent = encode(pixels.movedim(1, -1)).to(pixels.device)
    return (((latent - shift) * scale).to(dtype),)


def hint(module: Any, given: Mapping[str, Any]) -> Outputs:
    stack = stack_of(module)
    seen = given["reference"].to(module.dtype)
    return (stack.hint(module, filled(seen, stack.side(module))),)


def control(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the tokens that a ControlNet's first block reads."""
    (tokens,) = embed(module, given)
    return (replace(tokens, hidden=tokens.hidden + given["hint"]),)


def control_block(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Runs one block of a ControlNet. Returns the tokens, and its residual times its strength."""
    tokens: Tokens = given["features"]
    stack, number = stack_of(module), given["block"]
    hidden, text = stack.block(
        module, number, tokens.hidden, tokens.text, tokens.embedding, given["fixed"]
    )
    residual = stack.residual(module, number, hidden)
    wide = residual.float()  # in which diffusers' strength, a number, is multiplied
    scaled = (wide * per_row(given["strength"], wide)).to(residual.dtype)
    return replace(tokens, hidden=hidden, text=text), scaled


def embed(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the tokens of the latent, filled up with what lies on its other side where it is no
    multiple of the patch, and of the text.
    """
    step, stack = given["step"], stack_of(module)
    x = step.model_input
    if given.get("concatenated") is not None:
        x = torch.cat([x, given["concatenated"].to(x.dtype)], dim=1)
    embedding = stack.embedding(module, step.timestep, given["pooled"])
    hidden, text = stack.embed(
        module, filled(x, stack.side(module)), given["context"], embedding, given["fixed"]
    )
    return (Tokens(hidden, text, embedding, step),)


def blocks(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Runs a range of blocks, -1 as the last one meaning the model's."""
    tokens: Tokens = given["features"]
    count = len(stack_of(module).blocks(module))
    first, last = given["first_block"], given["last_block"]
    last = count - 1 if last == -1 else last
    if not first <= last < count:
        raise InputError(
            f"TransformerBlocks: blocks {first} to {last} are not there: the model has 0 to "
            f"{count - 1}"
        )
    numbers = range(first, last + 1)
    return (_through(module, tokens, numbers, given["fixed"], _residual(given)),)


def _through(
    module: Any, tokens: Tokens, numbers: range, fixed: Fixed, residual: Tensor | None = None
) -> Tokens:
    """Runs blocks, a residual added before each, and keeps what later ones read of them."""
    stack, sources = stack_of(module), _skips(module)
    before, after = (_waiting(sources, number) for number in (numbers.start, numbers.stop))
    if len(before) != len(tokens.skips):
        raise InputError(
            f"TransformerBlocks: block {numbers.start} and those behind it read what blocks "
            f"{', '.join(map(str, before)) or 'none'} gave: link features that come from block "
            f"{numbers.start - 1}"
        )
    kept = dict(zip(before, tokens.skips, strict=True))
    hidden, text = tokens.hidden, tokens.text
    for number in numbers:
        hidden = _added(hidden, residual)
        skip = {"skip": kept[sources[number]]} if number in sources else {}
        hidden, text = stack.block(module, number, hidden, text, tokens.embedding, fixed, **skip)
        kept[number] = hidden
    skips = tuple(kept[number] for number in after)
    return Tokens(hidden, text, tokens.embedding, tokens.step, skips)


def _skips(module: Any) -> Mapping[int, int]:
    """Maps blocks that read what an earlier one gave to that one."""
    skips = _family(module).network.skips
    return cast(Mapping[int, int], named(skips)(module)) if skips else {}


def _waiting(sources: Mapping[int, int], number: int) -> list[int]:
    """Lists the blocks before this one that it or a later one reads."""
    return sorted(early for late, early in sources.items() if early < number <= late)


def bind_head(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"parametrisation": loop.parametrisation}


def head(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the prediction: denoised, or raw under a diffusers scheduler."""
    tokens: Tokens = given["features"]
    stack, x = stack_of(module), tokens.step.x
    grid = _grid(stack.side(module), *x.shape[-2:])
    hidden = _added(tokens.hidden, _residual(given))
    whole = stack.head(module, hidden, tokens.embedding, *grid)
    raw = whole[..., : x.shape[-2], : x.shape[-1]]
    return (to_denoised(raw, tokens.step, given["parametrisation"]),)


def _residual(given: Mapping[str, Any]) -> Tensor | None:
    """Returns the sum of what ControlNets add, in their order."""
    found = [given[name] for name in sorted(given) if name.startswith("residuals_")]
    there = [one for one in found if one is not None]
    return None if not there else sum(there[1:], start=there[0])


def _added(hidden: Tensor, residual: Tensor | None) -> Tensor:
    """Adds a residual to the picture's tokens, which come before those of references."""
    if residual is None:
        return hidden
    count = residual.shape[1]
    if count == hidden.shape[1]:
        return hidden + residual
    return torch.cat([hidden[:, :count] + residual, hidden[:, count:]], dim=1)


def lacks_text(number: int) -> InputError:
    return InputError(
        f"TransformerBlocks: block {number} reads the text, which ended with the last block: link "
        "features from before it"
    )


def grid_ids(rows: int, columns: int, device: Any, first: int = 0) -> Tensor:
    """Returns the positions of patches [rows · columns, 3] float64: `first`, row, column."""
    ids = torch.full((rows, columns, 3), first, dtype=torch.float64, device=device)
    ids[..., 1] = torch.arange(rows, device=device)[:, None]
    ids[..., 2] = torch.arange(columns, device=device)[None, :]
    return ids.reshape(rows * columns, 3)


def packed(x: Tensor, side: int = 2) -> Tensor:
    """Returns the patches of [B, C, h, w] as tokens [B, N, C · side²], channel by channel."""
    batch, channels, height, width = x.shape
    grid = x.reshape(batch, channels, height // side, side, width // side, side)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(
        batch, (height // side) * (width // side), channels * side**2
    )


def unpacked(tokens: Tensor, rows: int, columns: int, side: int = 2) -> Tensor:
    """Returns what `packed` took."""
    batch, _, width = tokens.shape
    channels = width // side**2
    grid = tokens.reshape(batch, rows, columns, channels, side, side)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, rows * side, columns * side)


def _typed(module: Any, text: TextEncoding) -> TextEncoding:
    """Returns a text in the number format of the module, which may be wider than the encoders'."""
    dtype = module.dtype
    if text.hidden.dtype == dtype:
        return text
    vector = text.pooled
    return replace(
        text, hidden=text.hidden.to(dtype), pooled=None if vector is None else vector.to(dtype)
    )


def _grid(side: int, height: int, width: int) -> tuple[int, int]:
    """Returns rows and columns of patches."""
    return -(-height // side), -(-width // side)


def filled(x: Tensor, side: int) -> Tensor:
    """Fills a latent up to whole patches with what lies on its other side."""
    missing = -x.shape[-1] % side, -x.shape[-2] % side
    return pad(x, (0, missing[0], 0, missing[1]), mode="circular") if any(missing) else x


# Examples


def embed_example(module: Any, sizes: Sized) -> Example:
    stack = stack_of(module)
    x, text, fixed = _inputs(module, sizes)
    context, vectors = stack.context(module, text), stack.vectors(module, text)
    time = torch.empty(sizes.batch, device="meta", dtype=torch.float64)

    def call() -> list[Tensor]:
        embedding = stack.embedding(module, time, vectors)
        hidden, words = stack.embed(
            module, filled(x, stack.side(module)), context, embedding, fixed
        )
        return [hidden, embedding, *([] if words is None else [words])]

    return call, stack.parts(module, "embed")


def blocks_example(module: Any, sizes: Sized) -> Example:
    stack = stack_of(module)
    tokens, fixed = _tokens(module, sizes)
    every = stack.blocks(module)
    stop = len(every) if sizes.last_block is None else min(sizes.last_block + 1, len(every))
    numbers = range(sizes.first_block, stop)

    before = _waiting(_skips(module), numbers.start)
    tokens = replace(tokens, skips=(tokens.hidden,) * len(before))

    def call() -> list[Tensor]:
        made = _through(module, tokens, numbers, fixed)
        text = [] if made.text is None else [made.text]
        return [made.hidden, made.embedding, *text, *made.skips]

    return call, every[sizes.first_block : stop]


def head_example(module: Any, sizes: Sized) -> Example:
    stack = stack_of(module)
    tokens, _ = _tokens(module, sizes)
    grid = _grid(stack.side(module), sizes.height, sizes.width)
    return (
        lambda: [stack.head(module, tokens.hidden, tokens.embedding, *grid)],
        stack.parts(module, "head"),
    )


def control_example(module: Any, sizes: Sized) -> Example:
    return embed_example(module, sizes)


def control_block_example(module: Any, sizes: Sized) -> Example:
    """Counts as its output what is sent to the network alone."""
    stack, number = stack_of(module), sizes.first_block
    if number >= (count := len(stack.blocks(module))):
        raise InputError(
            f"TransformerControlBlock: block {number} is not there: the ControlNet has 0 to "
            f"{count - 1}"
        )
    tokens, fixed = _tokens(module, sizes)

    def call() -> list[Tensor]:
        hidden, _ = stack.block(module, number, tokens.hidden, tokens.text, tokens.embedding, fixed)
        return [stack.residual(module, number, hidden)]

    return call, [stack.blocks(module)[number]]


def context_example(module: Any, sizes: Sized) -> Example:
    stack = stack_of(module)
    _, text, _ = _inputs(module, sizes)
    return lambda: [stack.context(module, text)], stack.parts(module, "context")


def _inputs(module: Any, sizes: Sized) -> tuple[Tensor, TextEncoding, Fixed]:
    """Returns a model input, a text and what is fixed, without memory. Texts of a model whose texts
    are all of one length have that.
    """
    shape, stack, family = _shape_of(module), stack_of(module), _family(module)
    tokens = sum(family.text_layout.lengths) or sizes.tokens

    def empty(*size: int) -> Tensor:
        return torch.empty(sizes.batch, *size, device="meta")

    text = TextEncoding(
        empty(tokens, shape.text_width),
        None if shape.pooled_width is None else empty(shape.pooled_width),
        empty(7),
        guidance=empty(),
        mask=empty(tokens),
    )
    grid = _grid(stack.side(module), sizes.height, sizes.width)
    fixed = stack.fixed(module, *grid, tokens)
    return empty(shape.input_channels, sizes.height, sizes.width), text, fixed


def _shape_of(module: Any) -> Architecture:
    values = {**module.config, "_class_name": type(module).__name__}
    return architecture(Component(values["_class_name"], (), json.dumps(values, default=list)))


def _tokens(module: Any, sizes: Sized) -> tuple[Tokens, Fixed]:
    stack = stack_of(module)
    x, text, fixed = _inputs(module, sizes)
    embedding = stack.embedding(module, x.new_empty(sizes.batch), stack.vectors(module, text))
    context = stack.context(module, text)
    hidden, words = stack.embed(module, filled(x, stack.side(module)), context, embedding, fixed)
    step: Any = x  # no example reads it
    return Tokens(hidden, words, embedding, step), fixed
