"""`katz bench`: which benches there are, and how one is run."""

from __future__ import annotations

import importlib

from katz_graph.bench.result import BenchResult, report
from katz_graph.errors import InputError
from katz_graph.wording import suggest

BENCHES = {
    "graph": "cost per node of the graph level, cold and cached",
    "parity": "latents against plain loops over diffusers' modules, and against its stock pipelines",
    "mini": "what the miniature models paint, by the judge",
    "overhead": "a whole run against the bare diffusers pipeline",
}


def run_bench(name: str | None, as_json: bool) -> bool:
    """Run one bench and print it, or list them; whether all bounds held."""
    if name is None:
        for known, purpose in BENCHES.items():
            print(f"{known:10} {purpose}")
        return True
    if name not in BENCHES:
        raise InputError(f"there is no bench {name!r}{suggest(name, BENCHES)}; `katz bench` lists them")
    result: BenchResult = importlib.import_module(f"katz_graph.bench.{name}").run()
    report(result, as_json)
    return result.ok
