"""Amounts of memory and disk that options give in MB and GB, in bytes."""

from __future__ import annotations

import sys


def megabytes(value: float) -> int:
    """Bytes of an option in MB; as many as can be said for infinity."""
    return int(min(value * 2**20, sys.maxsize))


def gigabytes(value: float | None) -> int | None:
    """Bytes of an option in GB."""
    return None if value is None else megabytes(value * 1024)
