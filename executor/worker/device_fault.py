"""Tells errors after which a device is of no more use to the process that met them from those that
only ended what was asked for.

CUDA calls such errors sticky: every later call in the process fails with them. Imports no torch:
without it there are none.
"""

from __future__ import annotations

import re
import sys

from katz_graph.core.errors import with_causes
from katz_graph.core.messages import first_line

FAULT = re.compile(
    r"CUDA (driver )?error|Triton Error \[CUDA\]|(cuBLAS|cuDNN|cuFFT|cuSOLVER) error: "
    r".*_(EXECUTION_FAILED|EXEC_FAILED|INTERNAL_ERROR)"
)
REFUSAL = re.compile(
    r"out of memory|ALLOC_FAILED|invalid (argument|value|configuration|device)|INVALID_VALUE|no "
    r"kernel image|not[ _]supported",
    re.IGNORECASE,
)
"""Matches what CUDA says of a call that it did not begin: the next one may succeed."""


def is_device_fault(error: BaseException) -> bool:
    """Returns whether this error itself tells of a failed device. Out of memory is none."""
    torch = sys.modules.get("torch")
    if (
        torch is None
        or isinstance(error, torch.OutOfMemoryError)
        or not isinstance(error, RuntimeError)
    ):
        return False
    return (
        isinstance(error, torch.AcceleratorError) or FAULT.match(str(error)) is not None
    ) and not REFUSAL.search(first_line(error))


def device_fault(error: BaseException) -> str:
    """Returns in one line the message of a device's failure, where an error or what led to it is
    one; else nothing.
    """
    return next((first_line(one) for one in with_causes(error) if is_device_fault(one)), "")
