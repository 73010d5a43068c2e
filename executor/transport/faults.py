"""Defines errors of connections between processes. The user of a connection turns them into
user-facing errors.
"""


class Closed(Exception):
    """Reports that the peer disconnected or that this side was closed."""


class ProtocolError(Exception):
    """Reports invalid bytes; the connection is no longer usable."""
