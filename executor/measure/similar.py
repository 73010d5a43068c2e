"""Measures from how similar a prompt's picture a request may begin, and how late: the table of
similar starts.

The model itself judges whether a picture shows its own prompt rather than the other one: with its
own prompt it restores the picture from noise more closely (Li et al. 2023, "Your Diffusion Model is
Secretly a Zero-Shot Classifier").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import ModelRecipe
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.engine_on_top import EngineOnTop
from katz_graph.ir.region import Region, SimilarStart
from katz_graph.node.types import Context
from katz_graph.planner.similar import SimilarRequest, started_at
from katz_graph.sampling.names import SamplerChoice

SEEDS = 2**64
STARTS = (0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)  # shares of the steps that a start may save
LEVELS = (0.25, 0.45)  # shares of the steps at whose noise levels pictures are restored
NEIGHBOURS = 3  # pairs of each prompt with the most similar others
# Least share of a full picture's margin. Of 60 pairs of captions of the noise miniature that began
# at steps 4, 5, 6, 7 of 20, the judge found the other caption's attribute in 1, 4, 8, 12 pictures,
# and less than this share had 3, 6, 9, 13 (flow miniature: 0, 0, 1, 3 and 1, 1, 2, 5).
MARGIN = 0.25
FAILURES = 0.02  # largest share of pairs that may fail
MIN_PAIRS = 10


@dataclass(frozen=True, slots=True)
class Pair:
    """Two prompts: the cosine similarity of their encodings, and the latest of the measured starts
    up to which the picture of one, begun from that of the other, shows its own prompt.
    """

    similarity: float
    step: int  # 0: none


@dataclass(frozen=True, slots=True)
class SimilarProfile:
    """Holds the measured pairs of a sampler. `levels`: by step, the noise level relative to the
    picture; `scale`: key of the table; `steps`: that were measured.
    """

    sampler: str
    scale: str
    levels: Sequence[float]
    steps: Sequence[int]
    pairs: Sequence[Pair]

    @property
    def table(self) -> list[tuple[float, float]]:
        """Returns least similarities, and the relative noise levels that they earn."""
        return [(least, self.levels[step]) for least, step in self.earned]

    @property
    def earned(self) -> list[tuple[float, int]]:
        """Returns the least similarity at which a request may begin at a step, for the steps that
        any similarity earns. Of the measured pairs that are as similar or more, at most FAILURES
        fail, and so at every higher similarity.
        """
        ordered = sorted(self.pairs, key=lambda pair: -pair.similarity)
        found = []
        for step in self.steps:
            failures, least = 0, None
            for number, pair in enumerate(ordered, start=1):
                failures += pair.step < step
                if number < MIN_PAIRS:
                    continue
                if failures > FAILURES * number:
                    break
                least = pair.similarity
            if least is not None:
                found.append((least, step))
        return found


@dataclass(frozen=True, slots=True)
class _Run:
    """A request that ran in full."""

    region: Region
    request: SimilarRequest
    encoding: Tensor  # [D]
    latent: Tensor  # [B, C, h, w], unscaled


class SimilarProfiler(EngineOnTop):
    """Runs requests in full, and then measures pairs of them."""

    def __init__(
        self, engine: DeviceEngine, say: Callable[[str], None] = lambda line: None
    ) -> None:
        super().__init__(engine)
        self._say = say
        self._runs: list[_Run] = []

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        request = self._engine.similar.request(region)
        if isinstance(request, str):
            self._say(f"sampler {region.name}: cannot begin from a similar picture: {request}")
            return self._engine.sample(region, context)
        region = _seeded(region, len(self._runs))  # requests of one seed would share their noise
        sampled = self._engine.sample(region, context)
        encoding = self._engine.similar.encoded(
            request.text, lambda text: self._engine.encode_text(text, context)
        )
        self._runs.append(_Run(region, request, encoding, sampled[0]["samples"]))
        return sampled

    def measure(self, context: Context) -> list[SimilarProfile]:
        """Measures every prompt with the most similar others of its sampler."""
        found = []
        for key in dict.fromkeys(run.request.key for run in self._runs):
            runs = [run for run in self._runs if run.request.key == key]
            name, request = runs[0].region.name, runs[0].request
            number = len(request.levels)
            steps = sorted({round(share * number) for share in STARTS} - {0})
            self._say(f"sampler {name}: measuring {len(runs)} prompts")
            pairs = [pair for run in runs for pair in self._pairs(run, runs, steps, context)]
            found.append(SimilarProfile(name, request.scale, request.levels, steps, pairs))
        return found

    def _pairs(
        self, run: _Run, runs: Sequence[_Run], steps: Sequence[int], context: Context
    ) -> list[Pair]:
        others = sorted(
            (
                (float(torch.cosine_similarity(run.encoding, other.encoding, dim=0)), number)
                for number, other in enumerate(runs)
                if other.request.text != run.request.text
            ),
            reverse=True,
        )
        found = []
        for similarity, number in others[:NEIGHBOURS]:
            other = runs[number]
            full = self._margin(run, other, run.latent, context)
            if full > 0:  # else the model cannot tell the prompts apart
                fails = partial(self._fails, run, other, MARGIN * full, context)
                passed = bisect_left(steps, True, key=fails)
                found.append(Pair(similarity, steps[passed - 1] if passed else 0))
        return found

    def _fails(self, run: _Run, other: _Run, least: float, context: Context, step: int) -> bool:
        """Returns whether the margin of a run's prompt is below `least` in a picture that begins
        from the other run's picture at a step.
        """
        region = started_at(run.region, other.latent, step, SimilarStart())
        latent = self._engine.sample(region, context)[0]["samples"]
        return self._margin(run, other, latent, context) < least

    def _margin(self, own: _Run, other: _Run, latent: Tensor, context: Context) -> float:
        """Returns by how much the error of restoring a picture is larger with the other prompt."""
        return sum(
            self._error(other, latent, share, context) - self._error(own, latent, share, context)
            for share in LEVELS
        )

    def _error(self, run: _Run, latent: Tensor, share: float, context: Context) -> float:
        """Returns the mean square error of one evaluation's prediction for a picture with noise."""
        begin = run.region.begin
        sigma = run.request.sigmas[round(share * len(run.request.levels))]
        inputs = {
            "model": begin.inputs["model"],
            "latent_image": {**begin.inputs["latent_image"], "samples": latent},
            "seed": 0,
            "add_noise": True,
            "sampler": SamplerChoice("euler"),
            "sigmas": torch.tensor([sigma, 0.0]),
        }
        once = replace(begin, type="SigmasStepBegin", inputs=inputs)
        found = self._engine.sample(replace(run.region, begin=once), context)[0]["samples"]
        model: ModelRecipe = begin.inputs["model"]
        difference = model.latent.normalised(found) - model.latent.normalised(latent)
        return float(difference.double().square().mean())


def _seeded(region: Region, number: int) -> Region:
    """Returns a region with its seed increased by `number`."""
    inputs = region.begin.inputs
    seed = (inputs["seed"] + number) % SEEDS
    return replace(region, begin=replace(region.begin, inputs={**inputs, "seed": seed}))
