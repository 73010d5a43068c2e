"""`katz bench requests`: computes random workflows with one call per branch, batched, and scattered
over two workers.

All three have to give the same latent within float rounding, which random weights amplify. Plain
workflows, without limited prompts or patched weights, have to meet the bound of the fidelity rules.
Failing cases are printed; `--seed N` repeats one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from katz_graph.bench.conditions import quiet
from katz_graph.bench.random_graphs import SAMPLER, Drawn, draw, make_models
from katz_graph.bench.result import BenchResult
from katz_graph.checks.validate import check
from katz_graph.core.latent_space import LatentSamples
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.executor.launch.in_process import InProcess
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.files.folders import Folders
from katz_graph.formats.api import to_api
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.node.types import Context
from katz_graph.packs import load_registry
from katz_graph.planner.region import stage_of
from katz_graph.testing.model_files import difference
from katz_graph.testing.worker_threads import WorkerThreads

COUNT = 200
SHOWN = 10
BOUND, PLAIN_BOUND = 1e-4, 1e-5  # of the latent's range
WORKERS = ("cpu:0", "cpu:1")
LINK = NetworkLink(bytes_per_second=1e9)  # any value would do, because nothing is timed


@dataclass(frozen=True, slots=True)
class Case:
    """Holds a workflow, and the differences of its latents from those of unbatched calls, relative
    to the range; infinite if a latent is not finite, or if the workflow failed.
    """

    seed: int
    drawn: Drawn
    calls: int  # calls with several members in the batched program
    batched: float
    scattered: float
    problem: str = ""  # error, if the workflow failed

    @property
    def holds(self) -> bool:
        bound = PLAIN_BOUND if self.drawn.plain else BOUND
        return self.batched <= bound and self.scattered <= bound

    @property
    def name(self) -> str:
        """Returns the checkpoint's name and the counts of the most relevant nodes."""
        types = [call.type for call in self.drawn.graph.nodes.values()]
        listed = (
            "CLIPTextEncode",
            "ConditioningSetArea",
            "ConditioningSetMask",
            "ControlNetLoader",
            "LoraLoader",
        )
        checkpoint = self.drawn.graph.nodes["1"].inputs["ckpt_name"]
        return f"{checkpoint}, " + ", ".join(
            f"{types.count(kind)} {kind}" for kind in listed if kind in types
        )


def run(seed: int | None = None, count: int = COUNT) -> BenchResult:
    """Runs all seeds below `count`, or only `seed`."""
    with quiet(), tempfile.TemporaryDirectory() as name, Search(Path(name)) as search:
        cases = [search.case(number) for number in (range(count) if seed is None else (seed,))]
    return _result(cases)


class Search:
    """Holds the models and the engines of the three ways. Use it in a `with` statement. `cache`:
    folder of the engines' measurements; `folder` if not given.
    """

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        torch.set_num_threads(1)
        make_models(folder)
        self._folders = Folders((folder / "models",), folder / "input", folder / "output")
        self._registry, _ = load_registry()
        self._local = _Collecting(cache or folder)
        launchers = {name: WorkerThreads() for name in WORKERS}
        self._pair = DeviceEngine(
            [WorkerConfig(name) for name in WORKERS],
            cache=cache or folder,
            link=LINK,
            launchers=launchers,
        )

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *_: object) -> None:
        self._pair.close()
        self._local.close()

    def case(self, seed: int) -> Case:
        """Computes the workflow of a seed in three ways."""
        drawn = draw(seed)
        try:
            return self._compared(seed, drawn)
        except Exception as error:  # the search looks for failures of any kind
            return Case(seed, drawn, 0, inf, inf, f"{type(error).__name__}: {error}")

    def _compared(self, seed: int, drawn: Drawn) -> Case:
        region = self.region(drawn)
        split, batched = (
            self._plan(self._local, region, batching=batching) for batching in (False, True)
        )
        expected = self._sampled(self._local, split)
        scattered = self._plan(self._pair, region, None, random_places(split, Random(seed)))
        return Case(
            seed,
            drawn,
            sum(len(call.operations) > 1 for calls in batched.calls for call in calls),
            moved(self._sampled(self._local, batched), expected),
            moved(self._sampled(self._pair, scattered), expected),
        )

    def region(self, drawn: Drawn) -> Region:
        """Runs all nodes up to the sampler; returns the sampler's region."""
        checked = check(drawn.graph, self._registry, self._folders, targets=[SAMPLER])
        if checked.errors:
            raise RuntimeError(f"the generator drew an invalid workflow: {checked.errors[0]}")
        context = RunContext(self._local, self._folders, self._folders.output)
        run_graph(checked.graph, context, ResultCache("none"), targets=[SAMPLER]).raise_failures()
        return self._local.regions.pop()

    def _plan(
        self,
        engine: DeviceEngine,
        region: Region,
        batching: bool | None,
        places: dict[str, tuple[str, ...]] | None = None,
    ) -> Program:
        devices, links = engine.cluster.devices, engine.cluster.links
        return plan_region(
            region, Target(devices, links, places or {}, batching=batching), engine.counts
        )

    def _sampled(self, engine: DeviceEngine, program: Program) -> Tensor:
        return engine.cluster.run(
            program, RunContext(engine, self._folders, self._folders.output)
        ).samples


class _Collecting(DeviceEngine):
    """Records the requested regions instead of sampling them; returns their input latents."""

    def __init__(self, cache: Path) -> None:
        self.regions: list[Region] = []
        super().__init__([WorkerConfig("cpu")], cache=cache, launchers={"cpu": InProcess()})

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        self.regions.append(region)
        latent: LatentSamples = region.begin.inputs["latent_image"]
        return latent, latent


def random_places(program: Program, chance: Random) -> dict[str, tuple[str, ...]]:
    """Places every stage of every branch on a random worker."""
    stages = dict.fromkeys(
        op.id for variant in program.variants for op in variant.operations if stage_of(op).costed
    )
    return {name: (chance.choice(WORKERS),) for name in stages}


def moved(latent: Tensor, expected: Tensor) -> float:
    """Returns the difference of a latent, relative to the range of the expected one: 0 only if both
    are equal, infinite if one is not finite.
    """
    if not (latent.isfinite().all() and expected.isfinite().all()):
        return inf
    return 0.0 if torch.equal(latent, expected) else difference(latent, expected)


def _result(cases: Iterable[Case]) -> BenchResult:
    cases = list(cases)
    plain, others = ([case for case in cases if case.drawn.plain is kind] for kind in (True, False))
    wrong = [case for case in cases if not case.holds]
    metrics = {
        "graphs": len(cases),
        "plain_graphs": len(plain),
        "graphs_with_shared_calls": sum(case.calls > 0 for case in cases),
        **{f"plain_{how}": _worst(plain, how) for how in ("batched", "scattered")},
        **{how: _worst(others, how) for how in ("batched", "scattered")},
        "failing_seeds": [case.seed for case in wrong],
    }
    bounds = {f"plain_{how}": f"<= {PLAIN_BOUND}" for how in ("batched", "scattered")}
    bounds |= dict.fromkeys(("batched", "scattered"), f"<= {BOUND}") | {"failing_seeds": "none"}
    shown = sorted(cases, key=lambda case: max(case.batched, case.scattered), reverse=True)[:SHOWN]
    listed = {case.seed: case for case in (*wrong, *shown)}
    rows = [[f"{seed}: {case.name}", case.batched, case.scattered] for seed, case in listed.items()]
    notes = [
        f"katz bench requests --seed {case.seed} "
        f"{case.problem}\n{json.dumps(to_api(case.drawn.graph))}"
        for case in wrong
    ]
    return BenchResult(
        "requests", not wrong, metrics, bounds, ("seed", "batched", "scattered"), rows, notes=notes
    )


def _worst(cases: Iterable[Case], how: str) -> float:
    return max((getattr(case, how) for case in cases), default=0.0)
