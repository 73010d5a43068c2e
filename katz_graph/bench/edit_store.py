"""Part `store` of `katz bench edit`: random operations on the template store, with errors of the
disk and killed processes.
"""

from __future__ import annotations

import logging
import random
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from katz_graph.bench.result import BenchResult
from katz_graph.testing.random_templates import (
    BUDGETS,
    RandomTemplates,
    failing_disk,
    kill_at_random,
    was_killed,
)

ERRORS = 0.05  # share of the disk's operations that fail, in half of the operations
TOGETHER = 2  # processes that share a folder until they are killed


def store(number: int = 1000) -> BenchResult:
    """Performs `number` operations on each combination of levels, and kills `number` processes."""
    log = logging.getLogger("katz_graph")
    before = log.level
    log.setLevel(logging.ERROR)  # each failed fill is reported
    try:
        figures, wrong = Counter[str](), list[str]()
        for budgets in BUDGETS:
            with tempfile.TemporaryDirectory(prefix="katz-") as folder:
                _operations(Path(folder) / "templates", budgets, number, figures, wrong)
        with tempfile.TemporaryDirectory(prefix="katz-") as folder:
            _kills(Path(folder) / "templates", BUDGETS[0], number, figures, wrong)
    finally:
        log.setLevel(before)
    return BenchResult(
        "edit",
        not wrong,
        {
            **{f"store_{name}": count for name, count in figures.items()},
            "store_violations": len(wrong),
        },
        {"store_violations": "0"},
        notes=wrong[:10],
    )


def _operations(
    folder: Path, budgets: tuple[int, int], number: int, figures: Counter[str], wrong: list[str]
) -> None:
    choices = random.Random(number)
    templates = RandomTemplates(folder, *budgets, choices)
    with templates.checked_writes():
        templates.run(number // 2)
        with failing_disk(choices, ERRORS) as failed:
            templates.run(number - number // 2)
    templates.reopen()
    templates.check_all()
    counts = asdict(templates.counts)
    wrong += counts.pop("wrong")
    figures.update(counts | {"disk_errors": failed()})


def _kills(
    folder: Path, budgets: tuple[int, int], number: int, figures: Counter[str], wrong: list[str]
) -> None:
    """Kills processes that share a folder, and checks what they leave, in turns."""
    for turn in range(-(-number // TOGETHER)):
        seeds = range(TOGETHER * turn, TOGETHER * (turn + 1))
        children = [kill_at_random(folder, *budgets, seed) for seed in seeds]
        killed = [was_killed(child) for child in children]
        figures["kills"] += sum(killed)
        wrong += [f"turn {turn}: a process found a violation"] * killed.count(False)
        templates = RandomTemplates(folder, *budgets, random.Random(turn))
        templates.check_disk()
        templates.check_all()
        templates.close()
        wrong += templates.counts.wrong
