"""Recognises that memory ran out, whoever reports it, so that callers can try again. Never imports
torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")

SIGNS = (  # in messages of errors that have no class of their own
    "DefaultCPUAllocator",
    "not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "Cannot allocate memory",
)
ASKED = re.compile(r"ried to allocate ([\d.]+) ?(bytes|[KMGT]iB)")
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
GB = 1e9
WAY_OUT = "take a smaller picture or batch, tiles, a number format of fewer bytes (--dtype) or a smaller model"


def is_out_of_memory(error: BaseException) -> bool:
    """Recognises the errors by which torch, Python or the system say that memory has run out, of a
    device or of the host.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"OutOfMemoryError", "MemoryError"}:
        return True
    return bool(names & {"RuntimeError", "OSError", "SafetensorError"}) and any(sign in str(error) for sign in SIGNS)


@dataclass(frozen=True, slots=True)
class RanOut:
    """An attempt for which memory did not suffice: `asked` are the bytes that could not be had,
    where that is known.

    It holds nothing of the error, whose traceback would keep what the attempt had made.
    """

    asked: float | None

    @classmethod
    def of(cls, error: BaseException) -> RanOut:
        found = ASKED.search(str(error))
        return cls(None if found is None else float(found[1]) * UNITS[found[2]])

    def __str__(self) -> str:
        return "out of memory" if self.asked is None else f"out of memory: {self.asked / GB:.2f} GB more could not be had"


def memory_message(error: BaseException) -> str:
    """Says for people what could not be had, and the way out."""
    return f"{RanOut.of(error)}; {WAY_OUT}"


def attempt(work: Callable[[], Result]) -> Result | RanOut:
    """Runs `work`; returns its result, or RanOut if memory ran out: then all it had made is
    gone.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return RanOut.of(error)
