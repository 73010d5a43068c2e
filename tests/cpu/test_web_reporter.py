"""A run reports events of a job: batching, pace, names of nodes and files, and kinds of errors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from katz_graph.core.allowed_approximations import made_with
from katz_graph.core.errors import InputError, KatzError, RunError
from katz_graph.core.events import (
    Event,
    NodeBlocked,
    NodeDone,
    NodeFailed,
    NodeStarted,
    Previewed,
    Progress,
    Span,
    StageDone,
    Timeline,
)
from katz_graph.executor.cluster.requests import WorkerLost
from katz_graph.executor.graph.failure import node_failure
from katz_graph.packs import load_registry
from katz_graph.web.events import (
    JOB_EVENT,
    Cached,
    ClientEvent,
    EncodedPicture,
    JobEvent,
    JobNode,
    Wrote,
)
from katz_graph.web.runner.reporter import PACE, JobReporter, described, plain
from katz_graph.web.runner.runs import pictures_texts
from katz_graph.web.runner_client.messages import Order


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def reporter(
    folder: Path = Path("output"), max_characters: int = 1000
) -> tuple[JobReporter, list[ClientEvent], Clock]:
    events: list[ClientEvent] = []
    clock = Clock()
    return JobReporter(folder, max_characters, events.append, clock), events, clock


def start(node: str, display: str | None = None) -> Event:
    return NodeStarted(node, display or node, f"Type{node}")


def done(node: str, **options: Any) -> Event:
    return NodeDone(node, node, f"Type{node}", **options)


@pytest.mark.defect(19)
def test_the_running_node_is_the_one_that_began_last_of_those_that_are_not_done() -> None:
    report, _, _ = reporter()
    running = [report.running]
    for event in (start("3"), start("3.end", "3"), done("3.end"), start("4"), done("4"), done("3")):
        report.listen(event)
        running.append(report.running)
    sampler, inner = JobNode("3", "Type3", "3"), JobNode("3.end", "Type3.end", "3")
    assert running == [None, sampler, inner, sampler, JobNode("4", "Type4", "4"), sampler, None]


def cached(node: str, **options: Any) -> Event:
    return done(node, cached=True, **options)


def failed(node: str, error: KatzError) -> Event:
    return NodeFailed(node, node, f"Type{node}", "new", error)


def test_cached_nodes_are_reported_together_before_the_first_run_and_singly_after() -> None:
    report, events, _ = reporter()
    report.listen(cached("1"))
    report.listen(cached("2", ui={"text": ["there"]}))
    assert events == []
    report.listen(start("3"))
    report.listen(cached("4"))
    report.close()
    assert [one.nodes for one in events if isinstance(one, Cached)] == [("1", "2"), ("4",)]
    assert [one.node for one in events if isinstance(one, NodeDone) and one.cached] == [
        "1",
        "2",
        "4",
    ]
    assert report.outputs == {"2": {"text": ["there"]}}


def test_every_job_reports_its_cached_nodes_once_even_if_none() -> None:
    report, events, _ = reporter()
    report.close()
    assert [type(one) for one in events] == [Cached]


def test_displays_of_a_job_share_one_limit_and_the_excess_is_dropped() -> None:
    report, events, _ = reporter(max_characters=250)
    report.listen(cached("1", ui={"text": ["x" * 100]}))
    report.listen(done("2", ui={"text": ["y" * 100]}))
    for over in (cached, done):
        with pytest.raises(InputError, match=r"250 characters \(shown\)"):
            report.listen(over("3", ui={"text": ["z" * 100]}))
    report.close()
    assert set(report.outputs) == {"1", "2"} and report.reused == ["1"]
    assert not any(isinstance(one, NodeDone) and one.node == "3" for one in events)


def test_clients_see_a_blocked_node_as_done() -> None:
    report, events, _ = reporter()
    report.listen(start("3"))
    report.listen(NodeBlocked("3", "3", "Type3", seconds=0.5, why="blocked: no face"))
    frame = JOB_EVENT.dump_python(JobEvent("j", events[-1]))
    assert (frame["kind"], frame["cached"], frame["why"]) == (
        "node_done",
        False,
        "blocked: no face",
    )
    assert report.executed == ["3"]


def test_progress_of_a_sampler_inside_an_expansion_names_both_nodes_and_keeps_the_pace() -> None:
    report, events, clock = reporter()
    report.listen(start("5"))
    report.listen(start("5.end", "5"))
    for step in range(1, 101):
        clock.now += PACE / 10
        report.listen(Progress("5", step, 100, evaluations=True))
    steps = [one for one in events if isinstance(one, Progress)]
    assert {(one.node, one.display) for one in steps} == {("5.end", "5")}
    assert 10 <= len(steps) <= 12 and steps[-1].value == 100
    assert 50 in {one.value for one in steps}  # short jobs report their middle, too
    report.listen(Progress("5", 3, 7))
    assert events[-1] == steps[-1]  # too soon after the last
    assert all(one.evaluations for one in steps)
    clock.now += 2 * PACE
    report.listen(Progress("5", 3, 7))
    assert isinstance(events[-1], Progress) and not events[-1].evaluations


def test_a_picture_sends_the_withheld_progress() -> None:
    report, events, clock = reporter()
    report.listen(start("5"))
    picture = torch.zeros(8, 8, 3, dtype=torch.uint8)
    for step in (1, 2, 3):
        report.listen(Progress("5", step, 100, evaluations=True))
        clock.now += PACE / 10
    report.listen(Previewed("5", picture))
    report.listen(Progress("5", 4, 100, evaluations=True))
    report.listen(Previewed("5", picture))
    report.listen(Previewed("5", picture))
    seen = [
        one.value if isinstance(one, Progress) else "picture"
        for one in events
        if isinstance(one, (Progress, EncodedPicture))
    ]
    assert seen == [1, 3, "picture", 4, "picture", "picture"]


def test_device_spans_are_reported_together_in_seconds_since_the_start() -> None:
    report, events, clock = reporter()
    report.listen(start("5"))
    report.listen(start("5.end", "5"))
    report.listen(StageDone("vae_decode", Span("cpu", "vae decode", clock.now + 1.5, 0.25)))
    report.listen(Timeline("5", (Span("cpu", "v0.1", clock.now + 2.0, 0.5, 3, peer="cpu:1"),)))
    assert events[-2:] == [
        Timeline("5.end", (Span("cpu", "vae decode", 1.5, 0.25),)),
        Timeline("5.end", (Span("cpu", "v0.1", 2.0, 0.5, 3, peer="cpu:1"),)),
    ]


def test_files_are_reported_by_their_place_and_others_not_at_all(tmp_path: Path) -> None:
    report, events, _ = reporter(tmp_path)
    inside = report.wrote(tmp_path / "a" / "x.png"), report.wrote(tmp_path / "temp" / "y.png")
    assert inside == (True, True) and report.wrote(tmp_path.parent / "z.png") is False
    assert events == [Wrote("a/x.png", "output"), Wrote("y.png", "temp")]


def test_the_error_of_a_lost_worker_differs_from_a_node_s() -> None:
    """Clients may retry the first; the second needs a change."""
    lost = node_failure("node 5 (KSampler)", WorkerLost("cpu:1: killed by SIGKILL"))
    assert described(lost, "5", "KSampler").kind == "WorkerLost"
    assert described(node_failure("node 1", InputError("wrong")), "1").kind == "InputError"
    assert described(node_failure("node 1", ValueError("shapes"))).kind == "RunError"
    report, _, _ = reporter()
    report.listen(start("5"))
    report.listen(failed("5", lost))
    report.listen(failed("6", RunError("later")))
    assert report.failure is not None and (
        report.failure.kind,
        report.failure.node,
        report.failure.node_type,
    ) == ("WorkerLost", "5", "Type5")


def test_a_picture_that_a_node_sends_is_never_dropped_for_a_newer_one() -> None:
    report, events, _ = reporter()
    report.listen(start("9.1", "9"))
    report.picture(b"png")
    assert events[-1] == EncodedPicture("9.1", "9", b"png", "image/png", lasting=True)
    assert isinstance(events[-2], NodeStarted)


def test_whatever_a_pack_shows_becomes_plain_data() -> None:
    class Strange:
        def __str__(self) -> str:
            return "strange"

    class Broken:
        def __str__(self) -> str:
            raise KeyError("no text")

    deep: list[Any] = []
    deep.append(deep)
    shown = plain({"a": (1, float("inf")), 2: Strange(), "tensor": torch.zeros(2), "set": {3}})
    assert shown == {"a": [1, None], "2": "strange", "tensor": "tensor([0., 0.])", "set": [3]}
    assert isinstance(plain(deep), str)
    assert plain([Broken(), 1]) == ["Broken without a readable text (KeyError)", 1]


def test_pictures_carry_client_metadata_but_never_under_our_names() -> None:
    wanted = {
        "workflow": {"nodes": []},
        "prompt": "forged",
        "katz": "forged",
        "bad\nname": 1,
        "€": 1,
        "": 1,
        "x" * 80: 1,
    }
    texts = pictures_texts(
        Order("j", {"1": {}}, ("1",), extra={"extra_pnginfo": wanted}),
        {},
        made_with("cpu*2", "float32"),
    )
    assert (
        set(texts) == {"workflow", "prompt", "katz"}
        and texts["prompt"] == '{"1": {}}'
        and "cpu*2" in texts["katz"]
    )
    assert set(
        pictures_texts(
            Order("j", {}, (), extra={"extra_pnginfo": "no object"}),
            {},
            made_with("cpu", "float32"),
        )
    ) == {"prompt", "katz"}


def test_pictures_carry_no_secrets_of_urls() -> None:
    url = "https://me:word@example.org/é.safetensors?token=key#sha256=ab"
    prompt = {
        "1": {"class_type": "LoraLoaderModelOnly", "inputs": {"lora_name": url, "model": ["2", 0]}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "https://example.org/?q=a"}},
    }
    editors = {"workflow": {"nodes": [{"widgets_values": [url, 1.0]}]}}
    order = Order("j", prompt, ("1",), extra={"extra_pnginfo": editors})
    texts = pictures_texts(order, load_registry()[0], made_with("cpu", "float32"))
    assert not any(secret in text for text in texts.values() for secret in ("word", "token", "key"))
    safe = "https://example.org/é.safetensors#sha256=ab"
    assert json.loads(texts["workflow"])["nodes"][0]["widgets_values"] == [safe, 1.0]
    shown = json.loads(texts["prompt"])
    assert shown["1"]["inputs"] == {"lora_name": safe, "model": ["2", 0]}
    assert shown["3"] == prompt["3"]  # not a file


def test_times_are_since_the_epoch() -> None:
    report, events, _ = reporter()
    report.close()
    assert isinstance(events[0], Cached) and abs(events[0].at - time.time()) < 5
