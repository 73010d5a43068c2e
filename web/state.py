"""Holds the parts that the routes of one server share. Must not know their implementations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from katz_graph.files.folders import TEMP, Folders
from katz_graph.web.files.listing import FolderIndex
from katz_graph.web.files.paths import PLACES, Place, folder_of
from katz_graph.web.http.responses import PathRedactor
from katz_graph.web.options import ServeOptions

if TYPE_CHECKING:
    from katz_graph.web.jobs.jobs import Jobs
    from katz_graph.web.live.hub import Hub
    from katz_graph.web.metrics import Metrics
    from katz_graph.web.runner_client.manager import Runner


@dataclass(slots=True)
class State:
    options: ServeOptions
    # with `paths=False`: the folders never name paths outside themselves
    folders: Folders
    concealment: PathRedactor
    jobs: Jobs
    runner: Runner
    hub: Hub
    metrics: Metrics
    draining: bool = False  # the server is shutting down and takes no new jobs
    listings: Mapping[Place, FolderIndex] = field(init=False)  # file indexes by place

    def __post_init__(self) -> None:
        self.listings = {
            place: FolderIndex(folder_of(self.folders, place), TEMP) for place in PLACES
        }

    @property
    def data(self) -> Path:
        return self.options.data
