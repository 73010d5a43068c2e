"""Prepares this host's workers while the driver is still loading. Imports nothing heavy itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

from katz_graph.core.devices import DeviceList
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.turns.affinity import claim_seats


class EarlyStart:
    """Claims processors for this host's devices, and runs a fork server that preloads libraries,
    until `close`. `server`: a fork server to use instead of a new one.
    """

    def __init__(self, devices: DeviceList, threads: int, server: ForkServer | None = None) -> None:
        here = [choice.device for choice in devices.choices if devices.launcher == "spawn"]
        self.claimed = claim_seats([threads if device == "cpu" else 0 for device in here])
        self.server = server or ForkServer(threads)
        if here:
            with suppress(OSError):  # the launcher will get and report the same error
                self.server.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.claimed.close()
        self.server.close()
