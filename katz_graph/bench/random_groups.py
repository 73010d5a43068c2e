"""Part `groups` of `katz bench together`: random requests at the same time, which share calls where
they can.

The requests of a group have one model and one size, and differ in all else: prompts of one to three
parts, areas, masks, ControlNets, references, LoRAs, guidance, sampler, number of pictures. They
start at random times. Each final latent is compared with the one of the request alone, without
sharing; with a fixed number of rows, in company and alone, it has to have the same bits.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Self

import torch
from torch import Tensor

from katz_graph.bench.conditions import quiet
from katz_graph.bench.random_graphs import SAMPLER, WORDS, Drawn, checkpoints, draw
from katz_graph.bench.random_requests import LINK, WORKERS, Search, moved
from katz_graph.bench.result import BenchResult
from katz_graph.core.recipe import ConditioningEntry, Picture, Prompt, References
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.in_process import InProcess
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.packs import builtin_types
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.random_models import Kind, make_pipeline
from katz_graph.testing.requests import bind, sample
from katz_graph.testing.worker_threads import WorkerThreads

COUNT = 200
WAYS: Mapping[str, float] = {"one worker": 1e-5, "two workers": 1e-5, "fixed": 0.0}
"""Maps each way of sharing to the bound of differences, relative to the latent's range."""
MAX_DELAY_S = 0.3  # between the starts of a group's requests
FREE, FIXED = SharedRows(16), SharedRows(4, fixed=True)
TRANSFORMERS: tuple[Kind, ...] = ("sd35", "flux")


@dataclass(frozen=True, slots=True)
class Group:
    """Holds the largest differences of a group's latents from those of lone requests, by way of
    sharing. `shared`: calls with rows of several requests.
    """

    seed: int
    model: str
    requests: int
    differences: dict[str, float]
    shared: int
    problem: str = ""

    @property
    def holds(self) -> bool:
        return all(self.differences.get(name, inf) <= bound for name, bound in WAYS.items())


class Groups:
    """Holds the models and engines. Use it in a `with` statement. `cache`: folder of the engines'
    measurements; `folder` if not given.
    """

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        torch.set_num_threads(1)
        self._folder, self._cache = folder, cache or folder
        self._opened = ExitStack()
        self._pipelines = {kind: folder / kind for kind in TRANSFORMERS}
        for kind, place in self._pipelines.items():
            make_pipeline(place, kind, 1)
        self._alone = self._engine(ALONE)
        self._engines = {
            "one worker": self._engine(FREE),
            "two workers": self._engine(FREE, WORKERS),
            "fixed": self._engine(FIXED),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @cached_property
    def _search(self) -> Search:
        """Draws requests for other networks. Writes their models, which takes seconds."""
        return self._opened.enter_context(Search(self._folder, self._cache))

    def _engine(self, rows: SharedRows, names: Sequence[str] = ("cpu",)) -> DeviceEngine:
        many = len(names) > 1
        launchers = {name: WorkerThreads() if many else InProcess() for name in names}
        return self._opened.enter_context(
            DeviceEngine(
                [WorkerConfig(name, shared_rows=rows) for name in names],
                cache=self._cache,
                link=LINK if many else None,
                launchers=launchers,
            )
        )

    def run(self, seed: int) -> Group:
        """Runs the group of a seed."""
        chance = Random(seed)
        model = chance.choice([*checkpoints(), *TRANSFORMERS])
        number = chance.randint(2, 6)
        try:
            regions = self._regions(model, number, chance)
            expected = [sample(self._alone, region) for region in regions]
            before = self._engines["one worker"].models.compute.use.shared
            found = {
                name: self._at_once(engine, regions, chance)
                for name, engine in self._engines.items()
            }
            shared = self._engines["one worker"].models.compute.use.shared - before
            lone = [sample(self._engines["fixed"], region) for region in regions]
        except Exception as error:  # the search looks for failures of any kind
            return Group(seed, model, number, {}, 0, f"{type(error).__name__}: {error}")
        compared = {name: lone if name == "fixed" else expected for name in found}
        differences = {
            name: max(map(moved, latents, compared[name])) for name, latents in found.items()
        }
        return Group(seed, model, number, differences, shared)

    def _regions(self, model: str, number: int, chance: Random) -> list[Region]:
        cells = chance.choice((8, 12, 16)), chance.choice((8, 12))
        if model in self._pipelines:
            return [self._transformer(model, cells, chance) for _ in range(number)]
        return [
            self._search.region(_sampled(draw(chance.randrange(1 << 32), model, cells), chance))
            for _ in range(number)
        ]

    def _transformer(self, kind: Kind, cells: tuple[int, int], chance: Random) -> Region:
        model, clip, _ = pipeline_recipes(self._pipelines[kind])
        noise = torch.Generator().manual_seed(chance.randrange(1 << 32))
        pictures = [Picture.of(torch.randn(1, 16, 8, 8, generator=noise)) for _ in range(2)]
        placing: Any = chance.choice(("offset", "index"))
        positive, negative = (
            (
                ConditioningEntry(
                    Prompt(clip, " ".join(chance.choices(WORDS, k=chance.choice((1, 3, 30))))),
                    references=References(tuple(pictures[:many]), placing) if many else None,
                ),
            )
            for many in (chance.choices((0, 1, 2), (3, 1, 1))[0] if kind == "flux" else 0,) * 2
        )
        begin = {
            "sampler_name": chance.choice(_samplers()),
            "scheduler": "simple",
            "steps": chance.randint(2, 5),
            "seed": chance.randrange(1 << 32),
            "latent_image": {"samples": torch.zeros(chance.choice((1, 1, 2, 3)), 16, *cells)},
            "model": model,
        }
        guidance = chance.choice((1.0, 7.0))
        expansion = expand_sampling("StepBegin", begin, model, positive, negative, guidance)
        return bind(expansion.graph, expansion.outputs[0].node)

    def _at_once(
        self, engine: DeviceEngine, regions: Sequence[Region], chance: Random
    ) -> list[Tensor]:
        delays = [chance.uniform(0.0, MAX_DELAY_S) for _ in regions]

        def one(region: Region, delay: float) -> Tensor:
            time.sleep(delay)
            return sample(engine, region)

        with ThreadPoolExecutor(len(regions)) as pool:
            return list(pool.map(one, regions, delays))


@cache
def _samplers() -> Sequence[str]:
    """Returns the names of all samplers."""
    return builtin_types()["KSampler"].inputs["sampler_name"].choices or ()


def _sampled(drawn: Drawn, chance: Random) -> Drawn:
    """Draws sampler and guidance again, from all samplers."""
    nodes = dict(drawn.graph.nodes)
    sampler = nodes[SAMPLER]
    inputs = {
        **sampler.inputs,
        "sampler_name": chance.choice(_samplers()),
        "cfg": chance.choice((1.0, 7.0)),
    }
    nodes[SAMPLER] = replace(sampler, inputs=inputs)
    return replace(drawn, graph=replace(drawn.graph, nodes=nodes))


def run_groups(seeds: Iterable[int]) -> BenchResult:
    """Runs the groups of these seeds."""
    with quiet(), tempfile.TemporaryDirectory() as name, Groups(Path(name)) as groups:
        return result([groups.run(seed) for seed in seeds])


def result(found: Sequence[Group]) -> BenchResult:
    wrong = [group for group in found if not group.holds]
    worst = {
        name.replace(" ", "_"): max((one.differences.get(name, inf) for one in found), default=0.0)
        for name in WAYS
    }
    metrics = {
        "groups": len(found),
        "groups_that_shared": sum(group.shared > 0 for group in found),
        **worst,
        "failing_seeds": [group.seed for group in wrong],
    }
    bounds = {name: f"<= {bound}" for name, bound in zip(worst, WAYS.values(), strict=True)}
    rows = [
        [f"{one.seed}: {one.model}, {one.requests} requests", one.shared]
        + [one.differences.get(name, inf) for name in WAYS]
        for one in (wrong or found[:10])
    ]
    notes = [f"katz bench together --part groups --seed {one.seed} {one.problem}" for one in wrong]
    return BenchResult(
        "together",
        not wrong,
        metrics,
        bounds | {"failing_seeds": "none"},
        ("seed", "shared calls", *WAYS),
        rows,
        notes=notes,
    )
