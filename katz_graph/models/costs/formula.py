"""Derives a stage's work from one count, as a formula of batch, tokens, height and width. Must not
know models.

The work of every operation is a product of sizes: the batch, the text's tokens, and the latent's
height and width at each resolution, halved and rounded up from one resolution to the next. If these
sizes are distinct primes, factoring each product reveals its sizes. One count therefore gives a
formula that is exact for all sizes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Self

from katz_graph.ir.device import Work

LEVELS = 5  # maximum number of a network's resolutions
BATCH, TOKENS = 1009, 3037  # primes, like all halves of HEIGHT and WIDTH
HEIGHT, WIDTH = 24481, 109441

Terms = Mapping[str, int]
"""A sum of products: the names of sizes, such as "batch h0 w0" -> the factor of their product."""


def sizes(batch: int, height: int, width: int, tokens: int) -> dict[str, int]:
    """Returns sizes by their names in formulas; height and width are the latent's. `joint`: tokens
    of text plus 2 x 2 patches, one sequence in joint attention, and `joint_cells`: tokens of text
    plus cells; at PRIMES, two times a prime.
    """
    joint = tokens + -(-height // 2) * -(-width // 2)
    found = {"batch": batch, "tokens": tokens, "joint": joint}
    found["joint_cells"] = tokens + height * width
    for level in range(LEVELS):
        found |= {f"h{level}": height, f"w{level}": width}
        height, width = -(-height // 2), -(-width // 2)
    return found


PRIMES: Mapping[str, int] = sizes(BATCH, HEIGHT, WIDTH, TOKENS)


def terms(counted: Iterable[int], primes: Mapping[str, int] = PRIMES) -> Terms:
    """Turns numbers counted at sizes that are distinct primes into a sum of products."""
    found: dict[str, int] = {}
    for number in counted:
        names = []
        for name, prime in primes.items():
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
    copied: Terms  # bytes, only in batches larger than one
    outputs: Terms  # bytes
    weight_bytes: int
    kernels: int
    copies: int  # kernels, only in batches larger than one

    def work(self, at: Mapping[str, int], value_bytes: int) -> Work:
        """Returns the work at `sizes`, for a dtype of `value_bytes`."""
        scale, alone = value_bytes / 4, at.get("batch") == 1
        written = value(self.written, at) + (0 if alone else value(self.copied, at))
        return Work(
            flops=float(value(self.flops, at)),
            weight_bytes=scale * self.weight_bytes,
            activation_bytes=scale * 2 * written,  # each written byte is read once
            output_bytes=scale * value(self.outputs, at),
            kernels=float(self.kernels + (0 if alone else self.copies)),
        )

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parses the output of `text`; None for other strings."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            return None
