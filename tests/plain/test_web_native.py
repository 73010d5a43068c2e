"""`katz.msgpack`: a client that reconnects has the state of one that stayed connected; malformed
frames end only their connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect
from web_clients import FACTS, FakeJobs, connect, drained, make_hub, make_job, unpacked

from katz_graph.core.events import (
    NodeDone,
    NodeStarted,
    PackMessage,
    Progress,
    Span,
    Timeline,
    Warned,
)
from katz_graph.web.events import (
    JOB_EVENT,
    Cached,
    ClientEvent,
    EncodedPicture,
    Ended,
    JobEvent,
    PlanMade,
    Started,
    Wrote,
)
from katz_graph.web.jobs.job import FINISHED
from katz_graph.web.live.channel import SEGMENTS, JobState
from katz_graph.web.live.katz_channel import SUBPROTOCOL, NativeChannel
from katz_graph.web.options import Limits
from katz_graph.web.routes.socket import router

EVERY_KIND: list[ClientEvent] = [
    Started(1.0),
    Cached(("4",), 1.0),
    NodeStarted("3", "3", "KSampler"),
    Progress("3", 1, 20, display="3"),
    NodeDone("3", "3", "KSampler", False, 0.5, "new", {"text": ["a"]}),
    EncodedPicture("3", "3", b"\xff\xd8"),
    PlanMade("3", {"stages": [1, 2.5, None]}),
    Timeline("3", (Span("cpu:0", "unet", 0.1, 0.02, 4, target="unet"),)),
    PackMessage("my.pack", {"a": [1]}),
    Warned("careful"),
    Wrote("a.png", "output"),
    Ended(
        "completed", 2.0, outputs={"9": {"images": [{"filename": "a.png"}]}}, seconds={"total": 1.0}
    ),
]

# events as clients receive them; clients may depend on the order of fields
AS_DATA: list[dict[str, Any]] = [
    {"job": "job", "at": 1.0, "kind": "started"},
    {"job": "job", "nodes": ["4"], "at": 1.0, "kind": "cached"},
    {"job": "job", "node": "3", "display": "3", "type": "KSampler", "kind": "node_started"},
    {
        "job": "job",
        "node": "3",
        "display": "3",
        "value": 1,
        "maximum": 20,
        "evaluations": False,
        "kind": "progress",
    },
    {
        "job": "job",
        "node": "3",
        "display": "3",
        "type": "KSampler",
        "cached": False,
        "seconds": 0.5,
        "why": "new",
        "ui": {"text": ["a"]},
        "kind": "node_done",
    },
    {
        "job": "job",
        "node": "3",
        "display": "3",
        "image": b"\xff\xd8",
        "media_type": "image/jpeg",
        "lasting": False,
        "kind": "previewed",
    },
    {"job": "job", "node": "3", "plan": {"stages": [1, 2.5, None]}, "kind": "plan_made"},
    {
        "job": "job",
        "node": "3",
        "segments": [
            {
                "device": "cpu:0",
                "name": "unet",
                "start": 0.1,
                "seconds": 0.02,
                "evaluation": 4,
                "kind": "segment",
                "target": "unet",
                "peer": None,
            }
        ],
        "kind": "timeline",
    },
    {"job": "job", "type": "my.pack", "data": {"a": [1]}, "client": None, "kind": "pack_message"},
    {"job": "job", "message": "careful", "kind": "warned"},
    {"job": "job", "path": "a.png", "place": "output", "kind": "wrote"},
    {
        "job": "job",
        "status": "completed",
        "at": 2.0,
        "error": None,
        "outputs": {"9": {"images": [{"filename": "a.png"}]}},
        "meta": {},
        "executed": [],
        "seconds": {"total": 1.0},
        "predicted": None,
        "approximations": [],
        "cached": [],
        "kind": "ended",
    },
]

nodes = st.sampled_from("12345")
events = st.one_of(
    st.builds(Started, st.floats(0, 10)),
    st.builds(Cached, st.lists(nodes, max_size=3).map(tuple), st.just(1.0)),
    st.builds(NodeStarted, nodes, st.just("1"), st.sampled_from(["KSampler", "VAEDecode"])),
    st.builds(Progress, nodes, st.integers(0, 20), st.just(20), display=st.just("1")),
    st.builds(
        NodeDone,
        nodes,
        st.just("1"),
        st.just("KSampler"),
        st.booleans(),
        ui=st.none() | st.just({"text": ["a"]}),
    ),
    st.builds(EncodedPicture, nodes, st.just("1"), st.binary(max_size=3), lasting=st.booleans()),
    st.builds(PlanMade, nodes, st.dictionaries(st.sampled_from("ab"), st.integers(0, 9))),
    st.builds(Timeline, nodes, st.just((Span("cpu:0", "unet", 0.1, 0.02),))),
    st.builds(PackMessage, st.just("x"), st.just(None)),
    st.builds(Warned, st.sampled_from(["a", "b"])),
)


class Watcher:
    """Implements a client from the frames' documentation alone."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}

    def read(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "snapshot":
            self.jobs = {
                job["id"]: {"status": job["status"], "state": job["state"]} for job in frame["jobs"]
            }
        elif frame["type"] == "event":
            self._on_event(frame["event"])

    def _on_event(self, event: dict[str, Any]) -> None:
        kind, node = event["kind"], event.get("node")
        if kind == "started":
            empty = {"nodes": {}, "plans": {}, "timeline": [], "warnings": [], "preview": None}
            self.jobs[event["job"]] = {
                "status": "in_progress",
                "state": {"started": event["at"], **empty},
            }
            return
        if kind == "ended":
            self.jobs[event["job"]] = {"status": event["status"], "state": None}
            return
        state = self.jobs[event["job"]]["state"]
        if kind == "cached":
            for cached in event["nodes"]:
                known = self._node(state, cached, cached, "")
                known.update(display=cached, cached=True, status="finished", value=known["maximum"])
        elif kind == "node_started":
            state["nodes"].pop(node, None)
            self._node(state, node, event["display"], event["type"])
        elif kind == "progress":
            known = self._node(state, node, event["display"], "")
            known.update(display=event["display"], value=event["value"], maximum=event["maximum"])
        elif kind == "node_done":
            known = self._node(state, node, event["display"], event["type"])
            known.update(
                {key: event[key] for key in ("display", "type", "cached", "seconds", "why", "ui")}
            )
            known.update(status="finished", value=known["maximum"])
        elif kind == "previewed" and not event["lasting"]:
            state["preview"] = {
                key: event[key] for key in ("node", "display", "image", "media_type")
            }
        elif kind == "plan_made":
            state["plans"][node] = event["plan"]
        elif kind == "timeline":
            state["timeline"].append({key: event[key] for key in ("node", "segments", "kind")})
        elif kind == "warned":
            state["warnings"].append(event["message"])

    @staticmethod
    def _node(state: dict[str, Any], node: str, display: str, type: str) -> dict[str, Any]:
        fresh = {
            "status": "running",
            "value": 0,
            "maximum": 1,
            "cached": False,
            "seconds": 0.0,
            "why": "",
            "ui": None,
        }
        known: dict[str, Any] = state["nodes"].setdefault(
            node, {"display": display, "type": type, **fresh}
        )
        return known


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=30), st.integers(0, 30), st.booleans())
def test_returning_clients_know_as_much_as_connected_ones(
    happening: list[ClientEvent], returns: int, ends: bool
) -> None:
    async def run() -> None:
        jobs = FakeJobs([make_job()])
        hub = make_hub(jobs)
        stayed, returned = Watcher(), Watcher()
        session, back = connect(hub, NativeChannel()), None
        for number, event in enumerate([Started(0.5), *happening]):
            hub.publish(make_job(), event)
            for frame in unpacked(drained(session)):
                stayed.read(frame)
            if number == returns:
                back = connect(hub, NativeChannel())
        if ends:
            hub.publish(jobs.running.pop(), Ended("completed", 9.0))
        back = back or connect(hub, NativeChannel())
        for frame in unpacked(drained(session)):
            stayed.read(frame)
        for frame in unpacked(drained(back)):
            returned.read(frame)
        assert returned.jobs == stayed.jobs

    asyncio.run(run())


def test_a_client_that_reconnects_knows_when_a_later_job_started() -> None:
    state = JobState()
    state.on_event(Started(7.0))
    later = make_job("later")
    assert later.started is None
    (frame,) = NativeChannel().watched("later", later, state)
    assert msgpack.unpackb(frame.data)["job"]["started"] == 7.0
    (frame,) = NativeChannel().watched("later", later, None)
    assert msgpack.unpackb(frame.data)["job"]["started"] is None


def test_every_kind_of_event_arrives_as_it_was() -> None:
    async def run() -> list[dict[str, Any]]:
        hub = make_hub(FakeJobs([make_job()]))
        session = connect(hub, NativeChannel())
        for event in EVERY_KIND:
            hub.publish(make_job(), event)
        return unpacked(drained(session))

    frames = asyncio.run(run())
    assert [frame["seq"] for frame in frames] == list(range(len(EVERY_KIND) + 1))
    assert [msgpack.packb(frame["event"]) for frame in frames[1:]] == [
        msgpack.packb(data) for data in AS_DATA
    ]
    events = [JOB_EVENT.validate_python(frame["event"]) for frame in frames[1:]]
    assert events == [JobEvent("job", event) for event in EVERY_KIND]


def test_the_state_of_a_job_is_bounded() -> None:
    state = JobState()
    for number in range(10 * SEGMENTS):
        state.on_event(Timeline("3", (Span("cpu:0", "unet", float(number), 0.1),)))
        state.on_event(Warned(str(number)))
        state.on_event(PlanMade(str(number), {}))
    assert len(state.timeline) == SEGMENTS
    assert state.timeline[-1].segments[0].start == 10 * SEGMENTS - 1
    assert len(state.warnings) == 100
    assert len(state.plans) == 32


class Server:
    """Runs the route on a separate hub."""

    def __init__(self, client: TestClient, jobs: FakeJobs) -> None:
        self.client, self.jobs = client, jobs

    def native(self, name: str = "ann") -> WebSocketTestSession:
        return self.client.websocket_connect(f"/ws?clientId={name}", subprotocols=[SUBPROTOCOL])


@pytest.fixture
def server() -> Iterator[Server]:
    jobs = FakeJobs(
        [make_job()], ended=[make_job("old", status="completed"), make_job("hers", "eve", "failed")]
    )
    state = SimpleNamespace(
        jobs=jobs, hub=make_hub(jobs, Limits(sockets=4)), options=SimpleNamespace(limits=Limits())
    )
    with TestClient(Starlette(routes=router(state).routes)) as client:  # type: ignore[arg-type]
        yield Server(client, jobs)


def received(socket: WebSocketTestSession) -> dict[str, Any]:
    frame: dict[str, Any] = msgpack.unpackb(socket.receive_bytes())
    return frame


def test_the_first_frame_is_the_whole_state(server: Server) -> None:
    with server.native() as socket:
        assert socket.accepted_subprotocol == SUBPROTOCOL
        frame = received(socket)
    assert (frame["type"], frame["seq"], frame["client"], frame["server"]) == (
        "snapshot",
        0,
        "ann",
        FACTS,
    )
    assert frame["queue"] == {"running": 1, "pending": 0, "paused": False, "places": {}}
    assert [(job["id"], job["status"], job["status"] in FINISHED) for job in frame["jobs"]] == [
        ("old", "completed", True),
        ("job", "in_progress", False),
    ]


def test_ping_and_watch(server: Server) -> None:
    with server.native() as socket:
        received(socket)
        socket.send_bytes(msgpack.packb({"type": "ping"}))
        assert received(socket) == {"type": "pong", "seq": 1}
        for job, status in (("old", "completed"), ("job", "in_progress")):
            socket.send_bytes(msgpack.packb({"type": "watch", "job": job}))
            assert received(socket)["job"]["status"] == status
        for job in ("nothing", "hers"):
            socket.send_bytes(msgpack.packb({"type": "watch", "job": job}))
            frame = received(socket)
            assert (frame["id"], frame["job"]) == (job, None)


@pytest.mark.parametrize(
    "frame, code",
    [
        (b"", 1007),
        (b"\xc1", 1007),
        (msgpack.packb({"type": "ping"}) + b"more", 1007),
        (msgpack.packb({"type": "ping", "more": 1}), 1007),
        (msgpack.packb({"type": "event"}), 1007),
        (msgpack.packb({"type": "watch"}), 1007),
        (msgpack.packb({"type": "watch", "job": 3}), 1007),
        (msgpack.packb({"type": "watch", "job": "x" * 201}), 1007),
        (msgpack.packb([1]), 1007),
        (msgpack.packb({1: 2}), 1007),
        (b"\x91" * 4_000, 1007),
        (b"\xdf\xff\xff\xff\xff", 1007),
        (b"\xd9" + b"\xff" * 20, 1007),
        (b"x" * 100_000, 1007),
        ("text", 1003),
    ],
)
def test_a_malformed_frame_ends_its_connection_only(
    server: Server, frame: bytes | str, code: int
) -> None:
    with server.native() as neighbour, server.native("eve") as socket:
        received(neighbour), received(socket)
        if isinstance(frame, str):
            socket.send_text(frame)
        else:
            socket.send_bytes(frame)
        with pytest.raises(WebSocketDisconnect) as closed:
            received(socket)
        assert closed.value.code == code
        neighbour.send_bytes(msgpack.packb({"type": "ping"}))
        assert received(neighbour)["type"] == "pong"


def test_one_socket_too_many_is_refused_and_room_comes_back(server: Server) -> None:
    with server.native() as first, server.native(), server.native():
        received(first)
        with server.native() as fourth, pytest.raises(WebSocketDisconnect) as closed:
            received(fourth)
        assert (closed.value.code, "3 websockets" in (closed.value.reason or "")) == (1013, True)
    with server.native() as socket:
        assert received(socket)["type"] == "snapshot"


def test_a_client_id_that_is_no_name_is_refused(server: Server) -> None:
    with pytest.raises(WebSocketDisconnect), server.native("x" * 201):
        pass


def test_without_the_subprotocol_the_convention_is_spoken_and_a_name_given(server: Server) -> None:
    with server.client.websocket_connect("/ws") as socket:
        assert socket.accepted_subprotocol is None
        data = socket.receive_json()["data"]
        assert len(data["sid"]) == 32
        socket.send_bytes(b"\x00")
        socket.send_json({"type": "feature_flags", "data": {}})
        assert socket.receive_json()["data"]["supports_preview_metadata"] is True
