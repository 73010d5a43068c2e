"""Distinguishes errors that make a device unusable for the process from errors that end one
request.

CUDA calls such errors sticky: every later call in the process fails with them. Does not import
torch: such errors occur only after torch was imported.
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
"""Matches CUDA errors of calls that did not start; the next call may succeed."""


def is_device_fault(error: BaseException) -> bool:
    """Returns whether this error itself is a device fault. Out of memory is not."""
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
    """Returns the first line of the device fault in an error or its causes, or an empty string."""
    return next((first_line(one) for one in with_causes(error) if is_device_fault(one)), "")
