"""Times evaluations that compute the tokens under a mask only, for `katz bench edit`.

Networks with random weights compute both branches of guidance in one call on one thread: one with
convolutions and the published number of transformer layers, and a joint transformer. Full
evaluations alternate with those that read all layers from a template, with those that collect the
layers' outputs, and with those that get a template without layers. The gain in time is also
compared with the gain in floating-point operations (FLOP) for the mask's exact tokens, without
those that fill up a bucket. Seconds are processor time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from katz_graph.bench.conditions import library_products
from katz_graph.bench.result import BenchResult, Figures
from katz_graph.executor.calls.computing import StageCall
from katz_graph.ir.values import CachedActivations
from katz_graph.models.active import MARGIN, active_positions
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.random_models import kinds, make_pipeline, usual
from katz_graph.testing.requests import local_engine, sample, sampler_region
from katz_graph.testing.template_calls import NotedCalls, collected, of_network

SHARE_OF_FLOP, MAX_FILL, MAX_WITHOUT = 0.8, 1.1, 1.02
CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True, slots=True)
class Network:
    """Describes a network, the latents that it computes, and the masks with their least gains."""

    name: str
    make: Callable[[Path], None]
    channels: int  # of the latent
    sides: Sequence[int]  # cells
    side: int  # cells of a token at the first level
    levels: int
    gains: Mapping[tuple[int, float], float]  # by cells of a side and mask
    share_of_flop: float | None = SHARE_OF_FLOP  # least share of the gain that FLOP allow


def make_usual(
    folder: Path,
    channels: tuple[int, ...],
    layers: tuple[int, ...] | None = None,
    modules: int = 2,
) -> None:
    """Writes a pipeline whose network has heads of width 64. `layers`: number in a transformer, by
    level; the published numbers by default. `modules`: transformers of a block.
    """
    heads, name = tuple(max(1, width // 64) for width in channels), "transformer_layers_per_block"
    own = {"attention_head_dim": heads, name: layers or usual().full_size.network[name]}
    replace(usual(), own={**usual().own, **own}).make_pipeline(folder, 1, channels, layers=modules)


def make_transformer(folder: Path, blocks: int, heads: int, side: int) -> None:
    """Writes a pipeline with a joint transformer with heads of width 64, for latents of `side`
    cells a side.
    """
    made = kinds()["sd3"]
    make_pipeline(folder, "sd3", 1, blocks, **made.steady, **made.widened(heads, side))


CONVOLUTIONAL = Network(
    "convolutional",
    lambda folder: make_usual(folder, (96, 192, 384)),
    4,
    (64, 32),
    1,
    3,
    {(64, 0.1): 2.0, (64, 0.2): 1.7},
)
TRANSFORMER = Network(
    "transformer",
    lambda folder: make_transformer(folder, blocks=8, heads=6, side=64),
    16,
    (64,),
    2,
    1,
    {(64, 0.2): 2.0},
    None,
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the networks, the masks as shares of the picture, and the rounds of each measurement."""

    networks: Sequence[Network] = (CONVOLUTIONAL, TRANSFORMER)
    masks: Sequence[float] = (0.1, 0.2, 0.5)
    rounds: int = 5


def run(scale: Scale | None = None) -> BenchResult:
    """Times every network at all sizes and masks."""
    scale = scale or Scale()
    figures = Figures()
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name)
        for network in scale.networks:
            network.make(folder / network.name)
            for side in network.sides:
                evaluation = Evaluation.of(folder, network, side)
                evaluation.measure(figures, scale)
    columns = ("network", "cells", "mask", "active", "gain", "gain in FLOP", "share of it")
    return figures.result("edit", columns)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Holds the calls of one evaluation of a network, and the outputs of its layers."""

    network: Network
    cells: int
    calls: Sequence[StageCall]
    outputs: Mapping[str, Tensor]

    @classmethod
    def of(cls, folder: Path, network: Network, cells: int) -> Evaluation:
        """Samples one step with the engine, and notes its calls."""
        latent = torch.zeros(1, network.channels, cells, cells)
        case = Case(network.name, folder / network.name, "euler", 1, latent=latent)
        with local_engine(threads=1, batching=True, cache=folder) as engine:
            engine.models.compute = noting = NotedCalls()
            sample(engine, sampler_region(case))
        found = compute(noting.calls, collects=True)
        outputs = {name: one for given in found for name, one in collected(given)[1].items()}
        return cls(network, cells, noting.calls, outputs)

    def positions(self, share: float, bucket: int | None = None) -> dict[int, Tensor]:
        """Returns the active tokens of a square mask off the centre, by level."""
        side = round(share**0.5 * self.cells)
        start = (self.cells - side) // 3
        mask = torch.zeros(2, 1, self.cells, self.cells)
        mask[..., start : start + side, start : start + side] = 1
        buckets = {} if bucket is None else {"bucket": bucket}
        sizes = self.network.side, self.network.levels, MARGIN
        return active_positions(mask, *sizes, **buckets)

    def with_template(self, positions: Mapping[int, Tensor]) -> object:
        return compute(self.calls, activations=CachedActivations(positions, self.outputs))

    def measure(self, figures: Figures, scale: Scale) -> None:
        positions = {share: self.positions(share) for share in scale.masks}
        ways: dict[Any, Callable[[], object]] = {
            "full": lambda: compute(self.calls),
            "fill": lambda: compute(self.calls, collects=True),
            "without": lambda: compute(self.calls, activations=CachedActivations({}, {})),
        }
        for share, found in positions.items():
            ways[share] = lambda found=found: self.with_template(found)  # type: ignore[misc]
        took: dict[Any, list[float]] = {name: [] for name in ways}
        for way in ways.values():  # warm-up
            way()
        for _ in range(scale.rounds):
            for name, way in ways.items():
                took[name].append(thread_seconds(way))
        ratios = {
            name: median(full / one for full, one in zip(took["full"], seconds, strict=True))
            for name, seconds in took.items()
        }
        key = f"{self.network.name}_{self.cells}"
        figures.add(f"fill_{key}", 1 / ratios["fill"], "<=", MAX_FILL)
        figures.add(f"without_{key}", 1 / ratios["without"], "<=", MAX_WITHOUT)
        full = flop(ways["full"])
        for share in scale.masks:
            exact = self.positions(share, bucket=1)
            allowed = full / flop(lambda exact=exact: self.with_template(exact))  # type: ignore[misc]
            gain, name = ratios[share], f"{key}_at_{share:g}"
            least = self.network.gains.get((self.cells, share))
            if least is not None:
                figures.add(f"gain_{name}", gain, ">=", least)
            if self.network.share_of_flop is not None:
                figures.add(f"of_flop_{name}", gain / allowed, ">=", self.network.share_of_flop)
            active = " + ".join(str(one.shape[1]) for one in positions[share].values())
            figures.rows.append(
                [self.network.name, self.cells, share, active, gain, allowed, gain / allowed]
            )


def compute(calls: Sequence[StageCall], **more: object) -> list[Any]:
    """Computes calls, those of the network with more inputs; returns their outputs."""
    return [
        call.stage.computed(call.module, {**call.given, **(more if of_network(call.stage) else {})})
        for call in calls
    ]


def flop(way: Callable[[], object]) -> float:
    """Counts the floating-point operations of products, convolutions and attention."""
    count: Callable[..., int] = sdpa_flop_count
    mapping: Any = {CPU_ATTENTION: lambda q, k, v, *_, **__: count(q, k, v)}
    with library_products(), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        way()
    return float(counter.get_total_flops())


def thread_seconds(way: Callable[[], object]) -> float:
    started = time.thread_time()
    way()
    return time.thread_time() - started
