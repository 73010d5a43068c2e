"""Where things are on this machine. The only module that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """`models` and `packs` are searched in order; `cache` holds what can be made again (measured costs, downloads)."""

    models: tuple[Path, ...]
    packs: tuple[Path, ...]
    input: Path
    output: Path
    cache: Path

    @classmethod
    def read(
        cls,
        models: Sequence[Path] = (),
        packs: Sequence[Path] = (),
        input: Path | None = None,
        output: Path | None = None,
        cache: Path | None = None,
    ) -> Settings:
        """What is given goes before KATZ_MODELS and KATZ_PACKS (lists, as in PATH), KATZ_INPUT, KATZ_OUTPUT and KATZ_CACHE.

        Without either: `models`, `input` and `output` in the current folder, no packs, and a folder in the user's cache.
        """
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(
            models=tuple(models) or _listed("KATZ_MODELS") or (Path("models"),),
            packs=tuple(packs) or _listed("KATZ_PACKS"),
            input=input or _one("KATZ_INPUT") or Path("input"),
            output=output or _one("KATZ_OUTPUT") or Path("output"),
            cache=cache or _one("KATZ_CACHE") or home / "katz_graph",
        )


def _one(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None


def _listed(variable: str) -> tuple[Path, ...]:
    return tuple(Path(part).expanduser() for part in os.environ.get(variable, "").split(os.pathsep) if part)
