"""Tests when two nodes have the same result, and which results are cached."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trivial_nodes import TYPES, node, run

from katz_graph.core.errors import InputError
from katz_graph.core.eviction import POLICIES
from katz_graph.core.graph import Link
from katz_graph.core.recipe import FileIdentity, Lora
from katz_graph.executor.graph.result_store import ResultCache, ResultEntry
from katz_graph.executor.graph.signature import Unsignable, node_signature, value_token

FILE = FileIdentity("a", 1, 2, "h")
DIFFERENT: list[Any] = [
    None, True, False, 0, 1, -1, 128, -128, 256, 2**64, 0.0, -0.0, 1.0, 1.5, "", "1", "a", b"a",
    [], (), {}, [1], (1,), [1.0], [True], [[1]], [1, [2]], [[1], 2],
    ["a", "b"], ["ab", ""], {"a": 1}, {"a": 1.0}, {"b": 1}, {"a": {"b": 1}}, {1: "a"}, frozenset(), Path("a"),
    Lora(FILE, 1.0), Lora(FILE, 0.5), Lora(FileIdentity("a", 1, 3, "h"), 1.0),
    numpy.zeros(2), numpy.zeros(2, numpy.float32), numpy.zeros((2, 1)), numpy.ones(2),
]  # fmt: skip


def test_different_values_have_different_tokens() -> None:
    tokens = [value_token(value) for value in DIFFERENT]
    for (one, a), (other, b) in combinations(zip(DIFFERENT, tokens, strict=True), 2):
        assert a != b, (one, other)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(VALUES, VALUES)
def test_tokens_are_equal_exactly_for_equal_typed_values(one: Any, other: Any) -> None:
    """`repr` distinguishes 1, 1.0 and True, and 0.0 and -0.0."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(value[key]) for key in sorted(value)}
        return [ordered(item) for item in value] if isinstance(value, list) else value

    assert (value_token(one) == value_token(other)) == (repr(ordered(one)) == repr(ordered(other)))


def test_the_order_of_a_mapping_does_not_matter() -> None:
    assert value_token({"a": 1, "b": 2}) == value_token({"b": 2, "a": 1})


@pytest.mark.parametrize(
    "value", [float("nan"), [float("nan")], object(), lambda: 1, {"x": object()}]
)
def test_results_of_unknown_identity_are_never_cached(value: Any) -> None:
    with pytest.raises(Unsignable):
        value_token(value)


def test_not_a_number_is_never_cached_whoever_made_it() -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    numbers = [
        kind("nan")
        for kind in (numpy.float16, numpy.float32, numpy.float64, numpy.longdouble, numpy.complex64)
    ]
    for value in (
        *numbers,
        numpy.array(float("nan")),
        numpy.datetime64("NaT"),
        torch.tensor(float("nan")),
    ):
        for held in (value, [value], {"x": value}):
            with pytest.raises(Unsignable, match="NaN"):
                value_token(held)
    assert (
        value_token(numpy.float32(1.0))
        == value_token(numpy.float32(1.0))
        != value_token(numpy.float64(1.0))
    )
    depths = numpy.array([1.0, float("nan")])
    assert value_token(depths) == value_token(depths.copy())  # equal content, although NaN differs


def test_a_value_that_holds_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Unsignable):
        node_signature("A", None, {"x": loop}, {})


def test_tensors_by_content() -> None:
    torch = pytest.importorskip("torch")
    one = torch.arange(6, dtype=torch.float32)
    assert value_token(one) == value_token(one.clone())
    assert value_token(one.reshape(2, 3).T) == value_token(one.reshape(2, 3).T.contiguous())
    distinct = [
        one,
        one + 1,
        one.reshape(2, 3),
        one.double(),
        one.bfloat16(),
        torch.tensor(1.0),
        torch.zeros(0),
    ]
    assert len({value_token(tensor) for tensor in distinct}) == len(distinct)


def test_a_signature_knows_type_fingerprint_output_and_source_but_no_ids() -> None:
    def signature(
        kind: str = "A",
        fingerprint: Any = None,
        node: str = "1",
        output: int = 0,
        source: bytes = b"s" * 20,
    ) -> bytes:
        return node_signature(kind, fingerprint, {"x": Link(node, output), "y": 1}, {node: source})

    assert signature(node="other") == signature()
    others = [
        signature("B"),
        signature(fingerprint="changed"),
        signature(output=1),
        signature(source=b"t" * 20),
    ]
    assert len({signature(), *others}) == 5


def test_signatures_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from katz_graph.executor.graph.signature import node_signature;"
        "print(node_signature('A', {'x', 'y', 'z'}, {'b': {'k': 1, 'l': 2}, 'a': "
        "'text'}, {}).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(seen) == 1


@pytest.mark.parametrize(
    "values", [(1, 1.0), (1, True), (0, False), (0.0, False), (1.0, True), ("1", 1), (0.0, -0.0)]
)
def test_an_any_typed_node_distinguishes_one_from_true(values: tuple[Any, Any]) -> None:
    cache = ResultCache()
    for value in values:
        came = run(
            {"1": node("Echo", value=value), "2": node("Save", value=["1", 0])}, cache
        ).result.outputs["2"][0]
        assert came == value and type(came) is type(value)


def test_two_runs_that_ask_for_the_object_of_a_node_at_once_get_the_same() -> None:
    class Slow:
        def __init__(self) -> None:
            time.sleep(0.05)

    cache, kind = ResultCache(), replace(TYPES["Number"], instance=Slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: cache.instance("1", kind), range(2))
    assert first is second


def entry(value: Any) -> ResultEntry:
    return ResultEntry((value,))


def test_classic_drops_results_unused_by_the_last_graph() -> None:
    cache = ResultCache()
    for name in (b"a", b"b", b"c"):
        cache.put(name, entry(name))
    cache.end_run([b"a"])
    assert cache.get(b"a") == entry(b"a")
    assert cache.get(b"b") is None


def test_classic_keeps_the_parts_of_what_it_keeps() -> None:
    cache = ResultCache()
    cache.put(b"deep", entry(1))
    cache.put(b"inner", ResultEntry((2,), (b"deep",)))
    cache.put(b"outer", ResultEntry((3,), (b"inner",)))
    cache.end_run([b"outer"])
    assert len(cache) == 3
    cache.end_run([])
    assert len(cache) == 0


def test_lru_keeps_the_last_used() -> None:
    cache = ResultCache.parse("lru:2")
    cache.put(b"a", entry(1))
    cache.put(b"b", entry(2))
    cache.get(b"a")
    cache.put(b"c", entry(3))
    cache.end_run([])
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_eviction_policy_stores_as_many_results_as_configured(policy: str) -> None:
    cache = ResultCache.parse(f"{policy}:2")
    for name in (b"a", b"b", b"c", b"c"):
        cache.put(name, entry(name))
        assert cache.get(name) == entry(name)
    assert len(cache) == 2
    cache.clear()
    cache.put(b"d", entry(4))
    assert len(cache) == 1 and cache.get(b"d") == entry(4)


def test_none_keeps_nothing() -> None:
    cache = ResultCache.parse("none")
    cache.put(b"a", entry(1))
    assert cache.get(b"a") is None


@pytest.mark.parametrize(
    "text", ["", "lru", "lru:0", "lru:-1", "lru:x", "lru:" + "9" * 5000, "all", "none:3"]
)
def test_unknown_policies(text: str) -> None:
    with pytest.raises(InputError, match="cache policy"):
        ResultCache.parse(text)
