"""ControlNets one evaluation behind: a plan gives the picture of a hand-drawn loop with slots, bit
for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from katz_graph.core.events import Event, Timeline
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import ConditioningEntry, Picture, Prompt
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import Choices
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink as Wire
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, bind, local_engine, sample, sampler_region
from katz_graph.testing.worker_threads import WorkerThreads

NAMES = ("cpu:0", "cpu:1")
PLACES = {"controlnet": ("cpu:1",)} | dict.fromkeys(
    ("unet_encoder", "unet_mid", "unet_decoder"), ("cpu:0",)
)
SLOW = Wire(1e9, 1.0)  # given link speed: waiting for residuals never pays
NEVER = 10_000


@dataclass(frozen=True)
class Window:
    """Range of a ControlNet: schedule fractions for the sampler, evaluations for the loop, both
    inclusive.
    """

    start: float
    end: float
    first: int
    last: int


@dataclass(frozen=True)
class Stale:
    """Holds a latent, and the evaluations in which the second device worked."""

    latent: Tensor
    evaluations: Sequence[int]
    stale: Sequence[str]


@pytest.fixture
def local(costs: Path) -> Iterator[DeviceEngine]:
    with local_engine(batching=False, cache=costs) as engine:
        yield engine


def request(
    models: Models, sampler: str, steps: int, guidance: float, windows: Sequence[Window]
) -> Case:
    controls = tuple(
        ControlCase(models.controls[n], 0.8, window.start, window.end)
        for n, window in enumerate(windows)
    )
    return Case("test", models.pipeline, sampler, steps, guidance=guidance, controls=controls)


def stale(case: Case, costs: Path) -> Stale:
    """Runs the request with its ControlNets on a second worker, one evaluation behind."""
    choices = Choices(PLACES, frozenset({"stale-controlnet"}), batching=False)
    launchers = {name: WorkerThreads() for name in NAMES}
    with DeviceEngine(
        [WorkerConfig(name) for name in NAMES], choices, costs, SLOW, launchers=launchers
    ) as engine:
        context = bare_context(engine)
        ran: dict[str, set[int]] = defaultdict(set)

        def listen(event: Event) -> None:
            for span in event.segments if isinstance(event, Timeline) else ():
                if span.evaluation is not None and not span.name.startswith("send"):
                    ran[span.device].add(span.evaluation)

        context.listener = listen
        latent = engine.sample(sampler_region(case), context)[0]["samples"]
        (program,) = context.measured.programs
        return Stale(latent, sorted(ran["cpu:1"]), program.stale)


def drawn(case: Case, windows: Sequence[Window]) -> Region:
    """Draws the loop: fresh residuals in a window's first evaluation, the previous evaluation's in
    the others.
    """
    model, clip, _ = pipeline_recipes(case.pipeline)
    nodes = {
        "begin": NodeCall(
            "StepBegin",
            {
                "model": model,
                "latent_image": {"samples": case.latent},
                "seed": case.seed,
                "steps": case.steps,
                "sampler_name": case.sampler,
                "scheduler": "normal",
            },
        )
    }
    slots: dict[str, Link] = {}
    sides = (
        {"positive": case.prompt}
        if case.guidance == 1.0
        else {"positive": case.prompt, "negative": case.negative}
    )
    for side, text in sides.items():
        common: dict[str, Any] = {
            "model": model,
            "conditioning": (ConditioningEntry(Prompt(clip, text)),),
        }
        residuals: dict[str, Link] = {}
        for number, (control, window) in enumerate(
            zip(case.controls, windows, strict=True), start=1
        ):
            name, slot = f"{side}.control{number}", len(slots) + 1
            given = {
                "control_net": controlnet_recipe(control.folder),
                "image": Picture.of(case.image),
                "strength": control.strength,
            }
            nodes[name] = NodeCall(
                "ControlNet",
                {"step": Link("begin", 0), "conditioning": common["conditioning"], **given},
            )
            residuals[f"residuals_{number}"] = late(nodes, name, slot, window)
            slots[f"next_{slot}"] = Link(name, 0)
        nodes[f"{side}.encoder"] = NodeCall("UNetEncoder", {"step": Link("begin", 0), **common})
        nodes[f"{side}.mid"] = NodeCall(
            "UNetMid", {"features": Link(f"{side}.encoder", 0), **common}
        )
        nodes[f"{side}.decoder"] = NodeCall(
            "UNetDecoder", {"features": Link(f"{side}.mid", 0), **common, **residuals}
        )
    prediction = Link("positive.decoder", 1)
    if "negative" in sides:
        both = {
            "cond": prediction,
            "uncond": Link("negative.decoder", 1),
            "guidance": case.guidance,
        }
        nodes["guidance"] = NodeCall("CFGCombine", both)
        prediction = Link("guidance", 0)
    nodes["end"] = NodeCall(
        "StepEnd", {"step": Link("begin", 0), "prediction": prediction, **slots}
    )
    return bind(Graph(nodes), "end")


def late(nodes: dict[str, NodeCall], name: str, slot: int, window: Window) -> Link:
    """Links nothing outside of the window, `name` in its first evaluation, then the value of
    `slot`.
    """
    step = Link("begin", 0)
    nodes[f"{name}.begins"] = NodeCall(
        "StepPattern", {"step": step, "every": NEVER, "offset": window.first}
    )
    nodes[f"{name}.fresh"] = NodeCall(
        "Switch", {"condition": Link(f"{name}.begins", 0), "on_true": Link(name, 0)}
    )
    later = {"step": step, "every": 1, "first": window.first + 1, "last": window.last}
    nodes[f"{name}.goes on"] = NodeCall("StepPattern", later)
    chosen: Mapping[str, Any] = {
        "on_true": Link("begin", slot),
        "on_false": Link(f"{name}.fresh", 0),
    }
    nodes[f"{name}.late"] = NodeCall("Switch", {"condition": Link(f"{name}.goes on", 0), **chosen})
    return Link(f"{name}.late", 0)


# "normal" levels of 8 steps are at timesteps 999, 856, 714, 571, 428, 285, 143 and 0: 25 % to 75 %,
# 749 to 250, contains evaluations 2 to 5
MIDDLE = Window(0.25, 0.75, 2, 5)
# 4 Heun steps: 999, 666, 333 and 0; the second evaluation of a step has the next level: 999, 666,
# 666, 333, 333, 0, 0
HEUN = Window(0.0, 1.0, 0, 6)
HEUN_MIDDLE = Window(0.3, 0.7, 1, 4)


@pytest.mark.parametrize(
    ("sampler", "steps", "guidance", "windows", "computed"),
    [
        pytest.param("euler", 5, 1.0, [Window(0.0, 1.0, 0, 4)], [0, 1, 2, 3], id="euler"),
        pytest.param("heun", 4, 1.0, [HEUN], [0, 1, 2, 3, 4, 5], id="heun"),
        pytest.param("euler", 8, 1.0, [MIDDLE], [2, 3, 4], id="window"),
        pytest.param("heun", 4, 1.0, [HEUN_MIDDLE], [1, 2, 3], id="heun with a window"),
        pytest.param("euler", 5, 5.0, [Window(0.0, 1.0, 0, 4)], [0, 1, 2, 3], id="guidance"),
        pytest.param(
            "euler",
            8,
            5.0,
            [Window(0.0, 0.25, 0, 1), MIDDLE],
            [0, 2, 3, 4],
            id="two ControlNets, guidance",
        ),
    ],
)
def test_the_picture_is_that_of_the_loop_drawn_by_hand(
    sdxl: Models,
    local: DeviceEngine,
    costs: Path,
    sampler: str,
    steps: int,
    guidance: float,
    windows: list[Window],
    computed: list[int],
) -> None:
    case = request(sdxl, sampler, steps, guidance, windows)
    found, by_hand, exact = (
        stale(case, costs),
        sample(local, drawn(case, windows)),
        sample(local, sampler_region(case)),
    )
    assert torch.equal(found.latent, by_hand)
    assert found.evaluations == computed
    assert len(found.stale) == len(windows) * (1 if guidance == 1.0 else 2)
    assert 0.0 < difference(found.latent, exact) < 0.5


def test_a_controlnet_that_acts_once_is_waited_for(
    sdxl: Models, local: DeviceEngine, costs: Path
) -> None:
    case = request(sdxl, "euler", 4, 1.0, [Window(0.0, 0.1, 0, 0)])
    found = stale(case, costs)
    assert torch.equal(found.latent, sample(local, sampler_region(case)))
    assert found.evaluations == [0]
    assert not found.stale
