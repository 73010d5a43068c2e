"""Runs a server with a runner that writes files and waits to be killed: `short_server.py FOLDER
WORKERS`. WORKERS is the descriptor of a connection to a fork server. Prints the process id of its
device's worker when the files are written.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from katz_graph.web.events import Ended, JobEvent, Wrote
from katz_graph.web.jobs.job import Job
from katz_graph.web.options import ServeOptions
from katz_graph.web.runner_client.manager import Runner
from katz_graph.web.runner_client.messages import GetObjectInfo

WRITE = {"class_type": "Write", "inputs": {}}


async def main(folder: Path, workers: int) -> None:
    events: asyncio.Queue[JobEvent] = asyncio.Queue()
    options = ServeOptions(
        data=folder / "data",
        packs=(folder / "packs",),
        input=folder / "input",
        output=folder / "output",
        threads=1,
    )
    runner = Runner(
        options, events.put_nowait, lambda ids, why, blamed: None, workers=lambda: workers
    )
    await runner.start()
    prompts = {
        "kept": {"1": {**WRITE, "inputs": {"name": "kept"}}},
        "ended": {"1": {**WRITE, "inputs": {"name": "ended"}}},
        "runs": {
            "1": {**WRITE, "inputs": {"name": "runs"}},
            "2": {"class_type": "Wait", "inputs": {"seconds": 100, "value": ["1", 0]}},
        },
    }
    for name, prompt in prompts.items():
        await runner.run(Job(name, 0, prompt, tuple(prompt), None, {}, "pending", time.time()))
        while not isinstance(
            (received := await events.get()).event, Wrote if name == "runs" else Ended
        ):
            pass
        if name == "kept":
            runner.keep_files(received.job)
    await runner.ask(GetObjectInfo("Wait"))  # all earlier messages have been received
    print(runner.facts.workers["cpu"], flush=True)
    await asyncio.sleep(1000)


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
