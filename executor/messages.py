"""Declares the messages between the driver and its workers. A connection carries them as they are
within a process, and encoded between processes.

`request` and `attempt` name one attempt at a request; `id` numbers a call; a `generation` counts
the connections of two workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from katz_graph.core.errors import Cancelled, InputError, OutOfMemory, RunError
from katz_graph.core.events import Event
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.device_program import DeviceProgram
from katz_graph.executor.worker.timing import Timing

if TYPE_CHECKING:
    from katz_graph.node.types import Context

LOCAL = {"local": True}
"""Marks a field that stays in its process: on the other side it has its default."""

ERRORS = {kind.__name__: kind for kind in (InputError, RunError, OutOfMemory, Cancelled)}


@dataclass(frozen=True, slots=True)
class Failure:
    """Describes an error by the name of its class and a line; within a process it has the error."""

    kind: str
    message: str
    error: BaseException | None = field(default=None, metadata=LOCAL)

    def as_error(self) -> BaseException:
        """Returns the error itself, or one of the same kind; RunError for an unknown kind."""
        return self.error or ERRORS.get(self.kind, RunError)(self.message)


# to a worker


@dataclass(frozen=True, slots=True)
class Assign:
    """Gives a worker its device: the first message that it gets, besides pings."""

    config: WorkerConfig


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a `Pong`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the worker after the unit that runs."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Hands a worker its end of a socket to a peer, as the descriptor of the message. One of the
    two `hosts` their transport.
    """

    peer: str
    generation: int
    transport: str
    hosts: bool


@dataclass(frozen=True, slots=True)
class Listen:
    """Has a worker wait for a peer at an address of its own; the peer knows the token."""

    peer: str
    generation: int
    transport: str
    token: bytes
    address: str


@dataclass(frozen=True, slots=True)
class Dial:
    """Has a worker connect to a peer that listens; `address` is its own, for bulk transfers."""

    peer: str
    generation: int
    transport: str
    token: bytes
    address: str
    peer_address: str
    port: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Has a worker load what its part of a program needs, answer `Ready`, and wait for `Go`.

    `context` is the run's own, for nodes and functions of packs, where the worker can reach it.
    """

    request: str
    attempt: int
    program: DeviceProgram
    measure: bool
    previews: bool
    context: Context | None = field(default=None, metadata=LOCAL)


@dataclass(frozen=True, slots=True)
class Go:
    """Lets a part begin, as all parts of the request are ready."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stops an attempt before its next unit, and drops what came for it."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class CallService:
    """Has a service called as one unit, see `worker.services`; `Returned` or `Raised` answers."""

    id: int
    service: str
    arguments: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class DropCall:
    """Leaves a call out unless it has begun."""

    id: int


# from a worker


@dataclass(frozen=True, slots=True)
class Hello:
    """Announces a worker that has loaded what it needs; both sides must be of one version."""

    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a ping."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """Confirms that the device is served from now on."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Says why the device cannot be served."""

    message: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Says why a worker is of no more use; `culprit` is the request or call that met the fault."""

    message: str
    culprit: str | int | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """Confirms a connection to a peer."""

    peer: str
    generation: int


@dataclass(frozen=True, slots=True)
class Listening:
    """Says at which port a worker waits for a peer."""

    peer: str
    generation: int
    port: int


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """Says why two workers did not meet."""

    peer: str
    generation: int
    message: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Says why a connection to a peer ended."""

    peer: str
    generation: int
    message: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Says that a part of a request is loaded."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Happened:
    """Reports an event of a request."""

    request: str
    attempt: int
    event: Event


@dataclass(frozen=True, slots=True)
class Done:
    """Delivers a part's times, and from the sampler's device the two latents [B, C, h, w]: the
    result, and the denoised one when the last step began.
    """

    request: str
    attempt: int
    timing: Timing
    latents: tuple[Tensor, Tensor] | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Says why a part of a request failed."""

    request: str
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Returned:
    """Delivers the value of a call, its start on the clock of `time.perf_counter`, its seconds."""

    id: int
    value: Any
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Raised:
    """Says why a call failed."""

    id: int
    failure: Failure


OfRequest = Ready | Happened | Done | Failed
"""What a worker says of a request."""
OfPeer = Connected | Listening | ConnectFailed | Disconnected
"""What a worker says of its connection to another one."""
ToWorker = (
    Assign | Ping | Stop | Connect | Listen | Dial | Begin | Go | Cancel | CallService | DropCall
)
FromWorker = Hello | Pong | Assigned | Unusable | Fault | OfPeer | OfRequest | Returned | Raised
