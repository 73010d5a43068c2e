"""Computes Z-Image transformers in parts on diffusers' modules. Implements
`families.shared.transformer_stack.Stack`.

Picture and text tokens are padded with learned tokens to multiples of 32 and form one sequence, the
picture's first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers import ZImageControlNetModel
from diffusers.models.transformers.transformer_z_image import (
    ADALN_EMBED_DIM,
    SEQ_MULTI_OF,
)
from torch import Tensor, nn

from katz_graph.ir.values import TextEncoding, Tokens
from katz_graph.models.families.shared.transformer_stack import (
    NOTHING,
    Fixed,
    ReferenceTokens,
    grid_ids,
    padded,
    unpatched,
)
from katz_graph.models.families.z_image.architecture import THETA
from katz_graph.models.loading.configurations import rotary_axes
from katz_graph.models.prepared.z_image import block_tokens


def side(module: Any) -> int:
    return int(module.config.all_patch_size[0])


def blocks(module: Any) -> Sequence[nn.Module]:
    return list(_layers(module))


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.cap_embedder, module.context_refiner]
        case "embed":
            return [_embedder(module), module.noise_refiner, module.t_embedder]
        case "control":
            return [module.control_noise_refiner, module.control_layers[0].before_proj]
        case _:
            return [_final_layer(module)]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    """Refines the text, once per request."""
    tokens = _padded(module.cap_embedder(text.hidden), module.cap_pad_token)
    frequencies = _frequencies(module, _text_ids(module, tokens.shape[1]))[None]
    for layer in module.context_refiner:
        tokens = layer(tokens, None, frequencies)
    return tokens


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    return ()


def fixed(
    module: Any, rows: int, columns: int, tokens: int, references: ReferenceTokens = NOTHING
) -> Fixed:
    """Returns rotary positions of the whole sequence [1, S, D / 2, 2]: real, imaginary."""
    text = _text_ids(module, _whole(tokens))
    picture = grid_ids(rows, columns, text.device, first=len(text) + 1)
    padding = text.new_zeros(_whole(len(picture)) - len(picture), 3)
    return (torch.view_as_real(_frequencies(module, torch.cat([picture, padding, text])))[None],)


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    """Embeds the signal's share (1 - timestep), not the noise's."""
    result: Tensor = module.t_embedder((1 - timestep.float()) * module.t_scale)
    return result


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    hidden = _padded(_embedder(module)(_patches(module, x)), module.x_pad_token)
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
    frequencies = torch.view_as_complex(fixed[0][:1])
    if _is_controlnet(module):  # other arguments of forward
        layer = module.control_layers[number]
        return block_tokens(layer, hidden, None, frequencies, embedding), None
    return module.layers[number](hidden, None, frequencies, embedding), None


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    """Returns the negated output: the model predicts picture minus noise, a flow the reverse."""
    tokens: Tensor = _final_layer(module)(hidden, c=embedding)[:, : rows * columns]
    return -unpatched(tokens, rows, columns, side(module))


def hint(module: Any, reference: Tensor) -> Tensor:
    tokens: Tensor = module.control_all_x_embedder[f"{side(module)}-1"](
        _patches(module, padded(reference, side(module)))
    )
    return tokens


def residual(module: Any, number: int, hidden: Tensor) -> Tensor:
    found: Tensor = module.control_layers[number].after_proj(hidden)
    return found


def unshifted(values: Mapping[str, Any]) -> bool:
    return False


def pad_token(module: Any) -> Tensor:
    token: Tensor = module.x_pad_token
    return token[None]


def embed_control(
    module: Any,
    tokens: Tokens,
    hint: Tensor,
    vectors: tuple[Tensor, ...],
    pad_token: Tensor,
    fixed: Fixed,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Refines the reference as picture tokens and joins it to the model's text tokens."""
    seen = _padded(hint, pad_token[0])
    count = seen.shape[1]
    frequencies = torch.view_as_complex(fixed[0][:1, :count])
    for layer in module.control_noise_refiner:
        seen = layer(seen, None, frequencies, tokens.embedding)
    joined = torch.cat([seen, tokens.hidden[:, count:]], dim=1)
    hidden = module.control_layers[0].before_proj(joined) + tokens.hidden
    return hidden, None, tokens.embedding


def model_tokens(
    module: Any, batch: int, patches: int, text: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    width = module.config.dim
    hidden = torch.empty(batch, _whole(patches) + _whole(text), width, device="meta")
    return hidden, None, hidden[:, 0, : min(width, ADALN_EMBED_DIM)]


def _is_controlnet(module: Any) -> bool:
    return isinstance(module, ZImageControlNetModel)


def _layers(module: Any) -> Sequence[nn.Module]:
    return module.control_layers if _is_controlnet(module) else module.layers  # type: ignore[no-any-return]


def _patches(module: Any, x: Tensor) -> Tensor:
    patch = side(module)
    batch, channels, height, width = x.shape
    grid = x.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, patch * patch * channels)


def _embedder(module: Any) -> Any:
    return module.all_x_embedder[f"{side(module)}-1"]


def _final_layer(module: Any) -> Any:
    return module.all_final_layer[f"{side(module)}-1"]


def _whole(tokens: int) -> int:
    return int(-(-tokens // SEQ_MULTI_OF) * SEQ_MULTI_OF)


def _padded(tokens: Tensor, pad_token: Tensor) -> Tensor:
    missing = _whole(tokens.shape[1]) - tokens.shape[1]
    if not missing:
        return tokens
    return torch.cat([tokens, pad_token.expand(len(tokens), missing, -1)], dim=1)


def _text_ids(module: Any, tokens: int) -> Tensor:
    """Returns text positions [tokens, 3], numbered from 1. Computes them on the host, as diffusers
    does.
    """
    place = "meta" if module.device.type == "meta" else "cpu"
    ids = torch.zeros(tokens, 3, dtype=torch.float64, device=place)
    ids[:, 0] = torch.arange(1, tokens + 1, device=place)
    return ids


def _frequencies(module: Any, ids: Tensor) -> Tensor:
    """Returns rotary positions [S, D / 2] complex64 of ids [S, 3]; a ControlNet uses its model's
    values.
    """
    found, values = [], module.config
    axes = values.get("axes_dims") or rotary_axes(values.dim // values.n_heads, 4)
    theta = values.get("rope_theta", THETA)
    for axis, width in enumerate(axes):
        steps = torch.arange(0, width, 2, dtype=torch.float64, device=ids.device) / width
        angles = torch.outer(ids[:, axis], 1.0 / theta**steps).float()
        found.append(torch.polar(torch.ones_like(angles), angles))
    return torch.cat(found, dim=-1).to(module.device)
