"""Adds up the work of several calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from katz_graph.ir.device import Work


def total(works: Sequence[Work]) -> Work:
    """Sums the work of consecutive calls."""
    return Work(
        flops=sum(work.flops for work in works),
        weight_bytes=sum(work.weight_bytes for work in works),
        activation_bytes=sum(work.activation_bytes for work in works),
        output_bytes=sum(work.output_bytes for work in works),
        kernels=sum(work.kernels for work in works),
    )


def less(whole: Work, parts: Sequence[Work]) -> Work:
    """Subtracts the work of skipped parts. The outputs stay, because a skipped part passes its
    input on.
    """
    skipped = total(parts)
    return replace(
        whole,
        flops=whole.flops - skipped.flops,
        weight_bytes=whole.weight_bytes - skipped.weight_bytes,
        activation_bytes=whole.activation_bytes - skipped.activation_bytes,
        kernels=whole.kernels - skipped.kernels,
    )
