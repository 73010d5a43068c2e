"""Events go to all sockets of their owner only, and a slow socket delays no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest
from web_clients import FakeJobs, connect, drained, make_hub, make_job, unpacked

from katz_graph.core.events import PackMessage, Progress, Warned
from katz_graph.web.events import EncodedPicture, Ended, Started
from katz_graph.web.live.comfy_channel import ConventionChannel
from katz_graph.web.live.hub import ARRIVED, CLIENT_ID, OUTBOX, TooManySockets
from katz_graph.web.live.katz_channel import NativeChannel
from katz_graph.web.live.outbox import TOO_SLOW, ByteBudget, ClientFrame, FrameQueue, RateLimit
from katz_graph.web.options import Limits


def on_a_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


@on_a_loop
async def test_events_reach_every_socket_of_the_client_and_no_other() -> None:
    jobs = FakeJobs([make_job()])
    hub = make_hub(jobs)
    first, second, other = (
        connect(hub, NativeChannel(), client) for client in ("ann", "ann", "bob")
    )
    hub.publish(jobs.running[0], Started(1.0))
    assert [frame["type"] for frame in unpacked(drained(first))] == ["snapshot", "event"]
    assert [frame["type"] for frame in unpacked(drained(second))] == ["snapshot", "event"]
    assert [frame["type"] for frame in unpacked(drained(other))] == ["snapshot"]


@on_a_loop
async def test_a_job_without_client_is_reported_to_no_client() -> None:
    hub = make_hub(FakeJobs())
    sessions = [connect(hub, NativeChannel(), client) for client in ("ann", "None", "x")]
    hub.publish(make_job(client=None), Started(1.0))
    hub.publish(make_job(client=None), Ended("completed", 2.0))
    assert [len(drained(session)) for session in sessions] == [1, 1, 1]


@on_a_loop
async def test_a_pack_can_name_another_client() -> None:
    hub = make_hub(FakeJobs([make_job()]))
    ann, bob = connect(hub, NativeChannel(), "ann"), connect(hub, NativeChannel(), "bob")
    hub.publish(make_job(), PackMessage("my.pack", {"a": 1}, client="bob"))
    assert len(drained(ann)) == 1
    assert unpacked(drained(bob))[1]["event"]["data"] == {"a": 1}


@on_a_loop
async def test_an_old_socket_that_closes_later_leaves_the_new_one() -> None:
    hub = make_hub(FakeJobs())
    old = connect(hub, NativeChannel())
    new = connect(hub, NativeChannel())
    old.close()
    old.close()
    hub.publish(make_job(), Started(1.0))
    assert len(drained(new)) == 2
    new.close()
    assert hub.sockets == 0


@on_a_loop
async def test_a_client_that_does_not_read_is_let_go_and_others_go_on() -> None:
    hub = make_hub(FakeJobs([make_job()]))
    slow, quick = connect(hub, NativeChannel()), connect(hub, NativeChannel())
    hub.publish(make_job(), Started(1.0))
    received = len(drained(quick))
    for _ in range(OUTBOX // 2**20 + 2):
        hub.publish(make_job(), Warned("x" * 2**20))
        received += len(drained(quick))
    assert slow.outbox.end is not None
    assert slow.outbox.end[0] == 1013
    assert drained(slow) == []
    assert quick.outbox.end is None
    assert received == OUTBOX // 2**20 + 4
    back = connect(hub, NativeChannel())
    (snapshot,) = unpacked(drained(back))
    assert snapshot["jobs"][0]["state"]["started"] == 1.0


@on_a_loop
async def test_previews_do_not_pile_up_but_pictures_that_a_node_sends_do() -> None:
    hub = make_hub(FakeJobs([make_job()]))
    session = connect(hub, ConventionChannel({}))
    drained(session)
    hub.publish(make_job(), Started(1.0))
    for number in range(100):
        hub.publish(make_job(), EncodedPicture("3", "3", b"%d" % number))
    hub.publish(make_job(), EncodedPicture("8", "8", b"saved", "image/png", lasting=True))
    hub.publish(make_job(), EncodedPicture("8", "8", b"saved", "image/png", lasting=True))
    pictures = [frame[8:] for frame in drained(session) if isinstance(frame, bytes)]
    assert pictures == [b"99", b"saved", b"saved"]


@on_a_loop
async def test_there_are_only_so_many_sockets() -> None:
    hub = make_hub(FakeJobs(), Limits(sockets=2))
    first = connect(hub, NativeChannel(), "a")
    connect(hub, NativeChannel(), "b")
    with pytest.raises(TooManySockets, match="2 websockets"):
        hub.connect("c", NativeChannel())
    first.close()
    hub.connect("c", NativeChannel())


@on_a_loop
async def test_the_queue_is_broadcast_and_many_changes_take_few_messages() -> None:
    jobs = FakeJobs(
        pending=[
            make_job("a", "ann", "pending"),
            make_job("b", "bob", "pending"),
            make_job("c", "ann", "pending"),
        ]
    )
    hub = make_hub(jobs)
    ann, bob = connect(hub, NativeChannel(), "ann"), connect(hub, NativeChannel(), "bob")
    drained(ann), drained(bob)
    for _ in range(1000):
        hub.status()
    jobs.pending.pop(0)
    await asyncio.sleep(0.1)
    messages = unpacked(drained(ann))
    assert len(messages) <= 25
    assert messages[0]["places"] == {"a": 0, "c": 2}
    assert messages[-1]["places"] == {"c": 1}
    assert unpacked(drained(bob))[-1]["places"] == {"b": 0}


@on_a_loop
async def test_the_end_of_a_job_is_reported_to_a_returning_client() -> None:
    jobs = FakeJobs([make_job()])
    hub = make_hub(jobs)
    connect(hub, NativeChannel()).close()
    hub.publish(jobs.running[0], Started(1.0))
    hub.publish(
        jobs.running.pop(),
        Ended("completed", 2.0, outputs={"9": {"images": [{"filename": "a.png"}]}}),
    )
    (snapshot,) = unpacked(drained(connect(hub, NativeChannel())))
    (job,) = snapshot["jobs"]
    assert (job["status"], job["ended"], job["result"]["outputs"]["9"]["images"]) == (
        "completed",
        2.0,
        [{"filename": "a.png"}],
    )


@on_a_loop
async def test_clients_that_close_after_an_end_are_not_notified_again() -> None:
    def ended(identifier: str) -> None:
        hub.publish(make_job(identifier), Ended("completed", 2.0))

    def known() -> list[str]:
        return [job.id for job in hub.snapshot("ann", ()).missed]

    hub = make_hub(FakeJobs())
    leaving = connect(hub, NativeChannel())
    ended("a")
    drained(leaving)
    leaving.goodbye()
    assert known() == ["a"]  # it may not have arrived yet
    asyncio.get_running_loop().time = lambda: time.monotonic() + 2 * ARRIVED  # type: ignore[method-assign]
    ended("b")
    leaving.goodbye()
    assert known() == ["a", "b"]  # the second was not sent
    drained(leaving)
    leaving.goodbye()
    assert known() == ["b"]


@on_a_loop
async def test_jobs_that_end_while_a_client_connects_are_not_lost() -> None:
    """A job may end after `connect`, while the store is read for `begin`."""
    jobs = FakeJobs([make_job()])
    hub = make_hub(jobs)
    session = hub.connect("ann", NativeChannel())
    hub.publish(jobs.running.pop(), Ended("completed", 2.0))
    session.begin([])
    (snapshot,) = unpacked(drained(session))
    assert snapshot["jobs"][0]["status"] == "completed"


@on_a_loop
async def test_close_ends_every_session() -> None:
    hub = make_hub(FakeJobs())
    sessions = [connect(hub, NativeChannel(), client) for client in "abc"]
    hub.close()
    assert [await session.outbox.closed() for session in sessions] == [
        (1001, "the server is shutting down")
    ] * 3


@on_a_loop
async def test_next_gives_frames_in_order_and_waits_for_more() -> None:
    hub = make_hub(FakeJobs([make_job()]))
    session = connect(hub, ConventionChannel({}))
    hub.publish(make_job(), Started(1.0))
    assert "status" in str(await session.next())
    assert "execution_start" in str(await session.next())
    waiting = asyncio.create_task(session.next())
    await asyncio.sleep(0)
    hub.publish(make_job(), Progress("3", 1, 20, display="3"))
    assert '"progress"' in str(await asyncio.wait_for(waiting, 1))


def test_an_outbox_takes_one_frame_of_any_size() -> None:
    outbox = FrameQueue(10, ByteBudget(1000))
    outbox.put(ClientFrame(b"x" * 100))
    outbox.put(ClientFrame(b"y" * 10))
    assert outbox.end is None
    outbox.put(ClientFrame(b"z"))
    assert outbox.end is not None


def test_outboxes_share_a_budget_and_the_fullest_is_closed_first() -> None:
    budget = ByteBudget(100)
    fast, slow, other = (FrameQueue(80, budget) for _ in range(3))
    for _ in range(3):
        slow.put(ClientFrame(b"x" * 20))
    for _ in range(100):
        fast.put(ClientFrame(b"y" * 30))
        fast.pop()
    other.put(ClientFrame(b"z" * 30))
    assert (fast.end, slow.end, other.end) == (None, None, None)
    fast.put(ClientFrame(b"y" * 30))
    assert (fast.end, slow.end, other.end) == (None, TOO_SLOW, None)
    for _ in range(2):
        fast.put(ClientFrame(b"y" * 20))  # there is room again
    assert fast.end is None


@on_a_loop
async def test_one_client_cannot_have_all_sockets() -> None:
    hub = make_hub(FakeJobs(), Limits(client_sockets=2))
    first, _ = (connect(hub, NativeChannel(), "a") for _ in range(2))
    with pytest.raises(TooManySockets, match="this client has reached its limit of 2 websockets"):
        hub.connect("a", NativeChannel())
    connect(hub, NativeChannel(), "b")
    first.close()
    hub.connect("a", NativeChannel())


def test_pace() -> None:
    now = [0.0]
    pace = RateLimit(10, 2, lambda: now[0])
    assert [pace.take() for _ in range(3)] == [True, True, False]
    assert pace.wait() == pytest.approx(0.1)
    now[0] = 0.1
    assert pace.take()
    now[0] = 10.0
    assert pace.take(5)  # more than a full bucket: the rest is owed
    assert pace.wait() == pytest.approx(0.4)


@pytest.mark.parametrize(
    "text, fine",
    [
        ("a b", True),
        ("x" * 200, True),
        ("x" * 201, False),
        ("", False),
        ("a\nb", False),
        ("\0", False),
    ],
)
def test_client_ids(text: str, fine: bool) -> None:
    assert bool(CLIENT_ID.fullmatch(text)) == fine
