"""Ten thousand nodes meet no recursion limit and no quadratic step between file and outputs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from trivial_nodes import TYPES, node, run

from katz_graph.bench import graph as bench
from katz_graph.bench.result import BenchResult, medians, report
from katz_graph.checks.validate import check
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.formats.read import read_workflow

SIZE = 10_000
# CPU time that only separates linear from quadratic; the bench has the real bound
SECONDS = 10


@pytest.mark.parametrize("shape", [bench.chain, bench.fan])
def test_ten_thousand_nodes_load_validate_and_run(shape: Any, tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_text(shape(SIZE))
    started = time.process_time()
    assert len(read_workflow(path).graph.nodes) == SIZE
    cache = ResultCache()
    first = bench.run_text(path.read_text(), cache)
    assert first.outputs[str(SIZE)] == bench.run_text(path.read_text(), cache).outputs[str(SIZE)]
    assert time.process_time() - started < SECONDS


def test_a_chain_in_reverse_order_of_the_file() -> None:
    """The output comes first, so all nodes are requested before any can run."""
    document: dict[str, Any] = {"out": node("Save", value=[str(SIZE), 0])}
    document |= {str(i): node("Echo", value=[str(i - 1), 0]) for i in range(SIZE, 0, -1)}
    document["0"] = node("Number", value=7)
    assert run(document).result.outputs["out"] == (7,)


def test_a_failure_travels_down_a_long_chain() -> None:
    document: dict[str, Any] = {"0": node("Fail")} | {
        str(i): node("Echo", value=[str(i - 1), 0]) for i in range(1, SIZE)
    }
    document["out"] = node("Save", value=[str(SIZE - 1), 0])
    result = run(document).result
    assert list(result.failures) == ["0"] and result.refused == ("out",)


def test_a_loop_of_a_thousand_expansions() -> None:
    document = {
        "1": node("Number", value=0),
        "2": node("Countdown", count=1000, value=["1", 0]),
        "3": node("Save", value=["2", 0]),
    }
    started = time.process_time()
    ran = run(document)
    assert ran.result.outputs["3"] == (1000,)
    assert max(len(name) for name in ran.nodes("start")) < 20
    assert time.process_time() - started < SECONDS


def test_a_loop_of_two_thousand_rounds_as_packs_build_it() -> None:
    started = time.process_time()
    assert bench.run_text(bench.loop(2_000), ResultCache()).outputs["6"] == (2_000,)
    assert time.process_time() - started < SECONDS


def test_every_one_of_ten_thousand_problems_is_collected() -> None:
    document = {str(i): node("Add", a=["99999", 0], b="x", c=1) for i in range(SIZE)} | {
        "out": node("Save", value=["1", 0])
    }
    from katz_graph.formats.api import from_api

    assert len(check(from_api(document), TYPES).problems) == 3 * SIZE


def test_a_bench_prints_a_table_and_one_line_for_scripts_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = BenchResult(
        "demo", True, {"seconds": 0.25}, {"seconds": "< 1 s"}, ("what", "seconds"), [("all", 0.25)]
    )
    report(result, as_json=True)
    out = capsys.readouterr().out
    assert json.loads(out.strip().split("\n")[-1]) == {
        "bench": "demo",
        "ok": True,
        "metrics": {"seconds": 0.25},
        "bounds": {"seconds": "< 1 s"},
    }
    report(result)
    assert "katz bench demo" in capsys.readouterr().out


def test_medians_take_turns() -> None:
    turns: list[str] = []
    medians({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, 3)
    assert "".join(turns) == "ababab"
