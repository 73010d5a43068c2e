"""Messages and their order match ComfyUI's (observed on a running ComfyUI server)."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from web_clients import FakeJobs, connect, drained, make_hub, make_job, texts

from katz_graph.core.events import NodeDone, NodeStarted, PackMessage, Progress, Timeline
from katz_graph.web.events import (
    Cached,
    ClientEvent,
    EncodedPicture,
    Ended,
    JobError,
    JobNode,
    PlanMade,
    Started,
    Wrote,
)
from katz_graph.web.http.job_views import status_of
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.records import ENDED
from katz_graph.web.live.channel import JobState, QueueView
from katz_graph.web.live.comfy_channel import ConventionChannel

UI = {"images": [{"filename": "a_00001_.png", "subfolder": "", "type": "output"}]}
FEATURES = {"supports_preview_metadata": True}
RUNS: Sequence[ClientEvent] = (
    Started(1000.5),
    Cached(("4",), 1000.6),
    NodeDone("4", "4", "CheckpointLoaderSimple", cached=True),
    NodeStarted("3", "3", "KSampler"),
    PlanMade("3", {"planned": 1.0}),
    Progress("3", 1, 2, display="3"),
    EncodedPicture("3", "3", b"JPEG"),
    Progress("3", 2, 2, display="3"),
    Timeline("3", ()),
    NodeDone("3", "3", "KSampler"),
    NodeStarted("9", "9", "SaveImage"),
    Wrote("a_00001_.png", "output"),
    NodeDone("9", "9", "SaveImage", ui=UI),
    Ended("completed", 1003.0, outputs={"9": UI}),
)


class Client:
    """Drives a channel on a manual clock; events are a second apart unless `at_once`."""

    def __init__(self, job: Job | None = None) -> None:
        self.now, self.job, self.state = 0.0, job or make_job(), JobState()
        self.channel = ConventionChannel(FEATURES, lambda: self.now)

    def on_event(self, events: Sequence[ClientEvent], at_once: bool = False) -> list[Any]:
        frames: list[str | bytes] = []
        for event in events:
            self.now += 0.0 if at_once else 1.0
            self.state.on_event(event)
            frames += [
                frame.data
                for frame in self.channel.event(
                    self.job, event, self.state, lambda: QueueView(0, 3, False)
                )
            ]
        return [json.loads(frame) if isinstance(frame, str) else frame for frame in frames]


def kinds(messages: Sequence[Any]) -> list[str]:
    return [message["type"] if isinstance(message, dict) else "picture" for message in messages]


def test_the_messages_of_a_job_come_in_the_order_of_the_convention() -> None:
    messages = Client().on_event(RUNS)
    assert kinds(messages) == [
        "execution_start",
        "execution_cached",
        *(
            "progress_state",
            "executing",
            "progress",
            "progress_state",
            "picture",
            "progress",
            "progress_state",
            "progress_state",
        ),
        *("progress_state", "executing", "executed", "progress_state"),
        *("execution_success", "status", "executing"),
    ]
    data = [message["data"] if isinstance(message, dict) else message for message in messages]
    assert data[0] == {"prompt_id": "job", "timestamp": 1000500}
    assert data[1] == {"nodes": ["4"], "prompt_id": "job", "timestamp": 1000600}
    assert data[3] == {"node": "3", "display_node": "3", "prompt_id": "job"}
    assert data[4] == {"value": 1, "max": 2, "prompt_id": "job", "node": "3"}
    assert data[12] == {"node": "9", "display_node": "9", "output": UI, "prompt_id": "job"}
    assert data[14] == {"prompt_id": "job", "timestamp": 1003000}
    assert data[15] == {"status": {"exec_info": {"queue_remaining": 3}}}
    assert data[16] == {"node": None, "prompt_id": "job"}


def test_a_later_job_is_reported_when_the_clients_earlier_job_has_ended() -> None:
    """A client shows all progress at the job that started last."""
    first = Client(replace(make_job("a"), started=1000.0))
    later = Client(make_job("b"))
    later.channel = first.channel
    assert kinds(first.on_event(RUNS[:2])) == ["execution_start", "execution_cached"]
    assert later.on_event([*RUNS[:5], NodeDone("2", "2", "Echo", ui=UI)]) == []
    assert kinds(later.on_event([PackMessage("ask", {})])) == ["ask"]
    assert kinds(first.on_event(RUNS[-1:])) == ["execution_success", "status", "executing"]
    later.job = replace(make_job("b"), started=1003.0)
    messages = later.on_event(RUNS[5:6])
    assert kinds(messages) == [
        *("execution_start", "execution_cached", "progress_state", "executing", "executed")
    ]
    assert {message["data"]["prompt_id"] for message in messages} == {"b"}
    assert messages[-1]["data"]["output"] == UI
    assert kinds(later.on_event(RUNS[-1:]))[-3:] == ["execution_success", "status", "executing"]


def test_progress_state_lists_every_started_node() -> None:
    messages = Client().on_event(RUNS[:6])
    assert messages[-1]["data"]["prompt_id"] == "job"
    nodes = messages[-1]["data"]["nodes"]
    assert nodes["3"] == {
        "value": 1,
        "max": 2,
        "state": "running",
        "node_id": "3",
        "prompt_id": "job",
        "display_node_id": "3",
        "parent_node_id": None,
        "real_node_id": "3",
    }
    assert (nodes["4"]["state"], nodes["4"]["value"], nodes["4"]["max"]) == ("finished", 1, 1)


def test_a_node_of_an_expansion_is_shown_as_the_one_that_it_came_from() -> None:
    inner = [NodeStarted("7.0.0.1", "7", "Tile"), Progress("7.0.0.1", 1, 4, display="7")]
    messages = Client().on_event([Started(0), NodeStarted("7", "7", "Tiles"), *inner])
    assert kinds(messages) == [
        "execution_start",
        "progress_state",
        "executing",
        "progress_state",
        "progress",
        "progress_state",
    ]
    assert messages[2]["data"] == {"node": "7", "display_node": "7", "prompt_id": "job"}
    assert messages[4]["data"]["node"] == "7"
    node = messages[5]["data"]["nodes"]["7.0.0.1"]
    assert (node["display_node_id"], node["parent_node_id"], node["real_node_id"]) == (
        "7",
        "7",
        "7",
    )


def test_a_cached_output_is_executed_without_executing() -> None:
    events: list[ClientEvent] = [
        Started(0),
        Cached(("9",), 0),
        NodeDone("9", "9", "SaveImage", cached=True, ui=UI),
    ]
    messages = Client().on_event([*events, Ended("completed", 1)])
    assert kinds(messages) == [
        "execution_start",
        "execution_cached",
        "executed",
        "execution_success",
        "status",
        "executing",
    ]
    assert messages[2]["data"]["output"] == UI


def test_an_error_names_the_node_and_ends_like_any_job() -> None:
    error = JobError("RunError", "node 3 (KSampler): NaN", "3", "KSampler")
    messages = Client().on_event([*RUNS[:6], Ended("failed", 5.0, error, executed=("4",))])
    assert kinds(messages)[-4:] == ["progress_state", "execution_error", "status", "executing"]
    assert messages[-4]["data"]["nodes"]["3"]["state"] == "error"
    assert messages[-3]["data"] == {
        "prompt_id": "job",
        "node_id": "3",
        "node_type": "KSampler",
        "executed": ["4"],
        "exception_message": "node 3 (KSampler): NaN",
        "exception_type": "RunError",
        "traceback": [],
        "current_inputs": {},
        "current_outputs": [],
        "timestamp": 5000,
    }


def test_an_interrupted_job() -> None:
    messages = Client().on_event([*RUNS[:6], Ended("cancelled", 5.0, executed=("4",))])
    assert kinds(messages)[-3:] == ["execution_interrupted", "status", "executing"]
    assert messages[-3]["data"] == {
        "prompt_id": "job",
        "timestamp": 5000,
        "node_id": "3",
        "node_type": "KSampler",
        "executed": ["4"],
    }


def test_a_job_interrupted_inside_an_expansion_names_the_node_of_the_prompt() -> None:
    prompt = {"7": {"class_type": "Tiles", "inputs": {}}}
    start_events: list[ClientEvent] = [
        Started(0),
        NodeStarted("7", "7", "Tiles"),
        NodeStarted("7.1", "7", "Tile"),
    ]
    messages = Client(replace(make_job(), prompt=prompt)).on_event(
        [*start_events, Ended("cancelled", 5.0)]
    )
    interrupted = next(
        message["data"] for message in messages if message["type"] == "execution_interrupted"
    )
    assert (interrupted["node_id"], interrupted["node_type"]) == ("7", "Tiles")


@pytest.mark.defect(19)
def test_an_interrupted_job_names_the_node_that_ran_for_everybody() -> None:
    """History, and clients that missed the nodes' events, get the node too."""
    prompt = {"7": {"class_type": "KSampler", "inputs": {}}}
    stopped = JobNode("7.end", "StepEnd", "7")
    ended = Ended("cancelled", 5.0, executed=("4",), interrupted=stopped)
    job = replace(make_job(), prompt=prompt, started=1.0)
    messages = Client(job).on_event([Started(1.0), ended])
    expected = {
        "prompt_id": "job",
        "timestamp": 5000,
        "node_id": "7",
        "node_type": "KSampler",
        "executed": ["4"],
    }
    interrupted = [one["data"] for one in messages if one["type"] == "execution_interrupted"]
    assert interrupted == [expected]
    status = status_of(replace(job, result=ENDED.validate_json(ENDED.dump_json(ended))))
    assert dict(map(tuple, status["messages"]))["execution_interrupted"] == expected


def test_a_job_deleted_before_its_start_disturbs_no_other() -> None:
    """To a client, `executing` with node null ends the shown job, which may be another job."""
    assert Client().on_event([Ended("cancelled", 5.0)]) == []
    refused = Ended("failed", 5.0, JobError("RunError", "the deadline has passed"))
    assert kinds(Client().on_event([refused])) == ["execution_error", "status", "executing"]


def test_a_large_graph_does_not_send_its_nodes_again_and_again() -> None:
    def sent(nodes: int) -> tuple[list[Any], int]:
        steps = [
            event
            for id in map(str, range(nodes))
            for event in (NodeStarted(id, id, "Noop"), NodeDone(id, id, "Noop"))
        ]
        messages = Client().on_event(
            [Started(0), Cached((), 0), *steps, Ended("completed", 1)], at_once=True
        )
        return messages, sum(len(json.dumps(message)) for message in messages)

    messages, bytes_of_500 = sent(500)
    states = [message for message in messages if message["type"] == "progress_state"]
    assert len(states) <= 6
    assert len(states[-1]["data"]["nodes"]) == 500
    assert {node["state"] for node in states[-1]["data"]["nodes"].values()} == {"finished"}
    assert kinds(messages)[-4:] == ["progress_state", "execution_success", "status", "executing"]
    assert kinds(messages).count("executing") == 501
    assert sent(2000)[1] < 5 * bytes_of_500


def test_the_latest_state_comes_late_rather_than_never() -> None:
    """A real session has more changes than are sent at once, then none."""

    async def run() -> dict[str, Any]:
        hub = make_hub(FakeJobs([make_job()]))
        session = connect(hub, ConventionChannel(FEATURES))
        hub.publish(make_job(), Started(0))
        for value in range(1, 21):
            hub.publish(make_job(), Progress("3", value, 20, display="3"))
        received = [json.loads(await session.next()) for _ in range(2 + 20 + 5)]
        assert received[-1]["data"].get("value") == 20
        late: dict[str, Any] = json.loads(await asyncio.wait_for(session.next(), 1))
        return late

    late = asyncio.run(run())
    assert late["type"] == "progress_state"
    assert late["data"]["nodes"]["3"]["value"] == 20


def test_pictures_carry_metadata_for_clients_that_understand_it() -> None:
    plain, able = Client(), Client()
    (answer,) = able.channel.read(
        json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
    )
    assert json.loads(answer.data) == {"type": "feature_flags", "data": FEATURES}
    picture = EncodedPicture("3.0.0.1", "3", b"JPEG")
    assert plain.on_event([picture]) == [bytes.fromhex("0000000100000001") + b"JPEG"]
    assert plain.on_event([EncodedPicture("3", "3", b"PNG", "image/png", lasting=True)]) == [
        bytes.fromhex("0000000100000002") + b"PNG"
    ]
    (frame,) = able.on_event([picture])
    kind, length = struct.unpack(">II", frame[:8])
    assert kind == 4
    assert frame[8 + length :] == b"JPEG"
    assert json.loads(frame[8 : 8 + length]) == {
        "node_id": "3.0.0.1",
        "prompt_id": "job",
        "display_node_id": "3",
        "parent_node_id": "3",
        "real_node_id": "3",
        "image_type": "image/jpeg",
    }


def test_only_the_first_text_of_a_client_is_read() -> None:
    flags = json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
    for hostile in (
        "",
        "{",
        "[]",
        "null",
        '"feature_flags"',
        '{"type": "feature_flags", "data": 3}',
        "[" * 100_000,
        '{"a":1,"a":2}',
    ):
        channel = Client().channel
        assert list(channel.read(hostile)) == []
        assert list(channel.read(flags)) == []


def test_values_without_json_form_are_null() -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    data = {"a": float("nan"), "b": b"bytes", "c": [float("inf"), "\udc80"], "d": 2**70}
    channel = Client().channel
    frames = list(
        channel.event(
            make_job(), PackMessage("my.pack", data), JobState(), lambda: QueueView(0, 0, False)
        )
    )
    text = str(frames[0].data)
    text.encode()
    message = json.loads(text, parse_constant=refuse)
    assert message == {
        "type": "my.pack",
        "data": {"a": None, "b": None, "c": [None, "?"], "d": 2**70},
    }


def test_a_returning_client_sees_running_jobs() -> None:
    async def run() -> tuple[list[dict[str, Any]], bytes]:
        hub = make_hub(FakeJobs([make_job()]))
        for event in RUNS[:7]:
            hub.publish(make_job(), event)
        session = connect(hub, ConventionChannel(FEATURES))
        *messages, picture = drained(session)
        assert isinstance(picture, bytes)
        return [json.loads(message) for message in messages], picture

    messages, picture = asyncio.run(run())
    assert kinds(messages) == [
        "status",
        "execution_start",
        "execution_cached",
        "progress_state",
        "executing",
    ]
    assert messages[0]["data"] == {"status": {"exec_info": {"queue_remaining": 1}}, "sid": "ann"}
    assert messages[2]["data"]["nodes"] == ["4"]
    assert messages[3]["data"]["nodes"]["3"]["value"] == 1
    assert messages[4]["data"]["node"] == "3"
    assert picture.endswith(b"JPEG")


def test_a_job_deleted_before_its_start_is_not_reported_on_return() -> None:
    async def run() -> list[dict[str, Any]]:
        hub = make_hub(FakeJobs())
        hub.publish(make_job(), Ended("cancelled", 1003.0))
        return texts(connect(hub, ConventionChannel(FEATURES)))

    assert kinds(asyncio.run(run())) == ["status"]


def test_a_client_that_waits_for_the_end_gets_it_on_return() -> None:
    async def run() -> list[dict[str, Any]]:
        jobs = FakeJobs([make_job()])
        hub = make_hub(jobs)
        connect(hub, ConventionChannel(FEATURES)).close()
        for event in RUNS:
            hub.publish(jobs.running[0], event)
        jobs.running.clear()
        return texts(connect(hub, ConventionChannel(FEATURES)))

    messages = asyncio.run(run())
    assert kinds(messages) == ["status", "execution_success", "status", "executing"]
    assert messages[-1]["data"] == {"node": None, "prompt_id": "job"}
