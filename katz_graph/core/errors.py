"""Defines the errors that a person reads: one clear line each, and the exit code that the command
line ends with.
"""


class KatzError(Exception):
    """Base of all errors that are shown without a traceback. `devices` names those that cannot be
    used, where that is what is wrong.
    """

    exit_code = 1
    devices: tuple[str, ...] = ()

    def __init__(self, message: str = "", devices: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.devices = devices


def with_causes(error: BaseException) -> list[BaseException]:
    """Returns an error and those that it was raised from or while handling, each once."""
    met = [error]
    for one in met:
        met += [
            other
            for other in (one.__cause__, one.__context__)
            if other is not None and other not in met
        ]
    return met


class InputError(KatzError):
    """The input is wrong: a file, a node, a value. One line per problem."""

    exit_code = 2


class RunError(KatzError):
    """The input was right but the run failed: memory, disk, NaN, a broken device."""


class DeviceGone(RunError):
    """Reports that a device's worker was lost, or cannot be reached, and gets no successor:
    whatever needs the device fails until the engine is started again.
    """


class DiskFull(RunError):
    """A file could not be written, since there was no room for it."""


class OutOfMemory(RunError):
    """The memory of a device, or of the host, did not suffice. Says how much there was and the way
    out.
    """


class Cancelled(KatzError):
    """The run was stopped on request."""

    exit_code = 130
