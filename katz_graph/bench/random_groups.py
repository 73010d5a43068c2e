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
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from random import Random
from typing import Any, Self

import torch
from torch import Tensor

from katz_graph.bench.conditions import quiet
from katz_graph.bench.random_graphs import SAMPLER, Drawn, checkpoints, draw
from katz_graph.bench.random_requests import LINK, WORKERS, Search
from katz_graph.bench.result import BenchResult
from katz_graph.core.recipe import ConditioningEntry, Picture, Prompt, References
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.in_process import InProcess
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.model_files import difference
from katz_graph.testing.random_models import Kind, make_pipeline
from katz_graph.testing.requests import bind, sample
from katz_graph.testing.worker_threads import WorkerThreads

COUNT = 200
BOUND = 1e-5  # of the latent's range
MAX_DELAY_S = 0.3  # between the starts of a group's requests
FREE, FIXED = SharedRows(16), SharedRows(4, fixed=True)
TRANSFORMERS: tuple[Kind, ...] = ("sd35", "flux")
SAMPLERS = (
    *("euler", "euler_ancestral", "heun", "heunpp2", "dpm_2", "dpm_2_ancestral", "lms", "dpm_fast"),
    *("dpmpp_2s_ancestral", "dpmpp_sde", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_3m_sde", "ddpm", "lcm"),
    *("ipndm", "deis", "res_multistep", "gradient_estimation", "er_sde", "ddim", "uni_pc"),
)
WORDS = ("red", "star", "sand", "at night", "grey", "a blue circle", "on the left")


@dataclass(frozen=True, slots=True)
class Group:
    """Holds the differences of a group's latents from those of lone requests, by way of sharing; 0
    for `fixed` if all bits are equal. `shared`: calls with rows of several requests.
    """

    seed: int
    model: str
    requests: int
    differences: dict[str, float]
    shared: int
    problem: str = ""

    @property
    def holds(self) -> bool:
        limits = {name: 0.0 if name == "fixed" else BOUND for name in WAYS}
        return all(self.differences.get(name, nan) <= limit for name, limit in limits.items())


WAYS = ("one worker", "two workers", "fixed")


class Groups:
    """Holds the models and engines. Use it in a `with` statement."""

    def __init__(self, folder: Path) -> None:
        self._opened = ExitStack()
        self._search = self._opened.enter_context(Search(folder))
        self._pipelines = {kind: folder / kind for kind in TRANSFORMERS}
        for kind, place in self._pipelines.items():
            make_pipeline(place, kind, 1)
        self._alone = self._engine(folder, ALONE)
        self._engines = {
            "one worker": self._engine(folder, FREE),
            "two workers": self._engine(folder, FREE, WORKERS),
            "fixed": self._engine(folder, FIXED),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _engine(
        self, folder: Path, rows: SharedRows, names: Sequence[str] = ("cpu",)
    ) -> DeviceEngine:
        many = len(names) > 1
        launchers = {name: WorkerThreads() if many else InProcess() for name in names}
        return self._opened.enter_context(
            DeviceEngine(
                [WorkerConfig(name, shared_rows=rows) for name in names],
                cache=folder,
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
        moved = {name: max(map(_moved, latents, compared[name])) for name, latents in found.items()}
        return Group(seed, model, number, moved, shared)

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
            "sampler_name": chance.choice(SAMPLERS),
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


def _sampled(drawn: Drawn, chance: Random) -> Drawn:
    """Replaces the sampler by any that exists."""
    nodes = dict(drawn.graph.nodes)
    sampler = nodes[SAMPLER]
    inputs = {
        **sampler.inputs,
        "sampler_name": chance.choice(SAMPLERS),
        "cfg": chance.choice((1.0, 7.0)),
    }
    nodes[SAMPLER] = replace(sampler, inputs=inputs)
    return replace(drawn, graph=replace(drawn.graph, nodes=nodes))


def _moved(latent: Tensor, expected: Tensor) -> float:
    if torch.equal(latent, expected):
        return 0.0
    finite = bool(latent.isfinite().all() and expected.isfinite().all())
    return difference(latent, expected) if finite else nan


def run_groups(seeds: Iterable[int]) -> BenchResult:
    """Runs the groups of these seeds."""
    with quiet(), tempfile.TemporaryDirectory() as name, Groups(Path(name)) as groups:
        return result([groups.run(seed) for seed in seeds])


def result(found: Sequence[Group]) -> BenchResult:
    wrong = [group for group in found if not group.holds]
    worst = {
        name.replace(" ", "_"): max((one.differences.get(name, nan) for one in found), default=0.0)
        for name in WAYS
    }
    metrics = {
        "groups": len(found),
        "groups_that_shared": sum(group.shared > 0 for group in found),
        **worst,
        "failing_seeds": [group.seed for group in wrong],
    }
    bounds = {name: "0" if name == "fixed" else f"<= {BOUND}" for name in worst}
    rows = [
        [f"{one.seed}: {one.model}, {one.requests} requests", one.shared]
        + [one.differences.get(name, nan) for name in WAYS]
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
