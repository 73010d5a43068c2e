"""A small search through random workflows; `katz bench requests` tests 200 of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from katz_graph.bench import random_requests
from katz_graph.bench.command import run_bench
from katz_graph.bench.random_graphs import draw
from katz_graph.bench.random_requests import BOUND, Case, Search, moved
from katz_graph.core.errors import InputError
from katz_graph.formats.api import to_api

AREAS_AND_PICTURE = 129  # two areas of one size, an inpainting model, one call


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory, costs: Path) -> Iterator[Search]:
    with Search(tmp_path_factory.mktemp("search"), costs) as search:
        yield search


def types(seed: int) -> list[str]:
    return [call.type for call in draw(seed).graph.nodes.values()]


@pytest.mark.parametrize("seed", [AREAS_AND_PICTURE, 9, 10, 14])
def test_random_workflows_give_one_picture_however_they_are_computed(
    seed: int, search: Search
) -> None:
    case = search.case(seed)
    assert case.holds, (case.name, case.batched, case.scattered, case.problem)


def test_a_latent_that_is_not_finite_is_the_largest_difference() -> None:
    expected = torch.arange(3.0)
    latents = expected + 0.5, torch.tensor([0.0, torch.nan, 2.0]), expected
    assert [moved(latent, expected) for latent in latents] == [0.25, torch.inf, 0.0]


def test_random_cases_by_seed() -> None:
    """The cases below need these features; choose other seeds when `draw` changes."""
    nodes = [
        call
        for call in draw(AREAS_AND_PICTURE).graph.nodes.values()
        if call.type == "ConditioningSetArea"
    ]
    sizes = {(call.inputs["width"], call.inputs["height"]) for call in nodes}
    assert (
        len(nodes) == 2
        and len(sizes) == 1
        and len({(call.inputs["x"], call.inputs["y"]) for call in nodes}) == 2
    )
    assert "InpaintModelConditioning" in types(AREAS_AND_PICTURE)
    assert {"ControlNetLoader", "LoraLoader", "ConditioningSetMask"} <= {*types(9), *types(10)}
    assert draw(14).plain
    assert to_api(draw(9).graph) == to_api(draw(9).graph) != to_api(draw(10).graph)


def test_a_differing_case_is_reported_with_seed_and_workflow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Fake:
        def __init__(self, folder: Path) -> None:
            pass

        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def case(self, seed: int) -> Case:
            return Case(seed, draw(seed), 1, 2 * BOUND, 0.0)

    monkeypatch.setattr(random_requests, "Search", Fake)
    assert not run_bench("requests", as_json=False, seed=9)
    printed = capsys.readouterr().out
    assert "katz bench requests --seed 9" in printed and '"class_type": "KSampler"' in printed


def test_a_bench_without_chance_takes_no_seed() -> None:
    with pytest.raises(InputError, match="--seed: bench graph uses no random numbers"):
        run_bench("graph", as_json=False, seed=3)
