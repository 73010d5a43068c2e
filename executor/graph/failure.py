"""Turns an exception of a node into an error that names the node, with the cause attached for
debugging.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from pydantic import ValidationError

from katz_graph.core.errors import Cancelled, DiskFull, InputError, KatzError, OutOfMemory, RunError
from katz_graph.core.messages import one_line, shorten, show
from katz_graph.executor.worker.device_fault import device_fault
from katz_graph.files.output_files import FULL
from katz_graph.host.memory import is_out_of_memory, memory_message

MAX_MESSAGE_CHARACTERS = 400  # characters of the message of an unknown exception


def node_failure(name: str, error: BaseException) -> KatzError:
    """Returns the error of the node called `name`. InputError, OutOfMemory and DiskFull keep their
    type, other exceptions become RunError; `__cause__` is the original. KeyboardInterrupt becomes
    Cancelled.
    """
    if isinstance(error, (KeyboardInterrupt, Cancelled)):
        return error if isinstance(error, Cancelled) else Cancelled("cancelled")
    failure = _kind(error)("\n".join(f"{name}: {line}" for line in _lines(error)))
    failure.__cause__ = error
    return failure


def _kind(error: BaseException) -> type[KatzError]:
    if isinstance(error, (InputError, ValidationError)):
        return InputError
    if isinstance(error, OSError) and error.errno in FULL:
        return DiskFull
    if isinstance(error, DiskFull):
        return DiskFull
    return OutOfMemory if isinstance(error, OutOfMemory) or is_out_of_memory(error) else RunError


def in_words(error: BaseException) -> str:
    """Describes an exception in one phrase."""
    return "; ".join(_lines(error))


def _lines(error: BaseException) -> list[str]:
    if isinstance(error, KatzError):
        return [one_line(line) for line in str(error).split("\n")]
    if isinstance(error, ValidationError):
        return [
            f"{'.'.join(map(str, part['loc']))}: got {show(part.get('input'))}; {part['msg']}"
            for part in error.errors()
        ]
    if is_out_of_memory(error):
        return [memory_message(error)]
    if fault := device_fault(error):
        return [
            f"the device failed ({fault}); this process can no longer use it; run the workflow "
            "again"
        ]
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({one_line(str(error.filename))})" if error.filename else ""
        return [
            f"the disk is full{where}; free some space or choose another --output"
            if error.errno in FULL
            else f"{error.strerror}{where}"
        ]
    return [_foreign(error)]


def _foreign(error: BaseException) -> str:
    """Describes an exception not meant for users: type, message, and the line of code that raised
    it.
    """
    message = next((line.strip() for line in str(error).split("\n") if line.strip()), "")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    shown = shorten(message, MAX_MESSAGE_CHARACTERS)
    return one_line(f"{type(error).__name__}{': ' if message else ''}{shown}{place}")
