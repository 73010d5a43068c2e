"""What each stage costs in operations and bytes, from configurations alone.

Modules without memory (torch's meta device) are run through the very stages that compute.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import diffusers
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from katz_graph.models import attention, controlnet, unet
from katz_graph.models.family import pooled_width
from katz_graph.models.features import Features, Residuals, TextEncoding
from katz_graph.planner.program import Work
from katz_graph.sampling.evaluation import Step

Stage = Literal[
    "unet_encoder",
    "unet_mid",
    "unet_decoder",
    "controlnet",
    "controlnet_reference",
    "keys_values",
    "text_encoder",
    "vae_decode",
    "vae_encode",
]


def stage_work(
    config: Mapping[str, Any],
    stage: Stage,
    batch: int,
    height: int,
    width: int,
    tokens: int = 77,
    first_block: int = 0,
    last_block: int | None = None,
    value_bytes: int = 4,
    kept: bool = True,
) -> Work:
    """The work of one call of a stage of the module with this `config.json`.

    height, width: of the latent, for the VAE too; tokens: of the text; value_bytes: 2 for half precision, 4 for float32; kept:
    cross-attention reads keys and values made before. Blocks as in `unet.encode` and `unet.decode`. A multiply-add is two operations.
    """
    return _work(json.dumps(dict(config), sort_keys=True), stage, batch, height, width, tokens, first_block, last_block, value_bytes, kept)


@lru_cache(maxsize=1024)
def _work(
    config: str,
    stage: Stage,
    batch: int,
    height: int,
    width: int,
    tokens: int,
    first_block: int,
    last_block: int | None,
    value_bytes: int,
    kept: bool,
) -> Work:
    module = _module(config)
    call, used = _call(module, stage, batch, height, width, tokens, first_block, last_block, kept)
    with torch.no_grad(), FlopCounterMode(display=False) as flops, _Written() as written, _FusedAttention() as attended:
        outputs = call()
    size = value_bytes / 4  # modules on the meta device are float32
    return Work(
        flops=float(flops.get_total_flops() + attended.flops),
        weight_bytes=size * sum(_bytes(part.parameters()) for part in used),
        activation_bytes=size * 2 * written.bytes,  # what is written is read once
        output_bytes=size * _bytes(outputs),
        kernels=float(written.operations),
    )


def _call(module: Any, stage: Stage, batch: int, height: int, width: int, tokens: int, first: int, last: int | None, kept: bool) -> Any:
    """The stage as a function of nothing that gives its output tensors, and the parts of the module whose weights it reads."""
    meta = torch.device("meta")
    if stage == "vae_decode":
        latent = torch.empty(batch, module.config.latent_channels, height, width, device=meta)
        return lambda: [module.decode(latent).sample], [module.decoder, module.post_quant_conv]
    if stage == "vae_encode":
        factor = 2 ** (len(module.config.block_out_channels) - 1)
        pixels = torch.empty(batch, 3, height * factor, width * factor, device=meta)
        return lambda: [module.encode(pixels).latent_dist.mean], [module.encoder, module.quant_conv]
    if stage == "text_encoder":
        ids = torch.zeros(batch * -(-tokens // 77), min(77, tokens), dtype=torch.long, device=meta)
        return lambda: [module(ids).last_hidden_state], [module]

    text = _text(module.config, batch, tokens)
    keys_values = attention.cross_attention_keys_values(module, text.hidden) if kept else None
    sample = torch.empty(batch, module.config.in_channels, height, width, device=meta)
    step = Step(index=0, step=0, sigma=1.0, x=sample, model_input=sample, timestep=1.0, parametrisation="epsilon")
    if stage == "keys_values":
        names = attention.cross_attention_keys_values(module, text.hidden)
        layers = [layer for name, layer in module.named_modules() if name in names]
        parts = [projection for layer in layers for projection in (layer.to_k, layer.to_v)]
        return lambda: tree_leaves(attention.cross_attention_keys_values(module, text.hidden)), parts
    if stage == "controlnet_reference":
        image = torch.empty(batch, 3, height * 8, width * 8, device=meta)
        return lambda: [controlnet.embed_reference(module, image)], [module.controlnet_cond_embedding]
    if stage == "controlnet":
        reference = torch.empty(batch, module.config.block_out_channels[0], height, width, device=meta)
        return lambda: _tensors(controlnet.control(module, step, text, reference, 1.0, keys_values)), [
            _without(module, "controlnet_cond_embedding")
        ]
    return _unet_call(module, stage, step, text, keys_values, first, last)


def _unet_call(module: Any, stage: Stage, step: Step, text: TextEncoding, kept: Any, first: int, last: int | None) -> Any:
    def until(block: int) -> Features | Step:
        return step if block == 0 else unet.encode(module, step, text, kept, 0, block - 1)

    if stage == "unet_encoder":
        entry = (
            [] if first else [module.conv_in, module.time_embedding, *([module.add_embedding] if module.config.addition_embed_type else [])]
        )
        start = until(first)
        done = len(start.skips) if isinstance(start, Features) else 0
        blocks = module.down_blocks[first : None if last is None else last + 1]

        def encode() -> list[Tensor]:
            state = unet.encode(module, start, text, kept, first, last)
            return [state.hidden, *state.skips[done:]]

        return encode, [*entry, *blocks]
    deep = unet.encode(module, step, text, kept)
    if stage == "unet_mid":
        return lambda: [unet.mid(module, deep, text, kept).hidden], [module.mid_block]
    middle = unet.mid(module, deep, text, kept)
    before = middle if first == 0 else unet.decode(module, middle, text, kept, last_block=first - 1)[0]
    stop = len(module.up_blocks) if last is None else last + 1
    final = [module.conv_norm_out, module.conv_out] if stop == len(module.up_blocks) else []

    def decode() -> list[Tensor]:
        state, prediction = unet.decode(module, before, text, kept, first_block=first, last_block=last)
        return [state.hidden if prediction is None else prediction]

    return decode, [*module.up_blocks[first:stop], *final]


@lru_cache(maxsize=16)
def _module(config: str) -> Any:
    values = json.loads(config)
    with torch.device("meta"):
        if "_class_name" not in values:
            projected = values.get("architectures") == ["CLIPTextModelWithProjection"]
            model = transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel
            return model(transformers.CLIPTextConfig(**values)).eval()
        module = getattr(diffusers, values["_class_name"]).from_config(values).eval()
    if values["_class_name"] != "AutoencoderKL":
        attention.install(module)
    return module


def _text(config: Any, batch: int, tokens: int) -> TextEncoding:
    hidden = torch.empty(batch, tokens, config.cross_attention_dim, device="meta")
    if config.addition_embed_type is None:
        return TextEncoding(hidden)
    return TextEncoding(hidden, torch.empty(batch, pooled_width(config), device="meta"), torch.empty(batch, 7, device="meta"))


def _tensors(residuals: Residuals) -> list[Tensor]:
    return [*residuals.down, residuals.mid]


def _without(module: nn.Module, name: str) -> nn.Module:
    return nn.ModuleList(child for other, child in module.named_children() if other != name)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


class _FusedAttention(TorchFunctionMode):
    """Counts attention as the one fused operation that it is on real devices: on meta it would be taken apart, and write its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not F.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        query, key, value = args  # [B, heads, T, width]
        self.flops += 2 * query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])
        return query.new_empty(*query.shape[:-1], value.shape[-1])


class _Written(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that write, and their bytes; views write nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.operations = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not any(output.alias_info for output in function._schema.returns):
            self.operations += 1
            self.bytes += _bytes(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result
