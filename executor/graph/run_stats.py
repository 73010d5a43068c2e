"""Collects the times of sampling and the VAE from the events of one run. Must not know engines and
devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from katz_graph.core.events import Event, Reused, Sampled, StageDone
from katz_graph.ir.provenance import Provenance, joined, lora_bound
from katz_graph.ir.reuse import shown_template
from katz_graph.models.stage_registry import stage_groups

if TYPE_CHECKING:
    from katz_graph.ir.program import Program


@dataclass(slots=True)
class RunStats:
    """Collects the printed statistics of a run, times in seconds. `samplers`: in order of
    completion; `vae`: one entry per use; `reused`: the provenance of each cached result that
    depends on more than its inputs.

    Any thread may report events.
    """

    samplers: list[Sampled] = field(default_factory=list)
    vae: list[float] = field(default_factory=list)
    reused: list[Provenance] = field(default_factory=list)

    def listen(self, event: Event) -> None:
        if isinstance(event, Sampled):
            self.samplers.append(event)
        elif isinstance(event, Reused):
            self.reused.append(event.provenance)
        elif isinstance(event, StageDone) and event.stage in stage_groups()["vae"]:
            self.vae.append(event.span.seconds)

    @property
    def programs(self) -> list[Program]:
        return [sampler.program for sampler in self.samplers]

    @property
    def provenance(self) -> Provenance:
        """Returns the provenance of the run's results, including cached ones."""
        return joined((*map(provenance_of, self.samplers), *self.reused))

    @property
    def calls(self) -> Mapping[str, int]:
        """Returns the numbers of `recorded`, `replayed` and `eager` stage calls, of those run
        concurrently on two streams (`beside`), and of those shared with other requests (`shared`).
        """
        kinds = ("recorded", "replayed", "beside", "eager", "shared")
        return {
            kind: sum(sampler.calls.get(kind, 0) for sampler in self.samplers) for kind in kinds
        }

    @property
    def activations(self) -> Mapping[str, float]:
        """Sums what all samplers read from templates: bytes, seconds, and seconds waited; empty
        without templates.
        """
        total: Counter[str] = Counter()
        for sampler in self.samplers:
            total.update(sampler.activations)
        return dict(total)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Returns the total seconds of loading, preparing and denoising of all samplers, and of the
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
        """Sums the planned seconds of sampling; None if nothing was sampled."""
        return (
            sum(program.prediction.planned for program in self.programs if program.prediction)
            if self.samplers
            else None
        )


def provenance_of(sampled: Sampled) -> Provenance:
    """Returns the provenance of a sampler's result."""
    program = sampled.program
    arrivals = {name: first for name, first in sampled.arrivals.items() if first}
    steps = [program.schedule[first].step for first in arrivals.values()]
    by_profile = bool(arrivals) and lora_bound(program.target.allowed)[1] is None
    read = shown_template(program.template.key) if program.template and program.reused else ""
    start = program.region.similar
    return Provenance(
        bool(program.stale),
        arrivals,
        max(steps, default=0),
        by_profile,
        template=read,
        similar=(start,) if start is not None and start.picture else (),
    )
