"""Applies changes to the target of a plan: other or additional devices, pins, approximations,
links, batching. Parses `--place`, and checks which of these changes a job may make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from katz_graph.core.allowed_approximations import APPROXIMATIONS, allowed_names
from katz_graph.core.devices import parse_link
from katz_graph.core.errors import InputError
from katz_graph.ir.changes import PlanChanges
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.models.stage_registry import stage_groups, stages

MAX_REPLICAS = 8  # maximum N of NAME*N
PLACE = "place"
PERMISSIONS = (PLACE, *APPROXIMATIONS)
"""Names the choices that the operator may leave to jobs: placement and execution of stages, and
each approximation.
"""


def changed(target: Target, changes: PlanChanges) -> Target:
    """Returns the changed target. Raises InputError for changes that are not possible."""
    if not changes.overrides():
        return target
    devices = tuple(_devices(target, changes.devices)) if changes.devices else target.devices
    names = list(dict.fromkeys(device.name for device in devices))
    if len(names) < len(devices):
        raise InputError("a device is named twice; use NAME*2 for two equal devices")
    left = {
        stage: tuple(name for name in where if name in names)
        for stage, where in target.pins.items()
    }
    pins = {stage: where for stage, where in left.items() if where}
    if changes.place:
        pins = dict(parse_places(changes.place, names))
    return replace(
        target,
        devices=devices,
        links=_links(target, names, changes.link),
        pins=pins,
        allowed=target.allowed if changes.allow is None else allowed_names(changes.allow),
        batching=target.batching if changes.batching is None else changes.batching,
    )


def needed(changes: PlanChanges) -> frozenset[str]:
    """Returns the `PERMISSIONS` that a job needs to run with these changes. Raises InputError for
    an approximation that does not exist.
    """
    names = {name.partition("=")[0] for name in allowed_names(changes.allow or "")}
    places = changes.devices or changes.place or changes.batching is not None
    return frozenset({*names, PLACE} if places else names)


def permissions(names: str) -> frozenset[str]:
    """Parses a comma-separated list of permissions. Raises InputError for an unknown name."""
    found = frozenset(filter(None, (name.strip() for name in names.split(","))))
    for name in sorted(found.difference(PERMISSIONS)):
        raise InputError(f"--permit {name}: expected some of {', '.join(PERMISSIONS)}")
    return found


def _devices(target: Target, wanted: Sequence[str]) -> Iterator[Device]:
    known = {device.name: device for device in target.devices}
    for text in wanted:
        name, _, times = text.partition("*")
        count = int(times) if times.isdecimal() else 0 if times else 1
        if name not in known or not 0 < count <= MAX_REPLICAS:
            raise InputError(
                f"{text} is none of the devices {', '.join(known)}; use a name, or NAME*2 for two "
                f"equal devices (at most {MAX_REPLICAS})"
            )
        for number in range(count):
            yield replace(known[name], name=f"{name}+{number}" if number else name)


def _links(
    target: Target, names: Sequence[str], link: str | None
) -> Mapping[tuple[str, str], NetworkLink]:
    """Links pairs of devices: by `link` if given, else like the devices that they replicate.
    Replicas of one device get the target's first link. Raises InputError if it has none.
    """
    given, made = parse_link(link), {}
    for one, other in permutations(names, 2):
        like = _like(one), _like(other)
        alike = next(iter(target.links.values()), None)
        known = alike if like[0] == like[1] else target.links.get(like)
        found = known if given is None else NetworkLink(*given)
        if found is None and like[0] == like[1]:
            raise InputError(f"{one} and {other}: set a link between these devices, as GBPS,MS")
        if found is not None:
            made[one, other] = found
    return made


def _like(name: str) -> str:
    return name.partition("+")[0]


def parse_places(places: Sequence[str], devices: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Maps each stage to the devices that it may run on. A stage given several times may run on any
    device given.

    A group's name pins all stages of the group. Raises InputError for unknown stages, and for
    devices that this run does not have.
    """
    if not places:
        return {}  # avoids loading the families
    known, groups = tuple(devices), stage_groups()
    names = (*groups, *(one.name for one in stages().values() if one.placeable))
    pins: dict[str, tuple[str, ...]] = {}
    for place in places:
        stage, equals, where = place.partition("=")
        if not (equals and stage and where):
            raise InputError(
                f"--place {place}: expected STAGE=DEVICE, for example "
                f"controlnet={known[-1] if known else 'cpu'}"
            )
        if stage not in names:
            raise InputError(
                f"--place {place}: unknown stage {stage!r}; choose one of {', '.join(names)}"
            )
        if known and where not in known:
            raise InputError(f"--place {place}: this run has the devices {', '.join(known)} only")
        for one in groups.get(stage, (stage,)):
            pins[one] = tuple(dict.fromkeys((*pins.get(one, ()), where)))
    return pins
