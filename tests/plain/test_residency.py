"""Evictions match sequences computed by hand."""

from __future__ import annotations

import math

import pytest

from katz_graph.core.errors import InputError
from katz_graph.core.eviction import POLICIES, LeastFrequentlyUsed, LeastRecentlyUsed
from katz_graph.models.loading.residency import STALE, NoRoom, Residency


def evicted(residency: Residency, keys: str) -> list[str]:
    """Returns the evictions of each use of one-byte items; `-` for none."""
    return ["".join(map(str, residency.touch(key, 1))) or "-" for key in keys]


def test_least_recently_used() -> None:
    residency = Residency(3, LeastRecentlyUsed())
    assert evicted(residency, "abcadbeab") == ["-", "-", "-", "-", "b", "c", "a", "d", "-"]
    assert (residency.hits, residency.misses, residency.evictions, residency.resident_bytes) == (
        2,
        7,
        4,
        3,
    )


def test_least_frequently_used_stores_frequently_used_results() -> None:
    """LRU would drop `a` for `d`."""
    assert evicted(Residency(3, LeastFrequentlyUsed()), "aaabcd") == ["-", "-", "-", "-", "-", "b"]


def test_of_equal_counts_the_oldest_use_goes() -> None:
    assert evicted(Residency(2, LeastFrequentlyUsed()), "abbac") == ["-", "-", "-", "-", "b"]


def test_once_popular_models_are_finally_evicted() -> None:
    """`a` has 3 uses; each new item starts one above the last evicted: 1, 1+1, 2+1, 3+1. Then `a`
    is the older of two at 3.
    """
    assert evicted(Residency(2, LeastFrequentlyUsed()), "aaabcde") == [
        "-",
        "-",
        "-",
        "-",
        "b",
        "c",
        "a",
    ]


def test_the_aging_count_restarts_for_returning_models() -> None:
    """`b` is evicted at 2, so `c` starts at 3, equal to `a`. When `b` returns, `a` is evicted,
    because its last use is older.
    """
    residency = Residency(2, LeastFrequentlyUsed())
    assert evicted(residency, "aaabbcb") == ["-", "-", "-", "-", "-", "b", "a"]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_as_many_go_as_are_needed(policy: str) -> None:
    residency = Residency(10, POLICIES[policy]())
    for key, size in (("a", 4), ("b", 3), ("c", 3)):
        assert residency.touch(key, size) == ()
    assert residency.touch("d", 5) == ("a", "b")
    assert residency.resident_bytes == 8
    assert "a" not in residency and "c" in residency
    assert residency.touch("e", 2) == ()


@pytest.mark.parametrize("policy", list(POLICIES))
def test_pinned_models_stay(policy: str) -> None:
    residency = Residency(2, POLICIES[policy]())
    residency.touch("a", 1)
    residency.touch("b", 1)
    residency.pin("a")
    residency.pin("a")
    assert residency.touch("c", 1) == ("b",)
    residency.unpin("a")
    assert residency.touch("d", 1) == ("c",)
    residency.unpin("a")
    residency.pin("d")
    assert residency.touch("e", 1) == ("a",)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_without_room_nothing_changes(policy: str) -> None:
    residency = Residency(5, POLICIES[policy]())
    residency.touch("a", 3)
    residency.touch("b", 1)
    residency.pin("a")
    with pytest.raises(
        NoRoom, match="depth: takes 4 bytes, models in use take 3 of the budget of 5 bytes"
    ) as caught:
        residency.touch("c", 4, "depth")
    assert "\n" not in str(caught.value)
    assert "b" in residency and "c" not in residency
    assert (residency.misses, residency.evictions, residency.resident_bytes) == (2, 0, 4)
    residency.unpin("a")
    assert residency.touch("c", 4) == ("a",)


def test_models_larger_than_the_budget_are_refused() -> None:
    residency = Residency(1_000, LeastRecentlyUsed())
    residency.touch("a", 900)
    with pytest.raises(
        InputError, match="canny: takes 2,000 bytes alone, the budget is 1,000 bytes"
    ):
        residency.touch("b", 2_000, "canny")
    assert "a" in residency


def test_failed_loads_take_no_room() -> None:
    residency = Residency(2, LeastRecentlyUsed())
    residency.touch("a", 2)
    residency.forget("a")
    assert residency.touch("b", 2) == ()
    with pytest.raises(KeyError):
        residency.pin("a")


def test_without_a_budget_everything_stays() -> None:
    residency = Residency(math.inf, LeastRecentlyUsed())
    assert all(residency.touch(number, 10**12) == () for number in range(100))


def test_one_of_the_same_kind_goes_first_where_something_must() -> None:
    """Items of other kinds can then stay. An item in use is never evicted, nor is any if there is
    room.
    """
    residency = Residency(3, LeastRecentlyUsed())
    assert evicted(residency, "abc") == ["-", "-", "-"]
    assert residency.touch("d", 1, alike="bc") == ("b",)
    assert residency.touch("e", 2, alike="d") == ("d", "a")
    residency.pin("c")
    assert residency.touch("f", 2, alike="c") == ("e",)
    residency.forget("f")
    assert residency.touch("g", 1, alike="c") == ()


def test_unused_models_are_evicted_before_one_of_the_same_kind() -> None:
    residency = Residency(2, LeastRecentlyUsed())
    assert evicted(residency, "za") == ["-", "-"]
    last = "a"
    for number in range(STALE - 1):
        assert residency.touch(str(number), 1, alike=[last]) == (last,)
        last = str(number)
    assert residency.touch("b", 1, alike=[last]) == ("z",)
