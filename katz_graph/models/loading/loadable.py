"""Describes modules that can be loaded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from katz_graph.core.recipe import FileIdentity
from katz_graph.host.memory import GB


@dataclass(frozen=True, slots=True)
class Shells:
    """Describes modules that are made first, and then filled with weights. `form`: modules of equal
    form differ by their weights alone; `fill`: copies the weights into one of them.
    """

    form: Callable[[], Hashable]
    fill: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Loadable:
    """Describes a module that can be loaded. `size`: bytes of its weights, told when it is loaded;
    `beside`: what loading takes besides them; `files`: what it is made of; `control_net`: true if
    it counts towards the budget of ControlNets too. `shells`: how `load`'s module gets its weights,
    None where it has them, and takes no other's place.
    """

    key: Hashable
    name: str
    size: Callable[[], int]
    load: Callable[[], Any]
    files: tuple[FileIdentity, ...] = ()
    beside: int = 0
    control_net: bool = False
    shells: Shells | None = None


@dataclass(frozen=True, slots=True)
class Resident:
    """Holds a live module. `form` is None where no other can take its place."""

    module: Any
    wanted: Loadable
    form: Hashable
    size: int
    seconds: float  # that it took to load

    def __str__(self) -> str:
        return f"{self.wanted.name} ({self.size / GB:.2f} GB, loaded in {self.seconds:.1f} s)"
