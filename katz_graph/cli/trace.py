"""Writes a run as a trace that Chrome and Perfetto open: a lane per device, one for the graph's
nodes, an event per segment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from katz_graph.errors import RunError
from katz_graph.events import Timeline


def write_trace(path: Path, timelines: Sequence[Timeline]) -> None:
    """Writes complete events ("ph": "X") with times in microseconds from the first one. RunError
    when the file cannot be written.
    """
    spans = [(part.node, span) for part in timelines for span in part.segments]
    origin = min((span.start for _, span in spans), default=0.0)
    lanes = {device: number for number, device in enumerate(dict.fromkeys(span.device for _, span in spans), start=1)}
    names: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": device}} for device, number in lanes.items()
    ]
    events = [
        {
            "name": span.name,
            "cat": "segment" if span.evaluation is not None else "work",
            "ph": "X",
            "pid": 1,
            "tid": lanes[span.device],
            "ts": (span.start - origin) * 1e6,
            "dur": span.seconds * 1e6,
            "args": {"node": node} | ({} if span.evaluation is None else {"evaluation": span.evaluation}),
        }
        for node, span in spans
    ]
    try:
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"}))
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot write the trace ({error.strerror})") from None
