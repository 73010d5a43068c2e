"""Before sampling, areas become cells, entries get counterparts, and ControlNets spread to the
negative side.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_graphs import prompt, use

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Area, ConditioningEntry, ControlUse, Picture, References
from katz_graph.planner.conditioning import balanced, placed


def area(text: str, *cells: float, relative: bool = False) -> ConditioningEntry:
    return replace(prompt(text), area=Area(*cells, relative=relative))


def texts(entries: tuple[ConditioningEntry, ...]) -> list[tuple[str, Area | None]]:
    return [(entry.encoding.text, entry.area) for entry in entries]  # type: ignore[union-attr]


def test_an_area_is_cut_to_the_latent_and_parts_become_cells() -> None:
    assert placed(area("a", 8, 4, 64, 64), 16, 16).area == Area(8, 4, 8, 12)
    assert placed(area("a", 0.5, 0.25, 0.5, 1.0, relative=True), 16, 32).area == Area(8, 8, 8, 24)
    assert placed(area("a", 0.0, 0.0, 0.001, 0.001, relative=True), 16, 32).area == Area(0, 0, 1, 1)
    with pytest.raises(
        InputError, match="begins at x 0, y 128 pixels, outside of the picture of 128x128"
    ):
        placed(area("a", 16, 0, 8, 8), 16, 16)


def test_the_other_side_gets_an_entry_of_the_same_area_with_the_text_of_the_smallest_that_covers_it() -> (
    None
):
    positive = (prompt("all"), area("left", 0, 0, 16, 8))
    negative = (prompt("bad"), area("bad half", 0, 0, 16, 10))
    first, second = balanced([positive, negative], 16, 16)
    assert texts(second) == [
        ("bad", None),
        ("bad half", Area(0, 0, 16, 10)),
        ("bad half", Area(0, 0, 16, 8)),
    ]
    assert texts(first) == [("all", None), ("left", Area(0, 0, 16, 8)), ("all", Area(0, 0, 16, 10))]


def test_a_partner_receives_its_own_side() -> None:
    def guided(entry: ConditioningEntry, guidance: float, name: str) -> ConditioningEntry:
        references = References((Picture(name, None),))  # type: ignore[arg-type]
        return replace(entry, guidance=guidance, references=references)

    positive = guided(area("left", 0, 0, 16, 8), 2.0, "a cat")
    negative = guided(prompt("bad"), 5.0, "a dog")
    _, (_, partner) = balanced([(positive,), (negative,)], 16, 16)
    assert (partner.guidance, partner.references) == (5.0, negative.references)
    _, (_, unguided) = balanced([(positive,), (prompt("bad"),)], 16, 16)
    assert (unguided.guidance, unguided.references) == (None, None)


def test_an_entry_of_that_very_area_is_partner_enough() -> None:
    first, second = balanced([(area("left", 0, 0, 16, 8),), (area("bad", 0, 0, 16, 8),)], 16, 16)
    assert (len(first), len(second)) == (1, 1)


def test_an_area_that_nothing_covers_has_no_partner() -> None:
    _, second = balanced([(area("left", 0, 0, 16, 8),), (area("bad", 0, 8, 16, 8),)], 16, 16)
    assert texts(second) == [("bad", Area(0, 8, 16, 8))]


def spreading(name: str) -> ControlUse:
    return replace(use(name), spreads=True)


def test_a_controlnet_that_spreads_is_given_to_negative_entries_without_area() -> None:
    _, second = balanced(
        [(prompt("a", spreading("edges")),), (prompt("bad"), area("corner", 0, 0, 8, 8))], 16, 16
    )
    assert [entry.control for entry in second[:2]] == [(spreading("edges"),), ()]


def test_it_is_not_given_where_a_negative_entry_has_its_own_or_to_nothing() -> None:
    own = prompt("bad", use("depth"))
    assert balanced([(prompt("a", spreading("edges")),), (own, prompt("worse"))], 16, 16)[1] == (
        own,
        prompt("worse"),
    )
    plain = prompt("a", use("edges"))
    assert balanced([(plain,), (prompt("bad"),)], 16, 16) == ((plain,), (prompt("bad"),))
