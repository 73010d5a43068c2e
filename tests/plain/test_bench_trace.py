"""The synthetic trace has the published distribution, and caches replay it as in the paper's Figure
6.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from katz_graph.bench import trace
from katz_graph.bench.command import run_bench
from katz_graph.bench.result import BenchResult
from katz_graph.bench.trace_requests import SERVICES, Request, Service, requests
from katz_graph.core.errors import InputError
from katz_graph.core.eviction import POLICIES
from katz_graph.models.loading.residency import Residency

NUMBER = 40_000
PUBLISHED = {  # Katz, Table 1: per cent of requests that use 0, 1, 2, 3
    ("A", "controlnets"): (0.0, 30.5, 69.5, 0.0),
    ("B", "controlnets"): (1.9, 25.1, 69.9, 3.1),
    ("A", "loras"): (0.2, 8.8, 91.0, 0.0),
    ("B", "loras"): (7.2, 73.6, 19.2, 0.0),
}


@cache
def made(service: Service) -> list[Request]:
    return requests(service, NUMBER)


def uses(service: Service, kind: str) -> Counter[str]:
    return Counter(item for request in made(service) for item in getattr(request, kind))


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
@pytest.mark.parametrize("kind", ["controlnets", "loras"])
def test_adapters_per_request(service: Service, kind: str) -> None:
    """With about 20,000 sessions, the standard error is below 0.35 percentage points."""
    found = Counter(len(getattr(request, kind)) for request in made(service))
    expected = PUBLISHED[service.name, kind]
    assert [100 * found[number] / NUMBER for number in range(4)] == pytest.approx(expected, abs=1.2)
    assert max(found) <= 3


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_no_adapter_twice_in_a_request(service: Service) -> None:
    assert all(
        len(set(items)) == len(items)
        for request in made(service)
        for items in (request.controlnets, request.loras)
    )


@pytest.mark.parametrize(
    ("service", "number", "top", "share"), [(SERVICES[0], 47, 5, 0.98), (SERVICES[1], 94, 8, 0.95)]
)
def test_few_controlnets_take_nearly_all_uses(
    service: Service, number: int, top: int, share: float
) -> None:
    counted = uses(service, "controlnets")
    # the rarest are expected at most eight times, so some may be missing
    assert number - 3 <= len(counted) <= number
    assert sum(uses for _, uses in counted.most_common(top)) / counted.total() == pytest.approx(
        share, abs=0.005
    )


@pytest.mark.parametrize(
    ("service", "number", "common"), [(SERVICES[0], 6_980, 12), (SERVICES[1], 7_463, 14)]
)
def test_loras_are_many_and_nearly_all_rare(service: Service, number: int, common: int) -> None:
    """In the trace's two services, 6,968 of 6,980 and 7,449 of 7,463 LoRAs each have below 1 % of
    uses.
    """
    counted = uses(service, "loras")
    # a seventh of the trace does not use all LoRAs
    assert 0.6 * number < len(counted) <= number
    assert 0.99 * number < 1 + max(int(name.removeprefix("lora-")) for name in counted) <= number
    assert sum(count / counted.total() >= 0.01 for count in counted.values()) == common


def test_the_records() -> None:
    """Records are in order of time, 275,000 per service in 20 days; equal seeds give equal traces."""
    found = made(SERVICES[0])
    assert all(before.timestamp < after.timestamp for before, after in pairwise(found))
    assert found[-1].timestamp / NUMBER == pytest.approx(20 * 86_400 / 275_000, rel=0.03)
    assert len({request.ip for request in found}) > 1_000
    assert len({request.scene_id for request in found}) > 100
    assert len({request.base_model_id for request in found}) > 1
    assert (
        requests(SERVICES[0], 50, seed=1)
        == requests(SERVICES[0], 50, seed=1)
        != requests(SERVICES[0], 50, seed=2)
    )


def test_the_optimum() -> None:
    """A textbook example (Silberschatz et al., page replacement): the optimum has 9 faults, LRU 12."""
    sequence = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1]
    misses = {}
    for name, policy in {"optimum": trace.Optimum(sequence), "lru": POLICIES["lru"]()}.items():
        residency = Residency(3, policy)
        for item in sequence:
            residency.touch(item, 1)
        misses[name] = residency.misses
    assert misses == {"optimum": 9, "lru": 12}


@cache
def small() -> BenchResult:
    return trace.run(4_000)


def test_more_room_never_costs_and_nothing_beats_the_optimum() -> None:
    for service in ("A", "B"):
        for kind, capacities in trace.CAPACITIES.items():
            lru, lfu, optimum = (
                small().metrics[f"{service}.{kind}.{policy}"]
                for policy in ("lru", "lfu", "optimum")
            )
            assert all(
                optimum[capacity] <= min(lru[capacity], lfu[capacity]) for capacity in capacities
            )
            assert all(
                curve[less] >= curve[more]
                for curve in (lru, optimum)
                for less, more in pairwise(capacities)
            )


def test_with_room_for_the_popular_controlnets_hardly_any_is_loaded_but_loras_are() -> None:
    metrics = small().metrics
    for service, capacity in (("A", 5), ("B", 8)):
        assert (
            metrics[f"{service}.controlnets.lru"][capacity]
            < 0.1 * metrics[f"{service}.controlnets.lru"][1]
        )
        assert metrics[f"{service}.loras.lru"][10] > 0.4 * metrics[f"{service}.loras.lru"][1]


def test_one_place_is_missed_by_every_other_use() -> None:
    """With one place, the three requests that change the set cause 2, 0 and 1 loads (by hand)."""
    curve = trace.replayed([("a", "b"), ("b",), ("b",), ("a",)], (1, 2))
    assert curve["lru"] == {1: 3 / 3, 2: 2 / 3}


def test_the_picture_and_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trace, "run", small)
    picture = tmp_path / "trace.svg"
    run_bench("trace", as_json=True, svg=picture)
    curves = ElementTree.parse(picture).findall(".//{*}polyline")
    assert len(curves) == 2 * 2 * 3
    assert all(
        0 <= float(number) <= 460
        for curve in curves
        for number in curve.attrib["points"].replace(",", " ").split()
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bench"] == "trace"


def test_a_bench_without_a_picture_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "run", lambda: BenchResult("trace", True, {}))
    with pytest.raises(InputError, match="bench trace draws no picture"):
        run_bench("trace", as_json=False, svg=tmp_path / "trace.svg")
