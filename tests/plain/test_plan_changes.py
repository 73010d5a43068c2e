"""Plans can assume other devices, links and options than jobs have."""

from __future__ import annotations

import pytest

from katz_graph.core.errors import InputError
from katz_graph.ir.changes import PlanChanges
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.planner.changes import MAX_REPLICAS, changed

FAST, SLOW = NetworkLink(1e10, 1e-5), NetworkLink(1e8, 1e-3)
TWO = Target(
    (Device("a", 1e12, 1e11), Device("b", 2e12, 1e11)),
    {("a", "b"): FAST, ("b", "a"): SLOW},
    {"controlnet": ("b",), "unet_encoder": ("a", "b")},
    frozenset({"async-lora"}),
    True,
)
ONE = Target((Device("a", 1e12, 1e11),))


def names(target: Target) -> list[str]:
    return [device.name for device in target.devices]


def test_nothing_changed_is_the_same() -> None:
    assert changed(TWO, PlanChanges()) == TWO


def test_fewer_devices_lose_pins_to_missing_ones() -> None:
    made = changed(TWO, PlanChanges(devices=("a",)))
    assert names(made) == ["a"] and made.links == {} and made.pins == {"unet_encoder": ("a",)}
    assert made.allowed == TWO.allowed and made.batching is True


def test_more_devices_are_like_one_with_its_links() -> None:
    made = changed(TWO, PlanChanges(devices=("b*2", "a")))
    assert names(made) == ["b", "b+1", "a"]
    assert {device.flops_per_second for device in made.devices[:2]} == {2e12}
    assert made.links["a", "b+1"] == FAST and made.links["b+1", "a"] == SLOW
    assert made.links["b", "b+1"] == FAST  # the fastest known link


def test_a_link_stands_for_all() -> None:
    made = changed(TWO, PlanChanges(link="8,2"))
    assert set(made.links.values()) == {NetworkLink(1e9, 2e-3)} and len(made.links) == 2
    assert len(changed(ONE, PlanChanges(devices=("a*3",), link="8")).links) == 6


def test_pins_approximations_and_batching_take_the_place_of_others() -> None:
    made = changed(
        TWO, PlanChanges(place=("controlnet=a",), allow="stale-controlnet", batching=False)
    )
    assert set(made.pins.values()) == {("a",)} and "unet_encoder" not in made.pins
    assert made.allowed == {"stale-controlnet"} and made.batching is False
    assert changed(TWO, PlanChanges(allow="")).allowed == frozenset()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (PlanChanges(devices=("c",)), "c is none of the devices a, b"),
        (PlanChanges(devices=("a*0",)), "a*0 is none"),
        (PlanChanges(devices=("a*-1",)), "a*-1 is none"),
        (PlanChanges(devices=(f"a*{MAX_REPLICAS + 1}",)), f"at most {MAX_REPLICAS}"),
        (PlanChanges(devices=("a", "a")), "named twice"),
        (PlanChanges(devices=("a",), place=("controlnet=b",)), "has the devices a only"),
        (PlanChanges(place=("nothing=a",)), "unknown stage 'nothing'"),
        (PlanChanges(allow="magic"), "no such approximation"),
        (PlanChanges(link="fast"), "expected GBPS"),
    ],
)
def test_impossible_changes_are_reported(changes: PlanChanges, said: str) -> None:
    with pytest.raises(InputError) as raised:
        changed(TWO, changes)
    assert said in str(raised.value)


def test_two_like_one_need_a_link() -> None:
    with pytest.raises(InputError, match=r"a and a\+1: set a link"):
        changed(ONE, PlanChanges(devices=("a*2",)))
