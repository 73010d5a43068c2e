"""Keeps values that other devices computed until the job that reads them takes them. Must not know
how they came.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REMEMBERED = 4096  # discarded requests of which latecomers are still recognised


@dataclass(frozen=True, slots=True)
class Address:
    """Names an output of an operation as one evaluation of one attempt at a request made it;
    evaluation None: before the loop.
    """

    request: str
    attempt: int
    operation: str
    output: int = 0
    evaluation: int | None = None


class Mailbox:
    """Keeps values by address. Any thread may call; `notify` is called after every value that came,
    without a lock held.
    """

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._values: dict[Address, Any] = {}
        # request -> its last attempt of which nothing is wanted
        self._discarded: OrderedDict[str, float] = OrderedDict()

    def put(self, address: Address, value: Any) -> None:
        """Keeps a value until it is taken; one for an attempt that was discarded is dropped."""
        with self._lock:
            if address.attempt <= self._discarded.get(address.request, -1):
                return
            self._values[address] = value
        self._notify()

    def take(self, address: Address) -> Any:
        """Removes and returns a value. KeyError where there is none."""
        with self._lock:
            return self._values.pop(address)

    def has(self, address: Address) -> bool:
        with self._lock:
            return address in self._values

    def discard(self, request: str, attempt: int | None = None) -> None:
        """Drops what came, and what still comes, for a request: for all its attempts, or for those
        up to `attempt`.
        """
        last = math.inf if attempt is None else attempt
        with self._lock:
            self._discarded[request] = max(last, self._discarded.pop(request, -1))
            if len(self._discarded) > REMEMBERED:
                self._discarded.popitem(last=False)
            stale = [
                address
                for address in self._values
                if address.request == request and address.attempt <= last
            ]
            dropped = [self._values.pop(address) for address in stale]
        del dropped  # tensors are freed here, where no lock is held

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)
