"""Derives the work of a stage from one count, as a formula of batch, tokens, height and width. Must
not know models.

Every operation of a network computes and writes products of sizes: of the batch, the text's tokens,
and the latent's height and width at each resolution, which are halved and rounded up from one to
the next. Counted where these sizes are different primes, each product shows what it is made of; so
one count gives a formula that is exact for all sizes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Self

from katz_graph.ir.device import Work

LEVELS = 5  # resolutions of a network, at most
BATCH, TOKENS = 1009, 1297  # primes, as are all that HEIGHT and WIDTH are halved to
HEIGHT, WIDTH = 24481, 109441

Terms = Mapping[str, int]
"""Sums products: the names of sizes, as "batch h0 w0" -> the factor of their product."""


def sizes(batch: int, height: int, width: int, tokens: int) -> dict[str, int]:
    """Returns sizes by the names that formulas use; height and width of the latent. `joint`: the
    text's tokens and those of patches of two by two cells, which joint attention reads as one; at
    PRIMES it is two times a prime.
    """
    joint = tokens + -(-height // 2) * -(-width // 2)
    found = {"batch": batch, "tokens": tokens, "joint": joint}
    for level in range(LEVELS):
        found |= {f"h{level}": height, f"w{level}": width}
        height, width = -(-height // 2), -(-width // 2)
    return found


PRIMES: Mapping[str, int] = sizes(BATCH, HEIGHT, WIDTH, TOKENS)


def terms(counted: Iterable[int]) -> Terms:
    """Sums numbers that were counted at PRIMES."""
    found: dict[str, int] = {}
    for number in counted:
        names = []
        for name, prime in PRIMES.items():
            while number and number % prime == 0:
                number //= prime
                names.append(name)
        key = " ".join(names)
        found[key] = found.get(key, 0) + number
    return found


def value(of: Terms, at: Mapping[str, int]) -> int:
    return sum(
        factor * math.prod(at[name] for name in names.split()) for names, factor in of.items()
    )


@dataclass(frozen=True, slots=True)
class Formula:
    """Computes the work of one call, from counts in float32."""

    flops: Terms
    written: Terms  # bytes
    copied: Terms  # bytes, in a batch of several only
    outputs: Terms  # bytes
    weight_bytes: int
    kernels: int
    copies: int  # kernels, in a batch of several only

    def work(self, at: Mapping[str, int], value_bytes: int) -> Work:
        """Returns the work at `sizes`, in a number format of so many bytes."""
        scale, alone = value_bytes / 4, at.get("batch") == 1
        written = value(self.written, at) + (0 if alone else value(self.copied, at))
        return Work(
            flops=float(value(self.flops, at)),
            weight_bytes=scale * self.weight_bytes,
            activation_bytes=scale * 2 * written,  # what is written is read once
            output_bytes=scale * value(self.outputs, at),
            kernels=float(self.kernels + (0 if alone else self.copies)),
        )

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parses what `text` wrote; None for anything else."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            return None
