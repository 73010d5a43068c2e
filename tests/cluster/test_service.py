"""A worker serves ControlNets: requests share a budget of bytes, and values that cannot be sent to
workers are rejected. Requests use one worker or all, by load.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_same_picture import LINK

from katz_graph.core.devices import BY_LOAD
from katz_graph.core.errors import InputError
from katz_graph.core.patches import OpaquePatch
from katz_graph.executor import engine as engine_module
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import Choices, plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.changes import PlanChanges
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.sources import controlnet_recipe
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region
from katz_graph.testing.worker_threads import WorkerThreads

UNET = ("unet_encoder", "unet_mid", "unet_decoder")


@pytest.fixture(scope="module")
def models(sd1: Models) -> Models:
    torch.set_num_threads(1)
    return sd1


def request(models: Models, controls: Sequence[int], seed: int = 7) -> Region:
    uses = tuple(ControlCase(models.controls[number], 0.8, 0.0, 1.0) for number in controls)
    return sampler_region(
        Case("x", models.pipeline, "euler", 4, guidance=1.0, seed=seed, controls=uses)
    )


def service(models: Models, costs: Path) -> DeviceEngine:
    """Opens an engine with the UNet on one worker, and room for one and a half ControlNets on the
    other.
    """
    size = 4 * count_values(controlnet_recipe(models.controls[0]).control_net)
    assignments = [WorkerConfig("cpu:0"), WorkerConfig("cpu:1", control_net_bytes=size * 3 // 2)]
    pins = {**dict.fromkeys(UNET, ("cpu:0",)), "controlnet": ("cpu:1",)}
    launchers = dict.fromkeys(("cpu:0", "cpu:1"), WorkerThreads())
    return DeviceEngine(
        assignments, Choices(pins, batching=False), costs, LINK, launchers=launchers
    )


def test_requests_with_controlnets_that_do_not_fit_together_wait_for_each_other(
    models: Models, costs: Path
) -> None:
    regions = [request(models, [number % 2], seed=number) for number in range(4)]
    with local_engine(batching=False, cache=costs) as local:
        expected = [sample(local, region) for region in regions]
    with service(models, costs) as engine, ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda region: sample(engine, region), regions))
        use = engine.cluster.call("cpu:1", "control_net_use").value
    assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))
    assert use.evictions >= 1


def test_a_request_with_controlnets_above_the_budget_is_refused(
    models: Models, costs: Path
) -> None:
    with service(models, costs) as engine:
        with pytest.raises(
            InputError, match="its ControlNets together exceed the budget of a worker"
        ):
            sample(engine, request(models, [0, 1]))
        assert torch.isfinite(sample(engine, request(models, [0]))).all()


def test_unsendable_work_runs_here_with_a_note(models: Models, costs: Path) -> None:
    plain = request(models, [])
    patch = OpaquePatch("post_cfg_function", "halved", lambda given: given["denoised"] * 0.5)
    strange = replace(
        plain,
        operations=tuple(
            replace(op, inputs={**op.inputs, "remark": object()}) for op in plain.operations
        ),
    )
    begin = replace(
        plain.begin,
        inputs={**plain.begin.inputs, "model": plain.begin.inputs["model"].with_patch(patch)},
    )
    with service(models, costs) as engine, local_engine(batching=False, cache=costs) as local:
        for region, reason in (
            (strange, "cannot send a builtins.object"),
            (replace(plain, begin=begin), "post_cfg_function halved"),
        ):
            context = bare_context(engine)
            made = engine.sample(region, context)[0]["samples"]
            assert torch.equal(made, sample(local, region))
            (warning,) = context.warnings
            assert "runs on one device of this process" in warning and reason in warning


def test_by_load_a_lone_request_uses_both_devices_and_requests_at_once_keep_their_images(
    models: Models, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Target] = []

    def plan(region: Region, target: Target, *more: Any) -> Program:
        plans.append(target)
        return plan_region(region, target, *more)

    monkeypatch.setattr(engine_module, "plan_region", plan)
    regions = [
        sampler_region(Case("x", models.pipeline, "euler", 4, guidance=7.0, seed=seed))
        for seed in range(4)
    ]
    with local_engine(batching=False, cache=costs) as local:
        expected = [sample(local, region) for region in regions]
    assignments = [WorkerConfig("cpu:0"), WorkerConfig("cpu:1")]
    choices, link = Choices(lane=BY_LOAD, batching=False), NetworkLink(1e12, 0.0)
    launchers = dict.fromkeys(("cpu:0", "cpu:1"), WorkerThreads())
    with (
        DeviceEngine(assignments, choices, costs, link, launchers=launchers) as engine,
        ThreadPoolExecutor(4) as pool,
    ):
        plans.clear()
        alone = engine.plan(regions[0])
        assert {call.device for calls in alone.calls for call in calls} == {"cpu:0", "cpu:1"}
        assert len(plans) == 1
        made = list(pool.map(lambda region: sample(engine, region), regions))
        chosen = engine.plan(regions[0], changes=PlanChanges(devices=("cpu:1",)))
    assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))
    assert {call.device for calls in chosen.calls for call in calls} == {"cpu:1"}
