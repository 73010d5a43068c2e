"""Parses `--place`, which pins stages to devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from katz_graph.core.errors import InputError
from katz_graph.models.stage_registry import stage_groups, stages


def parse_places(places: Sequence[str], devices: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Maps each stage to the devices that it may run on. A stage given several times may run on any
    of its devices.

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
                f"--place {place}: there is no stage {stage!r}; choose one of {', '.join(names)}"
            )
        if known and where not in known:
            raise InputError(f"--place {place}: this run has the devices {', '.join(known)} only")
        for one in groups.get(stage, (stage,)):
            pins[one] = tuple(dict.fromkeys((*pins.get(one, ()), where)))
    return pins
