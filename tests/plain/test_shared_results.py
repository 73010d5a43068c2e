"""Concurrent runs share results and lose none that they need; users have separate histories and
objects.
"""

from __future__ import annotations

import threading
from typing import Any

from trivial_nodes import Ran, RecordingContext, node, run

from katz_graph.executor.graph.result_store import ResultCache, ResultEntry
from katz_graph.web.runner.caches import USERS, Caches


def total(number: int) -> dict[str, Any]:
    return {
        "1": node("Number", value=number),
        "2": node("Add", a=["1", 0], b=1),
        "3": node("Save", value=["2", 0]),
    }


def test_a_run_that_ends_leaves_values_used_by_others() -> None:
    """The `classic` policy caches the last run's results. A long run must still find its own after
    short runs end.
    """
    shared = ResultCache()
    long, quick = shared.fork(), shared.fork()
    with long.under_way():
        run(total(1), long)  # has these results and continues
        with quick.under_way():
            run(total(2), quick)
        run(total(3), quick)
        assert run(total(1), long).nodes("cached") == ["3"]


def test_a_long_run_does_not_hold_results_of_others() -> None:
    shared = ResultCache()
    long = shared.fork()
    with long.under_way():
        run(total(1), long)
        for number in range(2, 10):
            quick = shared.fork()
            with quick.under_way():
                run(total(number), quick)
        assert len(shared) == 6  # its own, and the last run's


def test_when_all_are_over_the_results_of_the_last_runs_stay_and_no_others() -> None:
    shared = ResultCache.parse("classic", runs=2)
    for number in (1, 2, 3):
        run(total(number), shared)
    assert [run(total(number), shared).nodes("cached") for number in (2, 3)] == [["3"], ["3"]]
    assert run(total(1), shared).nodes("start") == ["1", "2", "3"]
    assert len(shared) == 6  # of two runs


def test_forgotten_results_are_computed_again() -> None:
    shared = ResultCache()
    run(total(1), shared)
    shared.fork().clear()
    assert len(shared) == 0 and run(total(1), shared).nodes("cached") == []


def test_a_limit_and_none_hold_for_all_together() -> None:
    shared = ResultCache.parse("lru:2")
    for number in range(10):
        shared.fork().put(bytes([number]), ResultEntry((number,)))
    assert len(shared) == 2 and shared.fork().get(bytes([9])) is not None
    nothing = ResultCache.parse("none").fork()
    nothing.put(b"1", ResultEntry((1,)))
    assert len(nothing) == 0


def test_concurrent_runs_match_single_runs() -> None:
    shared = ResultCache()
    done: list[Ran] = []

    def work(number: int) -> None:
        for round_ in range(10):
            own = shared.fork()
            with own.under_way():
                context = RecordingContext()
                done.append(run(total(number + round_ % 3), own, context=context))
                assert context.said in ([], [repr(number + round_ % 3 + 1)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 80 and all(not one.result.failures for one in done)


def test_users_keep_their_own_histories_which_their_concurrent_runs_share() -> None:
    caches = Caches(ResultCache())
    with caches.lent("ann") as hers:
        run(total(1), hers)
        with caches.lent("ann") as fork:
            assert fork is not hers
            assert "changed from 1 to 2" in run(total(2), fork).why("1")
    with caches.lent("bob") as his:
        assert run(total(2), his).nodes("cached") == ["3"]  # users share results
    with caches.lent("carl") as his:
        assert run(total(3), his).why("1") == "new"
    with caches.lent("ann") as hers:
        assert "changed from 2 to 4" in run(total(4), hers).why("1")


def test_only_so_many_users_are_remembered() -> None:
    caches = Caches(ResultCache())
    for user in range(USERS + 1):
        with caches.lent(str(user)) as own:
            run(total(1), own)
    with caches.lent("0") as first:
        assert run(total(2), first).why("1") == "new"
