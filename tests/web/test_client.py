"""A ComfyUI client of only `urllib` and `websockets` connects as soon as the port is open, queues,
watches, fetches pictures and cancels. At the end the server receives two signals to stop.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
from PIL import Image
from processes import eventually
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from katz_graph.settings.environment import WAITING
from katz_graph.testing.comfyui_client import visit
from katz_graph.testing.server_process import Served, alive, painting
from katz_graph.web.jobs.store import JobStore

EVALUATIONS = 6
PATIENCE = 120.0


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory, costs: Path) -> Iterator[Served]:
    """Yields a server that has just been started; the last test ends it."""
    with pytest.MonkeyPatch.context() as environment:
        for variable in WAITING:
            environment.delenv(variable, raising=False)
        # OpenMP prints its settings when torch loads it
        environment.setenv("OMP_DISPLAY_ENV", "VERBOSE")
        server = Served(tmp_path_factory.mktemp("server"), cache=costs)
        try:
            yield server.start(wait=False)
        finally:
            server.kill()


@pytest.fixture(scope="module")
def first_picture(starting: Served) -> bytes:
    """Returns the picture of a client that connects and posts as soon as the port is open."""
    prompt = painting(1000, 2)
    return visit("127.0.0.1", starting.port, prompt, time.perf_counter(), PATIENCE).picture


@pytest.fixture(scope="module")
def server(starting: Served, first_picture: bytes) -> Served:
    return starting


def ask(server: Served, path: str, body: Any = None) -> Any:
    """Sends a request with urllib's default content type (a form's), as scripts do."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.port}{path}", data, timeout=60
    ) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def picture(server: Served, image: dict[str, str]) -> Image.Image:
    query = urllib.parse.urlencode(image)
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.port}/view?{query}", timeout=60
    ) as answer:
        return Image.open(io.BytesIO(answer.read()))


def socket_of(server: Served, client: str, *protocols: str) -> ClientConnection:
    wanted = [Subprotocol(name) for name in protocols] or None
    return connect(
        f"ws://127.0.0.1:{server.port}/ws?clientId={client}", subprotocols=wanted, max_size=None
    )


def texts(socket: ClientConnection, identifier: str) -> list[dict[str, Any]]:
    """Returns the text messages up to the one that ends a prompt."""
    events = []
    while True:
        message = socket.recv(timeout=60)
        if isinstance(message, bytes):
            continue
        events.append(json.loads(message))
        data = events[-1]["data"]
        if (
            events[-1]["type"] == "executing"
            and data["node"] is None
            and data["prompt_id"] == identifier
        ):
            return events


def test_a_client_that_does_not_wait_gets_its_picture(server: Served, first_picture: bytes) -> None:
    """The server accepts requests as soon as its port is open."""
    written = json.loads(Image.open(io.BytesIO(first_picture)).info["prompt"])
    assert written["5"]["inputs"]["seed"] == 1000
    assert "KSampler" in server.get("/object_info").data
    assert server.get("/readyz").status == 200


def test_queue_watch_and_get_the_picture(server: Served) -> None:
    ask(server, "/free", {"free_memory": True})  # no node has a cached result
    with socket_of(server, "painter") as socket:
        first = json.loads(socket.recv(timeout=10))
        assert first["type"] == "status"
        assert first["data"]["sid"] == "painter"
        answer = ask(
            server, "/prompt", {"prompt": painting(1, EVALUATIONS), "client_id": "painter"}
        )
        assert answer["node_errors"] == {}
        events = texts(socket, answer["prompt_id"])
    kinds = [event["type"] for event in events if event["type"] != "status"]
    assert kinds[0] == "execution_start"
    assert kinds[1] == "execution_cached"
    assert kinds[-2:] == ["execution_success", "executing"]
    ran = [event["data"]["node"] for event in events if event["type"] == "executing"]
    assert ran == ["1", "2", "3", "4", "5", "6", "7", None]
    counts = [event["data"]["value"] for event in events if event["type"] == "progress"]
    assert counts == sorted(counts)
    assert counts[-1] == EVALUATIONS
    (shown,) = [event["data"]["output"] for event in events if event["type"] == "executed"]
    entry = ask(server, f"/history/{answer['prompt_id']}")[answer["prompt_id"]]
    assert entry["status"]["completed"] is True
    assert entry["outputs"]["7"]["images"] == shown["images"]
    image = picture(server, shown["images"][0])
    assert image.size == (64, 64)
    assert json.loads(image.info["prompt"])["5"]["inputs"]["seed"] == 1


def test_paints_over_http(server: Served, tmp_path: Path) -> None:
    first = submit(server, painting(100, 2))
    entry = server.wait_for([first], PATIENCE)[first]
    assert entry["status"]["status_str"] == "success", entry
    (png,) = server.pictures(entry)
    again = submit_picture(server, png)  # a picture can be submitted as a prompt
    (same,) = server.pictures(server.wait_for([again], PATIENCE)[again])
    assert pixels(same) == pixels(png)
    assert "KSampler" in server.get("/object_info").data
    refused = server.submit({"1": {"class_type": "NoSuchNode", "inputs": {}}})
    assert (refused.status, refused.data["error"]["type"]) == (400, "missing_node_type")
    assert str(tmp_path.parent).encode() not in refused.body
    metrics = server.get("/metrics").body.decode()
    assert 'katz_job_seconds_count{status="completed"} 4.0' in metrics
    assert 'katz_nodes_total{cached="true"}' in metrics  # from the last job


def test_the_same_again_is_cached_and_still_shows_its_picture(server: Served) -> None:
    graph = painting(2, EVALUATIONS)
    first = ask(server, "/prompt", {"prompt": graph})["prompt_id"]
    server.wait_for([first], 60)
    with socket_of(server, "again") as socket:
        second = ask(server, "/prompt", {"prompt": graph, "client_id": "again"})["prompt_id"]
        events = texts(socket, second)
    cached = [
        node
        for event in events
        if event["type"] == "execution_cached"
        for node in event["data"]["nodes"]
    ]
    assert {"1", "2", "3", "4", "5", "6", "7"} == set(cached)
    assert [event["data"]["node"] for event in events if event["type"] == "executed"] == ["7"]
    history = server.finished()
    assert history[first]["outputs"] == history[second]["outputs"]


def test_a_preview_with_a_deleted_file_is_made_again(server: Served) -> None:
    """Clearing the history deletes temporary files. The same prompt then writes its picture
    again.
    """
    graph = painting(8, EVALUATIONS)
    graph["7"] = {"class_type": "PreviewImage", "inputs": {"images": ["6", 0]}}

    def shown() -> dict[str, str]:
        identifier = ask(server, "/prompt", {"prompt": graph})["prompt_id"]
        (image,) = server.wait_for([identifier], 60)[identifier]["outputs"]["7"]["images"]
        assert picture(server, image).size == (64, 64)
        return dict(image)

    first = shown()
    ask(server, "/history", {"clear": True})
    with pytest.raises(urllib.error.HTTPError):  # the file is deleted
        picture(server, first)
    shown()


def test_a_running_job_is_interrupted_and_waiting_ones_are_taken_out(server: Served) -> None:
    with socket_of(server, "stopper") as socket:
        running, waiting = (
            ask(server, "/prompt", {"prompt": painting(seed, 1000, 128), "client_id": "stopper"})[
                "prompt_id"
            ]
            for seed in (3, 4)
        )
        while True:
            message = socket.recv(timeout=60)
            if isinstance(message, str) and json.loads(message)["type"] == "progress":
                break
        queue = ask(server, "/queue")
        assert [item[1] for item in queue["queue_running"]] == [running]
        assert [item[1] for item in queue["queue_pending"]] == [waiting]
        ask(server, "/queue", {"delete": [waiting]})
        ask(server, "/interrupt", {"prompt_id": running})
        events = texts(socket, running)
    stopped = [event for event in events if event["type"] == "execution_interrupted"]
    assert [event["data"]["prompt_id"] for event in stopped].count(running) == 1
    assert ask(server, "/queue") == {"queue_running": [], "queue_pending": []}
    assert ask(server, f"/api/jobs/{running}")["status"] == "cancelled"


def test_errors_have_the_convention_s_shape(server: Served) -> None:
    graph = painting(5, 2)
    graph["5"]["inputs"]["model"] = ["77", 0]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, "/prompt", {"prompt": graph})
    assert refused.value.code == 400
    body = json.loads(refused.value.read())
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    assert body["node_errors"]["5"]["errors"][0]["type"] == "bad_linked_input"
    assert body["node_errors"]["5"]["dependent_outputs"] == ["7"]
    after = ask(server, "/prompt", {"prompt": painting(5, 2)})["prompt_id"]
    assert server.wait_for([after], 60)[after]["status"]["status_str"] == "success"


def test_the_native_channel_reports_the_same_with_plan_and_timeline(server: Served) -> None:
    with socket_of(server, "native", "katz.msgpack") as socket:
        assert socket.subprotocol == "katz.msgpack"
        assert msgpack.unpackb(socket.recv(timeout=10))["type"] == "snapshot"
        identifier = ask(
            server, "/prompt", {"prompt": painting(6, EVALUATIONS), "client_id": "native"}
        )["prompt_id"]
        frames = []
        while not frames or frames[-1]["event"]["kind"] != "ended":
            frame = msgpack.unpackb(socket.recv(timeout=60))
            frames += [frame] if frame["type"] == "event" else []
    kinds = {frame["event"]["kind"] for frame in frames}
    assert {
        "started",
        "node_started",
        "progress",
        "node_done",
        "plan_made",
        "timeline",
        "ended",
    } <= kinds
    numbers = [frame["seq"] for frame in frames]
    assert numbers == sorted(set(numbers))
    assert server.finished()[identifier]["status"]["status_str"] == "success"


def test_a_plan_without_a_run_is_that_of_the_run(server: Served) -> None:
    prompt = painting(12, EVALUATIONS)
    known = len(ask(server, "/history"))
    (asked,) = ask(server, "/katz/plan", {"prompt": prompt})["plans"]
    assert len(ask(server, "/history")) == known
    assert asked["evaluations"] == EVALUATIONS and asked["devices"] == ["cpu"]
    branches = {one["branch"] for one in asked["operations"]}
    assert branches == {"", "positive", "negative"}
    assert {edge["from"] for edge in asked["variants"][0]["edges"]} >= {asked["begin"]}


def test_a_job_runs_with_its_choices_and_its_picture_records_them(server: Served) -> None:
    """Results made with other choices are not reused."""
    prompt = painting(12, EVALUATIONS)
    for choices in ({}, {"batching": False}, {"batching": False}):
        made = ask(server, "/prompt", {"prompt": prompt, "extra_data": {"katz": choices}})
        server.wait_for([made["prompt_id"]], PATIENCE)
        entry = server.finished()[made["prompt_id"]]
        (image,) = next(iter(entry["outputs"].values()))["images"]
        said = json.loads(picture(server, image).info["katz"])
        assert said.get("chosen", {}) == choices
        cached = {
            node
            for kind, message in entry["status"]["messages"]
            if kind == "execution_cached"
            for node in message["nodes"]
        }
        assert not choices or not cached


def test_a_lost_line_cancels_nothing_and_the_client_finds_everything(server: Served) -> None:
    with socket_of(server, "comes-back") as socket:
        identifier = ask(
            server, "/prompt", {"prompt": painting(7, 20, 128), "client_id": "comes-back"}
        )["prompt_id"]
        while (
            json.loads(m if isinstance(m := socket.recv(timeout=60), str) else "{}").get("type")
            != "progress"
        ):
            pass
        newer = socket_of(server, "comes-back")
    with newer:  # the older connection closed after this one opened
        events = texts(newer, identifier)
        assert any(event["type"] == "progress" for event in events)
    assert server.finished()[identifier]["status"]["status_str"] == "success"


def test_a_second_stop_ends_at_once_and_leaves_nothing(server: Served) -> None:
    """The running job is on record and starts again with the next server."""
    long = submit(server, painting(9, 1000, 128))
    eventually(
        lambda: [item[1] for item in ask(server, "/queue")["queue_running"]] == [long], PATIENCE
    )
    family = server.family()
    assert len(family) >= 3  # with the runner and its device's worker
    os.kill(server.pid, signal.SIGINT)
    eventually(lambda: server.get("/readyz").status == 503, PATIENCE)
    refused = server.submit(painting(10, 2))
    assert (refused.status, refused.data["error"]["type"]) == (503, "shutting_down")
    assert server.get("/livez").status == 200
    assert server.stop()[0] == 0  # sends the second signal
    eventually(lambda: not alive(family), 60)
    assert asyncio.run(unfinished(server.folder / "data")) == [long]
    assert "Traceback" not in server.log, server.log
    looks = [line.split("'")[1] for line in server.log.splitlines() if "GOMP_SPINCOUNT" in line]
    # torch is loaded once, in the process that forks the runner and its device's worker
    assert looks == [WAITING["GOMP_SPINCOUNT"]]


def submit(server: Served, prompt: Mapping[str, Any]) -> str:
    answer = server.submit(prompt)
    assert answer.status == 200, answer.body
    return str(answer.data["prompt_id"])


def submit_picture(server: Served, png: bytes) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", "/prompt", png, {"Content-Type": "image/png"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return str(json.loads(body)["prompt_id"])
    finally:
        connection.close()


def pixels(png: bytes) -> bytes:
    return Image.open(io.BytesIO(png)).tobytes()


async def unfinished(data: Path) -> list[str]:
    store = JobStore.open(data)
    try:
        return [job.id for job in await store.unfinished()]
    finally:
        await store.close()
