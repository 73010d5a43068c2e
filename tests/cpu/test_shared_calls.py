"""Requests at the same time share the calls of their models, and each gets its own picture."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from katz_graph.core.errors import OutOfMemory
from katz_graph.core.recipe import ConditioningEntry, Picture, Prompt, References
from katz_graph.core.shared_rows import SharedRows
from katz_graph.executor.calls.computing import Eagerly, StageCall
from katz_graph.executor.calls.stage_calls import StageCalls
from katz_graph.executor.turns.loop import DeviceThread, ServiceTask
from katz_graph.executor.worker.device_program import device_program
from katz_graph.executor.worker.execution import Execution
from katz_graph.ir.device import ROW_BUCKETS
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.stages import Outputs
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.serving.policy import ServingPolicy
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import Kind, draw_controlnet, make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample, sampler_region

LONG_PROMPT = "a red circle, " * 25  # of two parts
BOUND = 1e-5  # of the range: float rounding, the bound of the fidelity rules


def cases_of(pipeline: Path, control: Path, lora: Path | None, channels: int) -> list[Case]:
    """Returns requests that differ in all that sharing allows: prompt and its length, seed,
    sampler, steps, guidance, number of pictures, ControlNets and their windows; one has a LoRA.
    """
    one = torch.zeros(1, channels, 8, 8)
    first = Case("shared", pipeline, "euler", 6, latent=one)
    controls = (ControlCase(control, 0.8, 0.0, 0.6),)
    return [
        first,
        replace(
            first,
            seed=9,
            prompt="a blue square",
            sampler="dpmpp_2m",
            steps=5,
            controls=(ControlCase(control, 0.3, 0.0, 1.0),),
        ),
        replace(first, seed=3, guidance=1.0),
        replace(first, seed=8, prompt=LONG_PROMPT),
        replace(first, seed=4, controls=controls),
        replace(first, seed=5, latent=one.expand(2, -1, -1, -1)),
        replace(first, seed=6, controls=controls, loras=() if lora is None else ((lora, 0.7),)),
    ]


def at_once(engine: Any, regions: Sequence[Any]) -> list[Tensor]:
    with ThreadPoolExecutor(len(regions)) as pool:
        return list(pool.map(lambda region: sample(engine, region), regions))


@pytest.mark.parametrize("kind", ["sd1", "sdxl", "sd35"])
def test_each_request_of_a_shared_call_gets_its_own_picture(
    kind: str, request: pytest.FixtureRequest, costs: Path, tmp_path: Path
) -> None:
    if kind == "sd35":
        make_pipeline(tmp_path / "sd35", "sd35", 1)
        draw_controlnet("sd35", 2).save_pretrained(tmp_path / "controlnet")
        cases = cases_of(tmp_path / "sd35", tmp_path / "controlnet", None, 16)
    else:
        models: Models = request.getfixturevalue(kind)
        cases = cases_of(models.pipeline, models.controls[0], models.loras[0], 4)
    regions = list(map(sampler_region, cases))
    with local_engine(cache=costs) as engine:
        alone = [sample(engine, region) for region in regions]
    with local_engine(cache=costs, shared_rows=SharedRows(16)) as engine:
        lone = sample(engine, regions[0])
        found = at_once(engine, regions)
        assert engine.models.compute.use.shared > 0
    assert torch.equal(lone, alone[0])
    assert max(map(difference, found, alone)) <= BOUND
    with local_engine(cache=costs, shared_rows=SharedRows(4, fixed=True)) as engine:
        lone = [sample(engine, region) for region in regions]
        fixed = at_once(engine, regions)
        assert engine.models.compute.use.shared > 0
    assert all(map(torch.equal, lone, fixed))
    assert max(map(difference, fixed, alone)) <= BOUND


def keys(engine: Any, region: Any) -> set[str]:
    """Returns the keys of the calls that a request may share."""
    segments = [segment for run in engine.plan(region).segments for segment in run]
    return {call.shares for segment in segments for call in segment.calls} - {""}


def test_only_requests_with_equal_positions_and_texts_that_may_be_repeated_meet(
    sd1: Models, folders: dict[Kind, Path], costs: Path
) -> None:
    """Positions of a call are those of its first row, and joint attention has no repeated text."""
    model, clip, _ = pipeline_recipes(folders["flux"])
    seen = Picture.of(torch.zeros(1, 16, 8, 8))
    latent = {"samples": torch.zeros(1, 16, 8, 8)}
    begin = {"sampler_name": "euler", "scheduler": "simple", "steps": 2, "seed": 7}

    def referring(placing: Any, *pictures: Picture) -> Any:
        uses = References(pictures, placing)
        entries = (ConditioningEntry(Prompt(clip, "a red circle"), references=uses),)
        given = {**begin, "latent_image": latent, "model": model}
        expansion = expand_sampling("StepBegin", given, model, entries, entries, 1.0)
        return bind(expansion.graph, expansion.outputs[0].node)

    short = Case("shared", sd1.pipeline, "euler", 6, guidance=1.0)
    flow = replace(
        short, pipeline=folders["z_image"], latent=torch.zeros(1, 16, 8, 8), sampler="euler"
    )
    with local_engine(cache=costs) as engine:
        index, offset, same, two = (
            keys(engine, referring(*placed))
            for placed in (
                ("index", seen),
                ("offset", seen),
                ("index", seen),
                ("index", seen, seen),
            )
        )
        assert index == same and index.isdisjoint(offset) and index.isdisjoint(two)
        for case, alike in ((short, True), (flow, False)):
            one, other = (
                keys(engine, sampler_region(replace(case, prompt=prompt)))
                for prompt in ("a red circle", LONG_PROMPT)
            )
            assert one == other if alike else one.isdisjoint(other)
        # the same number of tokens in another grid
        wide, high = (
            keys(engine, sampler_region(replace(flow, latent=torch.zeros(1, 16, *sides))))
            for sides in ((8, 16), (16, 8))
        )
        assert wide and wide.isdisjoint(high)


class Failing(Eagerly):
    """Raises an error in calls with more rows than `most`, or with a row whose noise level is
    `sigma`.
    """

    def __init__(self, most: int = 64, sigma: float = -1.0) -> None:
        super().__init__()
        self.most, self.sigma, self.rows = most, sigma, list[int]()

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        for call in calls:
            if call.stage.name == "unet_encoder":
                sigmas = call.given["step"].sigma
                self.rows.append(len(sigmas))
                if len(sigmas) > self.most:
                    raise OutOfMemory("the device has no memory left")
                if self.sigma in sigmas:
                    raise ValueError("a row that cannot be computed")
        return super().together(calls)


def test_an_error_in_a_shared_call_ends_only_the_request_that_causes_it(
    sd1: Models, sdxl: Models, costs: Path
) -> None:
    first = Case("shared", sd1.pipeline, "euler", 6)
    good = [sampler_region(replace(first, seed=seed)) for seed in range(3)]
    bad = {
        "a row that cannot be computed": replace(first, steps=7),
        "the latent became NaN or infinite in step 1": replace(
            first, latent=torch.full((1, 4, 8, 8), torch.nan)
        ),
        "choose a LoRA made for it": replace(first, loras=((sdxl.loras[0], 1.0),)),
    }
    regions = {line: sampler_region(case) for line, case in bad.items()}
    with local_engine(cache=costs, shared_rows=SharedRows(16)) as engine:
        expected = at_once(engine, good)
        sigmas = [point.sigma for point in engine.plan(next(iter(regions.values()))).schedule]
        engine.models.compute = Failing(sigma=sigmas[3])
        with ThreadPoolExecutor(6) as pool:
            failed = {line: pool.submit(sample, engine, one) for line, one in regions.items()}
            found = list(pool.map(lambda region: sample(engine, region), good))
            errors = {line: str(one.exception()) for line, one in failed.items()}
    assert all(line in error and "\n" not in error for line, error in errors.items()), errors
    assert max(map(difference, found, expected)) <= BOUND


def test_a_shared_call_without_memory_is_halved_and_the_limit_remembered(
    sd1: Models, costs: Path
) -> None:
    first = Case("shared", sd1.pipeline, "euler", 12)
    regions = [sampler_region(replace(first, seed=seed)) for seed in range(4)]
    with local_engine(cache=costs, shared_rows=SharedRows(16)) as engine:
        expected = at_once(engine, regions)
        engine.models.compute = limited = Failing(most=4)
        found = at_once(engine, regions)
        too_many = [rows for rows in limited.rows if rows > 4]
    assert max(map(difference, found, expected)) <= BOUND
    assert 4 in limited.rows
    # each size is tried once, and once more after unused memory was freed
    assert len(too_many) <= 2 * len(set(too_many))


def test_requests_that_arrive_together_begin_together(sd1: Models, costs: Path) -> None:
    """A request that is ready for its first evaluation lets the others encode their texts first."""
    first = Case("shared", sd1.pipeline, "euler", 6)
    regions = [sampler_region(replace(first, seed=seed)) for seed in range(3)]
    shared = SharedRows(16)
    with local_engine(batching=True, cache=costs, shared_rows=shared) as engine:
        at_once(engine, regions)  # loads the models
        engine.models.compute = seen = Failing()
        calls, released = StageCalls(engine.models, shared), threading.Event()
        thread = DeviceThread("cpu", 1, shared=calls)
        thread.submit(ServiceTask(released.wait))
        context = bare_context(engine)
        jobs = [
            thread.submit(Execution(share, engine.models, context, stage_calls=calls))
            for share in (device_program(engine.plan(region), "cpu") for region in regions)
        ]
        released.set()
        for job in jobs:
            job.result()
        thread.close()
        (run,) = engine.plan(regions[0]).runs
    assert seen.rows[0] == 3 * 2
    # each reports how long evaluations take by rows: 3 · 2 rows were measured, which take longer
    # than 2, but not three times as long
    for job in jobs:
        measured = dict(zip(ROW_BUCKETS, job.task.timing.evaluations[run.key], strict=True))
        assert measured != dict(zip(ROW_BUCKETS, run.seconds, strict=True))
        assert 0 < measured[1] <= measured[2] <= measured[8]
    # of disturbed evaluations the mean counts, not the median, since a request takes their sum
    for seconds in [1.0, 1.0, 1.0, 3.0] * 30:
        calls.ran_evaluation("disturbed", 2, seconds)
    assert calls.evaluation_seconds("disturbed")[1] == pytest.approx(1.5, rel=0.02)


class Slow(Eagerly):
    """Takes 4 ms for each call."""

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        time.sleep(0.004)
        return super().together(calls)


def test_the_rest_of_a_request_is_predicted_at_the_pace_of_its_device(
    sd1: Models, costs: Path
) -> None:
    """Plans are wrong where other programs use the machine. Due times need the true pace."""
    with local_engine(cache=costs) as engine:
        program = engine.plan(sampler_region(Case("slow", sd1.pipeline, "euler", 40)))
        assert program.prediction is not None
        planned = tuple(seconds / 100 for seconds in program.prediction.evaluations)
        program = replace(program, prediction=replace(program.prediction, evaluations=planned))
        engine.models.compute = Slow()
        share, calls = device_program(program, "cpu"), StageCalls(engine.models)
        execution = Execution(share, engine.models, bare_context(engine), stage_calls=calls)
        with torch.inference_mode():
            for _ in range(22):  # two of them load and prepare
                execution.step()
            predicted, started = execution.remaining, time.perf_counter()
            while not execution.step():
                pass
            took = time.perf_counter() - started
        execution.close()
    assert predicted == pytest.approx(took, rel=0.5)


def test_devices_count_the_seconds_of_a_run_after_its_sampler(
    sd1: Models, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    predict = ServingPolicy.predict

    def noted(policy: Any, task: Any, remaining: float, rows: int) -> None:
        rests.append(remaining)
        predict(policy, task, remaining, rows)

    monkeypatch.setattr(ServingPolicy, "predict", noted)
    with local_engine(cache=costs) as engine:
        context = bare_context(engine)
        region = sampler_region(Case("after", sd1.pipeline, "euler", 3))
        context.seconds_after = {region.end.id: 500.0}
        sample(engine, region, context)
    assert max(rests) >= 500.0
