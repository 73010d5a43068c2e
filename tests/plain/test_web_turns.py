"""Clients take turns and share the queue; no client blocks another one."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from web_jobs import FakeRunner, Service, job, run, submission, submit

from katz_graph.web.http.access import origin_of
from katz_graph.web.http.turns import Turns
from katz_graph.web.jobs.admission import Refused
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.queue import JobQueue, NotWaiting, owner_of
from katz_graph.web.options import Limits

pytestmark = pytest.mark.defect(25)


def names(queue: JobQueue) -> list[str]:
    return [each.id for each in queue]


def test_a_client_with_one_job_waits_for_one_round_only(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        await submit(service, *(f"a{number}" for number in range(60)), client="a")
        await submit(service, "b", client="b")
        await submit(service, "c", client="c")
        await service.jobs.resume()
        await service.all_ended("b", "c", "a5")
        assert service.runner.names[:6] == ["a0", "b", "c", "a1", "a2", "a3"]

    run(tmp_path, use, runner=FakeRunner(seconds=0.0))


def test_ids_that_one_address_makes_up_share_its_turns() -> None:
    queue = JobQueue()
    for number in range(20):
        queue.add(job(f"x{number}", client=f"made up {number}", origin="x", order=number))
    queue.add(job("y0", client="y", origin="y", order=20))
    queue.add(job("y1", client="y", origin="y", order=21))
    assert names(queue)[:5] == ["x0", "y0", "x1", "y1", "x2"]


@pytest.mark.parametrize("number", [-1e308, -sys.float_info.max, -(2.0**53), -1.0, 0.0, 1e308])
def test_front_is_before_any_number_and_numbers_order_within_a_client(number: float) -> None:
    queue = JobQueue()
    for order, id in enumerate(("first", "second")):
        queue.add(job(id, number, order, client="a"))
    for order, id in enumerate(("third", "fourth", "fifth"), 2):
        queue.add(queue.front(job(id, 1.0, order, client="a")))
        assert all(math.isfinite(each.number) for each in queue)
    assert names(queue) == ["fifth", "fourth", "third", "first", "second"]
    queue.place([queue.moved_to_front("second")])
    assert names(queue) == ["second", "fifth", "fourth", "third", "first"]


@pytest.mark.parametrize("number", [-1e308, -5.0])
def test_numbers_and_front_of_one_client_do_not_push_others_back(
    tmp_path: Path, number: float
) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        await submit(service, "b0", "b1", client="b")
        await submit(service, "a0", "a1", client="a", number=number)
        await submit(service, "a2", client="a", front=True)
        assert service.pending() == ["b0", "a2", "b1", "a0", "a1"]
        with pytest.raises(NotWaiting, match="job b0 belongs to another client"):
            await service.jobs.move("a1", before="b0")
        await service.jobs.move("a1", before="a2")
        assert service.pending() == ["b0", "a1", "b1", "a2", "a0"]

    run(tmp_path, use)


def test_a_job_that_comes_back_has_its_turn_again() -> None:
    queue = JobQueue()
    for order, (client, id) in enumerate(zip("aab", ("a0", "a1", "b0"), strict=True)):
        queue.add(job(id, 1.0, order, client=client))
    taken = queue.take(lambda _: True)
    assert taken is not None and taken.id == "a0" and names(queue) == ["b0", "a1"]
    queue.put_back(taken, 0)
    assert names(queue) == ["a0", "b0", "a1"]


def test_a_client_below_its_part_is_never_refused_while_another_has_more(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        await submit(service, *(f"a{number}" for number in range(8)), client="a")
        with pytest.raises(Refused, match="the queue is full: 8 jobs wait"):
            await service.jobs.submit(submission(client="a"))
        await submit(service, "b0", "b1", "b2", "b3", client="b")
        for client in ("a", "b"):
            with pytest.raises(Refused, match="of its jobs wait, and 2 clients share 8") as refused:
                await service.jobs.submit(submission(client=client))
            assert (refused.value.status, refused.value.kind) == (429, "queue_full")
        await submit(service, "c0", "c1", client="c")
        # another address gets half, whatever ids the first address makes up
        await submit(service, "d0", "d1", "d2", "d3", client="d", origin="elsewhere")
        with pytest.raises(Refused):
            await service.jobs.submit(submission(client="d", origin="elsewhere"))

    run(tmp_path, use, limits=Limits(queue=8))


def test_a_client_keeps_to_its_part_while_others_wait_though_there_is_room(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        await submit(service, "b", client="b")
        await submit(service, "a0", "a1", "a2", "a3", client="a")
        with pytest.raises(Refused, match="4 of its jobs wait"):
            await service.jobs.submit(submission(client="a"))
        await service.jobs.cancel(["b"])
        await submit(service, "a4", client="a")

    run(tmp_path, use, limits=Limits(queue=8))


def test_made_up_clients_do_not_make_the_queue_endless(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await service.jobs.pause()
        answers = await asyncio.gather(
            *(
                service.jobs.submit(submission(client=f"{number // 3}", origin=f"{number % 2}"))
                for number in range(200)
            ),
            return_exceptions=True,
        )
        assert all(isinstance(answer, Job | Refused) for answer in answers)
        assert 8 <= len(service.pending()) <= 2 * 8 * sum(1 / part for part in range(1, 9))

    run(tmp_path, use, limits=Limits(queue=8))


CLIENTS = st.sampled_from([("x", "1"), ("x", "2"), ("y", "1"), ("z", "1")])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(CLIENTS, st.sampled_from([0.0, 1.0, -1e308])), max_size=20))
def test_no_address_has_two_jobs_in_a_round_while_another_waits(
    given: list[tuple[tuple[str, str], float]],
) -> None:
    queue = JobQueue()
    for order, ((origin, client), number) in enumerate(given):
        queue.add(job(f"{order}", number, order, client=client, origin=origin))
    expected, taken = list(queue), []
    while (next_ := queue.take(lambda _: True)) is not None:
        waiting = {owner_of(each)[0] for each in queue}
        since: dict[str, int] = {}
        for each in reversed(taken):  # all waiting addresses had a turn since this one's last
            if each.origin == next_.origin:
                break
            since[each.origin] = 1
        if any(each.origin == next_.origin for each in taken):
            assert waiting - {next_.origin} <= set(since)
        taken.append(next_)
    assert taken == expected and len(taken) == len(given)
    for whose in {owner_of(each) for each in taken}:
        keys = [(each.number, each.order) for each in taken if owner_of(each) == whose]
        assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::1:2:3", "2001:db8::/64"),
        ("2001:db8::ffff", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("testclient", "testclient"),
        (None, ""),
    ],
)
def test_a_network_of_one_holder_is_one_address(host: str | None, origin: str) -> None:
    scope: dict[str, Any] = {"type": "http", "headers": [], "client": host and (host, 1)}
    assert origin_of(HTTPConnection(scope)) == origin


def test_one_address_leaves_a_place_for_another_and_they_take_turns() -> None:
    async def use() -> None:
        turns, came = Turns(4), list[str]()

        async def enter(address: str) -> None:
            await turns.enter(address)
            came.append(address)

        waiting = [asyncio.create_task(enter(address)) for address in "aaaaaabbbc"]
        held = list[str]()
        for expected in ("aaab", "b", "a", "c", "b", "a", "a"):
            await asyncio.sleep(0.001)
            assert "".join(came) == expected
            held += came
            came.clear()
            turns.leave(held.pop(-1 if expected == "aaab" else 0))
        await asyncio.wait_for(asyncio.gather(*waiting), 5)

    asyncio.run(use())


def test_cancelled_waiters_take_no_place() -> None:
    async def use() -> None:
        turns = Turns(2)
        await turns.enter("a")
        cancelled, next_one = (asyncio.create_task(turns.enter("a")) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        turns.leave("a")
        await asyncio.wait_for(next_one, 5)
        too_late = asyncio.create_task(turns.enter("a"))
        await asyncio.sleep(0)
        turns.leave("a")  # cancelled just after it gets the place
        too_late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await too_late
        await asyncio.wait_for(turns.enter("a"), 5)
        async with turns.turn("b"):
            pass

    asyncio.run(use())
