"""Concurrent requests get lanes of base devices, and ControlNets a pool that grows and shrinks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from katz_graph.core.devices import BY_LOAD, Lane
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, ControlNetRecipe
from katz_graph.executor.cluster.router import Lease, Router
from katz_graph.ir.device import Target
from katz_graph.ir.program import Call, Prediction, Program, Variant
from katz_graph.ir.region import Operation, Ref, Region
from katz_graph.ir.reuse import TemplateUse

EDGES, POSE = (ControlNetRecipe(Component(name, ())) for name in ("edges", "pose"))
STEP = 0.1  # seconds of an evaluation


def region(**controls: ControlNetRecipe) -> Region:
    begin, end = (Operation(name, name, name, {}) for name in ("step_begin", "step_end"))
    operations = (
        Operation(name, "controlnet", "ControlNet", {"control_net": net})
        for name, net in controls.items()
    )
    return Region(begin, tuple(operations), end, "s")


def program(seconds: float, *devices: str) -> Program:
    """Returns a program that takes `seconds` on these devices."""
    calls = tuple(Call((), "unet_mid", device, STEP) for device in devices)
    prediction = Prediction(seconds, STEP, STEP, STEP, "")
    return Program(region(), (), Target(), calls=(calls,), prediction=prediction)


def planned(of: Region, pins: object, seconds: float) -> Program:
    """Returns a program whose ControlNets run on their pins, `seconds` each."""
    calls = tuple(Call((op.id,), op.stage, pins[op.id][0], seconds) for op in of.operations)  # type: ignore[index]
    variant = Variant("v0", of.operations, Ref("x"), {}, tuple(range(20)))
    prediction = Prediction(20 * STEP, STEP, STEP, STEP, "")
    return Program(of, (), Target(), variants=(variant,), calls=(calls,), prediction=prediction)


def router(clock: list[float], lane: Lane = 1) -> Router:
    return Router(["g0", "g1", "c0", "c1"], {"controlnet": ("c0", "c1")}, lane, lambda: clock[0])


def test_requests_go_to_the_lane_with_fewest() -> None:
    busy = router([0.0])
    first, second = busy.admit(region()), busy.admit(region())
    assert {first.devices[0], second.devices[0]} == {"g0", "g1"}
    busy.dismiss(second)
    assert busy.admit(region()).devices[0] == second.devices[0]


def test_requests_go_to_the_lane_that_is_predicted_to_end_first() -> None:
    clock = [0.0]
    busy = router(clock)
    long, short = busy.admit(region()), busy.admit(region())
    busy.planned(long, program(9.0, *long.devices))
    busy.planned(short, program(2.0, *short.devices))
    third = busy.admit(region())
    assert third.devices[0] == short.devices[0]
    busy.planned(third, program(8.0, *third.devices))
    assert busy.preview().devices[0] == long.devices[0]  # 9 s against 10 s
    clock[0] = 1.5
    busy.dismiss(short)
    assert busy.preview().devices[0] == long.devices[0]  # 7.5 s against 8 s
    clock[0] = 6.5
    assert busy.preview().devices[0] == long.devices[0]  # 2.5 s against 3 s
    busy.planned(third, program(2.0, *third.devices))  # planned again
    assert busy.preview().devices[0] == third.devices[0]
    clock[0] = 1e6  # both are late: the predicted ends are equal
    busy.dismiss(long)
    assert busy.preview().devices[0] == long.devices[0]


def test_idle_devices_get_the_templates_that_they_read_last() -> None:
    idle = router([0.0])

    def placed(template: str, reads: bool = True, busy: float = 0.0) -> str:
        """Returns the device of a request, while another one has the first device if `busy`."""
        other = idle.admit(region()) if busy else None
        if other is not None:
            idle.planned(other, program(busy, *other.devices[:1]))
        lease = idle.admit(region(), template=template)
        one = program(1.0, lease.devices[0])
        idle.planned(lease, replace(one, template=TemplateUse(template, ())) if reads else one)
        for each in filter(None, (lease, other)):
            idle.dismiss(each)
        return lease.devices[0]

    assert placed("a") == "g0" and placed("b", busy=1.0) == "g1"
    assert [placed(name) for name in ("a", "b", "c", "b")] == ["g0", "g1", "g0", "g1"]
    assert placed("a", busy=1.0) == "g1"  # g0 is not idle
    assert placed("a") == placed("a", reads=False) == "g1"
    assert placed("") == "g0"


def leased(auto: Router, alone: float, together: float) -> tuple[Lease, bool]:
    """Returns the lease of a request that takes `alone` seconds on one device and `together` on
    both, and whether it got both.
    """
    lease = auto.admit(region())
    one = program(alone, lease.devices[0])
    wider = auto.wider(lease)
    both = replace(program(together, "g0", "g1"), alone=alone / together)
    got = wider is not None and auto.widened(lease, wider, both)
    auto.planned(lease, both if got else one)
    return lease, got


def test_by_load_a_request_gets_all_devices_where_that_delays_others_by_less_than_it_saves() -> (
    None
):
    clock = [0.0]
    auto = router(clock, BY_LOAD)
    lease, got = leased(auto, 1.0, 0.6)
    assert got and lease.devices == ("g0", "g1", "c0", "c1")
    assert lease.pins == {"controlnet": ("c0", "c1")}
    auto.dismiss(lease)
    assert not leased(router([0.0], BY_LOAD), 1.0, 1.05)[1]  # slower
    taken = []
    for load in (0.1, 0.9):  # each request ends before the next one arrives
        for _ in range(100):
            clock[0] += 0.5 / load
            lease, got = leased(auto, 1.0, 0.7)
            auto.dismiss(lease)
        taken.append(got)
    assert taken == [True, False]


def test_by_load_devices_that_are_slower_together_than_planned_work_one_by_one_for_a_while() -> (
    None
):
    clock = [0.0]
    auto = router(clock, BY_LOAD)
    wide = []
    for _ in range(20):
        clock[0] += 20.0
        lease, got = leased(auto, 1.0, 0.6)
        clock[0] += 1.5 if got else 1.0
        auto.dismiss(lease, completed=True)
        wide.append(got)
    assert wide[0] and not any(wide[5:])
    clock[0] += 1000.0
    assert leased(auto, 1.0, 0.6)[1]


def test_by_load_a_burst_uses_devices_one_by_one() -> None:
    clock = [0.0]
    auto = router(clock, BY_LOAD)
    for _ in range(5):
        clock[0] += 100.0
        lease, got = leased(auto, 1.0, 0.8)
        assert got
        auto.dismiss(lease)
    leases = [leased(auto, 1.0, 0.8) for _ in range(6)]
    assert [got for _, got in leases[2:]] == [False] * 4
    assert {lease.devices[0] for lease, _ in leases[2:]} == {"g0", "g1"}


def test_by_load_pins_and_choices_of_jobs_hold() -> None:
    clock = [0.0]
    pins = {"unet_mid": ("a",), "vae_decode": ("b",)}
    apart = Router(["a", "b"], pins, BY_LOAD, lambda: clock[0])
    lease = apart.admit(region())  # no device has both
    assert lease.devices == ("a", "b") and apart.wider(lease) is None
    one = Router(["a", "b"], {"unet_mid": ("b",)}, BY_LOAD, lambda: clock[0])
    lease, got = leased(one, 1.0, 1.1)
    assert not got and lease.devices == ("b",)
    assert one.preview(chooses=True).devices == ("a", "b")


def test_without_lanes_a_request_may_use_every_device() -> None:
    assert set(router([0.0], lane=None).admit(region()).devices) == {"g0", "g1", "c0", "c1"}


def test_devices_that_others_may_use_too_are_no_pool() -> None:
    shared = Router(["a", "b"], {"controlnet": ("b",), "unet_mid": ("b",)}, None, lambda: 0.0)
    assert shared.pool == () and shared.admit(region(x=EDGES)).pins == {
        "controlnet": ("b",),
        "unet_mid": ("b",),
    }


def test_a_request_that_is_alone_has_the_whole_pool() -> None:
    assert router([0.0]).admit(region(positive=EDGES)).pins == {"controlnet": ("c0", "c1")}


def test_pins_that_nothing_can_hold_are_refused() -> None:
    with pytest.raises(InputError, match="unet_mid=g9: no such device; the devices are g0, g1"):
        Router(["g0", "g1"], {"unet_mid": ("g9",)}, None, lambda: 0.0)


def test_a_lane_that_cannot_hold_a_pin_is_not_chosen() -> None:
    pinned = Router(["g0", "g1"], {"unet_mid": ("g1",)}, 1, lambda: 0.0)
    assert {pinned.admit(region()).devices for _ in range(3)} == {("g1",)}


def test_both_branches_ask_one_member_and_other_controlnets_go_elsewhere() -> None:
    busy = router([0.0])
    busy.admit(region())
    both = region(positive=EDGES, negative=EDGES)
    first = busy.admit(both)
    assert first.pins["positive"] == first.pins["negative"]
    busy.planned(first, planned(both, first.pins, 0.04))
    other = busy.admit(region(positive=POSE))
    assert other.pins["positive"] != first.pins["positive"]


def test_a_controlnet_that_many_wait_for_is_replicated_and_given_up_when_idle() -> None:
    clock = [0.0]
    busy, request = router(clock), region(positive=EDGES)
    busy.admit(region())
    leases = []
    for _ in range(3):  # 3 sessions of 0.06 s are longer than a step of 0.1 s
        lease = busy.admit(request)
        leases.append(lease)
        assert busy.planned(lease, planned(request, lease.pins, 0.06)) == ()
    assert len({lease.pins["positive"] for lease in leases}) == 1
    clock[0] = 6.0
    (change,) = busy.observe()
    assert (
        change.kind == "replicate"
        and change.control == EDGES
        and (change.member,) != leases[0].pins["positive"]
    )
    assert busy.admit(request).pins["positive"] == (change.member,)  # the shorter queue
    for lease in leases:
        busy.dismiss(lease)
    clock[0] = 67.0
    (dropped,) = busy.observe()
    assert dropped.kind == "drop"
    assert busy.observe() == ()  # the last one stays


def test_lanes_that_lost_devices_are_one_where_none_of_them_holds_the_pins() -> None:
    """Lanes (g0, g1) and (g2, g3) lose g1 and g3. Each then lacks one of the two pinned devices."""
    pins = {"unet_mid": ("g0",), "vae_decode": ("g2",)}
    with pytest.raises(InputError, match="no group of 1 devices"):
        Router(["g0", "g2"], pins, 1, lambda: 0.0)
    left = Router(["g0", "g2"], pins, 1, lambda: 0.0, reduced=True)
    assert left.admit(region()).devices == ("g0", "g2")
