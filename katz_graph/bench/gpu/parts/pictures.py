"""Measures a server's pictures with ControlNets and LoRAs: the first of each kind, which loads
their files, and later ones.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median

from katz_graph.bench.gpu.clients import paint, served
from katz_graph.bench.gpu.originals import KINDS, originals
from katz_graph.bench.gpu.peers import OURS, compare, starts
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult
from katz_graph.testing.comfyui_client import session

BOUND = 0.97  # × the sum of the parts, for three ControlNets


def run(setting: Setting, rows: Rows, peer: Path | None = None) -> BenchResult:
    figures: defaultdict[str, dict[str, float]] = defaultdict(dict)
    with originals(setting, rows.folder, adapters=True) as files:
        for name, start in starts(setting, files, peer).items():
            took = {}
            with (
                served(start, setting, files) as (server, seeds),
                session("127.0.0.1", server.port) as client,
            ):
                for kind in KINDS:
                    first, *later = (
                        paint(client, files.workflow(setting.sides[0], setting.steps, seed, kind))
                        for _, seed in zip(range(1 + setting.rounds), seeds, strict=False)
                    )
                    took[kind] = median(later)
                    rows.add(f"{kind}, {name}", first_seconds=first, seconds=took[kind])
                    figures[f"{kind}, first seconds"][name] = first
                    figures[f"{kind}, seconds"][name] = took[kind]
            if name == OURS:
                each = took["1 ControlNet"] - took["plain"]
                sum_of_parts = took["plain"] + 3 * each
                rows.judge(
                    "3 ControlNets of the sum of their parts",
                    took["3 ControlNets"] / sum_of_parts,
                    at_most=BOUND,
                )
    compare(rows, figures)
    return rows.result()
