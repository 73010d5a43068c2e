"""A mailbox holds values by address, and values of ended attempts do not accumulate."""

from __future__ import annotations

import pytest

from katz_graph.executor.transport.mailbox import Address, Mailbox


def test_a_value_is_taken_once() -> None:
    calls: list[int] = []
    mailbox = Mailbox(lambda: calls.append(1))
    address = Address("r", 1, "unet/mid", 0, 4)
    assert not mailbox.has(address)
    mailbox.put(address, None)
    assert mailbox.has(address) and calls == [1]
    assert mailbox.take(address) is None
    with pytest.raises(KeyError):
        mailbox.take(address)
    mailbox.put(Address("r", 1, "unet/mid", 0, None), "before the loop")
    assert not mailbox.has(address)


def test_latecomers_of_a_discarded_attempt_are_dropped() -> None:
    mailbox = Mailbox()
    for attempt in (1, 2):
        mailbox.put(Address("r", attempt, "x"), attempt)
    mailbox.put(Address("other", 1, "x"), 0)
    mailbox.discard("r", 1)
    mailbox.put(Address("r", 1, "y"), 0)
    assert len(mailbox) == 2
    assert mailbox.take(Address("r", 2, "x")) == 2
    mailbox.discard("r")
    mailbox.discard("r", 1)
    mailbox.put(Address("r", 3, "x"), 3)
    assert len(mailbox) == 1
