"""Simulated devices serve requests in the order of the policy, and count their seconds."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from katz_graph.serving.simulator import Calls, Request, poisson, simulate


def seconds(key: object, rows: int) -> float:
    return 1.0 + 0.5 * (rows - 1)


def request(arrival: float, number: int = 2, **given: float) -> Request:
    return Request(arrival, Calls("denoise", number), **given)


def test_requests_spread_over_devices_and_keep_theirs() -> None:
    served = simulate([request(0.1), request(0.2), request(0.3), request(1.5, 1)], 2, seconds)
    assert served.ends == {
        0: pytest.approx(2.1),
        1: pytest.approx(2.2),
        2: pytest.approx(4.1),
        3: pytest.approx(3.2),
    }
    assert served.on_time == 1.0


def test_a_due_request_interrupts_another_one_between_its_calls() -> None:
    requests = [request(0.1, 3), request(0.5, 1, due=2.5), request(0.6, 1, due=2.0)]
    served = simulate(requests, 1, seconds)
    assert served.ends == pytest.approx({0: 4.1, 1: 2.1, 2: 5.1})
    assert served.on_time == 0.5  # the last one was late already at 1.1


def test_requests_share_calls_of_one_key_and_pay_by_rows() -> None:
    requests = [
        Request(0.1, Calls("denoise", 2), client="one"),
        Request(0.2, Calls("denoise", 2, rows=2), client="two"),
        Request(0.3, Calls("decode", 1), client="three"),
    ]
    served = simulate(requests, 1, seconds, max_rows=4)
    # the first call starts before the others arrive, and the second request's last call is alone
    assert served.seconds == pytest.approx({"one": 1 + 2 / 3, "two": 2 * 2 / 3 + 1.5, "three": 1})
    assert simulate(requests, 1, seconds).seconds == {"one": 2.0, "two": 3.0, "three": 1.0}


def test_arrivals_have_their_rate() -> None:
    last = list(islice(poisson(4.0, random.Random(1)), 4000))[-1]
    assert last == pytest.approx(1000, rel=0.1)
