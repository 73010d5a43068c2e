"""Declares what an operator decides about a server. Knows nothing of how it is carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import TypeAdapter

from katz_graph.models.residency import PolicyName
from katz_graph.options import CACHE, GB, FolderOptions, ModelBytes, Option, PlacementOptions
from katz_graph.settings import TOKEN

MB = 2**20
RUNNER_LOCK = "runner.lock"  # in the data folder, held by a runner while it lives


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask for. Whatever is over a limit is refused with the limit's name and value in the answer."""

    body_bytes: int = 64 * MB  # of a request that is no upload
    prompt_bytes: int = 8 * MB  # of a job's graph and extra data, as JSON
    upload_bytes: Annotated[
        int,
        Option("of a picture that is uploaded", "--max-upload-size", metavar="MB", unit=MB),
    ] = 100 * MB
    upload_pixels: int = 64_000_000
    nodes: int = 10_000
    steps: int = 1_000  # of one sampler
    pixels: int = 4096 * 4096  # of one picture that a node makes
    batch: int = 64
    batch_pixels: int = 4 * 4096 * 4096  # of all pictures of one batch
    text: int = 4 * MB  # characters of one text that a node makes
    shown: int = 8 * MB  # characters of all that the nodes of one job have for editors, as JSON
    queue: Annotated[
        int,
        Option(
            "jobs that wait; one more is refused with the time to come again",
            "--queue-limit",
            min=1,
        ),
    ] = 64
    sockets: int = 256  # websockets at once
    client_sockets: int = 8  # of one client
    connections: int = 512  # at once, websockets among them; as many files may be open as well
    history: int = 10_000  # jobs that are remembered
    user_bytes: int = 256 * MB  # files that one user keeps on the server


@dataclass(frozen=True)
class AccessOptions:
    """Say where a server listens, and who may use it."""

    host: Annotated[
        str,
        Option("the address to listen on; any but loopback needs a token"),
    ] = "127.0.0.1"
    port: Annotated[int, Option("0: any that is free", min=0, max=65535)] = 8188
    token: Annotated[
        str | None,
        Option(
            "what clients have to show; on the command line others here can read it",
            envvar=TOKEN,
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option("a further name that clients call this server by", "--allowed-host", commas=True),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Option(
            "a further web page that may use it: https://example.org",
            "--allowed-origin",
            commas=True,
        ),
    ] = ()


@dataclass(frozen=True)
class ServeOptions(PlacementOptions, FolderOptions, AccessOptions):
    """Options of `katz serve`."""

    data: Annotated[
        Path,
        Option("the server's own folder: jobs, people's settings and files"),
    ] = Path("katz-data")
    extra_model_paths: Annotated[
        tuple[Path, ...],
        Option("an extra_model_paths.yaml", "--extra-model-paths --extra-model-paths-config"),
    ] = ()
    output: Annotated[
        Path | None,
        Option("where pictures go", "--output --output-directory"),
    ] = None
    cache: Annotated[str | None, CACHE] = None  # classic
    jobs_at_once: Annotated[int | None, Option("one for each device, unless given", min=1)] = None
    devices_per_job: Annotated[
        int | None,
        Option("besides those of the ControlNets; all, unless given", min=1),
    ] = None
    model_bytes: ModelBytes = None
    control_net_bytes: Annotated[
        int | None,
        Option(
            "of each device, for ControlNets; no limit, unless given",
            "--control-net-gb",
            unit=GB,
        ),
    ] = None
    control_net_policy: Annotated[
        PolicyName,
        Option("which ControlNets go first: lru, lfu"),
    ] = "lru"
    spare: Annotated[
        bool,
        Option("keep a loaded worker that stands in for one that is lost"),
    ] = True
    previews: Annotated[bool, Option("show the running picture to its owner")] = True
    keep_days: Annotated[
        float | None,
        Option("age at which finished jobs are forgotten; never, unless given", min=0),
    ] = None
    keep_bytes: Annotated[
        int | None,
        Option("of finished jobs' temporary files", "--keep-gb", unit=GB),
    ] = None
    drain_seconds: Annotated[
        float,
        Option("for running jobs at the end, before they go back to the queue", min=0),
    ] = 30
    json_logs: Annotated[bool, Option("log a JSON object a line", "--log-json")] = False
    multi_user: Annotated[
        bool,
        Option("settings apart for each name in the header Comfy-User"),
    ] = False
    frontend: Annotated[
        Path | None,
        Option("a built front end to serve at /", metavar="DIR"),
    ] = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class RunnerStart:
    """What a runner is started with. `gone`: devices to do without, which earlier runners of this server lost."""

    options: ServeOptions
    gone: tuple[str, ...] = ()


START: TypeAdapter[RunnerStart] = TypeAdapter(RunnerStart)
"""To and from plain data."""
