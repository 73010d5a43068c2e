"""Declares the operator's options for a server. Must not know how the server implements them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from katz_graph.core.devices import BY_LOAD, Lane, parse_lane
from katz_graph.core.eviction import POLICIES
from katz_graph.core.shared_rows import SharedRows
from katz_graph.planner.changes import PERMISSIONS, PLACE
from katz_graph.settings.environment import TOKEN
from katz_graph.settings.options import CACHE, GB, FolderOptions, PlacementOptions, option

KB, MB = 2**10, 2**20
RUNNER_LOCK = "runner.lock"  # in the data folder; held by a running runner


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits one client. An error about an exceeded limit names the limit and its value."""

    body_bytes: int = 64 * MB  # of a file or picture in a request body that is not an upload
    prompt_bytes: int = 8 * MB  # of a job's graph and extra data, as JSON
    upload_bytes: int = option(
        "limit for an uploaded picture",
        100 * MB,
        "--max-upload-size",
        metavar="MB",
        min=0,
        unit=MB,
    )
    upload_pixels: int = 64_000_000
    nodes: int = 10_000
    steps: int = 1_000  # of one sampler
    pixels: int = 4096 * 4096  # of one picture that a node creates
    batch: int = 64
    batch_pixels: int = 4 * 4096 * 4096  # of all pictures of one batch
    text: int = 4 * MB  # characters of one text that a node creates
    prompt_text: int = 32 * KB  # characters of one text that a text encoder reads
    shown: int = 8 * MB  # characters of all editor results of one job's nodes, as JSON
    queue: int = option(
        "waiting jobs, shared by clients; more are refused with a time to retry",
        64,
        "--queue-limit",
        min=1,
    )
    sockets: int = 256  # concurrent websockets
    client_sockets: int = 8  # concurrent websockets of one client
    connections: int = 512  # concurrent, including websockets; each may also have a file open
    history: int = 10_000  # finished jobs in the history
    user_bytes: int = 256 * MB  # files that one user stores on the server


@dataclass(frozen=True)
class AccessOptions:
    """Sets the server's address and access control. Without a token, only this machine connects."""

    host: str = option("the address to listen on; any but loopback needs a token", "127.0.0.1")
    port: int = option("port to listen on; 0: any free port", 8188, min=0, max=65535)
    token: str | None = option(
        "token that clients send; other users of this machine can read the command line",
        envvar=TOKEN,
    )
    allowed_hosts: tuple[str, ...] = option(
        "a further host name under which clients reach this server",
        (),
        "--allowed-host",
        commas=True,
    )
    allowed_origins: tuple[str, ...] = option(
        "a further origin whose pages may use the server: https://example.org",
        (),
        "--allowed-origin",
        commas=True,
    )


@dataclass(frozen=True)
class ServeOptions(PlacementOptions, FolderOptions, AccessOptions):
    """Configures a server. `data` holds the job store, users' files and crash logs."""

    data: Path = option(
        "the server's own folder: jobs, users' settings and files",
        Path("katz-data"),
    )
    extra_model_paths: tuple[Path, ...] = option(
        "an extra_model_paths.yaml",
        (),
        "--extra-model-paths --extra-model-paths-config",
    )
    input: Path | None = option("folder for LoadImage and uploads", file_okay=False)
    output: Path | None = option("folder for pictures", None, "--output --output-directory")
    cache: str | None = option(CACHE)  # default: classic
    jobs_at_once: int | None = option(
        "jobs that run at the same time, of which devices serve the earliest first; default: "
        "three for each group of devices, or two more than --shared-rows",
        min=1,
    )
    slo: float | None = option(
        "jobs are due this many times their predicted seconds after they arrive; default: never",
        metavar="FACTOR",
    )
    late: str = option(
        "waiting jobs that cannot end by their due times finish, after all others, or fail",
        "finish",
        metavar="finish|fail",
    )
    devices_per_job: str | None = option(
        "devices for one job, not counting those of ControlNets; auto: one, or all where that "
        "delays other jobs by less than it saves; default: all",
        metavar="N|auto",
    )
    shared_rows: str = option(
        "most rows of a model's call that jobs share, N; N:fixed: always N rows, so that the bytes "
        "of images do not depend on other jobs; 0: jobs share no calls",
        "0",
        metavar="N[:fixed]",
    )
    permit: str = option(
        f"settings that jobs may choose, separated by commas: {', '.join(PERMISSIONS)}",
        PLACE,
    )
    control_net_bytes: int | None = option(
        "memory of each device for ControlNets; default: no limit",
        None,
        "--control-net-gb",
        min=0,
        unit=GB,
    )
    control_net_policy: str = option(f"ControlNets to evict first: {', '.join(POLICIES)}", "lru")
    preload: tuple[str, ...] = option(
        "a workflow to run, or a checkpoint to load, before jobs run; a failure is logged",
        (),
        metavar="FILE|WORKFLOW",
    )
    spare: bool = option("keep a started worker ready to replace a lost one", True)
    previews: bool = option("send previews to the job's client", True)
    keep_days: float | None = option(
        "days until finished jobs are deleted; default: never",
        min=0,
    )
    keep_bytes: int | None = option(
        "limit for finished jobs' temporary files",
        None,
        "--keep-gb",
        min=0,
        unit=GB,
    )
    drain_seconds: float = option(
        "time for the jobs that devices serve at shutdown, before they return to the queue",
        30,
        min=0,
    )
    stop_seconds: float = option(
        "time for a cancelled job to stop before the runner is replaced, and for checking a prompt",
        30,
        min=0,
    )
    json_logs: bool = option("log one JSON object per line", False, "--log-json --json")
    multi_user: bool = option(
        "separate settings and files for each user in the Comfy-User header", False
    )
    frontend: Path | None = option("a built front end to serve at /", metavar="DIR")
    limits: Limits = field(default_factory=Limits)

    @property
    def lane(self) -> Lane:
        """Parses `devices_per_job`. Raises InputError for a value that is not possible."""
        return parse_lane(self.devices_per_job, self.device_list().names)

    @property
    def rows(self) -> SharedRows:
        """Parses `shared_rows`. Raises InputError for a value that is not possible."""
        return SharedRows.parse(self.shared_rows, self.limits.batch)

    @property
    def jobs_served(self) -> int:
        """Returns how many jobs devices serve at the same time: one for each group of devices, or
        as many as their shared calls have rows. Also counts the devices of ControlNets (`--place`),
        although these belong to no group.
        """
        served = self.groups * max(1, self.rows.most)
        return min(served, self.jobs_at_once or served)

    @property
    def groups(self) -> int:
        """Returns the number of groups of devices. A group serves one job at a time, or several
        that share calls.
        """
        count = max(1, len(self.device_list().choices))
        size = 1 if self.lane == BY_LOAD else self.lane or count
        return math.ceil(count / size)

    @property
    def jobs_running(self) -> int:
        """Returns how many jobs the runner has at the same time. While one samples, another saves
        its results, and the next prepares its work.
        """
        return self.jobs_at_once or self.jobs_served + 2 * self.groups


@dataclass(frozen=True, slots=True)
class RunnerStart:
    """Holds the start parameters of a runner. `excluded`: devices that earlier runners of this
    server lost.
    """

    options: ServeOptions
    excluded: tuple[str, ...] = ()
