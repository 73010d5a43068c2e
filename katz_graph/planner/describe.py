"""Describes a candidate in words, generated from where its stages stand, not from a list of known cases."""

from __future__ import annotations

from collections.abc import Mapping, Set

from katz_graph.planner.program import Program
from katz_graph.planner.region import stage_of

BATCHED, SPLIT = "equal stages batched", "one call per branch"


class Describer:
    """Names placements of a program's operations."""

    def __init__(self, program: Program) -> None:
        operations = {op.id: op for variant in program.variants for op in variant.operations if stage_of(op).costed}
        self._controls = {name for name, op in operations.items() if stage_of(op).may_lag}
        self._edges = {
            (ref.operation, op.id)
            for variant in program.variants
            for op in variant.operations
            for _, ref in op.references()
            if ref.operation in operations and op.id in operations
        }
        self._alone = len(program.devices) == 1

    def crossings(self, placement: Mapping[str, str]) -> int:
        """How many values go from one device to another in an evaluation, steps and predictions left out."""
        return sum(placement[source] != placement[reader] for source, reader in self._edges)

    def name(self, placement: Mapping[str, str], owner: str, delayed: Set[str], merged: bool) -> str:
        if self._alone:
            return BATCHED if merged else SPLIT
        batched = f", {BATCHED}" if merged else ""
        if len({*placement.values(), owner}) == 1:
            return f"one device{batched}"
        return ", ".join(self._parts(placement, delayed)) + batched

    def _parts(self, placement: Mapping[str, str], delayed: Set[str]) -> list[str]:
        base = {device for name, device in placement.items() if name not in self._controls}
        apart = sorted({placement[name] for name in self._controls} - base)
        crossing = {pair for pair in self._edges if placement[pair[0]] != placement[pair[1]]}
        sessions = {source for source, _ in crossing if source in self._controls}
        parts = []
        if len(base) > 1:
            split = any(source not in self._controls for source, _ in crossing)
            parts.append(f"{'UNet split over' if split else 'branches on'} {len(base)} devices")
        if apart:
            parts.append(f"controlnet on {apart[0]}" if len(apart) == 1 else f"controlnets on {len(apart)} further devices")
        if any(placement[name] not in apart for name in sessions):
            parts.append("controlnet on another branch's device")
        if sessions:
            parts.append("synchronous" if not delayed else "one evaluation stale" if delayed >= sessions else "some one evaluation stale")
        return parts
