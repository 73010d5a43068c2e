"""Defines solvers as generator functions, the slope that they follow, and the adapter that runs a
solver for the variance exploding path on any other path.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps

from torch import Tensor

from katz_graph.ir.values import Query
from katz_graph.sampling.path import EXPLODING, Path

NoiseSource = Callable[[Tensor, Tensor], Tensor]
"""Maps (sigma, next sigma) to unit noise of x's shape for that interval."""

Solving = Generator[Query, Tensor, Tensor]
"""Yields a point to evaluate and receives the denoised picture at that point. The generator defines
a solver and holds the state of one request.
"""

Sampler = Callable[..., Solving]
"""Maps (x, sigmas [N + 1], noise: NoiseSource, path: Path, *, options) to a generator that requests
evaluations and returns the final x. The levels of the evaluations do not depend on x.
"""


def slope(x: Tensor, sigma: Tensor, denoised: Tensor) -> Tensor:
    """Returns dx/dσ of the probability flow (Karras et al. 2022, equation 3). The formula holds on
    every path with a picture share linear in σ.
    """
    return (x - denoised) / sigma


def in_relative_levels(sampler: Sampler) -> Sampler:
    """Adapts a sampler for the variance exploding path to any path, because every path is variance
    exploding in x / α and σ / α (Karras et al. 2022, appendix B.2, scaling s(t)). Draws noise
    between the levels of the actual path.
    """

    @wraps(sampler)
    def solving(
        x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path, **options: float | str
    ) -> Solving:
        if not len(sigmas):
            return x
        sigmas = path.below_noise(sigmas)
        relative = path.relative(sigmas)
        known = dict(zip(relative.tolist(), sigmas, strict=True))

        def own(level: Tensor) -> Tensor:
            sigma = known.get(level.item())
            return path.level(level) if sigma is None else sigma

        inner = sampler(
            x / path.alpha(sigmas[0]),
            relative,
            lambda level, level_next: noise(own(level), own(level_next)),
            EXPLODING,
            **options,
        )
        try:
            query = next(inner)
            while True:
                sigma = own(query.sigma)
                query = inner.send((yield Query(query.x * path.alpha(sigma), sigma, query.step)))
        except StopIteration as finished:
            end: Tensor = finished.value
            return end * path.alpha(sigmas[-1])

    return solving
