"""Names the approximations that a person may allow, and records them in pictures."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from katz_graph.errors import InputError

STALE_CONTROLNET, ASYNC_LORA = "stale-controlnet", "async-lora"
APPROXIMATIONS = (STALE_CONTROLNET, ASYNC_LORA)


def allowed_names(names: str) -> frozenset[str]:
    """Parses a list of names separated by commas; `async-lora=K` has a number. InputError for one
    that does not exist.
    """
    found = frozenset(filter(None, (part.strip() for part in names.split(","))))
    for one in sorted(found):
        name, _, number = one.partition("=")
        if name not in APPROXIMATIONS:
            raise InputError(
                f"--allow {one}: no such approximation; choose from {', '.join(APPROXIMATIONS)}"
            )
        if "=" in one and (name != ASYNC_LORA or not number.isdecimal()):
            raise InputError(f"--allow {one}: expected {ASYNC_LORA}=K, K steps")
    return found


def lora_bound(allowed: Iterable[str]) -> tuple[bool, int | None]:
    """Returns whether steps may begin without LoRAs, and how many if a person said so: the fewest
    of several numbers.
    """
    mine = [one.partition("=") for one in allowed if one.partition("=")[0] == ASYNC_LORA]
    return bool(mine), min((int(number) for _, _, number in mine if number), default=None)


def made_with(
    devices: str,
    dtype: str,
    approximated: Collection[str],
    arrivals: Mapping[str, int],
    chosen: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Writes the text chunk `katz` of a picture. `arrivals`: of LoRAs that evaluations ran without,
    by path, the evaluation from which on each was there. `chosen`: what a job chose itself of where
    and how its stages ran.
    """
    facts = {
        "approximations": list(approximated),
        "devices": devices,
        "dtype": dtype,
        "version": version("katz-graph"),
    }
    late = {PurePath(path).name: evaluation for path, evaluation in arrivals.items()}
    more = {"lora_arrivals": late, "chosen": dict(chosen)}
    return json.dumps(facts | {name: value for name, value in more.items() if value})
