"""A pack for tests of the runner: its nodes print, wait, write, send, and kill the process in which
they run.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from katz_graph.core.events import PackMessage, Progress
from katz_graph.files.output_files import write_numbered
from katz_graph.node import Node
from katz_graph.node.types import Context
from katz_graph.node.ui_results import announced, with_ui
from katz_graph.node.wires import Anything, Prediction, Socket

Text = Annotated[str, Socket("STRING")]
Seconds = Annotated[float, Field(ge=0, le=1000)]


class Say(Node, category="test", output=True):
    """Prints a text and shows it."""

    text: str = ""

    def run(self) -> Text:
        print(self.text)
        return with_ui(self.text, text=[self.text, float("nan")])


class Wait(Node, category="test", output=True):
    """Waits, reporting each hundredth of a second."""

    seconds: Seconds = 0.0

    def run(self, context: Context, value: Anything = None) -> Anything:
        steps = int(self.seconds * 100)
        for step in range(steps):
            context.check_cancelled()
            context.report(Progress("wait", step + 1, steps))
            time.sleep(0.01)
        return value


class Write(Node, category="test", output=True):
    """Writes a file."""

    name: str = "note"

    def run(self, context: Context) -> Text:
        path = write_numbered(
            context.output_directory, self.name, ".txt", lambda file: file.write(b"text")
        )
        return with_ui(path.name, files=announced(context, "output", [path]))


class Send(Node, category="test", output=True):
    """Sends a picture and a message to the run's client."""

    def run(self, context: Context) -> Text:
        context.deliver(b"\x89PNG")
        context.report(PackMessage("my.pack", {"numbers": (1, 2), "what": object()}))
        return ""


class Trouble(Node, category="test", output=True):
    """Ends this process."""

    def run(self) -> Text:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


class Break(Node, category="test"):
    """Raises a device error in a step region in its first `times` runs, which the file `mark`
    counts.
    """

    mark: str = ""
    times: int = 0

    def run(self, cond: Prediction, uncond: Prediction) -> Prediction:
        with Path(self.mark).open("a") as mark:
            if mark.tell() < self.times:
                mark.write("x")
                mark.flush()
                raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return cond
