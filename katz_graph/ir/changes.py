"""Holds the changes that a plan makes to the engine's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """Overrides the settings that jobs run with; None or empty keeps a setting. Values are
    command-line texts: `place` STAGE=DEVICE, `allow` names of approximations, `link` GBPS[,MS].

    `devices` are names; NAME*N stands for N devices like NAME, called NAME, NAME+1, NAME+2 and so
    on.
    """

    devices: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    allow: str | None = None
    link: str | None = None
    batching: bool | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> PlanChanges:
        """Reads the output of `overrides`."""
        devices, place = (tuple(data.get(name, ())) for name in ("devices", "place"))
        return cls(devices, place, data.get("allow"), data.get("link"), data.get("batching"))

    @property
    def hypothetical(self) -> bool:
        """Returns whether a device or link does not exist, so that the plan cannot run."""
        return self.link is not None or any("*" in name for name in self.devices)

    def overrides(self) -> Mapping[str, Any]:
        """Returns the overridden settings as plain data."""
        usual = PlanChanges()
        return {
            one.name: list(value) if isinstance(value, tuple) else value
            for one in fields(self)
            if (value := getattr(self, one.name)) != getattr(usual, one.name)
        }
