"""What a run reports while it goes on. Progress bars, traces and servers listen to the same events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from katz_graph.planner.program import Program


@dataclass(frozen=True, slots=True)
class Planned:
    """A sampler was compiled."""

    node: str
    program: Program


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One call of the model is done."""

    node: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class Previewed:
    """What a node's picture looks like by now: uint8 [h, w, 3]; `picture.preview.as_jpeg` makes it a file."""

    node: str
    picture: Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampler is done: seconds on the device that advanced it, and how many attempts it took."""

    node: str
    program: Program
    load: float
    prepare: float
    denoise: float
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Busy:
    """A stretch of work on a device, on the clock of `time.perf_counter`."""

    device: str
    name: str
    node: str
    start: float
    seconds: float
    evaluation: int | None = None


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a node says that it is."""

    node: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of a pack for its own code in the editor; to everybody who watches this run when it names nobody."""

    kind: str
    data: Any
    client: str | None = None


Event = Planned | Evaluated | Previewed | Sampled | Busy | Progressed | Sent
Listener = Callable[[Event], None]
