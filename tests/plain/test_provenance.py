"""A cached result reports again how it was computed, and exact runs take no approximate results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field
from trivial_nodes import TYPES, Ran, Thing, node, run

from katz_graph.core.allowed_approximations import made_with
from katz_graph.core.events import Sampled
from katz_graph.core.graph import Expansion, Graph, Link, NodeCall
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.graph.result_store import ResultCache, ResultEntry
from katz_graph.files.folders import Folders
from katz_graph.ir.changes import PlanChanges
from katz_graph.ir.device import Target
from katz_graph.ir.program import Program
from katz_graph.ir.provenance import EXACT, Provenance, joined
from katz_graph.ir.region import Operation, Region
from katz_graph.node import Node
from katz_graph.node.types import Context
from katz_graph.packs import Registry

LORA = "/loras/style.safetensors"


@dataclass(frozen=True)
class Point:
    index: int
    step: int
    sigma: float = 1.0


@dataclass
class Sampler:
    """Simulates an engine that uses all approximations that runs allow."""

    allowed: frozenset[str] = frozenset()
    sampled: list[str] = field(default_factory=list)
    two_a_step: bool = False

    def sample(self, name: str, context: Context) -> str:
        late = next((one for one in context.allowed if one.startswith("async-lora")), "")
        came = int(late.partition("=")[2] or 3) if late else 0
        stale = ("control",) if "stale-controlnet" in context.allowed else ()
        empty = Operation("x", "x", "x", {})
        program = Program(
            Region(empty, (), empty, name),
            tuple(Point(n, n // 2 if self.two_a_step else n) for n in range(9)),
            Target((), allowed=context.allowed),
            stale=stale,
        )
        arrivals = {LORA: came * (2 if self.two_a_step else 1)} if came else {}
        context.report(Sampled(name, program, 0.0, 0.0, 0.0, arrivals=arrivals))
        self.sampled.append(name)
        return f"latent {len(self.sampled)}"


class Sample(Node, category="test"):
    """Samples like a node of a pack."""

    seed: int = 0

    def run(self, context: Context) -> Thing:
        return context.engine.sample(str(self.seed), context)  # type: ignore[arg-type]


class SampleInside(Node, category="test"):
    """Expands to a sampler."""

    seed: int = 0

    def run(self) -> Thing:
        inner = {"inner": NodeCall("Sample", {"seed": self.seed})}
        return Expansion(Graph(inner), (Link("inner", 0),))


class Decode(Node, category="test"):
    scale: Annotated[int, Field(ge=1)] = 1

    def run(self, latent: Thing) -> Thing:
        return f"picture of {latent}"


OWN = {one.__name__: one.describe() for one in (Sample, SampleInside, Decode)}
NODES = Registry({**TYPES, **OWN})


def graph(sampler: str = "Sample", scale: int = 1) -> dict[str, Any]:
    return {
        "1": node(sampler, seed=7),
        "2": node("Decode", latent=["1", 0], scale=scale),
        "3": node("Save", value=["2", 0]),
    }


@dataclass
class Bench:
    """Runs graphs in sequence with one cache."""

    engine: Sampler = field(default_factory=Sampler)
    cache: ResultCache = field(default_factory=ResultCache)

    def __call__(
        self, document: dict[str, Any], allow: str = "", job: PlanChanges | None = None
    ) -> tuple[Ran, Provenance]:
        self.engine.allowed = frozenset(filter(None, allow.split(",")))
        context = RunContext(self.engine, Folders(), Path(), changes=job or PlanChanges())  # type: ignore[arg-type]
        ran = run(document, self.cache, NODES, context=context)
        assert not ran.result.failures
        return ran, context.measured.provenance


@pytest.fixture
def bench() -> Bench:
    return Bench()


def repeats(sampler: str) -> Iterator[dict[str, Any]]:
    """Yields the same graph, and graphs that take ever fewer results from the cache."""
    yield graph(sampler)
    yield graph(sampler, scale=2)


@pytest.mark.defect(4)
@pytest.mark.parametrize("sampler", ["Sample", "SampleInside"])
@pytest.mark.parametrize("again", [0, 1], ids=["saved", "sampled"])
@pytest.mark.parametrize(
    ("allow", "approximations", "arrivals"),
    [
        ("stale-controlnet", ("stale-controlnet",), {}),
        ("async-lora=2", ("async-lora",), {"style.safetensors": 2}),
        (
            "async-lora,stale-controlnet",
            ("async-lora", "stale-controlnet"),
            {"style.safetensors": 3},
        ),
        ("", (), {}),
    ],
)
def test_a_cached_result_reports_its_provenance(
    bench: Bench,
    sampler: str,
    again: int,
    allow: str,
    approximations: tuple[str, ...],
    arrivals: dict[str, int],
) -> None:
    _, first = bench(graph(sampler), allow)
    ran, provenance = bench(list(repeats(sampler))[again], allow)
    assert len(bench.engine.sampled) == 1 and ran.nodes("cached")
    assert provenance == first and provenance.approximations == approximations
    chunk = json.loads(made_with("cpu", "float32", provenance))
    assert chunk["approximations"] == list(approximations)
    assert chunk.get("lora_arrivals", {}) == arrivals
    why = ran.why(ran.nodes("cached")[0])
    assert why.startswith("same inputs as before")
    assert all(name in why for name in (*approximations, *arrivals))


# (cached under, requested under, whether the cached result is taken)
TAKEN = [
    ("stale-controlnet", "", False),
    ("async-lora", "", False),
    ("async-lora=2", "stale-controlnet", False),
    ("async-lora,stale-controlnet", "async-lora", False),
    ("async-lora=3", "async-lora=2", False),
    ("async-lora=2", "async-lora", False),  # its profile may allow fewer steps
    ("", "stale-controlnet,async-lora", True),
    ("stale-controlnet", "stale-controlnet,async-lora", True),
    ("async-lora=2", "async-lora=3", True),
    ("async-lora", "async-lora=3", True),
    ("async-lora", "async-lora", True),
]


@pytest.mark.defect(4)
@pytest.mark.parametrize("sampler", ["Sample", "SampleInside"])
@pytest.mark.parametrize("scale", [1, 2], ids=["all", "only the latent"])
@pytest.mark.parametrize(("allowed", "wanted", "taken"), TAKEN)
def test_a_run_takes_only_what_it_would_be_allowed_to_make(
    bench: Bench, sampler: str, scale: int, allowed: str, wanted: str, taken: bool
) -> None:
    bench(graph(sampler), allowed)
    ran, provenance = bench(graph(sampler, scale), wanted)
    assert len(bench.engine.sampled) == (1 if taken else 2)
    assert provenance.permitted(wanted.split(","))
    if not taken:
        assert "approximate, but this run does not allow" in ran.why("1")


@pytest.mark.defect(4)
def test_exact_results_take_the_place_of_approximate_ones_and_not_the_other_way_round(
    bench: Bench,
) -> None:
    bench(graph(), "stale-controlnet")
    bench(graph())
    ran, provenance = bench(graph(), "stale-controlnet")
    assert not ran.nodes("start") and provenance == EXACT
    entry = ResultEntry(("exact",))
    for one in (entry, ResultEntry(("stale",), provenance=Provenance(stale_controlnet=True))):
        bench.cache.put(b"key", one)  # a run that began earlier stores its stale result last
    assert bench.cache.get(b"key") == entry


@pytest.mark.defect(4)
def test_a_job_that_allows_nothing_takes_no_approximate_result_of_others(bench: Bench) -> None:
    bench(graph(), "stale-controlnet")
    _, provenance = bench(graph(), "stale-controlnet", PlanChanges(allow=""))
    assert len(bench.engine.sampled) == 2 and provenance == EXACT


@pytest.mark.defect(4)
def test_choices_of_a_job_are_stored_with_its_results(bench: Bench) -> None:
    job = PlanChanges(place=("unet=cpu:1",))
    bench(graph(), job=job)
    _, provenance = bench(graph())
    assert json.loads(made_with("cpu", "float32", provenance))["chosen"] == job.overrides()


def test_a_bound_counts_steps_and_not_evaluations(bench: Bench) -> None:
    bench.engine.two_a_step = True
    bench(graph(), "async-lora=2")
    _, provenance = bench(graph(), "async-lora=2")
    assert len(bench.engine.sampled) == 1 and provenance.arrivals == {LORA: 4}


def test_provenances_are_joined() -> None:
    late = Provenance(arrivals={"a": 1}, steps_without=1, by_profile=True)
    later = Provenance(arrivals={"a": 2, "b": 1}, steps_without=2)
    whole = joined([late, EXACT, later, Provenance(stale_controlnet=True)])
    assert whole == Provenance(True, {"a": 2, "b": 1}, 2, False)
    assert joined([]) == EXACT and joined([late, EXACT]) == late
    assert not replace(late, by_profile=False).permitted(["async-lora"])
