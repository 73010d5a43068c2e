"""Collects the times of sampling and the VAE in one run from its events. Must not know engines and
devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from katz_graph.approximations import ASYNC_LORA, STALE_CONTROLNET
from katz_graph.events import Event, Sampled, StageDone
from katz_graph.models.stages import stage_groups

if TYPE_CHECKING:
    from katz_graph.ir.program import Program


@dataclass(slots=True)
class RunStats:
    """Figures of a run that are printed, in seconds; `samplers` in the order in which they ended,
    `vae` for each use.

    Any thread may report events.
    """

    samplers: list[Sampled] = field(default_factory=list)
    vae: list[float] = field(default_factory=list)

    def listen(self, event: Event) -> None:
        if isinstance(event, Sampled):
            self.samplers.append(event)
        elif isinstance(event, StageDone) and event.stage in stage_groups()["vae"]:
            self.vae.append(event.span.seconds)

    @property
    def programs(self) -> list[Program]:
        return [sampler.program for sampler in self.samplers]

    @property
    def arrivals(self) -> Mapping[str, int]:
        """Returns the LoRAs that evaluations ran without, and from which on each was there; the
        latest of several samplers.
        """
        found: dict[str, int] = {}
        for sampler in self.samplers:
            for name, evaluation in sampler.arrivals.items():
                if evaluation:
                    found[name] = max(evaluation, found.get(name, 0))
        return found

    @property
    def calls(self) -> Mapping[str, int]:
        """Returns how many calls of stages were `recorded`, `replayed` and `eager`, and
        how many ran on two streams at once (`beside`).
        """
        kinds = ("recorded", "replayed", "beside", "eager")
        return {
            kind: sum(sampler.calls.get(kind, 0) for sampler in self.samplers) for kind in kinds
        }

    @property
    def approximations(self) -> list[str]:
        """Returns the approximations that were in force."""
        stale = [STALE_CONTROLNET] if any(program.delayed for program in self.programs) else []
        return [*([ASYNC_LORA] if self.arrivals else []), *stale]

    @property
    def seconds(self) -> Mapping[str, float]:
        """Sums load, prepare and denoise of all samplers on the devices that advanced them, and the
        VAE.
        """
        return {
            "load": sum(sampler.load for sampler in self.samplers),
            "prepare": sum(sampler.prepare for sampler in self.samplers),
            "denoise": sum(sampler.denoise for sampler in self.samplers),
            "vae": sum(self.vae),
        }

    @property
    def predicted(self) -> float | None:
        """Sums the planned seconds of sampling; None where nothing was sampled."""
        return (
            sum(program.prediction.planned for program in self.programs if program.prediction)
            if self.samplers
            else None
        )
