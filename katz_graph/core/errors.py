"""Defines the errors that are shown to users: one clear line each, and the exit code of the command
line.
"""


class KatzError(Exception):
    """Base of all errors that are shown without a traceback. `devices`: the unusable devices, if
    they caused the error.
    """

    exit_code = 1
    devices: tuple[str, ...] = ()

    def __init__(self, message: str = "", devices: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.devices = devices


def with_causes(error: BaseException) -> list[BaseException]:
    """Returns an error and all errors in its chains of causes and contexts, each once."""
    met = [error]
    for one in met:
        met += [
            other
            for other in (one.__cause__, one.__context__)
            if other is not None and other not in met
        ]
    return met


class InputError(KatzError):
    """Reports invalid input: a file, a node, a value. One line per problem."""

    exit_code = 2


class RunError(KatzError):
    """Reports that a run with valid input failed: memory, disk, NaN, a broken device."""


class DeviceFailed(RunError):
    """Reports that a device's worker was lost or cannot be reached and will not be replaced. Work
    on that device fails until the engine restarts.
    """


class DiskFull(RunError):
    """Reports that a file could not be written because the disk is full."""


class OutOfMemory(RunError):
    """Reports that the memory of a device or of the host did not suffice. The message states the
    available memory and a remedy.
    """


class Cancelled(KatzError):
    """Reports that the run was stopped on request."""

    exit_code = 130
