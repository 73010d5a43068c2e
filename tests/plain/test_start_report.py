"""The phases of a server's start."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time

import pytest
from prometheus_client import generate_latest

from katz_graph.core.events import NodeDone, NodeStarted, Progress
from katz_graph.core.phases import Phase, Phases, covered, process_start
from katz_graph.web.events import ClientEvent, Ended, Started
from katz_graph.web.logs import JsonLines
from katz_graph.web.metrics import Metrics
from katz_graph.web.start_report import StartReport

JOB: tuple[ClientEvent, ...] = (
    Started(0.0),
    NodeStarted("1", "1", "CLIPTextEncode"),
    NodeDone("1", "1", "CLIPTextEncode"),
    NodeStarted("2", "2", "KSampler"),
    Progress("2", value=1, maximum=8, evaluations=True),
    Progress("2", value=5, maximum=8, evaluations=True),
    Progress("2", value=8, maximum=8, evaluations=True),
    NodeDone("2", "2", "KSampler"),
)


def reported(report: StartReport, *events: ClientEvent, job: str = "a") -> None:
    for event in events:
        report.on_event(job, event)


def test_concurrent_phases_count_once() -> None:
    phases = [Phase("a", "x", 0, 4), Phase("b", "y", 1, 2), Phase("a", "z", 6, 9)]
    assert covered(phases, 0, 10) == 7
    assert covered(phases, 3, 7) == 2
    assert covered([], 0, 10) == 0


def test_the_first_phase_begins_with_the_process() -> None:
    code = (
        "import time; time.sleep(0.3); from katz_graph.core.phases import process_start; "
        "print(time.monotonic() - process_start())"
    )
    began = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
    assert 0.3 <= age <= time.monotonic() - began + 0.02  # the kernel counts in ticks of 10 ms
    assert process_start() < began


def test_the_first_successful_job_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Phases("server")
    server.end("load the server")
    runner = Phase("runner", "load torch", time.monotonic(), time.monotonic())
    report = StartReport(server, lambda: [runner])
    with caplog.at_level(logging.INFO, "katz.start"):
        reported(report, *JOB[:3], Ended("failed", 0.0))
        reported(report, *JOB[:4], job="b")
        time.sleep(0.05)
        reported(report, *JOB[4:], job="b")
        reported(report, Started(0.0), job="c")  # runs concurrently, and is not the first
        seconds = {"load": 0.02, "prepare": 0.01}
        reported(report, Ended("completed", 0.0, seconds=seconds), job="b")
        reported(report, *JOB, Ended("completed", 0.0), job="d")
    record, *by_process = caplog.records
    line = json.loads(JsonLines().format(record))
    assert [row["phase"] for row in line["phases"]] == [
        "load the server",
        "load torch",
        "between nodes",
        "CLIPTextEncode",
        "load models",
        "encode texts",
        "first evaluations",
        "other evaluations",
        "KSampler",
        "end the job",
    ]
    times = {row["phase"]: row["seconds"] for row in line["phases"]}
    assert times["load models"] == 0.02 and times["encode texts"] == 0.01
    assert 0.02 <= times["first evaluations"] < 0.05
    assert 0 <= line["idle_seconds"] <= line["seconds"]
    named = [one.getMessage().partition(":")[0] for one in by_process]
    assert named == ["phases of server", "phases of runner", "phases of first job"]


def test_metrics_add_up_equal_phases() -> None:
    report = StartReport(Phases("server"), lambda: [Phase("a", "x", 0, 1), Phase("a", "x", 2, 4)])
    text = generate_latest(Metrics(start=report).registry).decode()
    assert 'katz_start_seconds{phase="x",process="a"} 3.0' in text
