"""What an operator decides about a server. Knows nothing of how it is carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from katz_graph.models.residency import PolicyName

MB = 2**20
RUNNER_LOCK = "runner.lock"  # in the data folder, held by a runner while it lives


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask for. Whatever is over a limit is refused with the limit's name and value in the answer."""

    body_bytes: int = 64 * MB  # of a request that is no upload
    prompt_bytes: int = 8 * MB  # of a job's graph and extra data, as JSON
    upload_bytes: int = 100 * MB
    upload_pixels: int = 64_000_000
    nodes: int = 10_000
    steps: int = 1_000  # of one sampler
    pixels: int = 4096 * 4096  # of one picture that a node makes
    batch: int = 64
    batch_pixels: int = 4 * 4096 * 4096  # of all pictures of one batch
    text: int = 4 * MB  # characters of one text that a node makes
    shown: int = 8 * MB  # characters of all that the nodes of one job have for editors, as JSON
    queue: int = 64  # jobs that wait
    sockets: int = 256  # websockets at once
    client_sockets: int = 8  # of one client
    connections: int = 512  # at once, websockets among them; as many files may be open as well
    history: int = 10_000  # jobs that are remembered
    user_bytes: int = 256 * MB  # files that one user keeps on the server


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`data` holds the job store, users' files and logs of what crashed. `devices`, `dtype`, `place`, `link`, `allow`, `cache` are written
    as for `katz run`. `jobs_at_once` None: one for each device. `devices_per_job`, besides those of the ControlNets, None: all. `token`
    None: none is asked for, which only a loopback address allows."""

    host: str = "127.0.0.1"
    port: int = 8188
    data: Path = Path("katz-data")
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()  # besides loopback names and the address itself
    allowed_origins: tuple[str, ...] = ()  # besides the server's own
    models: tuple[Path, ...] = ()
    packs: tuple[Path, ...] = ()
    input: Path | None = None
    output: Path | None = None
    extra_model_paths: tuple[Path, ...] = ()
    devices: str = "cpu"
    dtype: str = "auto"
    threads: int | None = None
    place: tuple[str, ...] = ()
    link: str | None = None
    allow: str = ""
    cache: str = "classic"
    jobs_at_once: int | None = None
    devices_per_job: int | None = None
    model_bytes: int | None = None  # that models may take on a device; None: what is free, less what computing needs
    control_net_bytes: int | None = None  # that ControlNets may take on a device; None: no limit
    control_net_policy: PolicyName = "lru"  # which of them goes first
    spare: bool = True  # whether a loaded worker waits on every host to stand in for one that is lost
    previews: bool = True
    keep_days: float | None = None  # age at which finished jobs and their temporary files are forgotten; None: never
    keep_bytes: int | None = None  # of finished jobs' files in the temporary folder
    drain_seconds: float = 30.0  # given to running jobs at SIGTERM before they go back to the queue
    json_logs: bool = False
    frontend: Path | None = None  # a folder with a built front end that is served at `/`
    multi_user: bool = False  # settings and files apart for each name in the header Comfy-User, which proves nothing
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class RunnerStart:
    """What a runner is started with. `gone`: devices to do without, which earlier runners of this server lost."""

    options: ServeOptions
    gone: tuple[str, ...] = ()


START: TypeAdapter[RunnerStart] = TypeAdapter(RunnerStart)
"""To and from plain data."""
