"""Lists a network's operations by size, from a run on torch's meta device, which allocates no
memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from katz_graph.bench.gpu.models import network
from katz_graph.bench.gpu.setting import Setting

Shape = tuple[int, ...]
TEXTS = 77  # tokens per prompt


@dataclass(frozen=True, slots=True)
class Layer:
    """Describes an operation by its kind and tensor shapes: input and weight of a product or
    convolution, queries and keys of attention, input of a norm or gate.
    """

    kind: str
    shapes: tuple[Shape, ...]
    stride: int = 1

    @property
    def operations(self) -> float:
        """Returns the floating-point operations of a product, convolution or attention."""
        first, second = self.shapes[0], self.shapes[-1]
        match self.kind:
            case "product":
                return 2.0 * torch.Size(first).numel() * second[0]
            case "convolution":
                cells = first[0] * (first[2] // self.stride) * (first[3] // self.stride)
                return 2.0 * cells * torch.Size(second).numel()
            case _:
                batch, heads, queries, width = first
                return 4.0 * batch * heads * queries * second[2] * width

    def __str__(self) -> str:
        return " by ".join("x".join(map(str, shape)) for shape in self.shapes)


class _Listing(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Layer] = Counter()

    def __torch_function__(
        self,
        called: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if called is F.linear:
            self._add("product", args[:2])
        elif called is F.conv2d or called is torch.conv2d:
            stride = args[3] if len(args) > 3 else 1
            self._add("convolution", args[:2], stride if isinstance(stride, int) else stride[0])
        elif called is F.scaled_dot_product_attention:
            self._add("attention", args[:2])
        elif called is F.group_norm:
            self._add("group norm", args[:1])
        elif called is F.layer_norm:
            self._add("layer norm", args[:1])
        elif called is F.gelu:
            self._add("gate", args[:1])
        return called(*args, **(kwargs or {}))

    def _add(self, kind: str, tensors: Sequence[Tensor], stride: int = 1) -> None:
        self.found[Layer(kind, tuple(tuple(one.shape) for one in tensors), stride)] += 1


def layers_of_step(setting: Setting, side: int) -> Counter[Layer]:
    """Counts the calls of each layer in a step with guidance, both branches in one batch."""
    listing = _Listing()
    with torch.device("meta"), listing:
        module = network(setting)
        config = module.config
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        module(
            torch.empty(2, 4, side, side),
            torch.empty(2),
            torch.empty(2, TEXTS, config.cross_attention_dim),
            added_cond_kwargs={
                "text_embeds": torch.empty(2, pooled),
                "time_ids": torch.empty(2, 6),
            },
        )
    return listing.found
