"""Measures the calls of one evaluation by their number of rows, recorded as a CUDA graph: what
requests gain by sharing them. Then measures a transformer's blocks for pictures of two sizes: one
call with the tokens of all pictures, and one call per size.

Only the network is timed, without ControlNets, sampler and stacking. In a call of two sizes all
pictures have one noise level, and each picture's tokens are copied together for its attention.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from katz_graph.bench.gpu.evaluations import (
    STAGES,
    TRANSFORMERS,
    evaluation,
    in_memory,
    recorded_seconds,
    transformer,
)
from katz_graph.bench.gpu.models import network
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult
from katz_graph.ir.device import ROW_BUCKETS
from katz_graph.ir.values import Tokens
from katz_graph.kernels.attention import attention_order
from katz_graph.models.families.shared.transformer import run_blocks
from katz_graph.models.families.shared.transformer_examples import drawn_tokens
from katz_graph.models.families.shared.transformer_stack import Fixed, stack_of
from katz_graph.models.stages import Sized
from katz_graph.testing.random_models import Kind, usual, usual_kind

TEXT_FIRST = "flux"  # the kind whose attention has the text's tokens before the picture's
SMALL_PICTURES = (1, 4)  # in a call with one large picture
LEAST_GAIN = 0.95  # jobs a second, of those at one row
MAX_SECONDS = 240.0


def run(setting: Setting, rows: Rows) -> BenchResult:
    began = time.perf_counter()
    kinds = [kind for kind in TRANSFORMERS if kind in setting.transformers]
    small, large = setting.sides[-1], setting.sides[0]
    with attention_order(setting.device):
        unet = in_memory(setting, lambda: network(setting), setting.dtype)
        stages = usual().stages
        gains = [
            _by_rows(setting, rows, usual_kind(), unet, stages, 77, side)
            for side in (small, large, *setting.sides[1:-1])
        ]
        del unet
        modules = {}
        for kind in kinds:
            modules[kind] = module = transformer(setting, kind)
            gains += [
                _by_rows(setting, rows, kind, module, STAGES, TRANSFORMERS[kind], side)
                for side in (small, large)
            ]
        for kind, module in modules.items():
            for pictures in SMALL_PICTURES:
                _by_sizes(setting, rows, kind, module, [small] * pictures + [large])
    rows.judge("least gain by rows", min(gains), at_least=LEAST_GAIN)
    rows.judge("seconds of this part", time.perf_counter() - began, at_most=MAX_SECONDS)
    return rows.result()


def _by_rows(
    setting: Setting,
    rows: Rows,
    kind: Kind,
    module: nn.Module,
    stages: Sequence[str],
    tokens: int,
    side: int,
) -> float:
    """Adds a row per number of rows. Returns the least gain of requests of one row."""
    took: dict[int, float] = {}
    for count in ROW_BUCKETS:
        sizes = Sized(count, side, side, tokens)
        took[count] = recorded_seconds(setting, evaluation(module, stages, sizes))
        gain = {"gain": count * took[1] / took[count]}
        if count > 1:
            gain["guided_gain"] = count / 2 * took[2] / took[count]
        what = f"{kind} at {8 * side} pixels, {count} rows"
        rows.add(what, seconds=took[count], seconds_per_row=took[count] / count, **gain)
    return min(count * took[1] / seconds for count, seconds in took.items())


def _by_sizes(
    setting: Setting, rows: Rows, kind: Kind, module: nn.Module, sides: Sequence[int]
) -> None:
    """Compares the blocks' calls: one for all pictures, and one for those of each size."""
    text = TRANSFORMERS[kind]
    numbers = range(len(stack_of(module).blocks(module)))
    by_size = [
        drawn_tokens(module, Sized(count, side, side, text))
        for side, count in Counter(sides).items()
    ]
    tokens, fixed, by_picture = in_one_call(
        [drawn_tokens(module, Sized(1, side, side, text)) for side in sides], kind == TEXT_FIRST
    )

    def together() -> Tokens:
        with by_picture:
            return run_blocks(module, tokens, numbers, fixed)

    apart = recorded_seconds(
        setting, lambda: [run_blocks(module, one, numbers, f) for one, f in by_size]
    )
    whole = recorded_seconds(setting, together)
    pictures = " and ".join(f"{count} of {8 * side}" for side, count in Counter(sides).items())
    rows.add(
        f"{kind}, blocks, {pictures} pixels",
        seconds=whole,
        apart_seconds=apart,
        gain=apart / whole,
    )


def in_one_call(
    pictures: Sequence[tuple[Tokens, Fixed]], text_first: bool
) -> tuple[Tokens, Fixed, ByPicture]:
    """Joins the tokens of pictures to those of one call, with the embedding of the first picture.
    Returns tokens and fixed inputs of the blocks, and the mode in which they compute attention.
    """
    first, fixed = pictures[0]
    hidden, texts = [one.hidden for one, _ in pictures], [_text(one) for one, _ in pictures]
    if text_first:  # positions of text and picture, each [1, T + N, D]
        ends = [text.shape[1] for text in texts]
        fixed = tuple(
            torch.cat(
                [
                    *(one[:, :end] for one, end in zip(positions, ends, strict=True)),
                    *(one[:, end:] for one, end in zip(positions, ends, strict=True)),
                ],
                1,
            )
            for positions in zip(*(one for _, one in pictures), strict=True)
        )
    joined = replace(first, hidden=torch.cat(hidden, 1), text=torch.cat(texts, 1))
    both = (texts, hidden) if text_first else (hidden, texts)
    return joined, fixed, ByPicture(both, [hidden])


def _text(tokens: Tokens) -> Tensor:
    assert tokens.text is not None  # it is the input of a first block
    return tokens.text


class ByPicture(TorchFunctionMode):
    """Computes attention among the tokens of each picture alone. `sequences`: for each number of
    tokens of a call, its kinds of tokens in order, and for each kind the tokens of each picture.
    """

    def __init__(self, *sequences: Sequence[Sequence[Tensor]]) -> None:
        super().__init__()
        self._spans: dict[int, list[list[slice]]] = {}
        for kinds in sequences:
            lengths = [tokens.shape[1] for kind in kinds for tokens in kind]
            spans = [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]
            pictures = len(kinds[0])
            self._spans[sum(lengths)] = [spans[number::pictures] for number in range(pictures)]

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not F.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        query, key, value = (given.pop(name) for name in ("query", "key", "value"))
        made, attention = torch.empty_like(query), cast(Callable[..., Tensor], function)
        for spans in self._spans[query.shape[2]]:
            own = (torch.cat([one[:, :, span] for span in spans], 2) for one in (query, key, value))
            mixed, start = attention(*own, **given), 0
            for span in spans:
                end = start + span.stop - span.start
                made[:, :, span], start = mixed[:, :, start:end], end
        return made
