"""Replaces the runner in tests of the server: follows instructions in jobs and starts within a
second, without torch and packs.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from katz_graph.core.events import Warned
from katz_graph.ipc.heartbeat import Ping, Pong, Stop
from katz_graph.web.events import JOB_EVENT, Ended, JobEvent, Started
from katz_graph.web.runner_client.facts import CheckedPrompt, RunnerFacts
from katz_graph.web.runner_client.messages import (
    Answer,
    Cancel,
    Check,
    Failed,
    GetObjectInfo,
    GetStats,
    Happened,
    Ready,
    Refused,
    ReplaceRequested,
    Run,
    Start,
    Taken,
)
from katz_graph.web.runner_client.wire import Numbered, ThreadedEnd

IS_READY = threading.Event()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--descriptor", type=int)
    parser.add_argument("--fails", default="")
    parser.add_argument(
        "--once", type=Path, help="the runner starts while this file is not there, and makes it"
    )
    parser.add_argument("--until", type=Path, help="the runner is ready once this file is there")
    parser.add_argument(
        "--absent",
        default="",
        help="a device without which later starts fail, unless they are told to do without it",
    )
    arguments = parser.parse_args()
    later = bool(arguments.once and arguments.once.exists())
    wire = ThreadedEnd(socket.socket(fileno=arguments.descriptor))
    if arguments.fails or (later and not arguments.absent):
        wire.send(Failed(arguments.fails or "there is no second start", False, ()))
        return
    if arguments.once:
        arguments.once.touch()
    for arrived in wire.receive():
        if isinstance(arrived.message, Start):
            given = arrived.message.start
            assert given.options.token is None and "KATZ_TOKEN" not in os.environ  # packs run here
            start(wire, given.excluded, arguments.absent if later else "", arguments.until)
        else:
            obey(wire, arrived)


def start(wire: ThreadedEnd, excluded: tuple[str, ...], absent: str, until: Path | None) -> None:
    if absent and absent not in excluded:
        wire.send(Failed(f"device {absent}: it is gone", False, (absent,)))
    else:
        threading.Thread(target=get_ready, args=(wire, excluded, until), daemon=True).start()


def get_ready(wire: ThreadedEnd, excluded: tuple[str, ...], until: Path | None) -> None:
    while until is not None and not until.exists():
        time.sleep(0.01)
    wire.send(Ready(RunnerFacts(nodes=7, excluded=excluded)))
    IS_READY.set()


def obey(wire: ThreadedEnd, arrived: Numbered) -> None:
    match arrived.message:
        case Ping():
            wire.send(Pong())
        case Run(job, order):
            wire.send(Taken(job))
            report(wire, JobEvent(job, Started(time.time())))
            run(wire, job, order["prompt"].get("do", ""))
        case Cancel(job):
            report(wire, JobEvent(job, Ended("cancelled", time.time())))
        case Check(document):
            check(wire, arrived.number, document["dies"])
        case GetObjectInfo():
            wire.send(Answer(b"{}"), arrived.number)
        case GetStats():
            wire.send(Refused("no figures"), arrived.number)
        case Stop():
            sys.exit(0)


def check(wire: ThreadedEnd, number: int, dies: int) -> None:
    """Ends this runner if it is among the first `dies`; else answers."""
    mark = Path(tempfile.gettempdir(), f"katz-fake-{os.getppid()}-{dies}")
    with mark.open("a") as opened:
        opened.write("x")
        ended = opened.tell()
    if ended <= dies:
        IS_READY.wait(10)  # a runner that dies earlier has not started, and is asked again
        os._exit(9)
    mark.unlink()
    notes = CheckedPrompt(notes=("checked by the next one",))
    wire.send(Answer(Check.answer.dump_python(notes)), number)


def report(wire: ThreadedEnd, event: JobEvent) -> None:
    wire.send(Happened(JOB_EVENT.dump_python(event)))


def run(wire: ThreadedEnd, job: str, what: str) -> None:
    if what == "leave something behind":
        left = subprocess.Popen(["sleep", "1000"])
        report(wire, JobEvent(job, Warned(str(left.pid))))
        os._exit(9)
    elif what == "die":
        report(wire, JobEvent(job, Warned("last words")))
        print("a pack's last line", flush=True)
        os._exit(9)
    elif what.startswith("wear out"):
        wire.send(ReplaceRequested("a device's worker died too often", what.split()[2:]))
    elif what == "speak nonsense":
        wire.send(Happened({"kind": "warned", "job": job, "message": 7}))
        wire.send(Happened({"kind": "ended", "job": job, "status": "wonderful"}))
        return
    elif what == "hold the interpreter":
        ctypes.PyDLL(None).sleep(1000)
    elif what == "stay":
        return
    report(wire, JobEvent(job, Ended("completed", time.time())))


if __name__ == "__main__":
    main()
