"""Requests run on torch's meta device, where reading a value raises, and on a device that completes
its work later than enqueued.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from katz_graph.core.errors import RunError
from katz_graph.core.events import Event, Previewed, Progress
from katz_graph.core.patches import FreeU, RescaledGuidance
from katz_graph.core.recipe import (
    Area,
    Concatenated,
    ConditioningEntry,
    MaskUse,
    ModelRecipe,
    Picture,
    Prompt,
)
from katz_graph.executor.calls.computing import Eagerly
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.worker.device_program import device_program
from katz_graph.executor.worker.execution import Execution
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.stream import Clock, HostStream, Reading
from katz_graph.files.folders import Folders
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.stages import Outputs, Stage
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.sampling.names import SAMPLERS
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import (
    bare_context,
    bind,
    local_engine,
    region_of,
    sample,
    sampler_region,
)

STEPS = 4
TWO = torch.zeros(2, 4, 8, 8)
# all that take a number of steps, except DPMSolverSDEScheduler: torchsde draws its noise on the
# device and reads it
SCHEDULERS: Mapping[str, Mapping[str, Any]] = {
    "DDIMParallelScheduler": {},
    "DDIMScheduler": {"clip_sample": False, "set_alpha_to_one": False},
    "DDPMParallelScheduler": {},
    "DDPMScheduler": {},
    "DEISMultistepScheduler": {},
    "DPMSolverMultistepScheduler": {"use_karras_sigmas": True},
    "DPMSolverSinglestepScheduler": {},
    "EulerAncestralDiscreteScheduler": {},
    "EulerDiscreteScheduler": {},
    "HeunDiscreteScheduler": {},
    "KDPM2AncestralDiscreteScheduler": {},
    "KDPM2DiscreteScheduler": {},
    "LCMScheduler": {},
    "LMSDiscreteScheduler": {},
    "PNDMScheduler": {"skip_prk_steps": True},
    "SASolverScheduler": {},
    "TCDScheduler": {},
    "UniPCMultistepScheduler": {},
}


class Waited(AssertionError):
    """The host waited for the device."""


class NoMoves(TorchDispatchMode):
    """Refuses host tensors in computations of the device, except scalars, which are kernel
    arguments, and asynchronous copies.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        names = (one.name for one in function._schema.arguments)
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        here = [one for one in tensors(given) if not one.is_meta and one.ndim]
        there = [one for one in tensors((made, given)) if one.is_meta]
        if here and there and not given.get("non_blocking"):
            raise Waited(f"{function} waits for the device")
        return made


class NoNumbers(TorchFunctionMode):
    """Refuses making device tensors from Python numbers, which is a blocking copy."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function in (torch.tensor, torch.as_tensor, Tensor.new_tensor) and made.is_meta:
            raise Waited(f"{function.__name__} waits for the device")
        return made


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


@contextmanager
def no_waits() -> Iterator[None]:
    """Refuses calls that make the host wait for a GPU, even without a read."""
    with NoMoves(), NoNumbers():
        yield


@pytest.mark.parametrize(
    ("look", "refused"),
    [
        (lambda there: there.sum().item(), RuntimeError),
        (lambda there: bool(there.sum() > 0), RuntimeError),
        (lambda there: there.cpu(), NotImplementedError),
        (lambda there: torch.isfinite(there).nonzero(), NotImplementedError),
        (lambda there: torch.ones(2).to("meta"), Waited),
        (lambda there: torch.ones(2).to(there), Waited),
        (lambda there: there.copy_(torch.ones(2)), Waited),
        (lambda there: torch.tensor([1.0, 2.0], device="meta"), Waited),
        (lambda there: there.new_tensor([1.0, 2.0]), Waited),
        (lambda there: there[torch.tensor([1])], Waited),
        (lambda there: torch.ones(2).to("meta", non_blocking=True), None),
        (lambda there: there * torch.tensor(2.0), None),  # a kernel argument
    ],
)
def test_waiting_calls_are_refused(
    look: Callable[[Tensor], Any], refused: type[Exception] | None
) -> None:
    with torch.inference_mode(), no_waits():
        there = torch.empty(2, device="meta")
        with nullcontext() if refused is None else pytest.raises(refused):
            look(there)


class Later(HostStream):
    """Simulates a device one evaluation behind; records how many reads had started when each was
    awaited.
    """

    ahead = 1

    def __init__(self) -> None:
        self.started = 0
        self.waited: list[tuple[int, int]] = []
        self.asked: list[int] = []  # reads started at each query

    def clock(self) -> Clock:
        return lambda: _NotYet(self)

    def read(self, tensor: Tensor) -> Reading:
        number, self.started = self.started, self.started + 1
        # without data, all is finite
        landed = torch.ones_like(tensor, device="cpu") if tensor.is_meta else tensor.clone()

        def wait() -> Tensor:
            self.waited.append((number, self.started))
            return landed

        return wait


class _NotYet:
    """Is an event that is never complete when queried."""

    known = False

    def __init__(self, stream: Later) -> None:
        self._stream = stream

    @property
    def at(self) -> float:
        self._stream.asked.append(self._stream.started)
        return 0.0


@pytest.fixture(scope="module")
def planner(costs: Path) -> Iterator[DeviceEngine]:
    with local_engine(batching=True, cache=costs) as engine:
        yield engine


class EachFormOnce(Eagerly):
    """Computes each form of call once per mode, because modes do the checks: without data, outputs
    depend only on the inputs' form.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Any, tuple[Any, ...]] = {}

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        leaves = tree_leaves(dict(given))
        form = (
            type(_get_current_dispatch_mode()),
            stage.name,
            id(module),
            *given,
            *map(_form, leaves),
        )
        if form not in self._known:
            outputs = super().__call__(stage, module, given)
            self._known[form] = *tree_flatten(outputs), module  # keeps the id valid
            return outputs
        leaves, spec, _ = self._known[form]
        return tree_unflatten([_another(leaf) for leaf in leaves], spec)


def _form(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.device.type, leaf.dtype, leaf.shape, leaf.stride()
    return repr(leaf)


def _another(leaf: Any) -> Any:
    return torch.empty_like(leaf) if isinstance(leaf, Tensor) else leaf


@pytest.fixture(scope="module")
def models() -> DeviceModels:
    models = DeviceModels("meta", torch.float16)
    models.compute = EachFormOnce()
    return models


Run = Callable[..., Later]


@pytest.fixture
def run(planner: DeviceEngine, models: DeviceModels) -> Run:
    """Runs a region on a device without data; once models are loaded, waits are refused. Returns
    the stream.
    """

    def run_region(region: Region, mode: AbstractContextManager[Any] | None = None) -> Later:
        models.stream = stream = Later()
        program = planner.plan(region)
        (device,) = program.instructions
        context = RunContext(planner, Folders(), Path(), previews=True)
        execution = Execution(device_program(program, device), models, context)
        with torch.inference_mode():
            assert not execution.step()  # loads
            with mode or no_waits():
                while not execution.step():
                    pass
                result = execution.result
        execution.close()
        shape = region.begin.inputs["latent_image"]["samples"].shape
        assert result is not None and [one.shape for one in result] == [shape, shape]
        return stream

    return run_region


def case(models: Models, **changes: Any) -> Case:
    return replace(Case("test", models.pipeline, "euler", STEPS, latent=TWO), **changes)


def controls(models: Models) -> tuple[ControlCase, ...]:
    """Returns two ControlNets of which both, one or none acts."""
    first, second, _ = models.controls
    return ControlCase(first, 0.8, 0.0, 0.6), ControlCase(second, 0.5, 0.3, 0.7)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_sampler_waits(sampler: str, sd1: Models, run: Run) -> None:
    mask = torch.zeros(8, 8)
    mask[2:4, 2:6] = 1.0
    run(sampler_region(case(sd1, sampler=sampler, denoise=0.6, mask=mask)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_scheduler_of_diffusers_looks_at_the_device(
    scheduler: str, sd1: Models, run: Run
) -> None:
    """diffusers' transfers of noise and coefficients may wait."""
    inputs = {
        "scheduler_class": scheduler,
        "scheduler_config": json.dumps(SCHEDULERS[scheduler]),
        "steps": STEPS,
        "seed": 1,
        "strength": 0.8,
    }
    run(region_of("DiffusersStepBegin", inputs, case(sd1)), nullcontext())


# ControlNet code does not depend on the family
@pytest.mark.parametrize(("family", "count"), [("sd1", 0), ("sd1", 1), ("sdxl", 2)])
def test_controlnets_and_weighed_prompts(
    family: str, count: int, request: pytest.FixtureRequest, run: Run
) -> None:
    found = request.getfixturevalue(family)
    run(sampler_region(case(found, controls=controls(found)[:count], prompt="a (red:1.3) circle")))


def region(model: ModelRecipe, *positive: ConditioningEntry, guidance: float = 5.0) -> Region:
    inputs = {
        "steps": STEPS,
        "seed": 1,
        "sampler_name": "dpmpp_2m",
        "scheduler": "normal",
        "denoise": 1.0,
        "model": model,
        "latent_image": {"samples": torch.zeros(2, 4, 8, 16)},
    }
    negative = (replace(positive[-1], area=None, mask=None),)
    expansion = expand_sampling("StepBegin", inputs, model, positive, negative, guidance)
    return bind(expansion.graph, expansion.outputs[0].node)


def test_areas_masks_and_parts_of_the_schedule(sd1: Models, run: Run) -> None:
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    mask = torch.zeros(1, 64, 128)
    mask[:, 8:40, 16:80] = 1.0
    limits: tuple[dict[str, Any], ...] = (
        {"area": Area(0, 0, 8, 8), "strength": 0.7},
        {"area": Area(0, 8, 8, 8), "start_percent": 0.5},
        {"mask": MaskUse(Picture.of(mask), 0.8)},
        {"mask": MaskUse(Picture.of(mask), bounds=True)},
        {},
    )
    text = Prompt(clip, "a")
    run(region(model, *(ConditioningEntry(text, **limit) for limit in limits)))


@pytest.mark.parametrize("patch", [RescaledGuidance(0.7), FreeU(1, 1.3, 1.4, 0.9, 0.2)])
def test_patches(patch: Any, sd1: Models, run: Run) -> None:
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    run(region(replace(model, patches=(patch,)), ConditioningEntry(Prompt(clip, "a"))))


def test_an_inpainting_model(run: Run, tmp_path: Path) -> None:
    make_pipeline(tmp_path / "seeing", "sd1", seed=1, extra=5, layers=1)
    model, clip, _ = pipeline_recipes(tmp_path / "seeing")
    seen = Concatenated(Picture.of(torch.zeros(1, 4, 8, 16)), Picture.of(torch.ones(1, 64, 128)))
    text = Prompt(clip, "a")
    areas = (Area(0, 0, 8, 8), None)
    run(region(model, *(ConditioningEntry(text, area=one, concatenated=seen) for one in areas)))


def test_an_evaluation_is_waited_for_when_the_next_is_enqueued(
    sd1: Models, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunContext, "wants_preview", lambda self, node: False)
    stream = run(sampler_region(case(sd1)))
    assert stream.waited == [
        (0, 2),
        (1, 3),
        (2, 4),
        (3, 4),  # the last
        (4, 6),  # and both latents
        (5, 6),
    ]
    assert set(stream.asked) == {4}  # start and end of its work: after the last


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def context(planner: DeviceEngine, events: list[Event]) -> RunContext:
    """Returns a run with all previews."""
    context = bare_context(planner)
    ticks = iter(range(10**6))
    context.previews, context.clock, context.listener = True, lambda: next(ticks), events.append
    return context


@pytest.fixture(params=[HostStream, Later])
def on(planner: DeviceEngine, request: pytest.FixtureRequest) -> Iterator[DeviceEngine]:
    """Yields a CPU, and a device that completes later."""
    before, planner.models.stream = planner.models.stream, request.param()
    yield planner
    planner.models.stream = before


def test_late_reports_are_the_same(
    on: DeviceEngine, context: RunContext, events: list[Event], sd1: Models, costs: Path
) -> None:
    region, expected = sampler_region(case(sd1)), []
    made = sample(on, region, context)
    with local_engine(batching=True, cache=costs) as plain:
        context.listener = expected.append
        assert torch.equal(sample(plain, region, context), made)
    assert [picture.tolist() for picture in previews(events)] == [
        picture.tolist() for picture in previews(expected)
    ]
    assert len(previews(events)) == STEPS and steps(events) == steps(expected) == [1, 2, 3, 4]


def test_the_step_that_became_infinite_is_named(
    on: DeviceEngine,
    context: RunContext,
    events: list[Event],
    sd1: Models,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most one more evaluation is computed."""
    evaluations = 0

    class Broken(Eagerly):
        def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
            nonlocal evaluations
            outputs = super().__call__(stage, module, given)
            if stage.name != "unet_decoder":
                return outputs
            evaluations += 1
            features, prediction = outputs
            return features, prediction * (torch.inf if evaluations == 2 else 1.0)

    monkeypatch.setattr(on.models, "compute", Broken())
    with pytest.raises(RunError, match=r"NaN or infinite in step 2 \(evaluation 2 of 4\)"):
        sample(on, sampler_region(case(sd1)), context)
    assert evaluations == 2 + on.models.stream.ahead
    assert len(previews(events)) == 1 and steps(events) == [1]


def previews(events: list[Event]) -> list[Tensor]:
    return [event.picture for event in events if isinstance(event, Previewed)]


def steps(events: list[Event]) -> list[int]:
    return [event.value for event in events if isinstance(event, Progress) and event.evaluations]
