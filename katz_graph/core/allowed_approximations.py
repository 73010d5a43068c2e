"""Names the approximations that users may allow, and records them in pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.ir.provenance import (
    ASYNC_LORA,
    CACHED_EDIT,
    EXACT,
    SIMILAR_START,
    STALE_CONTROLNET,
    Provenance,
)

APPROXIMATIONS = (STALE_CONTROLNET, ASYNC_LORA, CACHED_EDIT, SIMILAR_START)


def allowed_names(names: str) -> frozenset[str]:
    """Parses a comma-separated list of approximations; `async-lora=K` takes a number. Raises
    InputError for unknown names.
    """
    found = frozenset(filter(None, (part.strip() for part in names.split(","))))
    for one in sorted(found):
        name, _, number = one.partition("=")
        if name not in APPROXIMATIONS:
            raise InputError(
                f"--allow {one}: no such approximation; choose from {', '.join(APPROXIMATIONS)}"
            )
        if "=" in one and (name != ASYNC_LORA or not number.isdecimal()):
            raise InputError(f"--allow {one}: expected {ASYNC_LORA}=K for K steps")
    return found


def made_with(
    devices: str,
    dtype: str,
    provenance: Provenance = EXACT,
    chosen: Mapping[str, Any] = MappingProxyType({}),
    shared_rows: SharedRows = ALONE,
) -> str:
    """Returns the content of a picture's text chunk `katz`. `chosen`: scheduling choices of this
    job. `shared_rows`: in force on its devices.
    """
    facts = {
        "approximations": list(provenance.approximations),
        "devices": devices,
        "dtype": dtype,
        "version": version("katz-graph"),
    }
    more = {
        "lora_arrivals": provenance.deferred_loras,
        "template": provenance.template,
        "similar_starts": [
            {"picture": one.picture, "similarity": round(one.similarity, 4), "saved": one.saved}
            for one in provenance.similar
        ],
        "chosen": {**provenance.chosen, **chosen},
        "shared_rows": str(shared_rows) if shared_rows.most else "",
    }
    return json.dumps(facts | {name: value for name, value in more.items() if value})
