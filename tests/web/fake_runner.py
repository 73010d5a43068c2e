"""Stands for the runner where only the server's side is tested: obeys in a second what jobs tell it
to do, without torch and packs.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from katz_graph.events import Warned
from katz_graph.web.events import JOB_EVENT, Ended, JobEvent, Started
from katz_graph.web.runner_client.facts import FACTS, RunnerFacts
from katz_graph.web.runner_client.wire import RunnerMessage, ThreadedEnd


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--descriptor", type=int)
    parser.add_argument("--fails", default="")
    parser.add_argument("--once", type=Path, help="the runner starts while this file is not there, and makes it")
    parser.add_argument("--until", type=Path, help="the runner is ready once this file is there")
    parser.add_argument("--absent", default="", help="a device without which later starts fail, unless they are told to do without it")
    arguments = parser.parse_args()
    later = bool(arguments.once and arguments.once.exists())
    wire = ThreadedEnd(socket.socket(fileno=arguments.descriptor))
    if arguments.fails or (later and not arguments.absent):
        wire.send("failed", {"message": arguments.fails or "there is no second start", "input": False, "devices": []})
        return
    if arguments.once:
        arguments.once.touch()
    for message in wire.receive():
        if message.kind == "start":
            assert message.body["options"]["token"] is None and "KATZ_TOKEN" not in os.environ  # packs run there
            start(wire, message.body["gone"], arguments.absent if later else "", arguments.until)
        else:
            obey(wire, message)


def start(wire: ThreadedEnd, gone: list[str], absent: str, until: Path | None) -> None:
    if absent and absent not in gone:
        wire.send("failed", {"message": f"device {absent}: it is gone", "input": False, "devices": [absent]})
    else:
        threading.Thread(target=get_ready, args=(wire, gone, until), daemon=True).start()


def get_ready(wire: ThreadedEnd, gone: list[str], until: Path | None) -> None:
    while until is not None and not until.exists():
        time.sleep(0.01)
    wire.send("ready", FACTS.dump_python(RunnerFacts(nodes=7, gone=tuple(gone))))


def obey(wire: ThreadedEnd, message: RunnerMessage) -> None:
    match message.kind:
        case "ping":
            wire.send("pong", number=message.number)
        case "run":
            job, what = message.body["id"], message.body["prompt"].get("do", "")
            wire.send("taken", job)
            wire.send("event", JOB_EVENT.dump_python(JobEvent(job, Started(time.time()))))
            run(wire, job, what)
        case "cancel":
            wire.send("event", JOB_EVENT.dump_python(JobEvent(message.body, Ended("cancelled", time.time()))))
        case "object_info":
            wire.send("answer", b"{}", message.number)
        case "stats":
            wire.send("refused", "no figures", message.number)
        case "stop":
            sys.exit(0)


def run(wire: ThreadedEnd, job: str, what: str) -> None:
    if what == "leave something behind":
        left = subprocess.Popen(["sleep", "1000"])
        wire.send("event", JOB_EVENT.dump_python(JobEvent(job, Warned(str(left.pid)))))
        os._exit(9)
    elif what == "die":
        wire.send("event", JOB_EVENT.dump_python(JobEvent(job, Warned("last words"))))
        print("a pack's last line", flush=True)
        os._exit(9)
    elif what.startswith("wear out"):
        wire.send("worn", {"message": "a device's worker died too often", "devices": what.split()[2:]})
    elif what == "speak nonsense":
        wire.send("event", {"kind": "warned", "job": job, "message": 7})
        wire.send("event", {"kind": "ended", "job": job, "status": "wonderful"})
        return
    elif what == "hold the interpreter":
        ctypes.PyDLL(None).sleep(1000)
    elif what == "stay":
        return
    wire.send("event", JOB_EVENT.dump_python(JobEvent(job, Ended("completed", time.time()))))


if __name__ == "__main__":
    main()
