"""Describes the reuse of a template's activations in a program, as the planner sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """Describes a request's template: a latent whose activations a store has, or receives."""

    key: str  # of the template in the store
    # by evaluation: number of its noise level among the template's; -1: all tokens are computed
    numbers: tuple[int, ...]
    # by number of tokens of a level: positions [B, A] of the active tokens
    positions: Mapping[int, Any] = field(default_factory=dict)
    fills: bool = False  # the request computes the activations and passes them to the store
    details: Mapping[str, str] = field(default_factory=dict)  # for lists of templates


SHOWN_DIGITS = 8  # of each half of a template's name


def shown_template(name: str) -> str:
    """Returns a template's name as users see it: the first digits of both halves, the second of
    which differs by the positive text.
    """
    return "-".join(half[:SHOWN_DIGITS] for half in name.split("-"))


def names_template(given: str, name: str) -> bool:
    """Returns whether a template is one that a user names by the begin of each half."""
    halves, begins = name.split("-"), given.split("-")
    pairs = zip(halves, begins, strict=False)
    return len(begins) <= len(halves) and all(half.startswith(begin) for half, begin in pairs)


@dataclass(frozen=True, slots=True)
class OfferedTemplate:
    """Describes what a store offers for a request: a template, and the request's active tokens."""

    evaluations: frozenset[int]  # of the request, that the template covers
    # by number of tokens of a level of the network: the number of active ones
    active: Mapping[int, int]
    bytes_per_second: float  # from the store to a device
    layers: frozenset[str] | None = None  # that the template covers; None: all
    # memory for tensors of the next evaluation, loaded during this one
    ahead_bytes: float = math.inf
    use: TemplateUse | None = None  # what the program says about it; None: it is only planned


def active_share(active: Mapping[int, int]) -> float:
    """Returns the active share at the level with the most tokens; `active` as in `Reuse`."""
    tokens = max(active, default=0)
    return active[tokens] / tokens if tokens else 1.0


STORE = "templates"
"""Names the store in links, such as templates -> cpu:0."""
LINK_BINDS = 0.98  # share of an evaluation: loads that take this long limit it


@dataclass(frozen=True, slots=True)
class Reuse:
    """Reports the choice of cached layers, for an evaluation of the commonest kind in steady state.
    `full`, `cached` and `chosen` are its seconds with all layers in full, with all cached, and as
    chosen.
    """

    full: float
    cached: float = 0.0
    chosen: float = 0.0
    layers: int = 0  # that may be cached, of all branches
    cached_layers: int = 0
    bytes_loaded: float = 0.0
    load_seconds: float = 0.0  # of the busiest link
    # by number of tokens of a level of the network: the number of active ones
    active: Mapping[int, int] = field(default_factory=dict)
    # by device: seconds that only the first evaluation waits for loads
    first_waits: Mapping[str, float] = field(default_factory=dict)
    # by device: the loads of an evaluation in order, as operation and seconds
    loads: Mapping[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    ahead: float = 0.0  # seconds of an evaluation's loads that may precede it
    why_not: str = ""  # the reason if no layer is cached

    @property
    def link_binds(self) -> bool:
        """Returns whether the loads limit an evaluation, rather than computation."""
        return self.load_seconds >= LINK_BINDS * self.chosen
