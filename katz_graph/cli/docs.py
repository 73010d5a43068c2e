"""`python -m katz_graph.cli.docs`: generates the parts of docs/ that show command output: printed
plans, a picture of a plan, and the table of benches.

Plans are computed for an assumed machine (`RATES`), so every machine prints the same plans. Run it
in the repository's root.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from katz_graph.bench.command import BENCHES

DOCS = Path("docs")
RECORDS = "benchmarks.jsonl"
RATES = (20e9, 10e9, 2e-6)
"""Rates of each device: floating-point operations per second, bytes per second, and seconds to
launch a kernel.
"""
PLAN = re.compile(r"(?<=```console\n)(?P<command>\$ katz plan [^\n]*)\n.*?(?=```)", re.DOTALL)
OUTPUT = re.compile(r" --(after|svg) \S+")
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
DIGEST = re.compile(
    r"\b[0-9a-f]{12}\b"
)  # digest of a weight set: it depends on file modification times


def with_plans(text: str, pictures: Path) -> str:
    """Replaces the text below each `$ katz plan` by the command's output. Pictures are written to
    the folder `pictures`.

    A block omits lines that the previous block of the same plan printed, so it shows only what a
    pass adds.
    """
    with tempfile.TemporaryDirectory() as cache:
        _assume_rates(Path(cache))
        known: dict[str, list[str]] = {}  # by command without its output options

        def printed(block: re.Match[str]) -> str:
            plan = OUTPUT.sub("", block["command"])
            lines = _plan(block["command"], Path(cache), pictures)
            new = [line for line in lines if line not in known.get(plan, ())]
            known[plan] = lines
            return "\n".join((block["command"], *new, ""))

        return PLAN.sub(printed, text)


def with_table(text: str, records: str) -> str:
    """Replaces the table of benches by one built from `records`: JSON lines, of which the last one
    per bench counts.
    """
    latest = {record["bench"]: record for record in map(json.loads, records.splitlines())}
    rows = [_row(name, latest[name]) for name in BENCHES if name in latest]
    head = ("| bench | what it compares | measured | on |", "|---|---|---|---|")
    return TABLE.sub(lambda _: "\n".join((*head, *rows, "")), text)


def _row(name: str, record: dict[str, Any]) -> str:
    figures = record.get("figures") or "; ".join(_figures(record))
    return (
        f"| `katz bench {name}` | {BENCHES[name]} | {figures} | {record['machine']}, "
        f"{record['date']} |"
    )


def _figures(record: dict[str, Any]) -> Iterator[str]:
    for name, bound in record["bounds"].items():
        value = record["metrics"].get(name)
        yield f"{name} {f'{value:.3g}' if isinstance(value, float) else value} (bound: {bound})"
    if not record["ok"]:
        yield "NOT within bounds"


def _assume_rates(cache: Path) -> None:
    import torch

    from katz_graph.executor.measure.device import device_key
    from katz_graph.executor.measure.store import CostStore, Rates

    CostStore(cache).keep_rates(
        device_key(torch.device("cpu"), torch.float32, threads=1), Rates(*RATES)
    )


def _plan(command: str, cache: Path, pictures: Path) -> list[str]:
    """Runs `$ katz plan ...` with `cache` as the cost cache; returns the printed lines."""
    from typer.testing import CliRunner

    from katz_graph.cli.main import app

    arguments = shlex.split(command)[2:]
    if "--svg" in arguments:
        place = arguments.index("--svg") + 1
        arguments[place] = str(pictures / Path(arguments[place]).name)
    ran = CliRunner().invoke(
        app, [*arguments, "--threads", "1"], env={"KATZ_CACHE": str(cache)}, catch_exceptions=False
    )
    return DIGEST.sub("<digest>", ran.stdout).splitlines()


def main(
    record: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE", help="append the line of `katz bench --json` that comes in"
        ),
    ] = None,
) -> None:
    """Regenerate the plans, the picture and the table in docs/; with --record, only the table, with
    one more measurement.
    """
    records = DOCS / RECORDS
    if record is not None:
        measured = {
            "date": date.today().isoformat(),
            "machine": record,
            **json.loads(sys.stdin.readlines()[-1]),
        }
        with records.open("a") as file:
            file.write(json.dumps(measured, ensure_ascii=False) + "\n")
    else:
        planner = DOCS / "planner.md"
        planner.write_text(with_plans(planner.read_text(), DOCS))
    benchmarks = DOCS / "benchmarks.md"
    benchmarks.write_text(with_table(benchmarks.read_text(), records.read_text()))


if __name__ == "__main__":
    typer.run(main)
