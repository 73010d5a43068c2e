"""`katz bench mini`: judges the pictures that the miniature models paint through planner and
engine, with the judge that the package ships.

Captions combine attributes in ways that training did not see; pictures take 20 Euler steps. The
judge is first measured on drawn pictures.
"""

from __future__ import annotations

import os

import torch

from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.files.folders import MINI
from katz_graph.mini.evaluate import BOUNDS, evaluate, failures
from katz_graph.mini.judge import load_judge
from katz_graph.mini.train_judge import examine
from katz_graph.testing.miniature import EnginePaint, flow_miniature, noise_miniature
from katz_graph.testing.requests import local_engine

JUDGE_BOUND = 0.98


def run() -> BenchResult:
    """Evaluates both model families: about 1,150 pictures."""
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    bounds = {name: f"{sign} {bound}" for name, (sign, bound) in BOUNDS.items()}
    missed: list[str] = []
    with quiet(), local_engine(threads=os.cpu_count()) as engine:
        judge = load_judge(MINI / "judge")
        examined = {f"judge_{name}": value for name, value in examine(judge).items()}
        for mini in noise_miniature(), flow_miniature():
            paint = EnginePaint(engine, mini)
            figures = evaluate(paint, judge, hints=mini.hints, styles=mini.styles)
            missed += failures(figures)
            named = {name: mini.prefix.replace("-", "_") + name for name in figures}
            found |= {named[name]: value for name, value in figures.items()}
            bounds |= {named[name]: bounds[name] for name in figures if name in bounds}
    # `judge_silhouette` is an overlap, not a share of correct answers
    judged = [name for name in examined if name != "judge_silhouette"]
    blind = [name for name in judged if examined[name] < JUDGE_BOUND]
    bounds |= dict.fromkeys(judged, f">= {JUDGE_BOUND}")
    figures = examined | found
    rows = [[name, value, bounds.get(name, "")] for name, value in figures.items()]
    return BenchResult(
        "mini",
        not missed and not blind,
        figures,
        {name: bound for name, bound in bounds.items() if name in figures},
        ("figure", "value", "bound"),
        rows,
    )
