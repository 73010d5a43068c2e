"""Holds the parts that the routes of one server share. Must not know what they do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from katz_graph.files.folders import Folders
from katz_graph.web.http.responses import PathRedactor
from katz_graph.web.options import ServeOptions

if TYPE_CHECKING:
    from katz_graph.web.jobs.jobs import Jobs
    from katz_graph.web.live.hub import Hub
    from katz_graph.web.metrics import Metrics
    from katz_graph.web.runner_client.manager import Runner


@dataclass(slots=True)
class State:
    """The parts of a server. `folders` never name paths outside of themselves (`paths=False`).
    `draining`: the server was asked to end and takes no new jobs.
    """

    options: ServeOptions
    folders: Folders
    concealment: PathRedactor
    jobs: Jobs
    runner: Runner
    hub: Hub
    metrics: Metrics
    draining: bool = False

    @property
    def data(self) -> Path:
        return self.options.data
