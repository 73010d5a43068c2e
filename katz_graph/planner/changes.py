"""Changes what a plan is made for: other devices of those that there are or more like them, pins,
approximations, links, batching.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from katz_graph.approximations import allowed_names
from katz_graph.devices import parse_link
from katz_graph.errors import InputError
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.planner.places import parse_places

MOST_LIKE_ONE = 8  # devices


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """Says what a plan is made with in place of what jobs have; None and empty: the same. Texts are
    those of the command line: `place` STAGE=DEVICE, `allow` names of approximations, `link`
    GBPS[,MS]. `devices`: names, and NAME*N for so many like one, which are called NAME+1, NAME+2.
    """

    devices: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    allow: str | None = None
    link: str | None = None
    batching: bool | None = None

    def of(self, target: Target) -> Target:
        """Returns what the plan is made for. InputError for what cannot be."""
        devices = tuple(self._devices(target)) if self.devices else target.devices
        names = list(dict.fromkeys(device.name for device in devices))
        if len(names) < len(devices):
            raise InputError("a device is named twice; give NAME*2 for two like one")
        left = {
            stage: tuple(name for name in where if name in names)
            for stage, where in target.pins.items()
        }
        pins = {stage: where for stage, where in left.items() if where}
        if self.place:
            pins = dict(parse_places(self.place, names))
        return replace(
            target,
            devices=devices,
            links=self._links(target, names),
            pins=pins,
            allowed=target.allowed if self.allow is None else allowed_names(self.allow),
            batching=target.batching if self.batching is None else self.batching,
        )

    def _devices(self, target: Target) -> Iterator[Device]:
        known = {device.name: device for device in target.devices}
        for text in self.devices:
            name, _, times = text.partition("*")
            count = int(times) if times.isdecimal() else 0 if times else 1
            if name not in known or not 0 < count <= MOST_LIKE_ONE:
                raise InputError(
                    f"{text} is none of the devices {', '.join(known)}; give a name, or NAME*2 for "
                    f"two like one (at most {MOST_LIKE_ONE})"
                )
            for number in range(count):
                yield replace(known[name], name=f"{name}+{number}" if number else name)

    def _links(self, target: Target, names: Sequence[str]) -> Mapping[tuple[str, str], NetworkLink]:
        """Takes the link between the devices that two are like; between two like the same one any
        that there is. InputError where nothing is known of it.
        """
        given, made = parse_link(self.link), {}
        for one, other in permutations(names, 2):
            like = _like(one), _like(other)
            alike = next(iter(target.links.values()), None)
            known = alike if like[0] == like[1] else target.links.get(like)
            link = known if given is None else NetworkLink(*given)
            if link is None and like[0] == like[1]:
                raise InputError(f"{one} and {other}: give a link between them, as GBPS,MS")
            if link is not None:
                made[one, other] = link
        return made


def _like(name: str) -> str:
    return name.partition("+")[0]
