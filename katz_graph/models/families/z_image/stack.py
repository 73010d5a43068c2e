"""Computes a transformer of Z-Image in parts, on diffusers' modules; each function as
`families.shared.transformer_stack.Stack` has it.

Tokens of the picture and of the text are filled up to multiples of 32 with learned ones, and are
one sequence, the picture's first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers.models.transformers.transformer_z_image import SEQ_MULTI_OF
from torch import Tensor, nn

from katz_graph.ir.values import TextEncoding
from katz_graph.models.families.shared.transformer_stack import (
    NOTHING,
    Beside,
    Fixed,
    grid_ids,
    unpatched,
)


def side(module: Any) -> int:
    return int(module.all_patch_size[0])


def blocks(module: Any) -> Sequence[nn.Module]:
    return list(module.layers)


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.cap_embedder, module.context_refiner]
        case "embed":
            return [_embedder(module), module.noise_refiner, module.t_embedder]
        case _:
            return [_final_layer(module)]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    """Refines the text, which no step changes."""
    tokens = _filled(module.cap_embedder(text.hidden), module.cap_pad_token)
    frequencies = _frequencies(module, _text_ids(module, tokens.shape[1]))[None]
    for layer in module.context_refiner:
        tokens = layer(tokens, None, frequencies)
    return tokens


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    return ()


def fixed(module: Any, rows: int, columns: int, tokens: int, beside: Beside = NOTHING) -> Fixed:
    """Returns the rotary positions of the whole sequence [1, S, D / 2, 2]: real and imaginary."""
    text = _text_ids(module, _whole(tokens))
    picture = grid_ids(rows, columns, text.device, first=len(text) + 1)
    fill = text.new_zeros(_whole(len(picture)) - len(picture), 3)
    return (torch.view_as_real(_frequencies(module, torch.cat([picture, fill, text])))[None],)


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    """The model is told how much of the picture there is, not of the noise."""
    result: Tensor = module.t_embedder((1 - timestep.float()) * module.t_scale)
    return result


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    patch = side(module)
    batch, channels, height, width = x.shape
    grid = x.reshape(batch, channels, height // patch, patch, width // patch, patch)
    patches = grid.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, patch * patch * channels)
    hidden = _filled(_embedder(module)(patches), module.x_pad_token)
    frequencies = torch.view_as_complex(fixed[0][:1, : hidden.shape[1]])
    for layer in module.noise_refiner:
        hidden = layer(hidden, None, frequencies, embedding)
    return torch.cat([hidden, context], dim=1), None


def block(
    module: Any,
    number: int,
    hidden: Tensor,
    text: Tensor | None,
    embedding: Tensor,
    fixed: Fixed,
) -> tuple[Tensor, Tensor | None]:
    return module.layers[number](hidden, None, torch.view_as_complex(fixed[0][:1]), embedding), None


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    """The model predicts the way from noise to picture, a flow's is the other way."""
    tokens: Tensor = _final_layer(module)(hidden, c=embedding)[:, : rows * columns]
    return -unpatched(tokens, rows, columns, side(module))


def _embedder(module: Any) -> Any:
    return module.all_x_embedder[f"{side(module)}-1"]


def _final_layer(module: Any) -> Any:
    return module.all_final_layer[f"{side(module)}-1"]


def _whole(tokens: int) -> int:
    return int(-(-tokens // SEQ_MULTI_OF) * SEQ_MULTI_OF)


def _filled(tokens: Tensor, fill: Tensor) -> Tensor:
    missing = _whole(tokens.shape[1]) - tokens.shape[1]
    if not missing:
        return tokens
    return torch.cat([tokens, fill.expand(len(tokens), missing, -1)], dim=1)


def _text_ids(module: Any, tokens: int) -> Tensor:
    """Returns positions [tokens, 3], which stand one behind the other from 1 on. Positions are
    computed on the host, as diffusers does.
    """
    place = "meta" if module.x_pad_token.is_meta else "cpu"
    ids = torch.zeros(tokens, 3, dtype=torch.float64, device=place)
    ids[:, 0] = torch.arange(1, tokens + 1, device=place)
    return ids


def _frequencies(module: Any, ids: Tensor) -> Tensor:
    """Returns the rotary positions [S, D / 2] complex64 of ids [S, 3]."""
    found = []
    for axis, width in enumerate(module.axes_dims):
        steps = torch.arange(0, width, 2, dtype=torch.float64, device=ids.device) / width
        angles = torch.outer(ids[:, axis], 1.0 / module.rope_theta**steps).float()
        found.append(torch.polar(torch.ones_like(angles), angles))
    return torch.cat(found, dim=-1).to(module.x_pad_token.device)
