"""Tests `katz submit` against a scripted server: lost connections, refusals, Ctrl-C, names that
lead elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from web_clients import make_job
from web_live import Live, live

from katz_graph.cli.main import main
from katz_graph.core.events import NodeDone, Progress, Warned
from katz_graph.web.events import ClientEvent, EncodedPicture, Ended, JobError, PlanMade, Started
from katz_graph.web.jobs.job import Job

WORKFLOW = Path(__file__).parents[2] / "workflows" / "txt2img.json"
FILE = {"filename": "a.png", "subfolder": "day", "type": "output"}
SECONDS = {"total": 3.0, "prepare": 0.5, "denoise": 1.5}
Act = Callable[["Fake", Job], Awaitable[None]]


class Outcome(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Submit = Callable[..., Outcome]


@dataclass(slots=True)
class Fake:
    """Fakes a server: `act` plays accepted jobs; `answer`, if given, is the response to /prompt."""

    server: Live
    act: Act
    answer: Response | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=lambda: {"a.png": b"PNG"})
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def routes(self) -> list[Route]:
        return [
            Route("/prompt", self.prompt, methods=["POST"]),
            Route("/view", self.view),
            Route("/api/jobs/{id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def prompt(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers["idempotency-key"])
        self.headers.append(request.headers)
        if self.answer is not None:
            return self.answer
        job = replace(make_job(body["prompt_id"], body["client_id"]), status="in_progress")
        self.server.jobs.running.append(job)
        task = asyncio.ensure_future(self.act(self, job))
        self.tasks.add(task)
        return JSONResponse({"prompt_id": job.id, "number": 5, "node_errors": {}})

    async def view(self, request: Request) -> Response:
        data = self.files.get(request.query_params["filename"])
        return Response(data) if data is not None else JSONResponse({"error": "no such file"}, 404)

    async def cancel(self, request: Request) -> Response:
        self.cancelled.append(request.path_params["id"])
        return JSONResponse({"cancelled": True})

    def say(self, job: Job, *events: ClientEvent) -> None:
        for event in events:
            self.server.hub.publish(job, event)

    def end(self, job: Job, ended: Ended) -> None:
        """Stores the end first, as `Jobs` does."""
        self.server.jobs.running.remove(job)
        self.server.jobs.ended.append(
            replace(job, status=ended.status, ended=ended.at, result=ended)
        )
        self.server.hub.publish(job, ended)


def completed(job: Job, **more: Any) -> Ended:
    return Ended(
        "completed", 9.0, outputs={"9": {"images": [FILE]}}, seconds=SECONDS, predicted=1.75, **more
    )


async def paint(fake: Fake, job: Job) -> None:
    fake.say(
        job, Started(1.0), PlanMade("5", {"devices": ["cpu"]}), Progress("5", 1, 2, display="5")
    )
    fake.say(job, Warned("careful"), NodeDone("7", "7", "ShowText", ui={"text": ["a red star"]}))
    fake.end(job, completed(job))


@contextlib.contextmanager
def faked(act: Act = paint, answer: Response | None = None) -> Iterator[Fake]:
    made: list[Fake] = []

    def routes(server: Live) -> list[Route]:
        made.append(Fake(server, act, answer))
        return made[0].routes()

    with live(routes) as server:
        fake = made[0]
        try:
            yield fake
        finally:
            server.do(lambda: [task.cancel() for task in fake.tasks])


def arguments(address: str, folder: Path) -> list[str]:
    return ["katz", "submit", str(WORKFLOW), "--server", address, "--output", str(folder)]


@pytest.fixture
def submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Submit:
    """Runs the command in this process, because loading the nodes takes a second per process."""

    def run(address: str, *more: str, folder: Path = tmp_path) -> Outcome:
        monkeypatch.setattr(sys, "argv", [*arguments(address, folder), *more])
        with pytest.raises(SystemExit) as exit:
            main()
        return Outcome(int(exit.value.code or 0), *capsys.readouterr())

    return run


def test_a_workflow_becomes_files_and_a_line_of_json(tmp_path: Path, submit: Submit) -> None:
    with faked() as fake:
        more = ("--set", "KSampler.steps=2", "--priority", "-4", "--deadline", "60", "--token", "t")
        result = submit(fake.server.address, "--json", "--seed", "3", *more)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "day" / "a.png").read_bytes() == b"PNG"
    (body,) = fake.bodies
    printed = json.loads(result.stdout)
    assert printed == {
        "job": body["prompt_id"],
        "outputs": [str(tmp_path / "day" / "a.png")],
        "seed": 3,
        "seconds": SECONDS,
        "predicted_seconds": 1.75,
        "plan": {"devices": ["cpu"]},
        "approximations": [],
    }
    assert (body["number"], body["deadline_seconds"]) == (-4, 60)
    assert body["prompt"]["5"]["inputs"]["steps"] == 2
    assert {node["id"] for node in body["extra_data"]["extra_pnginfo"]["workflow"]["nodes"]} == {
        1,
        2,
        3,
        4,
        5,
        90,
        91,
    }
    assert fake.headers[0]["authorization"] == "Bearer t"
    for line in ("careful", "a red star", "sampling took 2.00 s, predicted 1.75 s"):
        assert line in result.stderr


def test_a_file_that_is_there_already_stays(tmp_path: Path, submit: Submit) -> None:
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "a.png").write_bytes(b"mine")
    with faked() as fake:
        assert submit(fake.server.address).returncode == 0
    assert {file.name: file.read_bytes() for file in (tmp_path / "day").iterdir()} == {
        "a.png": b"mine",
        "a (1).png": b"PNG",
    }


async def through_a_dropped_line(fake: Fake, job: Job) -> None:
    """The connection is lost twice; the job ends while it is down."""
    fake.say(job, Started(1.0))
    for _ in range(2):
        while not fake.server.hub.sockets:
            await asyncio.sleep(0.01)
        fake.server.hub.close(1012, "restarting")
        while fake.server.hub.sockets:
            await asyncio.sleep(0.01)
    fake.say(job, PlanMade("5", {"devices": ["cpu"]}))
    fake.end(job, completed(job))


def test_a_line_that_drops_loses_nothing(tmp_path: Path, submit: Submit) -> None:
    with faked(through_a_dropped_line) as fake:
        result = submit(fake.server.address, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["outputs"] == [str(tmp_path / "day" / "a.png")]
    assert "reconnecting" in result.stderr
    assert len(fake.bodies) == 1


def test_no_wait_prints_the_job(tmp_path: Path, submit: Submit) -> None:
    with faked() as fake:
        result = submit(fake.server.address, "--no-wait")
    assert (result.returncode, result.stdout) == (0, f"{fake.bodies[0]['prompt_id']}\n")
    assert fake.keys == [fake.bodies[0]["prompt_id"]]
    assert list(tmp_path.iterdir()) == []


async def never(fake: Fake, job: Job) -> None:
    fake.say(job, Started(1.0))


def test_control_c_cancels_the_job(tmp_path: Path) -> None:
    with faked(never) as fake:
        code = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom "
            "katz_graph.cli.main import main; main()"
        )
        # a shell's background jobs ignore SIGINT
        command = [sys.executable, "-c", code, *arguments(fake.server.address, tmp_path)[1:]]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            until = time.monotonic() + 30
            while not fake.server.jobs.running and time.monotonic() < until:
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert fake.cancelled == [fake.bodies[0]["prompt_id"]]
    assert errors.endswith("error: cancelled\n")


async def fail(fake: Fake, job: Job) -> None:
    fake.say(job, Started(1.0))
    fake.end(
        job,
        Ended(
            "failed", 2.0, JobError("RunError", "node 5 (KSampler): NaN at step 3", "5", "KSampler")
        ),
    )


async def cancel(fake: Fake, job: Job) -> None:
    fake.end(job, Ended("cancelled", 2.0))


@pytest.mark.parametrize(
    "act, line",
    [(fail, "error: node 5 (KSampler): NaN at step 3"), (cancel, "was cancelled on the server")],
)
def test_a_job_that_fails(act: Act, line: str, tmp_path: Path, submit: Submit) -> None:
    with faked(act) as fake:
        result = submit(fake.server.address)
    assert result.returncode == 1
    assert line in result.stderr


@pytest.mark.parametrize(
    "name, subfolder",
    [("../a.png", ""), ("a.png", "../.."), ("a.png", "/etc"), ("..", ""), ("a\\b", ""), ("", "")],
)
def test_a_server_cannot_write_outside_of_the_folder(
    name: str, subfolder: str, tmp_path: Path, submit: Submit
) -> None:
    async def lure(fake: Fake, job: Job) -> None:
        file = {"filename": name, "subfolder": subfolder, "type": "output"}
        fake.files = {name: b"PNG"}
        fake.end(job, Ended("completed", 2.0, outputs={"9": {"images": [file]}}))

    inside = tmp_path / "a" / "b"
    with faked(lure) as fake:
        result = submit(fake.server.address, folder=inside)
    assert result.returncode == 1
    assert "outside its folder" in result.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_pictures_that_a_node_sends_are_saved(tmp_path: Path, submit: Submit) -> None:
    async def send(fake: Fake, job: Job) -> None:
        for data in (b"one", b"two"):
            fake.say(job, EncodedPicture("8", "8", data, "image/png", lasting=True))
        fake.end(job, Ended("completed", 2.0))

    with faked(send) as fake:
        result = submit(fake.server.address)
    assert result.returncode == 0, result.stderr
    assert sorted(file.read_bytes() for file in tmp_path.iterdir()) == [b"one", b"two"]


def refused(kind: str, message: str, **node_errors: Any) -> dict[str, Any]:
    return {
        "error": {"type": kind, "message": message, "details": "", "extra_info": {}},
        "node_errors": node_errors,
    }


@pytest.mark.parametrize(
    "answer, code, line",
    [
        (
            JSONResponse(refused("queue_full", "64 jobs wait already"), 429, {"Retry-After": "7"}),
            1,
            "64 jobs wait already; try again in 7 s",
        ),
        (
            JSONResponse({"error": "a token is needed"}, 401),
            2,
            "a token is needed; is --token right?",
        ),
        (
            JSONResponse(
                refused(
                    "prompt_outputs_failed_validation",
                    "failed",
                    **{
                        "5": {
                            "class_type": "KSampler",
                            "errors": [{"message": "Value too small", "details": "steps"}],
                        }
                    },
                ),
                400,
            ),
            2,
            "error: node 5 (KSampler): Value too small: steps",
        ),
        (JSONResponse([], 200), 2, "is that a Katz Graph server?"),
        (Response("<html>", 200), 2, "is that a Katz Graph server?"),
        (Response("broken", 500), 1, "answered 500"),
        (
            Response(status_code=302, headers={"Location": "http://127.0.0.2/"}),
            1,
            "redirects to another address",
        ),
    ],
)
def test_refusals_are_one_line(
    answer: Response, code: int, line: str, tmp_path: Path, submit: Submit
) -> None:
    with faked(answer=answer) as fake:
        result = submit(fake.server.address)
    assert (result.returncode, len(result.stderr.splitlines())) == (code, 1)
    assert line in result.stderr


def test_an_unreachable_server(tmp_path: Path, submit: Submit) -> None:
    result = submit("http://127.0.0.1:9")
    assert (result.returncode, result.stderr) == (
        1,
        "error: --server http://127.0.0.1:9: Connection refused\n",
    )
    for address in ("ftp://here", "http://", "http://user:pass@here"):
        result = submit(address)
        assert result.returncode == 2
        assert "expected an address like" in result.stderr
