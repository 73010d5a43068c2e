"""Holds what a plan is made for in place of what jobs have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


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

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> PlanChanges:
        """Reads what `said` gives."""
        devices, place = (tuple(data.get(name, ())) for name in ("devices", "place"))
        return cls(devices, place, data.get("allow"), data.get("link"), data.get("batching"))

    @property
    def hypothetical(self) -> bool:
        """Returns whether it can be planned and not run: devices or links that are not there."""
        return self.link is not None or any("*" in name for name in self.devices)

    def said(self) -> Mapping[str, Any]:
        """Returns what is another than jobs have, as plain data."""
        usual = PlanChanges()
        return {
            one.name: list(value) if isinstance(value, tuple) else value
            for one in fields(self)
            if (value := getattr(self, one.name)) != getattr(usual, one.name)
        }
