"""Runs jobs in a runner with its devices, alone and concurrently, as the server does. Jobs change
nothing outside the runner's processes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from PIL import Image
from processes import below, eventually, runs

from katz_graph.core.events import NodeDone, NodeStarted, PackMessage, Progress, Timeline
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.testing.server_process import painting
from katz_graph.web.events import (
    Cached,
    ClientEvent,
    EncodedPicture,
    Ended,
    JobEvent,
    PlanMade,
    Wrote,
)
from katz_graph.web.jobs.job import Job
from katz_graph.web.options import ServeOptions
from katz_graph.web.runner.reporter import PACE
from katz_graph.web.runner_client.manager import Runner
from katz_graph.web.runner_client.messages import Check, Free, GetObjectInfo, GetPacks

Result = TypeVar("Result")
PACK = Path(__file__).with_name("troublesome.py")
LOOP = Path(__file__).parents[2] / "workflows" / "loop_by_hand.json"
# nodes of a step region, which are no outputs
INSIDE = ("StepBegin", "UNetEncoder", "UNetMid", "UNetDecoder", "Break")
TEXT_TO_IMAGE = Path(__file__).parents[2] / "workflows" / "txt2img.json"


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


class Driver:
    """Runs a runner on an event loop in a thread, and collects its reports."""

    def __init__(self, folder: Path, workers: ForkServer) -> None:
        (folder / "packs").mkdir(parents=True)
        shutil.copy(PACK, folder / "packs")
        (folder / "packs" / "broken.py").write_text("import no_such_module\n")
        self.output = folder / "output"
        self.received: list[JobEvent] = []
        self.lost: list[tuple[Sequence[str], str]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        options = ServeOptions(
            data=folder / "data",
            packs=(folder / "packs",),
            input=folder / "input",
            output=self.output,
            threads=1,
        )
        self.workers = workers
        self.runner = Runner(
            options,
            self.received.append,
            lambda ids, why, blamed: self.lost.append((ids, why)),
            workers=self.workers.begin,
        )
        self.wait(self.runner.start())
        self.origin = self.forked_from()

    def wait(self, work: Coroutine[Any, Any, Result], seconds: float = 300) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def close(self) -> None:
        self.wait(self.runner.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(
        self,
        name: str,
        prompt: Mapping[str, Any],
        client: str | None = "me",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        assert not self.events(name), "the name of an earlier job"
        targets = [id for id, call in prompt.items() if call["class_type"] not in INSIDE]
        self.wait(
            self.runner.run(
                Job(name, 0, prompt, tuple(targets), client, extra or {}, "pending", time.time())
            )
        )

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, self.received[-5:]
            time.sleep(0.005)

    def events(self, name: str) -> list[ClientEvent]:
        return [one.event for one in self.received if one.job == name]

    def ended(self, name: str) -> Ended:
        self.until(lambda: any(isinstance(event, Ended) for event in self.events(name)))
        last = self.events(name)[-1]
        assert isinstance(last, Ended)
        return last

    def forked_from(self) -> int:
        """Returns the process from which the runner's first worker was forked."""
        stat = Path(f"/proc/{self.runner.facts.workers['cpu']}/stat").read_text()
        return int(stat.rsplit(")", 1)[1].split()[1])

    def run(self, name: str, prompt: Mapping[str, Any], **options: Any) -> Ended:
        self.start(name, prompt, **options)
        return self.ended(name)


@pytest.fixture(scope="module")
def driver(
    tmp_path_factory: pytest.TempPathFactory, costs: Path, fork_server: ForkServer
) -> Iterator[Driver]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KATZ_CACHE", str(costs))
        driver = Driver(tmp_path_factory.mktemp("runner"), fork_server)
        yield driver
        driver.close()


def picture(driver: Driver, name: str) -> bytes:
    """Returns the pixels that a job paints."""
    document = json.loads(TEXT_TO_IMAGE.read_text())
    prompt = driver.wait(driver.runner.ask(Check(document, None))).prompt
    assert prompt is not None
    (sampler,) = [call for call in prompt.values() if call["class_type"] == "KSampler"]
    sampler["inputs"]["steps"] = 2
    return shown(driver, driver.run(name, prompt))


def shown(driver: Driver, ended: Ended) -> bytes:
    ((file,),) = (outputs["images"] for outputs in ended.outputs.values())
    with Image.open(driver.output / file["filename"]) as picture:
        return picture.tobytes()


def test_it_reports_its_contents(driver: Driver) -> None:
    facts = driver.runner.facts
    assert [(device.name, device.device) for device in facts.devices] == [
        ("cpu", "cpu")
    ] and facts.nodes > 100
    packs = {pack.name: pack for pack in driver.wait(driver.runner.ask(GetPacks()))}
    assert sum(pack.nodes for pack in packs.values()) == facts.nodes
    assert packs["troublesome"].nodes > 0 and packs["troublesome"].problems == ()
    (why,) = packs["broken"].problems
    assert packs["broken"].nodes == 0 and "no_such_module" in why
    described = json.loads(driver.wait(driver.runner.ask(GetObjectInfo("Wait"))))
    assert list(described) == ["Wait"] and described["Wait"]["output_node"] is True
    assert json.loads(driver.wait(driver.runner.ask(GetObjectInfo("Nothing")))) == {}
    (device,) = driver.wait(driver.runner.stats()).devices
    assert 0 < device.free <= device.total


def test_a_workflow_becomes_a_picture_that_carries_it(driver: Driver) -> None:
    checked = driver.wait(driver.runner.ask(Check(json.loads(TEXT_TO_IMAGE.read_text()), None)))
    assert checked.error is None and checked.prompt is not None
    job = Job(
        "p",
        0,
        checked.prompt,
        checked.targets,
        "me",
        {"extra_pnginfo": {"workflow": {"nodes": []}}},
        "pending",
        time.time(),
    )
    driver.wait(driver.runner.run(job))
    ended = driver.ended("p")
    assert ended.status == "completed" and ended.error is None, ended
    ((saver, shown),) = ended.outputs.items()
    (entry,) = shown["images"]
    with Image.open(driver.output / entry["subfolder"] / entry["filename"]) as picture:
        written = dict(picture.text)  # type: ignore[attr-defined]
    assert json.loads(written["prompt"]) == checked.prompt and json.loads(written["workflow"]) == {
        "nodes": []
    }
    assert json.loads(written["katz"])["devices"] == "cpu"
    assert ended.meta[saver] == {
        "node_id": saver,
        "display_node": saver,
        "parent_node": None,
        "real_node_id": saver,
    }
    assert ended.predicted and 0 < ended.seconds["denoise"] < ended.seconds["total"]

    events = driver.events("p")
    assert [event.kind for event in events[:2]] == ["started", "cached"] and events[-1] is ended
    (written_file,) = [event for event in events if isinstance(event, Wrote)]
    assert (written_file.place, written_file.path) == ("output", entry["filename"])
    (plan,) = [event.plan for event in events if isinstance(event, PlanMade)]
    steps = [event for event in events if isinstance(event, Progress)]
    assert steps[-1].value == steps[-1].maximum == plan["evaluations"] == 20
    previews = [event for event in events if isinstance(event, EncodedPicture)]
    assert previews and all(
        event.image.startswith(b"\xff\xd8") and not event.lasting for event in previews
    )
    spans = [
        segment for event in events if isinstance(event, Timeline) for segment in event.segments
    ]
    assert all(
        0 <= segment.start <= segment.start + segment.seconds <= ended.seconds["total"]
        for segment in spans
    )
    assert {segment.evaluation for segment in spans} >= set(range(20))
    started = [event.node for event in events if isinstance(event, NodeStarted)]
    done = [event.node for event in events if isinstance(event, NodeDone)]
    assert set(started) == set(done) == set(ended.executed)


def test_a_client_can_do_without_previews(driver: Driver) -> None:
    prompt = json.loads(
        json.dumps(
            driver.wait(
                driver.runner.ask(Check(json.loads(TEXT_TO_IMAGE.read_text()), None))
            ).prompt
        )
    )
    (sampler,) = [call for call in prompt.values() if call["class_type"] == "KSampler"]
    sampler["inputs"] |= {"seed": 77, "steps": 12}
    assert driver.run("unseen", prompt, extra={"preview_method": "none"}).status == "completed"
    events = driver.events("unseen")
    assert any(isinstance(event, Progress) for event in events) and not any(
        isinstance(event, EncodedPicture) for event in events
    )


def test_a_job_reports_cached_results_before_its_end(driver: Driver) -> None:
    prompt = {"1": node("Say", text="hello"), "2": node("Wait", value=["1", 0])}
    driver.run("first", prompt)
    again = driver.run("again", prompt)
    assert again.executed == ("1", "2") and set(again.cached) == {"1", "2"}
    cached = [event for event in driver.events("again") if isinstance(event, Cached)]
    assert [set(event.nodes) for event in cached] == [{"1", "2"}]
    assert not any(isinstance(event, NodeStarted) for event in driver.events("again"))
    shown = {
        event.node: event.ui for event in driver.events("again") if isinstance(event, NodeDone)
    }
    # NaN becomes null, because clients could not parse it
    assert shown == {"1": {"text": ["hello", None]}, "2": None}


def test_requests_of_one_user_are_hidden_from_others(driver: Driver) -> None:
    """The reason for a node's run refers to the user's own last run, never to another user's."""
    driver.run("mine", {"1": node("Say", text="my secret")}, client="me")
    driver.run("theirs", {"1": node("Say", text="theirs")}, client="them")
    driver.run("mine again", {"1": node("Say", text="other")}, client="me")
    done = [(one.job, one.event) for one in driver.received if isinstance(one.event, NodeDone)]
    why = {job: event.why for job, event in done if event.node == "1"}
    assert why["theirs"] == "new" and "my secret" in why["mine again"]


def test_jobs_run_side_by_side_and_each_is_stopped_alone(driver: Driver) -> None:
    """Nodes of packs run for one job at a time; in ComfyUI no two jobs run at the same time."""
    driver.start("long", {"1": node("Wait", seconds=100)})
    driver.until(lambda: any(isinstance(event, Progress) for event in driver.events("long")))
    driver.start("other", {"1": node("Wait", seconds=50)})
    driver.start("third", {"1": node("Wait", seconds=0.1)})
    native = {
        "1": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        "2": node("PreviewImage", images=["1", 0]),
    }
    assert driver.run("native", native).status == "completed"
    driver.wait(driver.runner.cancel("other"))
    assert driver.ended("other").status == "cancelled"
    assert not any(isinstance(event, Progress | Ended) for event in driver.events("third"))
    driver.wait(driver.runner.cancel("long"))
    assert driver.ended("long").status == "cancelled"  # the wait is shorter than the job
    assert driver.ended("third").status == "completed"


def test_a_job_samples_while_an_earlier_one_still_saves(driver: Driver) -> None:
    prompt = painting(7, 2)
    driver.start("saves", {**prompt, "7": node("Wait", seconds=100, value=["6", 0])})
    driver.until(lambda: any(isinstance(event, Progress) for event in driver.events("saves")))
    assert driver.run("samples", painting(8, 2)).status == "completed"
    driver.wait(driver.runner.cancel("saves"))
    assert driver.ended("saves").status == "cancelled"


def test_progress_comes_at_a_readable_pace_and_the_last_always(
    driver: Driver,
) -> None:
    began = time.monotonic()
    driver.run("counting", {"1": node("Wait", seconds=1)})
    seconds = time.monotonic() - began
    reported = [event for event in driver.events("counting") if isinstance(event, Progress)]
    assert 3 <= len(reported) <= seconds / PACE + 2, "the first, some between, and the last"
    assert (reported[-1].value, reported[-1].maximum) == (100, 100)


def test_prints_of_nodes_are_logged(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "katz.runner"):
        driver.run("prints", {"1": node("Say", text="a line of a pack")})
        driver.until(lambda: "a line of a pack" in caplog.messages)


def test_pictures_and_messages_are_sent_to_the_submitter(driver: Driver) -> None:
    driver.run("sends", {"1": node("Send")})
    (picture,) = [event for event in driver.events("sends") if isinstance(event, EncodedPicture)]
    assert (picture.image, picture.media_type, picture.lasting, picture.node) == (
        b"\x89PNG",
        "image/png",
        True,
        "1",
    )
    (message,) = [event for event in driver.events("sends") if isinstance(event, PackMessage)]
    assert (
        message.type == "my.pack" and message.client is None and message.data["numbers"] == [1, 2]
    )
    assert isinstance(message.data["what"], str)  # a value that is not JSON becomes its text


def test_a_failed_job_names_the_node_and_keeps_its_results(driver: Driver) -> None:
    prompt = {
        "1": node("Say", text="made"),
        "2": node("SaveImage", images=["1", 0], filename_prefix="x"),
    }
    ended = driver.run("fails", prompt)
    assert ended.status == "failed" and ended.error is not None
    assert (ended.error.node, ended.error.node_type) == (
        "2",
        "SaveImage",
    ) and "SaveImage" in ended.error.message
    assert ended.outputs["1"] == {"text": ["made", None]} and ended.executed == ("1",)


def test_memory_is_freed_when_nothing_runs(driver: Driver) -> None:
    before = picture(driver, "before")
    driver.run("kept", {"1": node("Say", text="kept")})
    driver.start("busy", {"1": node("Wait", seconds=0.5)})
    driver.wait(driver.runner.ask(Free(True, True)), 5)  # returns before the job ends
    assert driver.run("waits", {"1": node("Say", text="kept")}).status == "completed"
    assert driver.ended("busy").status == "completed"
    # its cached result was deleted
    assert any(isinstance(event, NodeStarted) for event in driver.events("waits"))
    assert driver.wait(driver.runner.stats()).cached_results == 1
    assert picture(driver, "after") == before  # with reloaded models
    assert any(isinstance(event, PlanMade) for event in driver.events("after"))


def looped(driver: Driver, seed: int, mark: Path, times: int) -> Mapping[str, Any]:
    """Returns an explicit loop of two evaluations that breaks its device `times` times."""
    document = json.loads(LOOP.read_text())
    for call in document.values():
        if call["class_type"] == "StepBegin":
            call["inputs"] |= {"seed": seed, "steps": 2}
        elif call["class_type"] == "CFGCombine":
            call["class_type"] = "Break"
            call["inputs"] = {name: call["inputs"][name] for name in ("cond", "uncond")} | {
                "mark": str(mark),
                "times": times,
            }
    checked = driver.wait(driver.runner.ask(Check(document, None)))
    assert checked.prompt is not None, checked
    return checked.prompt


@pytest.mark.slow
def test_jobs_on_failed_devices_run_again_and_one_that_always_breaks_them_is_set_aside(
    driver: Driver, tmp_path: Path
) -> None:
    """One device runs 10 jobs, four at a time, and is lost three times. Jobs that merely run
    concurrently are not blamed.
    """
    restarts = driver.wait(driver.runner.stats()).worker_restarts
    times = {f"loop {seed}": {3: 1, 7: 1000}.get(seed, 0) for seed in range(10)}
    prompts = {
        name: looped(driver, seed, tmp_path / name, times[name]) for seed, name in enumerate(times)
    }
    with ThreadPoolExecutor(4) as pool:
        ended = dict(zip(prompts, pool.map(driver.run, prompts, prompts.values()), strict=True))
    bad = ended.pop("loop 7")
    assert {end.status for end in ended.values()} == {"completed"}, [
        end.error for end in ended.values()
    ][:3]
    assert bad.status == "failed" and bad.error is not None and bad.error.kind == "WorkerLost"
    assert (
        "cpu: the device failed: CUDA error: an illegal memory access was encountered, "
        "in 2 attempts" in bad.error.message
    )
    assert driver.runner.restarts == 0
    assert driver.wait(driver.runner.stats()).worker_restarts == restarts + 3
    again = driver.run("undisturbed", looped(driver, 3, tmp_path / "undisturbed", 0))
    assert shown(driver, again) == shown(driver, ended["loop 3"])


def test_a_job_that_ends_its_process_is_lost_and_the_next_one_runs(driver: Driver) -> None:
    """The fork server of the workers survives."""
    driver.start("another", painting(9, 1000, 256))
    driver.start("ends", {"1": node("Trouble")})
    driver.until(lambda: bool(driver.lost))
    ((jobs, why),) = driver.lost
    assert list(jobs) == ["another", "ends"] and "SIGKILL" in why
    assert driver.run("next", {"1": node("Say", text="hello")}).status == "completed"
    assert driver.runner.restarts == 1
    assert driver.forked_from() == driver.origin


def test_a_runner_with_a_killed_server_undoes_unrecorded_work_and_ends(
    driver: Driver, tmp_path: Path
) -> None:
    """A job that will run again must not find its own earlier files; files on record stay."""
    (tmp_path / "packs").mkdir()
    shutil.copy(PACK, tmp_path / "packs")
    workers = driver.workers.begin()
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("short_server.py"), tmp_path, str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[workers],
    )
    try:
        assert server.stdout is not None
        worker = int(server.stdout.readline())
        family = below(server.pid) | {worker}
        written = {file.name for file in (tmp_path / "output").iterdir()}
        assert written == {"kept_00001_.txt", "ended_00001_.txt", "runs_00001_.txt"}
    finally:
        server.kill()
        server.wait()
    assert len(family) >= 2  # the runner and its device's worker
    eventually(lambda: not any(map(runs, family)), 10)
    assert [file.name for file in (tmp_path / "output").iterdir()] == ["kept_00001_.txt"]
