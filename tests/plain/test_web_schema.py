"""Servers write messages as `katz schema` describes, and clients can resolve its references."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from planner_devices import MS, region, several
from test_web_native import EVERY_KIND
from web_clients import FakeJobs, connect, drained, make_hub, make_job, unpacked
from web_files import picture
from web_server import Served, serving

from katz_graph.cli.main import app
from katz_graph.models.text.recipe import TextSize
from katz_graph.planner.report.describe import as_json
from katz_graph.planner.written_step import StepNode, WrittenStep
from katz_graph.web.events import PlanMade
from katz_graph.web.http.answers import FilePage, ListedFile
from katz_graph.web.live.channel import QueueView
from katz_graph.web.live.katz_channel import NativeChannel
from katz_graph.web.runner_client.facts import PlannedGraph, WrittenOut
from katz_graph.web.schema import schema

DESCRIBED = schema()
Data = dict[str, Any]


def check(name: str, data: Any) -> None:
    assert name in DESCRIBED["properties"]
    Draft202012Validator(DESCRIBED).validate({name: _with_texts(data)})


def _with_texts(data: Any) -> Any:
    """Replaces pictures, which msgpack holds as bytes and JSON Schema cannot describe."""
    if isinstance(data, bytes):
        return "picture"
    if isinstance(data, Mapping):
        return {key: _with_texts(value) for key, value in data.items()}
    return [_with_texts(value) for value in data] if isinstance(data, list) else data


@pytest.fixture(scope="module")
def plan() -> Data:
    program = several(
        region(), transfer=20 * MS, evaluations=30, allowed=frozenset({"stale-controlnet"})
    )
    found: Data = json.loads(json.dumps(as_json(program)))
    return found


def test_the_command_prints_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    app(["schema"], standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(printed)
    assert printed == DESCRIBED


def test_a_plan_is_as_described(plan: Data) -> None:
    check("Plan", plan)
    for key in plan:
        with pytest.raises(ValidationError):
            check("Plan", {name: value for name, value in plan.items() if name != key})
    with pytest.raises(ValidationError):
        check("Plan", plan | {"operations": [plan["operations"][0] | {"branch": 3}]})


def test_every_frame_and_event_is_as_described(plan: Data) -> None:
    happening = [
        replace(event, plan=plan) if isinstance(event, PlanMade) else event for event in EVERY_KIND
    ]

    async def frames() -> list[Data]:
        hub, channel = make_hub(FakeJobs([make_job()])), NativeChannel()
        session = connect(hub, channel)
        for event in happening[:-1]:
            hub.publish(make_job(), event)
        late = connect(hub, NativeChannel())  # gets the same as state
        queue = QueueView(1, 0, False, {"client": {"job": 0}})
        answers = [
            *channel.watched("job", make_job(), hub.state(make_job())),
            *channel.watched("x", None, None),
            *channel.pong(),
            *channel.queue("client", queue),
        ]
        hub.publish(make_job(), happening[-1])
        return unpacked([*drained(session), *drained(late), *(frame.data for frame in answers)])

    seen = asyncio.run(frames())
    for frame in seen:
        check("ServerFrame", frame)
        if frame["type"] == "event":
            check("JobEvent", frame["event"])
            with pytest.raises(ValidationError):
                check("JobEvent", frame["event"] | {"kind": "nothing"})
    assert {frame["type"] for frame in seen} == {"snapshot", "queue", "event", "job", "pong"}
    states = [job["state"] for frame in seen for job in frame.get("jobs", ())]
    assert [state and state["plans"] for state in states] == [{}, {"3": plan}]


def test_answers_are_as_described(tmp_path: Path, plan: Data) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await asked(server)

    async def asked(server: Served) -> None:
        server.runner.plans = PlannedGraph((plan,), ("a note",))
        nodes = (
            StepNode("end", "StepEnd", "", {"n": 2**64 - 1}, {"a": ("b", 0)}, {"c": ("5", "d")}),
        )
        server.runner.written = WrittenOut(WrittenStep(nodes, "end", ("10",)))
        server.runner.sizes = {"2": {"text": (TextSize("CLIP", 81, 2, 75),)}}
        (tmp_path / "output").mkdir(exist_ok=True)
        (tmp_path / "output/a.png").write_bytes(picture())
        job = await server.submit()
        await server.settled(lambda: server.runner.taken)
        graph = {"1": {"class_type": "EmptyImage", "inputs": {}}}
        client = server.client
        answers = {
            "OpenedWorkflow": await client.post("/katz/open", json=graph),
            "CheckedWorkflow": await client.post("/katz/check", json={"prompt": graph}),
            "PlannedWorkflow": await client.post("/katz/plan", json={"prompt": graph}),
            "CountedTexts": await client.post("/katz/tokens", json={"prompt": graph}),
            "WrittenStep": await client.post("/katz/unfold", json={"prompt": graph, "node": "5"}),
            "FilePage": await client.get("/katz/files"),
            "MovedFiles": await client.post("/katz/files/trash", json={"names": []}),
            "OthersThere": await client.post("/katz/presence", json={"page": "p", "files": []}),
            "PackList": await client.get("/katz/packs"),
            "Templates": await client.get("/katz/templates"),
            "JobReport": await client.get(f"/katz/jobs/{job}/report"),
        }
        for name, answer in answers.items():
            assert answer.status_code == 200, (name, answer.text)
            check(name, answer.json())
            with pytest.raises(ValidationError):
                check(name, {} if name != "Templates" else [{}])
        assert answers["PlannedWorkflow"].json()["plans"] == [plan]
        described = (await client.get("/openapi.json")).json()
        for reference in _references(described):
            found = described
            for key in reference.removeprefix("#/").split("/"):
                found = found[key]
        assert FilePage.__name__ in described["components"]["schemas"]
        assert ListedFile.__name__ in described["components"]["schemas"]

    asyncio.run(scenario())


def _references(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping):
        if isinstance(found := data.get("$ref"), str):
            yield found
        for value in data.values():
            yield from _references(value)
    elif isinstance(data, list):
        for value in data:
            yield from _references(value)
