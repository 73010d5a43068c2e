"""Messages between server and runner arrive unchanged, in any pieces, and no other objects are
sent.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from katz_graph.ipc.packing import pack
from katz_graph.web.options import RunnerStart, ServeOptions
from katz_graph.web.runner_client import messages, wire
from katz_graph.web.runner_client.facts import (
    CheckedPrompt,
    DeviceFacts,
    DeviceStats,
    RunnerFacts,
    Stats,
)
from katz_graph.web.runner_client.messages import Answer, Check, Free, GetStats
from katz_graph.web.runner_client.wire import (
    AsyncEnd,
    Numbered,
    RunnerMessages,
    ThreadedEnd,
    WireError,
    packed,
)

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PLAIN, max_size=3), st.integers(1, 50))
def test_whatever_is_sent_arrives_as_it_was_in_pieces_of_any_size(
    bodies: list[Any], piece: int
) -> None:
    """Includes seeds beyond 64 bits and lone surrogates, which JSON can hold."""
    data = b"".join(packed(Answer(body), number) for number, body in enumerate(bodies))
    taken = RunnerMessages()
    arrived = [
        message
        for start in range(0, len(data), piece)
        for message in taken.take(data[start : start + piece])
    ]
    assert arrived == [Numbered(number, Answer(body)) for number, body in enumerate(bodies)]


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        packed(Answer(None), 1)[1:] + b"\x93",
        b"\x92\x01\x02",
        b"\x93\xa1a\x01\xd4\x07a",
        pack(["Strange", 0, {}]),
        pack([["Answer"], 0, {}]),
        pack(["Answer", 0, {}]),
        pack(["Answer", 0, [1]]),
        pack(["Answer", 0, {"value": 1, "more": 2}]),
        pack(["Ready", 0, {"facts": {"nodes": "many"}}]),
    ],
)
def test_invalid_messages_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        list(RunnerMessages().take(data))


def test_a_message_over_the_limit_is_refused() -> None:
    with pytest.raises(WireError, match=r"Full|max"):
        list(RunnerMessages(largest=1000).take(packed(Answer(b"x" * 2000))))


def test_a_message_that_the_other_side_would_not_take_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(ValueError, match="more than the 1,000"):
        packed(Answer(b"x" * 2000))


def test_objects_are_not_sent() -> None:
    with pytest.raises(TypeError):
        packed(Answer(object()))


def test_threads_and_an_event_loop_talk_in_order_until_one_of_them_goes() -> None:
    ours, theirs = socket.socketpair()
    there = ThreadedEnd(theirs)

    def answer() -> None:
        for message in there.receive():
            there.send(message.message, message.number)
            if message.number == 999:
                theirs.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=answer)
    thread.start()

    async def talk() -> list[int]:
        received: list[int] = []
        over = asyncio.Event()
        end = await AsyncEnd.connect(
            ours, lambda message: received.append(message.number), over.set
        )
        for number in range(1000):
            end.send(Free(True, False), number)
        await asyncio.wait_for(over.wait(), 10)
        end.send(GetStats())
        return received

    assert asyncio.run(talk()) == list(range(1000))
    thread.join(10)
    assert not thread.is_alive()
    there.send(Answer("nobody listens"))


RECORDS = {
    "start": RunnerStart(ServeOptions(), ("cpu:1",)),
    "facts": RunnerFacts((DeviceFacts("cpu", "cpu"),), 7, ("none",), workers={"cpu": None}),
    "unload_models": True,
    "devices": ["cpu"],
}


@pytest.mark.parametrize("kind", messages.KINDS.values(), ids=lambda kind: kind.__name__)
def test_every_message_arrives_with_its_records(kind: type[Any]) -> None:
    sent = kind(
        **{field.name: RECORDS.get(field.name, {"deep": [field.name]}) for field in fields(kind)}
    )
    assert list(RunnerMessages().take(packed(sent, 3))) == [Numbered(3, sent)]


def test_an_answer_is_of_the_question_s_type() -> None:
    for question, value in (
        (Check({}, None), CheckedPrompt({"1": {}}, ("1",))),
        (GetStats(), Stats((DeviceStats("a", "cpu", None, 1, 2),))),
    ):
        (arrived,) = RunnerMessages().take(packed(Answer(question.answer.dump_python(value))))
        assert question.answer.validate_python(arrived.message.value) == value  # type: ignore[union-attr]
