"""A runner makes plans for an editor on the devices of jobs, the newest request first, without a
model and without unrequested packs.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from katz_graph.executor.planning import plan_region
from katz_graph.files.folders import Folders
from katz_graph.formats.api import to_api
from katz_graph.formats.read import parse_workflow
from katz_graph.host.process_state import ProcessState
from katz_graph.ir.changes import PlanChanges
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.node import Node
from katz_graph.node.wires import Latent
from katz_graph.packs import Registry, load_registry
from katz_graph.planner.changes import changed
from katz_graph.web.runner import plans
from katz_graph.web.runner.plans import Plans
from katz_graph.web.runner_client.facts import PlannedGraph
from katz_graph.web.runner_client.messages import MakePlan

ANSWER_TIMEOUT_S = 60.0  # seconds; the first plan loads model libraries
WORKFLOWS = Path(__file__).parents[2] / "workflows"
PAIRS = (("cpu:0", "cpu:1"), ("cpu:1", "cpu:0"))


class Engine:
    """Plans on two devices; lists its plans."""

    def __init__(self) -> None:
        devices = tuple(Device(f"cpu:{number}", 1e10, 1e10) for number in range(2))
        self.device = devices[0]
        links = {pair: NetworkLink(1e9, 1e-4) for pair in PAIRS}
        self.cluster = SimpleNamespace(devices=devices, links=links)
        self.planned: list[str] = []

    def plan(self, region: Region, changes: PlanChanges) -> Program:
        self.planned.append(region.name)
        target = Target(self.cluster.devices, self.cluster.links)
        return plan_region(region, changed(target, changes))


RAN, GOES_ON = threading.Event(), threading.Event()
COMPUTES = 0.0


class Blur(Node, category="pack"):
    """Blurs latents; takes COMPUTES seconds of CPU time."""

    def run(self, latent: Latent) -> Latent:
        RAN.set()
        ends = time.thread_time() + COMPUTES
        while time.thread_time() < ends:
            pass
        assert GOES_ON.wait(ANSWER_TIMEOUT_S)
        return latent


@pytest.fixture
def registry() -> Registry:
    found, _ = load_registry()
    RAN.clear()
    GOES_ON.set()
    return replace(found, types={**found.types, "Blur": replace(Blur.describe(), pack="blurs")})


def plans_of(engine: Engine, registry: Registry) -> Plans:
    return Plans(engine, registry, Folders(), ProcessState(), 30.0, print)  # type: ignore[arg-type]


def in_thread(made: Plans, asked: MakePlan) -> Future[PlannedGraph]:
    """Runs a plan request in the planning thread."""
    answer, future = made.enter(asked), Future[PlannedGraph]()
    made.threads.submit(lambda: future.set_result(answer()), print)
    return future


def question(
    registry: Registry,
    client: str | None = None,
    packs: bool = False,
    blur: bool = False,
    changes: PlanChanges = PlanChanges(),  # noqa: B008
    **knobs: Any,
) -> MakePlan:
    document = json.loads((WORKFLOWS / "txt2img.json").read_text())
    prompt: dict[str, Any] = dict(to_api(parse_workflow(document, registry).graph))
    prompt["5"]["inputs"].update(knobs)
    if blur:
        prompt["blur"] = {
            "class_type": "Blur",
            "inputs": {"latent": prompt["5"]["inputs"]["latent_image"]},
        }
        prompt["5"]["inputs"]["latent_image"] = ["blur", 0]
    (target,) = (name for name, call in prompt.items() if call["class_type"] == "SaveImage")
    return MakePlan(prompt, (target,), client, packs, changes.overrides())


def test_a_plan_is_stored_until_its_devices_change(registry: Registry) -> None:
    engine = Engine()
    made = plans_of(engine, registry)
    first, again = (made.enter(question(registry))() for _ in range(2))
    assert first == again and engine.planned == ["5"]
    (plan,) = first.plans
    assert plan["devices"] == ["cpu:0", "cpu:1"] and plan["evaluations"] == 20
    assert (
        len(made.enter(question(registry, steps=7))().plans[0]["variants"][0]["evaluations"]) == 7
    )
    engine.cluster.devices = tuple(
        replace(one, flops_per_second=5e9) for one in engine.cluster.devices
    )
    slower = made.enter(question(registry))().plans[0]
    assert slower["prediction"]["planned_seconds"] > plan["prediction"]["planned_seconds"]
    assert engine.planned == ["5", "5", "5"]


def test_all_plans_of_a_request_are_cached_for_the_next(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MAX_CACHED_PLANS", 1)
    engine = Engine()
    made = plans_of(engine, registry)
    asked = question(registry)
    graph: dict[str, Any] = dict(asked.prompt)
    for name, before in (("again", "5"), ("last", "again")):
        inputs = {**graph["5"]["inputs"], "latent_image": [before, 0], "denoise": 0.5}
        graph[name] = {"class_type": "KSampler", "inputs": inputs}
    (decoder,) = (name for name, call in graph.items() if call["class_type"] == "VAEDecode")
    graph[decoder]["inputs"]["samples"] = ["last", 0]
    assert len(made.enter(replace(asked, prompt=graph))().plans) == 3
    graph["again"]["inputs"]["steps"] = 7
    assert len(made.enter(replace(asked, prompt=graph))().plans) == 3
    assert engine.planned == ["5", "again", "last", "again"]
    given_up = made.enter(replace(asked, prompt=graph, client="one"))
    newer = made.enter(replace(asked, prompt=graph, client="one"))
    assert given_up().refusal == "replaced" and len(newer().plans) == 3
    assert len(engine.planned) == 4  # the replaced request planned nothing
    made.enter(question(registry))()
    made.enter(replace(asked, prompt=graph))()  # only one plan stayed cached
    assert engine.planned[4:] == ["again", "last"]


def test_a_plan_is_made_for_hypothetical_devices(registry: Registry) -> None:
    engine = Engine()
    made = plans_of(engine, registry)

    def planned(**changes: Any) -> Any:
        return made.enter(question(registry, changes=PlanChanges(**changes)))()

    (as_jobs_run,) = planned().plans
    (one,) = planned(devices=("cpu:1",)).plans
    assert one["devices"] == ["cpu:1"] and as_jobs_run["devices"] == ["cpu:0", "cpu:1"]
    (more,) = planned(devices=("cpu:0*3",)).plans
    assert more["devices"] == ["cpu:0", "cpu:0+1", "cpu:0+2"]
    (pinned,) = planned(place=("unet_decoder=cpu:1",)).plans
    decoders = [
        segment["device"]
        for variant in pinned["variants"]
        for segment in variant["segments"]
        for call in segment["calls"]
        if call["stage"] == "unet_decoder"
    ]
    assert set(decoders) == {"cpu:1"}
    assert planned().plans == (as_jobs_run,)
    assert len(engine.planned) == 4  # first one cached
    refused = planned(devices=("cuda:7",))
    assert refused.plans == () and "cuda:7 is none of the devices cpu:0, cpu:1" in refused.notes[0]


def test_the_newest_request_of_a_client_replaces_the_one_before(registry: Registry) -> None:
    made = plans_of(Engine(), registry)
    waiting = [made.enter(question(registry, client)) for client in ("one", "other", "one", None)]
    assert [answer().refusal for answer in waiting] == ["replaced", "", "", ""]


def test_a_request_under_way_is_given_up_for_a_newer_one(registry: Registry) -> None:
    engine = Engine()
    made = plans_of(engine, registry)
    GOES_ON.clear()
    running = in_thread(made, question(registry, "one", packs=True, blur=True))
    assert RAN.wait(ANSWER_TIMEOUT_S)
    newer = in_thread(made, question(registry, "one"))
    GOES_ON.set()
    assert (
        running.result(ANSWER_TIMEOUT_S).refusal == "replaced"
        and len(newer.result(ANSWER_TIMEOUT_S).plans) == 1
    )
    assert engine.planned == ["5"]
    made.close()


def test_nodes_of_packs_run_only_when_that_is_asked_for(registry: Registry) -> None:
    made = plans_of(Engine(), registry)
    without = made.enter(question(registry, blur=True))()
    assert without.plans == () and not RAN.is_set()
    assert without.notes == (
        "node blur (Blur) belongs to a pack, and runs for a plan only on request",
    )
    asked = made.enter(question(registry, blur=True, packs=True))()
    assert len(asked.plans) == 1 and asked.notes == () and RAN.is_set()


def test_files_of_intermediate_nodes_are_in_no_user_folder(
    registry: Registry, tmp_path: Path
) -> None:
    """A saved picture feeds a second sampler, and the editor plans at each edit."""
    asked = question(registry)
    prompt: dict[str, Any] = {**asked.prompt}
    sampler = prompt["5"]["inputs"]
    vae = next(call["inputs"]["vae"] for call in prompt.values() if "vae" in call["inputs"])
    saved = asked.targets[0]
    prompt["again"] = {
        "class_type": "VAEEncode",
        "inputs": {"pixels": [saved, 0], "vae": vae},
    }
    prompt["second"] = {
        "class_type": "KSampler",
        "inputs": {**sampler, "latent_image": ["again", 0]},
    }
    output = tmp_path / "output"
    plans = Plans(Engine(), registry, Folders(output=output), ProcessState(), 30.0, print)  # type: ignore[arg-type]
    made = plans.enter(replace(asked, prompt=prompt, targets=("second",)))()
    assert len(made.plans) == 2 and made.notes == ()
    assert not output.exists() or not list(output.rglob("*"))


@pytest.mark.parametrize(
    ("limit", "seconds", "computes", "refusal"),
    [
        ("SECONDS", 2.0, 0.0, "late"),
        ("PROCESSOR_SECONDS", 0.3, 0.5, "late"),
        ("PROCESSOR_SECONDS", 2.0, 0.0, ""),
    ],
    ids=["on the clock", "of a processor", "a busy machine is waited for"],
)
def test_planning_ends_in_time(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    seconds: float,
    computes: float,
    refusal: str,
) -> None:
    engine = Engine()
    made = plans_of(engine, registry)
    made.enter(question(registry, packs=True, blur=True, steps=3))()  # loads slow libraries
    RAN.clear()
    engine.planned.clear()
    monkeypatch.setattr(plans, limit, seconds)
    monkeypatch.setattr(plans, "NICENESS", 0)  # other tests run
    monkeypatch.setattr(sys.modules[__name__], "COMPUTES", computes)
    GOES_ON.clear()
    running = in_thread(made, question(registry, packs=True, blur=True))
    assert RAN.wait(ANSWER_TIMEOUT_S)
    threading.Event().wait(0.0 if computes else 2.5)
    GOES_ON.set()
    assert running.result(ANSWER_TIMEOUT_S).refusal == refusal and bool(engine.planned) != bool(
        refusal
    )
    made.close()


@pytest.mark.defect(25)
def test_too_many_requests_are_refused_and_one_address_keeps_none_out(registry: Registry) -> None:
    made = plans_of(Engine(), registry)
    asked = question(registry)
    one = [made.enter(replace(asked, origin="one")) for _ in range(plans.WAITING_OF_ONE + 1)]
    assert one[-1]().refusal == "busy" and one[0]().refusal == ""
    left = plans.WAITING - plans.WAITING_OF_ONE
    others = [made.enter(replace(asked, origin=f"{number}")) for number in range(left + 2)]
    assert others[-1]().refusal == "busy" and others[0]().refusal == ""


def test_a_node_that_fails_leaves_a_line(registry: Registry) -> None:
    made = plans_of(Engine(), registry)
    asked = question(registry)
    names: Mapping[str, Any] = asked.prompt
    names["5"]["inputs"]["steps"] = 0
    answer = made.enter(asked)()
    assert answer.plans == () and len(answer.notes) == 1 and "node 5" in answer.notes[0]
