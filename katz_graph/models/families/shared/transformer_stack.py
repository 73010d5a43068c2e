"""Defines the parts in which families compute their transformers, and what such parts share:
patches, and their positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from katz_graph.core.errors import InputError
from katz_graph.ir.values import TextEncoding, Tokens
from katz_graph.models.family import ModelFamily, family_of_class

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
        model's scale, or pixels [B, 3, H, W] in -1..1. What it cuts into patches is `filled`.
        """

    def residual(self, module: Any, number: int, hidden: Tensor) -> Tensor:
        """Returns what a ControlNet adds to a picture's tokens after its n-th block."""

    # of families whose ControlNets begin with the model's tokens

    def fill(self, module: Any) -> Tensor:
        """Returns what a model fills the tokens of a picture up with [1, 1, D]; [1, 0, D] where it
        does not.
        """

    def begun(
        self,
        module: Any,
        tokens: Tokens,
        hint: Tensor,
        vectors: tuple[Tensor, ...],
        fill: Tensor,
        fixed: Fixed,
    ) -> tuple[Tensor, Tensor]:
        """Returns the tokens of a ControlNet's first block, and the embedding [B, E] that its
        blocks read. `tokens`: of the model's embedding; `fill`: of the model; `fixed`: of the
        ControlNet.
        """

    def model_tokens(
        self, module: Any, batch: int, patches: int, text: int
    ) -> tuple[Tensor, Tensor]:
        """Returns hidden state [B, N, D] and embedding [B, E], without memory, of a model's
        embedding, to count a ControlNet that begins with them.
        """

    def unshifted(self, values: Mapping[str, Any]) -> bool:
        """Tells by its configuration if a ControlNet reads latents that are not shifted."""


def stack_of(module: Any) -> Stack:
    """Returns the parts of a network or ControlNet. InputError for one that is no transformer."""
    name = family_of_module(module).network.stack
    if not name:
        raise InputError(
            f"a node of transformers (TransformerEmbed, ...) is given a {type(module).__name__}, "
            "which has other parts: take the nodes of its own kind"
        )
    return cast(Stack, import_module(name))


def family_of_module(module: Any) -> ModelFamily:
    """Returns the family of a loaded network or ControlNet."""
    family = family_of_class(type(module).__name__)
    assert family is not None  # only networks of families are loaded
    return family


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


def unpatched(tokens: Tensor, rows: int, columns: int, side: int) -> Tensor:
    """Returns a prediction [B, C, h, w] of tokens [B, N, side² · C], cell by cell of a patch."""
    batch, _, width = tokens.shape
    channels = width // side**2
    grid = tokens.reshape(batch, rows, columns, side, side, channels)
    return grid.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, rows * side, columns * side)


def patch_grid(side: int, height: int, width: int) -> tuple[int, int]:
    """Returns rows and columns of patches."""
    return -(-height // side), -(-width // side)


def filled(x: Tensor, side: int) -> Tensor:
    """Fills a latent up to whole patches with what lies on its other side."""
    missing = -x.shape[-1] % side, -x.shape[-2] % side
    return pad(x, (0, missing[0], 0, missing[1]), mode="circular") if any(missing) else x
