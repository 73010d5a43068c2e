"""Defines the form of all solvers as generator functions, the slope that they follow, and how one
of the variance exploding path runs on any other.
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
"""Yields a point to evaluate and is sent the denoised picture there, so that it is a definition and
one request's state at once.
"""

Sampler = Callable[..., Solving]
"""Maps (x, sigmas [N + 1], noise: NoiseSource, path: Path, *, options) to a generator that asks for
evaluations, the same for every x, and returns the final x.
"""


def slope(x: Tensor, sigma: Tensor, denoised: Tensor) -> Tensor:
    """Returns dx/dσ of the probability flow (Karras et al. 2022, equation 3); so it is on every
    path whose picture's share is linear in σ.
    """
    return (x - denoised) / sigma


def in_relative_levels(sampler: Sampler) -> Sampler:
    """Makes a sampler that is written for the variance exploding path one of any path: in x / α and
    σ / α every path is that one (Karras et al. 2022, appendix B.2, on the scaling s(t)). Noise is
    drawn between the path's own levels.
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
