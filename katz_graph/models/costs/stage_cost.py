"""Counts each stage's operations and bytes, from configurations alone.

Calls the stages' own functions with modules on torch's meta device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from katz_graph.core.errors import InputError
from katz_graph.ir.device import Work
from katz_graph.models.costs.formula import (
    BATCH,
    HEIGHT,
    LEVELS,
    TOKENS,
    WIDTH,
    Formula,
    Terms,
    terms,
)
from katz_graph.models.costs.meta_results import result_on_meta
from katz_graph.models.family import family_of_class
from katz_graph.models.loading.convert import library_module, on_meta, text_module
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.stage_registry import stage as declared
from katz_graph.models.stages import Sized
from katz_graph.models.text.kinds import kind_named


def stage_work(config: Mapping[str, Any], stage: str, sizes: Sized, value_bytes: int = 4) -> Work:
    """Counts the work of one call of a stage of the module with this `config.json`.

    value_bytes: 2 for half precision, 4 for float32. A multiply-add is two operations. A count
    takes up to seconds; `counts.Counts` derives all sizes from one count.
    """
    return _work(json.dumps(dict(config), sort_keys=True), stage, sizes, value_bytes)


def stage_call(config: Mapping[str, Any], stage: str, sizes: Sized) -> Callable[[], list[Tensor]]:
    """Returns a function that calls a stage of the module with this `config.json` on the meta
    device and returns its outputs.
    """
    module = module_on_meta(json.dumps(dict(config), sort_keys=True))
    call, _ = declared(stage).sized(module, sizes)
    return call


@lru_cache(maxsize=1024)
def _work(config: str, stage: str, sizes: Sized, value_bytes: int) -> Work:
    counted = _counted(module_on_meta(config), stage, sizes)
    return formula_of(counted, lambda numbers: {"": sum(numbers)}).work({}, value_bytes)


@lru_cache(maxsize=256)
def stage_formula(
    config: str, stage: str, row: int, first_block: int, last_block: int | None
) -> Formula:
    """Derives a stage's formula for the module with this `config.json`, except VAEs. `row`: tokens
    of a text encoder's row.

    The formula is valid unless a resolution is one cell wide or high. Raises InputError for a
    network with more than `LEVELS` resolutions.
    """
    module = module_on_meta(config)
    levels = len(getattr(module.config, "block_out_channels", ()))
    if levels > LEVELS:
        raise InputError(
            f"a {type(module).__name__} of {levels} resolutions cannot be planned, expected at "
            f"most {LEVELS}"
        )
    return formula_of(
        _counted(
            module, stage, Sized(BATCH, HEIGHT, WIDTH, row or TOKENS, first_block, last_block)
        ),
        terms,
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """Holds the counts of a float32 call on the meta device."""

    flops: Sequence[int]  # of each operation with floating-point work
    written: Sequence[int]  # bytes of each written tensor
    copied: Sequence[int]  # bytes of each copy made only for batches larger than one
    outputs: Sequence[int]  # bytes of each output
    weight_bytes: int
    kernels: int


@torch.inference_mode(False)  # inference mode does not dispatch linear layers as products
def _counted(module: Any, stage: str, sizes: Sized) -> Counted:
    with torch.no_grad(), FusedAttention():
        call, used = declared(stage).sized(module, sizes)
    operations = Operations()
    with torch.no_grad(), operations, Functions(operations) as functions:
        outputs = call()
    return Counted(
        flops=(*operations.flops, *functions.flops),
        written=operations.written,
        copied=operations.copied,
        outputs=[tensor.nbytes for tensor in outputs],
        weight_bytes=sum(parameter.nbytes for part in used for parameter in part.parameters()),
        kernels=operations.kernels,
    )


def formula_of(counted: Counted, summed: Callable[[Iterable[int]], Terms]) -> Formula:
    return Formula(
        summed(counted.flops),
        summed(counted.written),
        summed(counted.copied),
        summed(counted.outputs),
        counted.weight_bytes,
        counted.kernels,
        len(counted.copied),
    )


@lru_cache(maxsize=16)
def module_on_meta(config: str) -> Any:
    """Returns `built_on_meta`. The module is cached and must not be changed."""
    return built_on_meta(config)


@torch.inference_mode(False)
def built_on_meta(config: str) -> Any:
    """Builds a module on the meta device from a configuration (JSON). Converts it to float32,
    because libraries change torch's default dtype for all threads while they load.
    """
    values = json.loads(config)
    with on_meta(), quiet():
        if "_class_name" not in values:
            return text_module(values, kind_named(values)).float().eval()
        module = library_module(values).float().eval()
    family = family_of_class(values["_class_name"])
    return module if family is None else family.prepared(module)


class FusedAttention(TorchFunctionMode):
    """Counts attention as one fused operation, as on real devices. The meta device would split it
    and write the attention scores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops: list[int] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not F.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        query, key, value = given["query"], given["key"], given["value"]  # [B, heads, T, width]
        self.flops.append(
            2 * query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])
        )
        return query.new_empty(*query.shape[:-1], value.shape[-1])


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations and written bytes of each operation; views write nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: list[int] = []
        self.written: list[int] = []
        self.copied: list[int] = []
        self.kernels = 0
        self.in_linear = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = result_on_meta(function, args, kwargs or {})
        if function._overloadpacket in flop_registry:
            self.flops.append(
                flop_registry[function._overloadpacket](*args, **(kwargs or {}), out_val=result)
            )
        if self.in_linear and function is torch.ops.aten.clone.default:
            self.copied.append(result.nbytes)
        elif function is not torch.ops.aten._unsafe_view.default and not any(
            output.alias_info for output in function._schema.returns
        ):
            self.kernels += 1
            self.written += [
                leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, Tensor)
            ]
        return result


class Functions(FusedAttention):
    """Also marks calls of linear layers, because these copy a channels-last input of several
    pictures, but not of one.
    """

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self._operations = operations

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self._operations.in_linear = function is F.linear
        try:
            return super().__torch_function__(function, types, args, kwargs)
        finally:
            self._operations.in_linear = False
