"""Defines the interface to compute families' transformers in parts, and helpers for patches and
positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from katz_graph.core.errors import InputError
from katz_graph.ir.values import TextEncoding, Tokens
from katz_graph.models.active import Active
from katz_graph.models.family import ModelFamily, family_of_class

Fixed = tuple[Tensor, ...]
"""Further inputs of the blocks: positions [1, ...] for all rows, tokens of references [B, ...]."""


KeysValues = tuple[Tensor, Tensor]
"""Keys and values of tokens, [B, S, heads, D] each."""


@dataclass(frozen=True, slots=True)
class ReferenceTokens:
    """Holds reference latents [B, C, h, w] in the model's scale, their position scheme, and the
    numbers of the text tokens that are their vision tokens.
    """

    latents: tuple[Tensor, ...] = ()
    placing: str = "offset"
    slots: tuple[int, ...] = ()


NOTHING = ReferenceTokens()


class Stack(Protocol):
    """Computes a transformer in parts, bit-equal to its `forward`. Each family joins text and
    picture tokens like its network.
    """

    def side(self, module: Any) -> int:
        """Returns the side of a patch in latent cells."""

    def blocks(self, module: Any) -> Sequence[nn.Module]:
        """Returns all blocks, in order."""

    def parts(self, module: Any, name: str) -> Sequence[nn.Module]:
        """Returns the modules whose weights `context`, `embed`, `control` or `head` reads."""

    def context(self, module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
        """Returns the text tokens [B, T, D]. A union ControlNet prepends one token per kind of
        reference.
        """

    def vectors(self, module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
        """Returns the vectors [B, E] to add to the timestep embedding, in order."""

    def fixed(
        self,
        module: Any,
        rows: int,
        columns: int,
        tokens: int,
        references: ReferenceTokens = NOTHING,
        frames: int = 1,
    ) -> Fixed:
        """Returns the blocks' fixed inputs for this number of patches and text tokens. `frames`:
        the number of pictures of this size, whose tokens are behind each other; families of one
        picture may omit the parameter.
        """

    def embedding(self, module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
        """Returns the embedding [B, E] of timesteps [B] float64."""

    def embed(
        self, module: Any, x: Tensor, context: Any, embedding: Tensor, fixed: Fixed
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the picture and text tokens for the first block, from a model input [B, C, h, w]
        of whole patches. The text tokens are None if joined to the picture's.
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
        active: Active | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs one block on the picture and text tokens. `embedding`: from
        `models.prepared.modulations.activate`. `skip`: the output of an earlier block; families
        without skips may omit the parameter. `active`: the picture tokens to compute; families that
        always compute all may omit the parameter.
        """

    # for families whose tokens before the picture are independent of the step

    def before(self, context: Tensor, fixed: Fixed) -> Tensor:
        """Returns the tokens [B, P, D] before the picture."""

    def prefix(
        self, module: Any, numbers: range, tokens: Tensor, fixed: Fixed
    ) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """Runs a range of blocks on the tokens [R, P, D] before the picture. Returns the tokens, as
        they are behind the model's last block, and the keys and values for each block.
        `block` takes those of its block as `prefix`, and then no text: R divides its rows, which
        each read one of them in order. `embed` then takes no context.
        """

    def head(
        self, module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int
    ) -> Tensor:
        """Returns the prediction [B, C, rows · side, columns · side]. Frames are rows."""

    # for families with ControlNets

    def hint(self, module: Any, reference: Tensor) -> Tensor:
        """Returns the tokens [B, N, D] of a ControlNet's reference: a latent in the model's scale,
        or pixels [B, 3, H, W] in -1..1. Pads it to whole patches by `padded`.
        """

    def residual(self, module: Any, number: int, hidden: Tensor) -> Tensor:
        """Returns the residual for the picture tokens from a ControlNet's n-th block."""

    # for families with ControlNets that read the model's embedded tokens

    def pad_token(self, module: Any) -> Tensor:
        """Returns the pad-token embedding [1, 1, D] for picture tokens; [1, 0, D] if the model pads
        none.
        """

    def embed_control(
        self,
        module: Any,
        tokens: Tokens,
        hint: Tensor,
        vectors: tuple[Tensor, ...],
        pad_token: Tensor,
        fixed: Fixed,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Returns the picture and text tokens for a ControlNet's first block, and the embedding
        [B, E] that its blocks read. The text tokens are None if it reads none, or if joined to the
        picture's. `tokens` and `pad_token` come from the model; `fixed` is the ControlNet's.
        """

    def model_tokens(
        self, module: Any, batch: int, patches: int, text: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Returns picture tokens [B, N, D], text tokens and an embedding [B, E] of the model on the
        meta device, to count a ControlNet that reads them.
        """

    def unshifted(self, values: Mapping[str, Any]) -> bool:
        """Returns whether a ControlNet of this configuration reads latents without the shift."""


def stack_of(module: Any) -> Stack:
    """Returns the stack of a network or ControlNet. Raises InputError if it is no transformer."""
    name = family_of_module(module).network.stack
    if not name:
        raise InputError(
            f"a transformer node (TransformerEmbed, ...) got a {type(module).__name__}: use the "
            "nodes for this kind of model"
        )
    return cast(Stack, import_module(name))


def family_of_module(module: Any) -> ModelFamily:
    """Returns the family of a loaded network or ControlNet."""
    family = family_of_class(type(module).__name__)
    assert family is not None  # other networks are not loaded
    return family


def lacks_text(number: int) -> InputError:
    return InputError(
        f"TransformerBlocks: block {number} reads the text, but the last block dropped it: link "
        "features from before the last block"
    )


def grid_ids(rows: int, columns: int, device: Any, first: int = 0) -> Tensor:
    """Returns patch positions [rows · columns, 3] in float64: `first`, row, column."""
    ids = torch.full((rows, columns, 3), first, dtype=torch.float64, device=device)
    ids[..., 1] = torch.arange(rows, device=device)[:, None]
    ids[..., 2] = torch.arange(columns, device=device)[None, :]
    return ids.reshape(rows * columns, 3)


def placed(
    latents: Sequence[Tensor], rows: int, columns: int, placing: str
) -> Iterator[tuple[tuple[int, int], tuple[int, int, int]]]:
    """Yields each reference's patch rows and columns, and its first patch's position (plane, row,
    column). By default references share a plane. Each is below or to the right of earlier ones,
    whichever gives the shorter side, as in other implementations.
    """
    height, width = (rows * 2, columns * 2) if placing == "uxo" else (0, 0)
    for number, latent in enumerate(latents, start=1):
        high, wide = latent.shape[-2:]
        patches = high // 2, wide // 2
        match placing:
            case "index":
                yield patches, (number, 0, 0)
            case "uxo":
                yield patches, (0, (height + 1) // 2, (width + 1) // 2)
                height, width = height + high, width + wide
            case _:
                aside = high + height > wide + width
                down, across = (0, width) if aside else (height, 0)
                yield patches, (1, (down + 1) // 2, (across + 1) // 2)
                height, width = max(height, high + down), max(width, wide + across)


def packed(x: Tensor, side: int = 2) -> Tensor:
    """Returns the patches of [B, C, h, w] as tokens [B, N, C · side²], channel-major."""
    batch, channels, height, width = x.shape
    grid = x.reshape(batch, channels, height // side, side, width // side, side)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(
        batch, (height // side) * (width // side), channels * side**2
    )


def unpacked(tokens: Tensor, rows: int, columns: int, side: int = 2) -> Tensor:
    """Inverts `packed`: returns [B, C, h, w]."""
    batch, _, width = tokens.shape
    channels = width // side**2
    grid = tokens.reshape(batch, rows, columns, channels, side, side)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, rows * side, columns * side)


def unpatched(tokens: Tensor, rows: int, columns: int, side: int) -> Tensor:
    """Returns the prediction [B, C, h, w] of tokens [B, N, side² · C], cell-major in a patch."""
    batch, _, width = tokens.shape
    channels = width // side**2
    grid = tokens.reshape(batch, rows, columns, side, side, channels)
    return grid.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, rows * side, columns * side)


def patch_grid(side: int, height: int, width: int) -> tuple[int, int]:
    """Returns the rows and columns of patches that cover a latent."""
    return -(-height // side), -(-width // side)


def padded(x: Tensor, side: int) -> Tensor:
    """Pads a latent [B, C, h, w] or [B, C, F, h, w] circularly to whole patches."""
    missing = -x.shape[-1] % side, -x.shape[-2] % side
    if not any(missing):
        return x
    frames = (0, 0) * (x.ndim - 4)
    return pad(x, (0, missing[0], 0, missing[1], *frames), mode="circular")
