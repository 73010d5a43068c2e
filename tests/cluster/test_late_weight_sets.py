"""With deferred LoRAs and several weight sets on one network, each evaluation uses its own set,
whichever LoRA came last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import torch
from hand_drawn import unet
from lora_shelf import Shelf, when
from torch import Tensor

from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import Conditioning, ConditioningEntry, Lora, ModelRecipe, Prompt
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.program import DeferredLoras
from katz_graph.ir.region import Region
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.worker_threads import WorkerThreads

LINK = NetworkLink(1e9, 1e-4)
STEPS = 6

Sets = tuple[int, ...]
"""Indices of LoRA files."""


Parts = Sequence[tuple[int, Sets]]
"""First step and LoRAs of each part."""


@dataclass(frozen=True)
class Sampled:
    """Lists LoRAs: `network` for the positive prediction, `other_side` for the negative one, `text`
    for the text encoder. The `held` ones arrive at evaluation `arrives`.
    """

    network: Parts
    arrives: int
    held: Sets = (0,)
    other_side: Parts = ()
    text: Parts = ((0, ()),)

    @property
    def expected(self) -> Sampled:
        """Returns the same case without deferral: switches add the held LoRAs."""
        return replace(
            self,
            network=self._known(self.network),
            other_side=self._known(self.other_side),
            text=self._known(self.text),
        )

    def _known(self, parts: Parts) -> Parts:
        starts = sorted({self.arrives, *(start for start, _ in parts)}) if parts else ()
        sets = [[some for first, some in parts if first <= start][-1] for start in starts]
        return [
            (start, tuple(one for one in some if start >= self.arrives or one not in self.held))
            for start, some in zip(starts, sets, strict=True)
        ]


CASES = {
    "two sets in turn": Sampled([(0, (0,)), (4, (1,))], arrives=2),
    "it comes when the other set is resident": Sampled([(0, (0,)), (2, (1,))], arrives=3),
    "a set and none": Sampled([(0, (0,)), (4, ())], arrives=2),
    "a set of both": Sampled([(0, (0, 1)), (3, (1,)), (4, (1, 0))], arrives=2),
    "both come late": Sampled([(0, (0,)), (3, (1,))], arrives=1, held=(0, 1)),
    "sides with a set each": Sampled([(0, (0,))], arrives=2, other_side=[(0, (1,))]),
    "a side without": Sampled([(0, ())], arrives=2, other_side=[(0, (1,)), (3, (0,))]),
    "in the text, too": Sampled([(0, (0,)), (3, (1,))], arrives=2, text=[(0, (0,)), (4, (1, 0))]),
}


@pytest.fixture
def models(sd1: Models, tmp_path: Path) -> Models:
    """Returns models with new LoRA files that no engine has read."""
    return replace(sd1, loras=tuple(Path(copy(path, tmp_path)) for path in sd1.loras))


@pytest.fixture(scope="module")
def alone(costs: Path) -> Iterator[DeviceEngine]:
    """Yields the engine that computes the expected latents."""
    torch.set_num_threads(1)
    with local_engine(batching=False, cache=costs) as engine:
        yield engine


@pytest.fixture(scope="module", params=[1, 3])
def engine(request: pytest.FixtureRequest, costs: Path) -> Iterator[DeviceEngine]:
    configs = [WorkerConfig(f"cpu:{index}") for index in range(request.param)]
    launchers = {one.name: WorkerThreads() for one in configs}
    with DeviceEngine(configs, cache=costs, link=LINK, launchers=launchers) as engine:
        yield engine


def drawn(models: Models, case: Sampled) -> Region:
    """Returns a region whose UNets read the models chosen by switches."""
    model, clip, _ = pipeline_recipes(models.pipeline)
    files = [Lora(file_identity(path), 0.8 + bit) for bit, path in enumerate(models.loras)]
    latent = torch.rand(1, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    begin = {"model": model, "latent_image": {"samples": latent}, "steps": STEPS}
    nodes, step = {"begin": NodeCall("StepBegin", begin)}, Link("begin", 0)

    def network(some: Sets) -> ModelRecipe:
        return replace(model, loras=tuple(files[number] for number in some))

    def text(some: Sets) -> Conditioning:
        patched = replace(clip, loras=tuple(files[number] for number in some))
        return (ConditioningEntry(Prompt(patched, "a red square")),)

    def chosen(name: str, parts: Parts, made: Callable[[Sets], Any]) -> Any:
        (_, first), *others = parts
        found = made(first)
        for start, some in others:
            pattern, switch = f"{name}.pattern{start}", f"{name}.switch{start}"
            nodes[pattern] = NodeCall("StepPattern", {"step": step, "every": 1, "first": start})
            sides = {"on_true": made(some), "on_false": found}
            nodes[switch] = NodeCall("Switch", {"condition": Link(pattern, 0), **sides})
            found = Link(switch, 0)
        return found

    reads = chosen("text", case.text, text)
    prediction = unet(nodes, "cond", chosen("one", case.network, network), reads, step)
    if case.other_side:
        against = unet(nodes, "uncond", chosen("other", case.other_side, network), reads, step)
        sides = {"cond": prediction, "uncond": against, "guidance": 3.0}
        nodes["guidance"] = NodeCall("CFGCombine", sides)
        prediction = Link("guidance", 0)
    nodes["end"] = NodeCall("StepEnd", {"step": step, "prediction": prediction})
    return bind(Graph(nodes), "end")


def _held(deferred: DeferredLoras | None, case: Sampled, models: Models) -> DeferredLoras:
    """Defers only the held LoRAs. The others must be loaded before the first evaluation, even if a
    busy machine reads them slowly.
    """
    assert deferred is not None
    held = {str(models.loras[number]) for number in case.held}
    bits = [bit for bit, file in enumerate(deferred.files) if file.path in held]
    return DeferredLoras(
        *(
            tuple(of[bit] for bit in bits)
            for of in (deferred.files, deferred.waits, deferred.affects)
        )
    )


def deferred(
    engine: DeviceEngine, models: Models, shelf: Shelf, case: Sampled, seed: int
) -> Tensor:
    """Samples with operations on random devices; the held LoRAs arrive at their evaluation."""
    region = drawn(models, case)
    draw, devices = random.Random(seed), engine.cluster.devices
    pins = {one.id: (draw.choice(devices).name,) for one in region.operations}
    allowed = frozenset({f"async-lora={case.arrives}"})
    target = Target(devices, engine.cluster.links, pins, allowed, batching=False)
    program = plan_region(region, target, engine.counts)
    program = replace(program, deferred_loras=_held(program.deferred_loras, case, models))
    gates = [shelf.hold(models.loras[number]) for number in case.held]

    def release() -> None:
        for gate in gates:
            gate.set()

    context = when(bare_context(engine), case.arrives, release)
    outcome = engine.cluster.run(program, context)
    arrivals = outcome.timings[program.sampler_device].arrivals
    for number in case.held:
        assert arrivals[str(models.loras[number])] == case.arrives
    return outcome.samples


@pytest.mark.defect(1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_evaluation_computes_with_its_own_weight_set(
    models: Models, engine: DeviceEngine, alone: DeviceEngine, shelf: Shelf, case: Sampled
) -> None:
    expected = sample(alone, drawn(models, case.expected))
    made = deferred(engine, models, shelf, case, seed=len(case.network))
    assert difference(made, expected) <= 1e-5


@pytest.mark.defect(1)
def test_batched_calls_before_the_loop_have_one_weight_set(
    models: Models, engine: DeviceEngine, alone: DeviceEngine
) -> None:
    """Both predictions start with one set, in one call; a switch later changes the negative one's."""
    case = Sampled([(0, (1,))], arrives=0, other_side=[(0, (1,)), (3, ())])
    region, cluster = drawn(models, case), engine.cluster
    pins = {one.id: (cluster.devices[0].name,) for one in region.operations}
    target = Target(cluster.devices, cluster.links, pins, batching=True)
    made = cluster.run(plan_region(region, target, engine.counts), bare_context(engine)).samples
    assert difference(made, sample(alone, region)) <= 1e-5
