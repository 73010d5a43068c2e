"""Runs `katz plan`: prints what a workflow's samplers compile to, without running a model."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from katz_graph.cli.options import PlanOptions
from katz_graph.cli.session import TerminalLines, open_engine
from katz_graph.errors import InputError, RunError


def plan(workflow: Path, options: PlanOptions, as_json: bool) -> None:
    """Prints the plan of every sampler of a workflow."""
    lines, svg = TerminalLines(), options.svg
    with open_engine(options, lines) as engine, contextlib.redirect_stdout(sys.stderr):  # of packs
        compiled = engine.plan(workflow, seed=options.seed, set=options.sets, after=options.after)
    if svg is not None:
        if not compiled.programs[0].segments:
            raise InputError("--svg draws segments; use it without --after, or with --after segment or emit")
        try:
            svg.write_text(compiled.as_svg())
        except OSError as error:
            raise RunError(f"{svg}: cannot write the picture ({error.strerror})") from None
        lines.say(f"wrote {svg}")
    print(json.dumps(compiled.as_json()) if as_json else compiled)
