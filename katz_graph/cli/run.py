"""`katz run`: a workflow to pictures, with progress for people and one JSON line for scripts."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from katz_graph.approximations import in_force, made_with
from katz_graph.cli.engines import open_engine
from katz_graph.cli.options import RunOptions
from katz_graph.cli.overrides import first_seed
from katz_graph.cli.progress import EvaluationProgress
from katz_graph.cli.session import Session, check_writable, open_session
from katz_graph.cli.trace import write_trace
from katz_graph.errors import Cancelled, InputError, KatzError, RunError
from katz_graph.events import Event, NodeBlocked, NodeDone, NodeFailed, NodeStarted, Planned, Span, StageDone, Timeline
from katz_graph.formats.api import to_api
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_write import to_ui
from katz_graph.wording import listed

if TYPE_CHECKING:
    from katz_graph.measured import Measured


def run(workflow: Path, options: RunOptions, as_json: bool = False) -> None:
    """Run the workflow. Errors are raised after what could be written was announced."""
    started = time.perf_counter()
    session = open_session(workflow, options, partial=True)
    check_writable(session.settings.output, "--output")
    if options.trace is not None:
        check_writable(options.trace.absolute().parent, "--trace")
    from katz_graph.executor.cache import ResultCache
    from katz_graph.executor.context import RunContext
    from katz_graph.executor.graph_run import run_graph

    cache = ResultCache.parse(options.cache)
    with open_engine(session, options.why) as engine, EvaluationProgress(session.console) as progress:
        reporter = _Reporter(session, options, progress, engine.device.dtype, metadata(session, engine.device.dtype))
        context = RunContext(engine, session.folders, session.settings.output, reporter.texts, reporter.listen, types=session.registry)
        failure: KatzError | None = None
        if session.problems:
            session.warn(f"some outputs are refused, for reasons that stand at the end; those that run: node {listed(session.targets)}")
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what nodes print; standard output is for scripts
                run_graph(session.graph, context, cache, session.targets, reporter.listen).raise_failures()
        except KatzError as error:
            failure = error
    total = time.perf_counter() - started
    if not isinstance(failure, Cancelled):
        _tell(session, context.measured, context.files, total, as_json)
    if options.trace is not None:
        write_trace(options.trace, reporter.timelines)
    if session.problems and not isinstance(failure, Cancelled):
        problems = [*session.problems, *([] if failure is None else [str(failure)])]
        raise RunError("\n".join((*problems, f"some outputs were refused: node {listed(session.refused)}")))
    if failure is not None:
        raise failure


@dataclass(slots=True)
class _Reporter:
    """Tells the person what a run does, and collects what its trace shows.

    Approximations are noted in `texts`, which its pictures carry.
    """

    session: Session
    options: RunOptions
    progress: EvaluationProgress
    dtype: str
    texts: dict[str, str]
    timelines: list[Timeline] = field(default_factory=list)
    _began: dict[str, float] = field(default_factory=dict)  # by node

    def listen(self, event: Event) -> None:
        self.progress.listen(event)
        self.session.listen(event)
        match event:
            case NodeStarted(node=node):
                self._began[node] = time.perf_counter()
            case NodeBlocked():
                self._explain(event, "blocked")
            case NodeDone(node=node, cached=cached):
                if not cached:
                    ran = Span("graph", event.type, self._began[node], event.seconds)
                    self.timelines.append(Timeline(node, (ran,)))
                self._explain(event, "cached" if cached else "done")
                for text in (event.ui or {}).get("text", ()):
                    self.session.say(str(text))
            case NodeFailed():
                self._explain(event, "failed")
            case Timeline():
                self.timelines.append(event)
            case StageDone(span=span):
                self.timelines.append(Timeline("", (span,)))
            case Planned(program=program) if approximated := in_force([program]):
                self.texts["katz"] = made_with(self.session.devices.text, self.dtype, approximated)

    def _explain(self, event: NodeDone | NodeFailed, outcome: str) -> None:
        if self.options.why and event.why:
            self.session.say(f"node {event.node} ({event.type}): {outcome}: {event.why}")


def metadata(session: Session, dtype: str) -> dict[str, str]:
    """The text chunks of written pictures: the graph as it runs, as the node editor opens it, and what the picture was made with."""
    texts = {"prompt": json.dumps(to_api(session.graph))}
    with contextlib.suppress(InputError):  # spare nodes may have links that lead nowhere, which the editor's format cannot say
        texts["workflow"] = json.dumps(to_ui(replace(session.workflow, graph=session.graph), signatures(session.registry)))
    return texts | {"katz": made_with(session.devices.text, dtype, [])}


def _tell(
    session: Session,
    measured: Measured,
    files: list[Path],
    total: float,
    as_json: bool,
) -> None:
    predicted, seconds = measured.predicted, {"total": total, **measured.seconds}
    for file in files:
        session.say(f"wrote {file}")
    if predicted is not None:
        sampling = seconds["prepare"] + seconds["denoise"]
        session.say(f"sampling took {sampling:.2f} s, predicted {predicted:.2f} s; the whole run took {total:.2f} s")
    if not as_json:
        return
    from katz_graph.planner.present import as_json as program_json

    plans = [program_json(program) for program in measured.programs]
    print(
        json.dumps(
            {
                "outputs": [str(file) for file in files],
                "seed": first_seed(session.graph),
                "seconds": seconds,
                "predicted_seconds": predicted,
                "plan": plans[0] if len(plans) == 1 else plans,
                "approximations": in_force(measured.programs),
            }
        )
    )
