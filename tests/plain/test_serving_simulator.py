"""Simulated devices serve requests in the order of the policy, and count their seconds. Forecasts
of what runs and waits end as the simulation does.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from itertools import islice
from statistics import median

import pytest

from katz_graph.serving.simulator import Calls, Request, forecast, poisson, simulate


def seconds(key: object, rows: int) -> float:
    return 1.0 + 0.5 * (rows - 1)


def request(arrival: float, number: int = 2, **given: float) -> Request:
    return Request(arrival, (Calls("denoise", number),), **given)


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
        Request(0.1, (Calls("denoise", 2),), client="one"),
        Request(0.2, (Calls("denoise", 2, rows=2),), client="two"),
        Request(0.3, (Calls("decode", 1),), client="three"),
    ]
    served = simulate(requests, 1, seconds, max_rows=4)
    # the first call starts before the others arrive, and the second request's last call is alone
    assert served.seconds == pytest.approx({"one": 1 + 2 / 3, "two": 2 * 2 / 3 + 1.5, "three": 1})
    assert simulate(requests, 1, seconds).seconds == {"one": 2.0, "two": 3.0, "three": 1.0}


def test_arrivals_have_their_rate() -> None:
    last = list(islice(poisson(4.0, random.Random(1)), 4000))[-1]
    assert last == pytest.approx(1000, rel=0.1)


BEFORE = (Calls(None, 1, rows=0, own=1.0), Calls(None, 1, own=2.0))  # by the host, the device
AFTER = (Calls(None, 1, own=3.0), Calls(None, 1, rows=0, own=4.0))


def test_other_requests_use_the_device_while_the_host_works_for_one() -> None:
    whole = Request(1.0, (*BEFORE, Calls("denoise", 2, own=0.5), *AFTER))
    served = simulate([whole, replace(whole, arrival=1.5)], 1, seconds)
    # the device works for 2 + 2 · 1.5 + 3 s for each
    assert served.ends == pytest.approx({0: 2 + 8 + 4, 1: 2 + 16 + 4})
    together = simulate([whole, replace(whole, arrival=1.5)], 1, seconds, max_rows=2)
    # the second one's text is encoded before the first one samples, then 2 calls of 2.5 s
    assert together.ends == pytest.approx({0: 2 + 4 + 5 + 3 + 4, 1: 2 + 4 + 5 + 6 + 4})
    (left,) = forecast([whole], 1, seconds, 0, now=1.0).ends.values()
    assert left == pytest.approx(14.0)


def test_what_is_left_is_served_on_as_before() -> None:
    whole = Request(1.0, (*BEFORE, Calls("denoise", 4), *AFTER))
    requests = [whole, replace(whole, arrival=1.5, due=15.0), replace(whole, arrival=2.0)]
    ends = simulate(requests, 2, seconds).ends
    for now in (2.25, 4.5, 6.25, 9.0, 12.75):
        left = simulate(requests, 2, seconds, until=now).left
        found = forecast(list(left.values()), 2, seconds, 0, now).ends
        rest = [ends[number] for number in left]
        assert [found[place] for place in range(len(left))] == pytest.approx(rest)


def jobs(load: float, number: int, seed: int) -> list[Request]:
    """Draws requests of three sizes, 1, 2 and 4 s of the device alone, with due times after five
    times that. A tenth of it precedes the sampler, two tenths follow it.
    """
    draw = random.Random(seed)
    found = []
    for arrival in islice(poisson(load * 2 / (7 / 3), draw), number):
        whole = draw.choice((1.0, 2.0, 4.0))
        before, after = (Calls(None, 1, own=part * whole) for part in (0.1, 0.2))
        work = (before, Calls(whole, 20, rows=2), after)
        found.append(Request(1.0 + arrival, work, 1.0 + arrival + 5 * whole))
    return found


def of_a_size(whole: object, rows: int) -> float:
    """Returns the seconds of a call. Four small requests take half as long together."""
    gain = {1.0: 0.33, 2.0: 0.7, 4.0: 0.9}
    assert isinstance(whole, float)
    return 0.7 * whole / 20 * (1 + gain[whole] * (rows - 2) / 2)


def test_the_rest_of_a_job_at_half_time_is_forecast_within_a_tenth() -> None:
    errors = []
    for load, rows in ((0.9, 0), (1.1, 0), (0.9, 8), (1.1, 8)):
        requests = jobs(load, 100, seed=1)
        served = simulate(requests, 2, of_a_size, rows)
        for number in range(30, 90, 4):
            half = (served.starts[number] + served.ends[number]) / 2
            left = simulate(requests, 2, of_a_size, rows, until=half).left
            found = forecast(list(left.values()), 2, of_a_size, rows, half)
            rest = found.ends[list(left).index(number)] - half
            errors.append(abs(rest / (served.ends[number] - half) - 1))
    assert median(errors) <= 0.1  # others arrive meanwhile


@pytest.mark.parametrize("due", [False, True])
def test_a_thousand_waiting_jobs_are_forecast_in_milliseconds(due: bool) -> None:
    waiting = [
        replace(one, arrival=1.0 + number * 1e-6, due=one.due * 4 if due else math.inf)
        for number, one in enumerate(jobs(1.0, 1000, seed=2))
    ]
    for rows, speed in ((0, 2.0), (8, 2.22)):
        began = time.thread_time()
        found = forecast(waiting, 2, of_a_size, rows, now=2.0)
        assert time.thread_time() - began < 0.25
        assert len(found.ends) == len(found.starts) == 1000
        ends = sorted(found.ends.items(), key=lambda one: one[1])
        for place in (300, 600, 999):
            work = sum(waiting[number].alone(of_a_size) for number, _ in ends[:place])
            assert ends[place][1] - 2.0 == pytest.approx(work / speed, rel=0.1)
        assert ends[-1][1] - 10.0 < found.idle <= ends[-1][1]
