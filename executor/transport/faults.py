"""Defines the faults between two processes. Whoever owns the connection turns them into something
that a user reads.
"""


class Closed(Exception):
    """Reports that the other side is gone, or this side was closed."""


class ProtocolError(Exception):
    """Reports bytes that no program of ours sends; the connection is of no more use."""
