"""What each stage costs in operations and bytes, from configurations alone.

Modules without memory (torch's meta device) are run through the very stages that compute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from torch.utils.flop_counter import flop_registry

from katz_graph.errors import InputError
from katz_graph.models import attention, controlnet, unet
from katz_graph.models.embedding import added_embedding
from katz_graph.models.family import pooled_width
from katz_graph.models.features import Features, Residuals, TextEncoding
from katz_graph.models.formula import BATCH, HEIGHT, LEVELS, TOKENS, WIDTH, Formula, Terms, terms
from katz_graph.planner.program import Work
from katz_graph.sampling.evaluation import Step

StageName = Literal[
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
    stage: StageName,
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
    Counted at these sizes, which takes up to seconds; `counts.Counts` tells the same of all sizes from one count.
    """
    return _work(json.dumps(dict(config), sort_keys=True), stage, batch, height, width, tokens, first_block, last_block, value_bytes, kept)


def stage_call(config: Mapping[str, Any], stage: StageName, batch: int, height: int, width: int) -> Callable[[], list[Tensor]]:
    """A stage of the module with this `config.json`, without memory, as a function that gives its outputs; sizes as for `stage_work`."""
    call, _ = _call(_module(json.dumps(dict(config), sort_keys=True)), stage, batch, height, width, 77, 0, None, True)
    return call  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def _work(
    config: str,
    stage: StageName,
    batch: int,
    height: int,
    width: int,
    tokens: int,
    first_block: int,
    last_block: int | None,
    value_bytes: int,
    kept: bool,
) -> Work:
    counted = _counted(_module(config), stage, batch, height, width, tokens, first_block, last_block, kept)
    return _formula(counted, lambda numbers: {"": sum(numbers)}).work({}, value_bytes)


@lru_cache(maxsize=256)
def stage_formula(config: str, stage: StageName, row: int, first_block: int, last_block: int | None) -> Formula:
    """The work of a stage, but those of VAEs, of the module with this `config.json`; `row`: tokens of a text encoder's row.

    It holds where no resolution is one cell wide or high. InputError for a UNet of more resolutions than formulas know.
    """
    module = _module(config)
    levels = len(getattr(module.config, "block_out_channels", ()))
    if levels > LEVELS:
        raise InputError(f"a {type(module).__name__} of {levels} resolutions cannot be planned, expected at most {LEVELS}")
    return _formula(_counted(module, stage, BATCH, HEIGHT, WIDTH, row or TOKENS, first_block, last_block, True), terms)


@dataclass(frozen=True, slots=True)
class Counted:
    """A call on the meta device, where modules are float32: floating-point operations of each operation that has some, bytes of each
    tensor that is written, of what is copied because the batch is of several, and of each output."""

    flops: Sequence[int]
    written: Sequence[int]
    copied: Sequence[int]
    outputs: Sequence[int]
    weight_bytes: int
    kernels: int


def _counted(module: Any, stage: StageName, *sizes: Any) -> Counted:
    with torch.no_grad(), FusedAttention():
        call, used = _call(module, stage, *sizes)
    operations = _Operations()
    with torch.no_grad(), operations, _Functions(operations) as functions:
        outputs = call()
    return Counted(
        flops=(*operations.flops, *functions.flops),
        written=operations.written,
        copied=operations.copied,
        outputs=[tensor.nbytes for tensor in outputs],
        weight_bytes=sum(parameter.nbytes for part in used for parameter in part.parameters()),
        kernels=operations.kernels,
    )


def _formula(counted: Counted, summed: Callable[[Iterable[int]], Terms]) -> Formula:
    return Formula(
        summed(counted.flops),
        summed(counted.written),
        summed(counted.copied),
        summed(counted.outputs),
        counted.weight_bytes,
        counted.kernels,
        len(counted.copied),
    )


def _call(module: Any, stage: StageName, batch: int, height: int, width: int, tokens: int, first: int, last: int | None, kept: bool) -> Any:
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
    keys_values, added = attention.cross_attention_keys_values(module, text.hidden) if kept else None, added_embedding(module, text)
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
        return lambda: _tensors(controlnet.control(module, step, text, reference, 1.0, keys_values, added)), [
            _without(module, "controlnet_cond_embedding")
        ]
    return _unet_call(module, stage, step, text, keys_values, added, first, last)


def _unet_call(
    module: Any, stage: StageName, step: Step, text: TextEncoding, kept: Any, added: Tensor | None, first: int, last: int | None
) -> Any:
    def until(block: int) -> Features | Step:
        return step if block == 0 else unet.encode(module, step, text, kept, 0, block - 1, added)

    if stage == "unet_encoder":
        entry = (
            [] if first else [module.conv_in, module.time_embedding, *([module.add_embedding] if module.config.addition_embed_type else [])]
        )
        start = until(first)
        done = len(start.skips) if isinstance(start, Features) else 0
        blocks = module.down_blocks[first : None if last is None else last + 1]

        def encode() -> list[Tensor]:
            state = unet.encode(module, start, text, kept, first, last, added)
            return [state.hidden, *state.skips[done:]]

        return encode, [*entry, *blocks]
    deep = unet.encode(module, step, text, kept, added=added)
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


class FusedAttention(TorchFunctionMode):
    """Counts attention as the one fused operation that it is on real devices: on meta it would be taken apart, and write its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: list[int] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not F.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        query, key, value = args  # [B, heads, T, width]
        self.flops.append(2 * query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1]))
        return query.new_empty(*query.shape[:-1], value.shape[-1])


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what each operation computes and writes; views write nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: list[int] = []
        self.written: list[int] = []
        self.copied: list[int] = []
        self.kernels = 0
        self.in_linear = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function._overloadpacket in flop_registry:
            self.flops.append(flop_registry[function._overloadpacket](*args, **(kwargs or {}), out_val=result))
        if self.in_linear and function is torch.ops.aten.clone.default:
            self.copied.append(result.nbytes)
        elif function is not torch.ops.aten._unsafe_view.default and not any(output.alias_info for output in function._schema.returns):
            self.kernels += 1
            self.written += [leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return result


class _Functions(FusedAttention):
    """Also tells when a linear layer is at work: pictures whose channels come last it takes as they are, several of them it copies."""

    def __init__(self, operations: _Operations) -> None:
        super().__init__()
        self._operations = operations

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operations.in_linear = function is F.linear
        try:
            return super().__torch_function__(function, types, args, kwargs)
        finally:
            self._operations.in_linear = False
