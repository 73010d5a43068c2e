"""Defines the messages between the driver and its workers. A connection passes them unchanged
within a process, and encoded between processes.

`request` and `attempt` identify one attempt at a request; `id` numbers a call; a `generation`
counts the connections between two workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from katz_graph.core.errors import Cancelled, InputError, OutOfMemory, RunError
from katz_graph.core.events import Event, Span
from katz_graph.core.phases import Phase
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.device_program import DeviceProgram
from katz_graph.ipc.heartbeat import Ping, Pong, Stop

if TYPE_CHECKING:
    from katz_graph.node.types import Context

LOCAL = {"local": True}
"""Marks a field that is not sent: in other processes it has its default."""

ERRORS = {kind.__name__: kind for kind in (InputError, RunError, OutOfMemory, Cancelled)}


@dataclass(frozen=True, slots=True)
class Failure:
    """Describes an error by class name and one line; within a process, also holds the error."""

    kind: str
    message: str
    error: BaseException | None = field(default=None, metadata=LOCAL)

    def as_error(self) -> BaseException:
        """Returns the error itself, or a new one of the same kind; RunError for an unknown kind."""
        return self.error or ERRORS.get(self.kind, RunError)(self.message)


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Places a run among others on the devices. `due_in`: seconds from this message to its due
    time, because workers on other hosts have other clocks; inf for none. `seconds_after`: predicted
    for the run after this work.
    """

    arrival: float = 0.0  # on the driver's clock; 0 outside runs
    due_in: float = math.inf
    client: str = ""  # gets an equal share of the devices
    seconds_after: float = 0.0


# to a worker


@dataclass(frozen=True, slots=True)
class Assign:
    """Assigns a worker its device; its first message apart from pings."""

    config: WorkerConfig


@dataclass(frozen=True, slots=True)
class Connect:
    """Passes a worker its end of a socket to a peer, as the message's descriptor. Exactly one of
    the two ends `hosts` the transport.
    """

    peer: str
    generation: int
    transport: str
    hosts: bool


@dataclass(frozen=True, slots=True)
class Listen:
    """Makes a worker wait at its own address for a peer that knows the token."""

    peer: str
    generation: int
    transport: str
    token: bytes
    address: str


@dataclass(frozen=True, slots=True)
class Dial:
    """Makes a worker connect to a listening peer; `address` is the worker's own, for bulk
    transfers.
    """

    peer: str
    generation: int
    transport: str
    token: bytes
    address: str
    peer_address: str
    port: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Makes a worker load the models for its part of a program, and execute it. If it `waits` for
    other devices, it answers `Ready` when it has loaded, and waits for `Go`. `context`: the run's
    context for pack code, if the worker is in the same process.
    """

    request: str
    attempt: int
    program: DeviceProgram
    measure: bool
    previews: bool
    progress_interval: float  # seconds
    place: RunPlace = RunPlace()
    context: Context | None = field(default=None, metadata=LOCAL)
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Go:
    """Starts a part: all parts of the request are ready."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stops an attempt before its next unit, and discards its messages."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class CallService:
    """Calls a service, see `worker.services`; answered by `Returned` or `Raised`, after `Advanced`
    for each unit of a generator.
    """

    id: int
    service: str
    arguments: Sequence[Any] = ()
    place: RunPlace = RunPlace()


@dataclass(frozen=True, slots=True)
class DropCall:
    """Stops a call before its next unit."""

    id: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Makes a worker read the files of the models of recipes that a run will use."""

    recipes: Sequence[Any]
    arrival: float  # of the run, on the driver's clock


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Reports that a run will send no more work, so the device need not stay free for it."""

    arrival: float


# from a worker


@dataclass(frozen=True, slots=True)
class Hello:
    """Announces a worker that has finished loading; both sides must have the same version."""

    pid: int
    version: str
    phases: Sequence[Phase] = ()  # of its start


@dataclass(frozen=True, slots=True)
class Assigned:
    """Confirms that the worker now serves the device."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Reports why the device cannot be served."""

    message: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Reports why a worker is unusable. `culprit`: the request or call during which the fault
    occurred.
    """

    message: str
    culprit: str | int | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """Confirms a connection to a peer. `transport`: moves this worker's tensors to the peer."""

    peer: str
    generation: int
    transport: str


@dataclass(frozen=True, slots=True)
class Listening:
    """Reports the port at which a worker waits for a peer."""

    peer: str
    generation: int
    port: int


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """Reports why two workers failed to connect."""

    peer: str
    generation: int
    message: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Reports why a connection to a peer ended."""

    peer: str
    generation: int
    message: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Reports that a part of a request is loaded."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Happened:
    """Reports an event of a request."""

    request: str
    attempt: int
    event: Event


@dataclass(frozen=True, slots=True)
class ActivationReads:
    """Measures what a request read from its template: bytes, the seconds of reading, which other
    work may hide, and the seconds for which evaluations waited.
    """

    bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0


@dataclass(slots=True)
class Timing:
    """Holds a request's times in seconds. Time for patching weights counts toward the work that
    needed it.
    """

    load: float = 0.0  # reading models from files; 0 if all models were in memory
    prepare: float = 0.0  # the calls before the loop
    denoise: float = 0.0
    spans: list[Span] = field(default_factory=list)
    switches: dict[str, float] = field(default_factory=dict)
    """Seconds to make each weight set resident, by its name; only sets that were not resident."""
    reads: dict[str, float] = field(default_factory=dict)
    """Seconds to read each LoRA file, by its cost key; only for files that were not in memory."""
    arrivals: dict[str, int] = field(default_factory=dict)
    """First evaluation with each deferred LoRA in the weights, by path."""
    calls: dict[str, int] = field(default_factory=dict)
    """Numbers of recorded, replayed, concurrent, eager and shared stage calls."""
    activations: ActivationReads = ActivationReads()
    evaluations: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Seconds of evaluations by key, as `EvaluationRun.seconds`, from those that ran."""
    samples: dict[tuple[str, int], list[tuple[int, float]]] = field(default_factory=dict)
    """Times of calls, if measured, by cost key and number of rows: (evaluation, seconds);
    evaluation is -1 before the loop.
    """


@dataclass(frozen=True, slots=True)
class Done:
    """Delivers a part's times. From the sampler's device, also delivers two latents [B, C, h, w]:
    the result, and the denoised latent from the start of the last step.
    """

    request: str
    attempt: int
    timing: Timing
    latents: tuple[Tensor, Tensor] | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Reports why a part of a request failed."""

    request: str
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Returned:
    """Delivers a call's value, its start on the clock of `time.perf_counter`, and its seconds."""

    id: int
    value: Any
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Advanced:
    """Reports how much of a call is done, in units of its service."""

    id: int
    done: int


@dataclass(frozen=True, slots=True)
class Raised:
    """Reports why a call failed."""

    id: int
    failure: Failure


OfRequest = Ready | Happened | Done | Failed
"""A worker's messages about a request."""
OfPeer = Connected | Listening | ConnectFailed | Disconnected
"""A worker's messages about its connection to another worker."""
OfCall = Advanced | Returned | Raised
"""A worker's messages about a service call."""
ToWorker = (
    Assign
    | Ping
    | Stop
    | Connect
    | Listen
    | Dial
    | Begin
    | Go
    | Cancel
    | CallService
    | DropCall
    | Prefetch
    | RunEnded
)
FromWorker = Hello | Pong | Assigned | Unusable | Fault | OfPeer | OfRequest | OfCall
