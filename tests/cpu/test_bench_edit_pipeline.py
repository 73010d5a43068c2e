"""A small part `pipeline` of `katz bench edit`, and its bounds."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from katz_graph.bench import edit_pipeline
from katz_graph.bench.conditions import quiet
from katz_graph.bench.edit_pipeline import Clock, Compared, Link, Ran, Scale, Turn
from katz_graph.bench.edit_speed import Network, make_usual
from katz_graph.bench.result import Figures
from katz_graph.ir.reuse import Reuse

NETWORK = Network(
    "small",
    lambda folder: make_usual(folder, (32, 64, 128), (1, 2, 2), modules=1),
    4,
    (32,),
    1,
    3,
    {},
)


def test_slower_links_cache_fewer_layers() -> None:
    scale = Scale(NETWORK, cells=32, mask=0.02, steps=2, loads=(0.01, 1.0), turns=1)
    with quiet():
        result = edit_pipeline.run(scale)
    fast, slow = ([int(word) for word in row[1].split(" of ")] for row in result.table)
    assert fast[0] == fast[1] == slow[1] > slow[0] > 0


def test_readers_share_the_rate_of_a_link() -> None:
    clock = Clock(threading.get_native_id())
    link = Link(clock)
    link.rate = 1000.0
    began = clock.now()
    readers = [threading.Thread(target=link.transfer, args=(20,)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    link.transfer(20)
    assert clock.now() - began >= 0.08


GOOD = Turn(Ran(10.0, 0.0, 0.0), Ran(11.0, 1.0, 5.0), Ran(7.5, 0.2, 0.1))


@pytest.mark.parametrize(
    ("turn", "broken"),
    [
        (GOOD, set()),
        (GOOD._replace(every=Ran(7.2, 0.0, 0.0)), {"of_better_at_1", "all_cached_at_1"}),
        (GOOD._replace(chosen=replace(GOOD.chosen, seconds=8.2)), {"error_at_1", "gain_at_1"}),
        (GOOD._replace(chosen=replace(GOOD.chosen, waits=0.4)), {"waits_at_1"}),
    ],
)
def test_bounds(turn: Turn, broken: set[str]) -> None:
    figures = Figures()
    Compared(1.0, 10, Reuse(1.0), 1.34, [turn]).judge(figures)
    held = dict(zip(figures.metrics, figures.held, strict=True))
    assert {name for name, one in held.items() if not one} == broken
