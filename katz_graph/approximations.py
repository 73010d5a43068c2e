"""Names the approximations that a person may allow, and records them in pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from katz_graph.errors import InputError

if TYPE_CHECKING:
    from katz_graph.ir.program import Program

APPROXIMATIONS = ("stale-controlnet", "async-lora")


def allowed_names(names: str) -> frozenset[str]:
    """Parses a list of names separated by commas. InputError for one that does not exist."""
    found = frozenset(filter(None, (part.strip() for part in names.split(","))))
    for name in sorted(found):
        if name not in APPROXIMATIONS:
            raise InputError(
                f"--allow {name}: no such approximation; choose from {', '.join(APPROXIMATIONS)}"
            )
        if name == "async-lora":
            raise InputError(
                "--allow async-lora: LoRAs are not loaded beside the first steps yet; leave it out"
            )
    return found


def in_force(programs: Iterable[Program]) -> list[str]:
    """Returns the approximations that programs use."""
    return ["stale-controlnet"] if any(program.delayed for program in programs) else []


def made_with(devices: str, dtype: str, approximated: Sequence[str]) -> str:
    """Writes the text chunk `katz` of a picture."""
    return json.dumps(
        {
            "approximations": list(approximated),
            "devices": devices,
            "dtype": dtype,
            "version": version("katz-graph"),
        }
    )
