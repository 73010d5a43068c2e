"""Compiles a bound region to a program for the available devices. The first region loads the
planner and model libraries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from katz_graph.core.devices import Lane
from katz_graph.core.errors import RunError
from katz_graph.host.deferred_imports import import_deferring
from katz_graph.ir.device import Target
from katz_graph.ir.program import Program
from katz_graph.ir.provenance import CACHED_EDIT
from katz_graph.ir.region import Region
from katz_graph.ir.reuse import OfferedTemplate, Reuse
from katz_graph.models.costs.counts import Counts
from katz_graph.models.family import families

if TYPE_CHECKING:
    from katz_graph.executor.measure.store import CostStore
    from katz_graph.planner.passes.deferred_loras import Profiled


@dataclass(frozen=True, slots=True)
class Choices:
    """Holds the user's choices about plans."""

    pins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # stage -> its devices
    allowed: frozenset[str] = frozenset()  # approximations
    batching: bool | None = None  # whether equal stages run as one call; None: the faster way
    lane: Lane = None  # base devices per request, without ControlNet devices
    lost: frozenset[str] = frozenset()  # devices that pins may still name

    @property
    def reachable(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the pins without lost devices."""
        left = {
            stage: tuple(device for device in devices if device not in self.lost)
            for stage, devices in self.pins.items()
        }
        return {stage: devices for stage, devices in left.items() if devices}

    @property
    def unplaceable(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the stages with only lost devices, and these devices."""
        return {
            stage: devices for stage, devices in self.pins.items() if self.lost.issuperset(devices)
        }


def preload(counted: bool) -> None:
    """Imports the first plan's modules in a thread while workers load, because importing takes
    seconds. `counted`: the work of all model stages is already counted, so model libraries are not
    needed.
    """
    names = [
        "katz_graph.planner.compile",
        "katz_graph.planner.passes.cost",
        "katz_graph.models.text.tokens",
    ]
    names.append("transformers.models.clip.tokenization_clip")  # imported lazily by transformers

    def load() -> None:
        for name in names if counted else (*names, "katz_graph.models.costs.stage_cost"):
            import_deferring(name)
        for family in () if counted else families():
            getattr(import_module("diffusers"), family.network.class_name)  # loads its module

    threading.Thread(target=load, name="katz-planner", daemon=True).start()


def plan_region(
    region: Region,
    target: Target,
    counts: Counts | None = None,
    after: str = "emit",
    profiled: Profiled | None = None,
    template: OfferedTemplate | str | None = None,
) -> Program:
    """Compiles a region without running it. `counts`: the known work of models; `profiled` returns
    the noise level above which steps can omit a LoRA; `template`: whose activations layers may
    read, or the reason why there is none. Raises InputError for errors in the region.
    """
    from katz_graph.adapters.encoders import taken_by_texts
    from katz_graph.models.text.tokens import encoded_length
    from katz_graph.planner.compile import Known, compile_region
    from katz_graph.planner.passes.cost import count_work, unprepared_blocks
    from katz_graph.planner.passes.deferred_loras import no_profile
    from katz_graph.planner.passes.fit import fit
    from katz_graph.planner.passes.reuse import count_layers
    from katz_graph.planner.sampling import decider, evaluations_of, sampling_of

    spec, table = sampling_of(region.begin)
    counts, value_bytes = counts or Counts(), target.devices[0].value_bytes
    known = Known(
        schedule=evaluations_of(spec, table),
        decide=decider(spec, table),
        shape=tuple(region.begin.inputs["latent_image"]["samples"].shape),
        count=partial(count_work, value_bytes=value_bytes, counts=counts),
        fit=fit,
        length=encoded_length,
        profiled=profiled or no_profile,
        taken_by_texts=taken_by_texts,
        unprepared=partial(unprepared_blocks, counts=counts),
        template=None if isinstance(template, str) else template,
        count_layers=partial(count_layers, value_bytes=value_bytes, counts=counts),
    )
    program = compile_region(region, known, target, after)
    if isinstance(template, str):
        program = replace(program, reuse=Reuse(0.0, why_not=template))
    return program


def region_planner(
    target: Target, store: CostStore, after: str, template_link: float | None = None
) -> Callable[[Region], Program]:
    """Returns `plan_region` for a target, with the counts and measurements of a store. Assumes that
    the templates of edits are filled, and readable at `template_link` bytes per second.
    """
    from katz_graph.executor.measure.lora_levels import LoraLevels
    from katz_graph.executor.template_offers import assumed

    counts, levels = Counts(store), LoraLevels(store)

    def planned(region: Region) -> Program:
        template = assumed(region, template_link) if CACHED_EDIT in target.allowed else None
        return plan_region(region, target, counts, after, levels.level, template)

    return planned


def check_reachable(stages: Iterable[str], unplaceable: Mapping[str, tuple[str, ...]]) -> None:
    """Raises RunError if one of the stages has only lost devices."""
    for stage in stages:
        if stage in unplaceable:
            devices = " or ".join(unplaceable[stage])
            raise RunError(
                f"{stage} may only run on {devices} (--place), which failed and is left out; "
                "restart the server to use it again"
            )
