"""Runs `katz warm`: compiles the kernels of workflows for a GPU that may be absent."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from katz_graph.cli.options import WarmOptions
from katz_graph.cli.session import TerminalLines, open_engine
from katz_graph.core.errors import InputError

ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 103, 120, 121)


def warm(workflows: Sequence[Path], options: WarmOptions, as_json: bool) -> None:
    """Compiles the kernels, and prints how many were compiled."""
    named = None if options.arch is None else architecture(options.arch)
    started = time.perf_counter()
    # packs may print
    with open_engine(options, TerminalLines()) as engine, contextlib.redirect_stdout(sys.stderr):
        counted = engine.compile_kernels(workflows, architecture=named, set=options.sets)
    seconds = time.perf_counter() - started
    if as_json:
        print(json.dumps({**asdict(counted), "seconds": seconds}))
    else:
        print(
            f"compiled {counted.compiled} kernels for sm{counted.architecture} in {seconds:.1f} s, "
            f"{counted.cached} were there"
        )


def architecture(text: str) -> int:
    """Parses the name of an architecture, such as sm90. Raises InputError for other names."""
    number = re.fullmatch(r"sm_?(\d+)", text)
    if number is None or int(number[1]) not in ARCHITECTURES:
        known = ", ".join(f"sm{one}" for one in ARCHITECTURES)
        raise InputError(f"--arch {text}: expected one of {known}")
    return int(number[1])
