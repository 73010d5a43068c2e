"""Describes modules that can be loaded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from katz_graph.core.recipe import FileIdentity
from katz_graph.host.memory import GB


@dataclass(frozen=True, slots=True)
class Shells:
    """Describes a module that is allocated first and filled later. `form`: modules of equal form
    differ only by their weights. `fill` copies the weights into a module of this form.
    """

    form: Callable[[], Hashable]
    fill: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Widening:
    """Describes weights that are stored as 8-bit numbers in memory. `wide_bytes`: of all weights of
    the module, if they were wide. `work_bytes`: that a call needs to widen one weight.
    """

    wide_bytes: int
    work_bytes: int


@dataclass(frozen=True, slots=True)
class Loadable:
    key: Hashable
    name: str
    size: Callable[[], int]  # bytes of the weights, computed at loading
    load: Callable[[], Any]
    files: tuple[FileIdentity, ...] = ()  # source files
    prefix: str = ""  # of the names of its tensors in the files
    # bytes that loading needs in addition to the weights, computed at loading
    extra_bytes: Callable[[], int] = lambda: 0
    widening: Callable[[], Widening | None] = lambda: None
    control_net: bool = False  # also counts towards the ControlNet budget
    # None if `load` returns a module with weights; otherwise `load` returns one without, and
    # weights may be copied into an evicted module instead
    shells: Shells | None = None


@dataclass(frozen=True, slots=True)
class Resident:
    """Holds a loaded module. `form` is None if no other module can reuse its memory."""

    module: Any
    wanted: Loadable
    form: Hashable
    size: int
    seconds: float  # of loading

    def __str__(self) -> str:
        return f"{self.wanted.name} ({self.size / GB:.2f} GB, loaded in {self.seconds:.1f} s)"
