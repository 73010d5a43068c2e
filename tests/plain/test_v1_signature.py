"""V1 nodes run again only when they must."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from trivial_nodes import RecordingContext, node
from v1_classes import pack_class, run_v1

from katz_graph.executor.graph.result_store import ResultCache


def changing(is_changed: Any, document: Any = None, **options: Any) -> list[list[str]]:
    """Returns the nodes that start, for each of three runs."""
    kind = pack_class(
        lambda self, **values: (1,), {"x": ("INT",)}, IS_CHANGED=is_changed, **options
    )
    cache = ResultCache()
    graph = document or {"1": node("Made", x=1), "save": node("Save", value=["1", 0])}
    return [run_v1(graph, {"Made": kind}, cache).nodes("start") for _ in range(3)]


def test_is_changed_is_part_of_the_signature() -> None:
    state = iter([1, 1, 2])
    assert changing(classmethod(lambda cls, x: next(state))) == [["1", "save"], [], ["1", "save"]]


def test_nan_always_runs_again() -> None:
    assert changing(classmethod(lambda cls, **values: float("nan"))) == [["1", "save"]] * 3
    # the pack forgot to make it a class method
    assert changing(lambda self: float("nan")) == [["1", "save"]] * 3

    async def later(cls: type, **values: Any) -> Any:
        await asyncio.sleep(0)
        return float("nan")

    assert changing(classmethod(later)) == [["1", "save"]] * 3


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.array])
def test_numpys_nan_always_runs_again_and_is_named_as_the_reason(kind: Any) -> None:
    made = {
        "Made": pack_class(
            lambda self: (1,), IS_CHANGED=classmethod(lambda cls: kind(float("nan")))
        )
    }
    cache, document = ResultCache(), {"1": node("Made"), "save": node("Save", value=["1", 0])}
    runs = [run_v1(document, made, cache) for _ in range(3)]
    assert [ran.nodes("start") for ran in runs] == [["1", "save"]] * 3
    assert runs[-1].why("1") == "never cached: it asks to run every time"


def test_is_changed_that_fails_is_reported_and_never_cached() -> None:
    def broken(cls: type, x: int) -> Any:
        raise OSError(2, "No such file or directory", "x.png")

    kind = pack_class(lambda self, x: (1,), {"x": ("INT",)}, IS_CHANGED=classmethod(broken))
    context, cache = RecordingContext(), ResultCache()
    for _ in range(2):
        ran = run_v1(
            {"1": node("Made", x=1), "save": node("Save", value=["1", 0])},
            {"Made": kind},
            cache,
            context=context,
        )
    assert ran.nodes("start") == ["1", "save"]
    assert (
        "node 1 (Made): its dependencies could not be determined (No such file or directory "
        "(x.png)), so it is never" in context.said[0]
    )
    assert ran.why("1") == "never cached: its dependencies could not be determined"
    assert ran.why("save") == "never cached: it reads node 1, which is never cached"


def test_links_are_none_for_is_changed() -> None:
    seen: list[Any] = []
    document = {
        "0": node("Number", value=7),
        "1": node("Made", x=["0", 0]),
        "save": node("Save", value=["1", 0]),
    }
    assert changing(classmethod(lambda cls, x: seen.append(x)), document)[1:] == [[], []]
    assert seen == [None] * 3


@pytest.mark.parametrize("options", [{"NOT_IDEMPOTENT": True}, {"hidden": {"me": "UNIQUE_ID"}}, {}])
def test_equal_nodes_share_a_result_unless_they_declare_otherwise(options: dict[str, Any]) -> None:
    kind = pack_class(lambda self, **values: (object(),), **options)
    document = {
        "1": node("Made"),
        "2": node("Made"),
        "3": node("Save", value=["1", 0]),
        "4": node("Save", value=["2", 0]),
    }
    cache = ResultCache()
    outputs = run_v1(document, {"Made": kind}, cache).result.outputs
    assert (outputs["3"] == outputs["4"]) is (not options)
    assert run_v1(document, {"Made": kind}, cache).nodes("start") == []
