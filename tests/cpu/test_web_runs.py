"""Each job of a runner ends with one event, whatever fails, and is then forgotten."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from processes import eventually

from katz_graph.comfy.v1.adapter import V1Class
from katz_graph.core.errors import Cancelled, DeviceFailed
from katz_graph.core.events import NodeStarted
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.files.folders import Folders
from katz_graph.host.process_state import ProcessState
from katz_graph.ir.device import Device
from katz_graph.node import Node
from katz_graph.node.types import Context, NodeType
from katz_graph.node.wires import Socket
from katz_graph.web.events import Ended, JobEvent, JobNode, Started
from katz_graph.web.http.job_views import status_of
from katz_graph.web.jobs.job import Job
from katz_graph.web.live.channel import JobState, QueueView
from katz_graph.web.live.comfy_channel import ConventionChannel
from katz_graph.web.runner.caches import Caches
from katz_graph.web.runner.runs import RunnerDevices, Runs
from katz_graph.web.runner.uncommitted_files import UncommittedFiles
from katz_graph.web.runner_client.messages import Order

sys.path.append(str(Path(__file__).parents[1] / "plain"))
from trivial_nodes import TYPES, node


class Engine:
    """Has no models to unload, and nothing to measure."""

    device = Device("cpu", 1.0, 1.0)

    def unload(self) -> None: ...

    def measure(self) -> None: ...

    def run_ended(self, context: Context) -> None: ...


def runs_in(
    folder: Path,
    emit: Callable[[JobEvent], None],
    registry: Mapping[str, Any] | None = None,
    request_replacement: Callable[[str], None] = lambda why: None,
) -> Runs:
    folders = Folders((folder,), folder, folder)
    place = RunnerDevices(
        Engine(), registry or {}, folders, Caches(ResultCache()), "cpu", False, 1000, ProcessState()
    )  # type: ignore[arg-type]
    return Runs(place, emit, UncommittedFiles(), request_replacement)


def ends(events: list[JobEvent]) -> list[Ended]:
    return [one.event for one in events if isinstance(one.event, Ended)]


def test_a_job_that_cannot_start_ends_and_blocks_no_other(tmp_path: Path) -> None:
    events: list[JobEvent] = []
    runs = runs_in(tmp_path, events.append)
    # JSON, and so a picture, cannot hold it
    runs.start(Order("bad", {"1": object()}, ("1",)))
    eventually(lambda: len(ends(events)) == 1, 10)
    assert isinstance(events[0].event, Started)
    (end,) = ends(events)
    assert (
        end.status == "failed"
        and end.error is not None
        and "internal error: TypeError" in end.error.message
    )
    runs.free(True, True)
    runs.start(Order("next", {}, ()))  # waits until running jobs have ended and memory is free
    eventually(lambda: len(ends(events)) == 2, 10)


def test_a_job_that_gets_no_thread_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    events: list[JobEvent] = []
    runs = runs_in(tmp_path, events.append)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError):
            runs.start(Order("a", {}, ()))
    runs.close(0.0)
    runs.start(Order("b", {}, ()))
    eventually(lambda: [one.job for one in events if isinstance(one.event, Ended)] == ["b"], 10)


def test_a_job_that_is_cancelled_as_it_begins_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "katz_graph.web.runner.runs.run_graph",
        lambda graph, context, *rest, **named: context.check_cancelled(),
    )
    events: list[JobEvent] = []
    held, may = threading.Event(), threading.Event()

    def emit(event: JobEvent) -> None:
        events.append(event)
        if isinstance(event.event, Started):
            held.set()
            may.wait(10)

    runs = runs_in(tmp_path, emit)
    runs.start(Order("a", {"1": {"class_type": "Nothing", "inputs": {}}}, ("1",)))
    assert held.wait(10)
    runs.cancel("a")
    may.set()
    runs.close(10)
    eventually(lambda: [end.status for end in ends(events)] == ["cancelled"], 10)


def test_asynchronous_code_of_packs_runs_for_one_job_at_a_time_with_the_objects_of_its_client(
    tmp_path: Path,
) -> None:
    class Counter:
        RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = ("INT",), "go", "test", True
        count = 0

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"job": ("STRING",)}}

        async def go(self, job: str) -> Any:
            self.count += 1
            log.append((job, self.count))
            await asyncio.sleep(0.05)
            log.append((job, self.count))
            return (self.count,)

    log: list[tuple[str, int]] = []
    events: list[JobEvent] = []
    types = {"Counter": replace(V1Class("Counter", Counter, "Counter").describe(), pack="pack")}
    runs = runs_in(tmp_path, events.append, types)
    for job in "abc":
        runs.start(Order(job, {"1": node("Counter", job=job)}, ("1",), "client"))
    eventually(lambda: len(ends(events)) == 3, 10)
    assert [end.status for end in ends(events)] == ["completed"] * 3
    assert [count for _, count in log] == [1, 1, 2, 2, 3, 3]
    assert len(set(log)) == 3, "each job is alone between its two lines"


def test_a_run_has_the_due_time_of_its_job_on_its_own_clock_and_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[float, Context] = {}

    def run(graph: Any, context: Context, *_: Any, **__: Any) -> None:
        seen[context.due] = context
        raise Cancelled("cancelled")

    monkeypatch.setattr("katz_graph.web.runner.runs.run_graph", run)
    events: list[JobEvent] = []
    runs = runs_in(tmp_path, events.append)
    prompt = {"1": {"class_type": "Nothing", "inputs": {}}}
    runs.start(Order("a", prompt, ("1",), due=time.time() + 60.0, share="loopback ann"))
    runs.start(Order("b", prompt, ("1",), seconds_after={"3": 2.0}))
    eventually(lambda: len(ends(events)) == 2, 10)
    due, never = sorted(seen)
    assert due - time.monotonic() == pytest.approx(60.0, abs=10.0)
    assert never == math.inf
    assert (seen[due].client, seen[never].client) == ("loopback ann", "")
    assert (seen[due].seconds_after, seen[never].seconds_after) == ({}, {"3": 2.0})


@pytest.mark.defect(19)
def test_a_cancelled_job_names_the_running_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(
        graph: Any, context: Any, cache: Any, targets: Any, listen: Any, **_: Any
    ) -> None:
        listen(NodeStarted("3", "3", "KSampler"))
        listen(NodeStarted("3.end", "3", "StepEnd"))
        raise Cancelled("cancelled")

    monkeypatch.setattr("katz_graph.web.runner.runs.run_graph", interrupted)
    events: list[JobEvent] = []
    runs = runs_in(tmp_path, events.append)
    runs.start(Order("a", {"3": {"class_type": "KSampler", "inputs": {}}}, ("3",)))
    eventually(lambda: bool(ends(events)), 10)
    (end,) = ends(events)
    assert (end.status, end.interrupted) == ("cancelled", JobNode("3.end", "StepEnd", "3"))
    runs.close(10)


def expanding(name: str, nodes: Any, result: Any) -> NodeType:
    """Makes a pack's node that expands to a graph."""

    def go(self: Any) -> Any:
        return {"expand": nodes, "result": (result,)}

    members = {
        "INPUT_TYPES": classmethod(lambda cls: {}),
        "RETURN_TYPES": ("*",),
        "FUNCTION": "go",
        "go": go,
    }
    return V1Class(name, type(name, (), members), name).describe()


BROKEN = {"fails": {"class_type": "Fail", "inputs": {}}}
CIRCLE = {
    name: {"class_type": "Echo", "inputs": {"value": [other, 0]}} for name, other in ("ab", "ba")
}
# reads a prompt node that reads the expansion
AROUND = {"a": {"class_type": "Echo", "inputs": {"value": ["2", 0]}}}


@pytest.mark.parametrize(
    ("nodes", "result", "inner", "said"),
    [
        (BROKEN, ["fails", 0], "7.fails", "in it node 7.fails (Fail): "),
        (
            {"deeper": {"class_type": "Deeper", "inputs": {}}},
            ["deeper", 0],
            "7.fails",
            "in it node 7.fails (Fail): ",
        ),
        (CIRCLE, ["a", 0], "7.a", "is in a cycle: 7.a (Echo) -> 7.b (Echo) -> 7.a (Echo)"),
        (AROUND, ["a", 0], "7.a", "is in a cycle: "),
    ],
)
def test_an_error_inside_an_expansion_is_reported_for_the_node_of_the_prompt(
    tmp_path: Path, nodes: Any, result: Any, inner: str, said: str
) -> None:
    events: list[JobEvent] = []
    types = {
        **TYPES,
        "Outer": expanding("Outer", nodes, result),
        "Deeper": expanding("Deeper", BROKEN, ["fails", 0]),
    }
    prompt = {
        "2": node("Echo", value=["7", 0]),
        "7": node("Outer"),
        "9": node("Save", value=["2", 0]),
    }
    runs_in(tmp_path, events.append, types).start(Order("j", prompt, ("9",)))
    eventually(lambda: bool(ends(events)), 10)
    (end,) = ends(events)
    job = Job("j", 1.0, prompt, ("9",), None, {}, "failed", 0.0, started=0.0, result=end)
    state, channel = JobState(), ConventionChannel({})
    messages: dict[str, Any] = {}
    for one in events:
        state.on_event(one.event)
        for frame in channel.event(job, one.event, state, lambda: QueueView(0, 0, False)):
            message = json.loads(frame.data)
            messages[message["type"]] = message["data"]
    for error in (messages["execution_error"], dict(status_of(job)["messages"])["execution_error"]):
        assert (error["node_id"], error["node_type"]) == ("7", "Outer")
        assert (
            error["exception_message"].startswith("node 7 (Outer), in it node ")
            and said in error["exception_message"]
        )
    failed = messages["progress_state"]["nodes"][inner]
    assert (failed["state"], failed["display_node_id"]) == ("error", "7")


class Breaks(Node, category="test", output=True):
    """Fails like a device in the runner's process."""

    def run(self) -> Annotated[str, Socket("STRING")]:
        raise torch.AcceleratorError(
            "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be "
            "reported later"
        )


def test_a_device_that_fails_in_the_runner_itself_has_that_replaced_and_the_job_run_again(
    tmp_path: Path,
) -> None:
    """The replacement is requested before the job's end, which requeues the job."""
    events: list[Any] = []
    runs = runs_in(tmp_path, events.append, {"Breaks": Breaks.describe()}, events.append)
    runs.start(Order("a", {"1": {"class_type": "Breaks", "inputs": {}}}, ("1",)))
    eventually(lambda: isinstance(events[-1], JobEvent) and isinstance(events[-1].event, Ended), 10)
    error = events[-1].event.error
    assert error.kind == DeviceFailed.__name__
    assert (
        "the device failed (CUDA error: an illegal memory access was encountered)" in error.message
    )
    (why,) = [one for one in events if isinstance(one, str)]
    assert (
        why == "a device failed in the runner: CUDA error: an illegal memory access was encountered"
    )
