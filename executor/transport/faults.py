"""What can go wrong between two processes. Whoever owns the connection turns it into something that
a person reads.
"""


class Closed(Exception):
    """The other side is gone, or this side was closed."""


class ProtocolError(Exception):
    """The other side sent what no program of ours sends; the connection is of no more use."""
