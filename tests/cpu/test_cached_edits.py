"""A masked request reads its template's activations while it computes, and computes what they
do not cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from katz_graph.core.shared_rows import SharedRows
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.ir.reuse import TemplateUse
from katz_graph.models.active import active_positions
from katz_graph.planner.passes.emit import emit
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, local_engine, sampler_region

BOUND = 1e-5  # of the range
SIDE, LEVELS, STEPS = 16, 3, 6


@dataclass
class Activations:
    """Holds the activations of one template."""

    found: dict[tuple[int, str], Mapping[str, Tensor]] = field(default_factory=dict)
    lost: bool = False
    reads: int = 0

    def read(self, number: int, operation: str, layer: str) -> Tensor | None:
        self.reads += 1
        return None if self.lost else self.found[number, operation][layer]

    def write(self, number: int, operation: str, outputs: Mapping[str, Tensor]) -> None:
        self.found[number, operation] = {name: one.clone() for name, one in outputs.items()}

    def close(self) -> None:
        """Does nothing: no file is open."""


@pytest.fixture(scope="module")
def latent() -> Tensor:
    return torch.randn(1, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(3))


def case(models: Models, latent: Tensor, steps: int, top: int = 3) -> Case:
    mask = torch.zeros(SIDE, SIDE)
    mask[top : top + 4, 3:9] = 1
    # at less than full noise, the first evaluation sees the template everywhere
    return Case("edit", models.pipeline, "euler", steps, 0.5, latent=latent, mask=mask)


def planned(engine: Any, asked: Case) -> tuple[Region, Program]:
    region = sampler_region(asked)
    return region, engine.plan(region)


def filled(engine: Any, asked: Case, template: Activations) -> Tensor:
    """Computes a template's activations; returns the final latent."""
    empty = replace(asked, mask=torch.zeros(SIDE, SIDE))
    region, program = planned(engine, empty)
    operations = [one.id for one in program.variants[0].operations if one.stage[:4] == "unet"]
    use = TemplateUse("", tuple(range(asked.steps)), fills=True)
    engine.models.templates = lambda _: template
    return run(engine, region, replace(program, template=use, reused=dict.fromkeys(operations, ())))


def edited(engine: Any, asked: Case, template: Activations, numbers: tuple[int, ...]) -> Tensor:
    return run(engine, *edit_of(engine, asked, template, numbers))


def edit_of(
    engine: Any, asked: Case, template: Activations, numbers: tuple[int, ...]
) -> tuple[Region, Program]:
    region, program = planned(engine, asked)
    assert asked.mask is not None
    positions = active_positions(asked.mask[None, None], 1, LEVELS, bucket=4)
    reused = {name: tuple(layers) for (_, name), layers in template.found.items()}
    use = TemplateUse("", numbers, positions)
    return region, emit(replace(program, template=use, reused=reused))


def run(engine: Any, region: Region, program: Program) -> Tensor:
    samples: Tensor = engine._carried_out(region, program, bare_context(engine))[0]["samples"]
    return samples


@pytest.fixture
def engine(costs: Path) -> Iterator[Any]:
    with local_engine(cache=costs, shared_rows=SharedRows(8)) as engine:
        yield engine


def test_an_edit_that_sees_the_template_gives_the_full_picture(
    engine: Any, sdxl: Models, latent: Tensor
) -> None:
    template, asked = Activations(), case(sdxl, latent, steps=1)
    assert difference(filled(engine, asked, template), latent) <= BOUND
    full = run(engine, *planned(engine, asked))
    found = edited(engine, asked, template, (0,))
    assert difference(found, full) <= BOUND
    assert template.reads == sum(map(len, template.found.values()))
    template.lost = True
    assert torch.equal(edited(engine, asked, template, (0,)), full)


def test_edits_keep_the_rest_of_the_picture_and_share_calls(
    engine: Any, sdxl: Models, latent: Tensor
) -> None:
    template, cases = Activations(), [case(sdxl, latent, STEPS, top) for top in (2, 6)]
    filled(engine, cases[0], template)
    numbers = tuple(range(STEPS))
    alone = [edited(engine, one, template, numbers) for one in cases]
    for asked, found in zip(cases, alone, strict=True):
        assert asked.mask is not None
        full = run(engine, *planned(engine, asked))
        outside = asked.mask == 0
        assert torch.equal(found[..., outside], full[..., outside])
        assert difference(found, full) < 0.2
    wrong = edited(engine, cases[0], template, numbers[::-1])
    assert difference(wrong, alone[0]) > 100 * BOUND  # read from other noise levels
    plans = [edit_of(engine, one, template, numbers) for one in cases]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda plan: run(engine, *plan), plans))
        assert max(map(difference, both, alone)) <= BOUND
    assert engine.models.compute.use.shared > 0
