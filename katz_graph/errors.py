"""Errors that a person reads: one clear line each, and the exit code that the command line ends with."""


class KatzError(Exception):
    """Base of all errors that are shown without a traceback."""

    exit_code = 1


class InputError(KatzError):
    """The input is wrong: a file, a node, a value. One line per problem."""

    exit_code = 2


class RunError(KatzError):
    """The input was right but the run failed: memory, disk, NaN, a broken device."""


class Cancelled(KatzError):
    """The run was stopped on request."""

    exit_code = 130
