"""Runs `katz run` and `katz plan`. `katz run` renders a workflow with progress and one JSON line
for scripts; `katz plan` prints the compiled programs of its samplers. Writes traces for Chrome and
Perfetto.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katz_graph.api.progress import EvaluationProgress
from katz_graph.cli.options import PlanOptions, RunOptions
from katz_graph.cli.session import TerminalLines, check_writable, open_engine
from katz_graph.core.errors import Cancelled, InputError, RunError
from katz_graph.core.events import (
    Event,
    NodeBlocked,
    NodeDone,
    NodeFailed,
    NodeStarted,
    Span,
    StageDone,
    Timeline,
)

if TYPE_CHECKING:
    from katz_graph.api.result import Result


def run(workflow: Path, options: RunOptions, as_json: bool = False) -> None:
    """Runs the workflow. Raises an error only after reporting the written files."""
    started, lines = time.perf_counter(), TerminalLines()
    engine = open_engine(options, lines, options.cache, options.why)
    check_writable(engine.settings.output, "--output")
    if options.trace is not None:
        check_writable(options.trace.absolute().parent, "--trace")
    with engine, EvaluationProgress(lines.console) as progress:
        reporter = _Reporter(lines, progress, options.why)
        # nodes may print; standard output is for scripts
        with contextlib.redirect_stdout(sys.stderr):
            result = engine.run(
                workflow,
                seed=options.seed,
                set=options.sets,
                targets=options.targets,
                progress=reporter.listen,
                partial=True,
            )
    total = time.perf_counter() - started
    if not isinstance(result.error, Cancelled):
        _print_result(result, lines, total, as_json)
    if options.trace is not None:
        write_trace(options.trace, reporter.timelines)
    if result.error is not None:
        raise result.error


@dataclass(slots=True)
class _Reporter:
    """Prints the progress of a run, and collects the timelines of its trace."""

    lines: TerminalLines
    progress: EvaluationProgress
    why: bool
    timelines: list[Timeline] = field(default_factory=list)
    _began: dict[str, float] = field(default_factory=dict)  # start times by node

    def listen(self, event: Event) -> None:
        self.progress.listen(event)
        match event:
            case NodeStarted(node=node):
                self._began[node] = time.perf_counter()
            case NodeBlocked():
                self._explain(event, "blocked")
            case NodeDone(node=node, cached=cached):
                if not cached:
                    ran = Span(
                        "graph",
                        event.type,
                        self._began[node],
                        event.seconds,
                        kind="node",
                        target=event.type,
                    )
                    self.timelines.append(Timeline(node, (ran,)))
                self._explain(event, "cached" if cached else "done")
                for text in (event.ui or {}).get("text", ()):
                    self.lines.say(str(text))
            case NodeFailed():
                self._explain(event, "failed")
            case Timeline():
                self.timelines.append(event)
            case StageDone(span=span):
                self.timelines.append(Timeline("", (span,)))

    def _explain(self, event: NodeDone | NodeFailed, outcome: str) -> None:
        if self.why and event.why:
            self.lines.say(f"node {event.node} ({event.type}): {outcome}: {event.why}")


def _print_result(result: Result, lines: TerminalLines, total: float, as_json: bool) -> None:
    from katz_graph.planner.report.text import edit_line, start_line

    predicted, seconds = result.plan.predicted_seconds, {**result.seconds, "total": total}
    for file in result.files:
        lines.say(f"wrote {file}")
    if predicted is not None:
        sampling = seconds["prepare"] + seconds["denoise"]
        basis = "" if result.plan.is_profiled else " (not profiled)"
        lines.say(
            f"sampling took {sampling:.2f} s, predicted {predicted:.2f} s{basis}; the whole run "
            f"took {total:.2f} s"
        )
    for program in result.plan.programs:
        for line in (edit_line(program), start_line(program)):
            if line is not None:
                lines.say(line)
    if as_json:
        print(
            json.dumps(
                {
                    "outputs": [str(file) for file in result.files],
                    "seed": result.seed,
                    "seconds": seconds,
                    "calls": dict(result.calls),
                    "activations": dict(result.activations),
                    "predicted_seconds": predicted,
                    "plan": result.plan.as_json(),
                    "approximations": list(result.approximations),
                }
            )
        )


def plan(workflow: Path, options: PlanOptions, as_json: bool) -> None:
    """Prints the plan of every sampler of a workflow."""
    lines, svg = TerminalLines(), options.svg
    if svg is not None:
        check_writable(svg.absolute().parent, "--svg")
    with open_engine(options, lines) as engine, contextlib.redirect_stdout(sys.stderr):  # packs
        compiled = engine.plan(workflow, seed=options.seed, set=options.sets, after=options.after)
    if svg is not None:
        if not compiled.programs[0].segments:
            raise InputError(
                "--svg draws segments; use it without --after, or with --after segment or emit"
            )
        try:
            svg.write_text(compiled.as_svg(), encoding="utf-8")
        except OSError as error:
            raise RunError(f"{svg}: cannot write the picture ({error.strerror})") from None
        lines.say(f"wrote {svg}")
    print(json.dumps(compiled.as_json()) if as_json else compiled)


def write_trace(path: Path, timelines: Sequence[Timeline]) -> None:
    """Writes a trace of complete events ("ph": "X"), one per segment. Each device has a lane, and
    the graph's nodes share one. Times are in microseconds from the first event. RunError if the
    file cannot be written.
    """
    spans = [(part.node, span) for part in timelines for span in part.segments]
    origin = min((span.start for _, span in spans), default=0.0)
    lanes = {
        device: number
        for number, device in enumerate(dict.fromkeys(span.device for _, span in spans), start=1)
    }
    names: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": device}}
        for device, number in lanes.items()
    ]
    events = [
        {
            "name": span.name,
            "cat": "segment" if span.kind == "segment" else "work",
            "ph": "X",
            "pid": 1,
            "tid": lanes[span.device],
            "ts": (span.start - origin) * 1e6,
            "dur": span.seconds * 1e6,
            "args": {"node": node}
            | ({} if span.evaluation is None else {"evaluation": span.evaluation}),
        }
        for node, span in spans
    ]
    try:
        temporary = path.with_name(f".{path.name}.tmp")
        document = {"traceEvents": names + events, "displayTimeUnit": "ms"}
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot write the trace ({error.strerror})") from None
