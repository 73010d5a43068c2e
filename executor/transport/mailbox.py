"""Stores values from other devices until their job takes them. Must not know how values arrive."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REMEMBERED = 4096  # discarded requests remembered, to drop late values


@dataclass(frozen=True, slots=True)
class Address:
    """Identifies an output of an operation in one evaluation of one attempt of a request.
    Evaluation None: before the loop.
    """

    request: str
    attempt: int
    operation: str
    output: int = 0
    evaluation: int | None = None


class Mailbox:
    """Stores values by address. Any thread may call. Calls `notify` after every stored value,
    without holding a lock.
    """

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._values: dict[Address, Any] = {}
        # request -> its last discarded attempt
        self._discarded: OrderedDict[str, float] = OrderedDict()

    def put(self, address: Address, value: Any) -> None:
        """Stores a value until it is taken. Drops a value of a discarded attempt."""
        with self._lock:
            if address.attempt <= self._discarded.get(address.request, -1):
                return
            self._values[address] = value
        self._notify()

    def take(self, address: Address) -> Any:
        """Removes and returns a value. Raises KeyError if none is stored."""
        with self._lock:
            return self._values.pop(address)

    def has(self, address: Address) -> bool:
        with self._lock:
            return address in self._values

    def discard(self, request: str, attempt: int | None = None) -> None:
        """Drops stored and future values of a request: of all attempts, or of attempts up to
        `attempt`.
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
        del dropped  # free the tensors outside the lock

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)
