"""Stacks calls of several requests into one, and copies only inputs that changed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from stage_calls import Computed
from torch import Tensor, nn

from katz_graph.core.shared_rows import SharedRows
from katz_graph.executor.calls.computing import Computing, Eagerly, Offer, StageCall
from katz_graph.executor.calls.rows import Rows, taken
from katz_graph.executor.calls.stage_calls import StageCalls
from katz_graph.executor.recorded.recorder import Recorder
from katz_graph.executor.worker.stream import HostStream
from katz_graph.testing.tapes import Tapes

Text = tuple[Tensor, Tensor]  # keys and values, [B, T, D]


def attended(text: Text) -> Tensor:
    """Returns [B, D]; a repeated text gives the same."""
    keys, values = text
    return (keys.softmax(1) * values).sum(1)


def drawn_text(rows: int, tokens: int) -> Text:
    return torch.randn(rows, tokens, 3), torch.randn(rows, tokens, 3)


MODULE = nn.Linear(1, 1)
STAGE = Computed(
    hoists={"text": "text_encoder"},
    repeats=("text",),
    costed=True,
    call=lambda module, given: given["x"] + attended(given["text"]).mean(1, keepdim=True),
)
POSITIONS = Computed(
    hoists={"fixed": "transformer_fixed"},
    costed=True,
    call=lambda module, given: (given["x"] + given["fixed"][0][0]) * given["fixed"][1],
)
CHANNELS = Computed(costed=True, call=lambda module, given: given["x"] * 2)


class Counted(Eagerly):
    """Notes the tensors of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Mapping[str, Any]] = []
        self.made: list[Tensor] = []

    def together(self, calls: Sequence[StageCall]) -> list[Any]:
        self.given += [call.given for call in calls]
        outputs = super().together(calls)
        self.made += [one for (one,) in outputs]
        return outputs

    @property
    def rows(self) -> list[int]:
        return [len(given["x"]) for given in self.given]


def stage_calls(rows: SharedRows, compute: Computing) -> StageCalls:
    residents = SimpleNamespace(with_room=lambda what, work: work())
    models = SimpleNamespace(
        compute=compute,
        residents=residents,
        resident_in=lambda module: (),
        device=torch.device("cpu"),
        stream=HostStream(),
    )
    return StageCalls(models, rows)  # type: ignore[arg-type]


def offer(
    x: Tensor | Rows, text: Text | None = None, forms: dict[Hashable, Any] | None = None
) -> Offer:
    """Offers a call. `forms`: the same dict for all offers of a request."""
    stage, given = (CHANNELS, {"x": x}) if text is None else (STAGE, {"x": x, "text": text})
    call = StageCall(stage, MODULE, given)
    forms = {} if forms is None else forms
    rows = len(taken(x))
    return Offer((call,), "key", (rows,), (), (None,), "one", lambda counts: None, (forms,))


def alone(one: Offer) -> Tensor:
    call = one.calls[0]
    (made,) = call.stage.computed(call.module, {**call.given, "x": taken(call.given["x"])})
    return made  # type: ignore[no-any-return]


def computed(calls: StageCalls, *offers: Offer) -> list[Any]:
    """Computes offers together; checks each result against its own call."""
    made = []
    for one, result in zip(offers, calls.together(offers), strict=True):
        if isinstance(result, Exception):
            raise result
        ((found,),) = result
        assert torch.allclose(taken(found), alone(one), rtol=1e-5, atol=1e-7)
        made.append(found)
    return made


def test_members_come_and_go_and_each_reads_its_own_inputs() -> None:
    """Outputs become inputs, texts last; members leave, come back and change places."""
    counted = Counted()
    calls = stage_calls(SharedRows(16), counted)
    texts = {name: drawn_text(2, 7) for name in "abcd"}
    states: dict[str, Any] = {name: torch.randn(2, 5) for name in "abcd"}
    forms: dict[str, dict[Hashable, Any]] = {name: {} for name in "abcd"}
    for group in ("ab", "ab", "ba", "acb", "a", "ac", "ab", "abcd", "dc", "ab"):
        offers = [offer(states[name], texts[name], forms[name]) for name in group]
        states |= zip(group, computed(calls, *offers), strict=True)
        texts["b"] = texts["b"][0], torch.randn(2, 7, 3)  # one of its tensors is made again
    assert counted.rows == [4, 4, 4, 6, 2, 4, 4, 8, 4, 4]


def test_nothing_is_copied_while_the_same_requests_stay_together() -> None:
    counted = Counted()
    calls = stage_calls(SharedRows(16), counted)
    texts = [drawn_text(2, 7), drawn_text(1, 14)]
    states: list[Any] = [torch.randn(2, 5), torch.randn(1, 5)]
    forms: list[dict[Hashable, Any]] = [{}, {}]
    for _ in range(3):
        states = computed(calls, *map(offer, states, texts, forms))
    first, second, third = counted.given
    assert first["text"] is second["text"] is third["text"]
    assert second["x"] is counted.made[0] and third["x"] is counted.made[1]


def test_texts_of_unequal_length_are_repeated_to_a_common_one() -> None:
    counted = Counted()
    calls = stage_calls(SharedRows(16), counted)
    x = torch.randn(1, 5)
    texts = [drawn_text(1, tokens) for tokens in (77, 154, 231, 385)]
    computed(calls, *(offer(x, text) for text in texts[:2]))
    assert counted.given[-1]["text"][0].shape == (2, 154, 3)
    # 77, 154 and 231 would need 462 tokens, more than four times the shortest
    computed(calls, *(offer(x, text) for text in texts))
    assert sorted(counted.rows[1:]) == [1, 1, 2]


def test_a_fixed_number_of_rows_depends_on_nothing_but_the_request() -> None:
    """Texts are not repeated, and tensors of other layouts are not stacked."""
    counted = Counted()
    calls = stage_calls(SharedRows(4, fixed=True), counted)
    x = torch.randn(1, 5)
    computed(calls, *(offer(x, drawn_text(1, tokens)) for tokens in (77, 154, 77)))
    assert [given["text"][1].shape for given in counted.given] == [(4, 77, 3), (4, 154, 3)]
    picture = torch.randn(1, 3, 4, 4)
    channels_last = picture.contiguous(memory_format=torch.channels_last)
    computed(calls, offer(picture), offer(channels_last), offer(picture.clone()))
    assert [given["x"].stride()[1:] for given in counted.given[2:]] == [(16, 4, 1), (1, 12, 3)]
    assert counted.rows == [4] * 4


def test_recordings_are_by_buckets_of_rows_while_requests_come_and_go() -> None:
    compute = Recorder(Tapes(strict=True), eager=0)
    calls = stage_calls(SharedRows(16), compute)

    def groups() -> None:
        texts = [drawn_text(1 + number % 3, 7) for number in range(8)]
        states: list[Any] = [torch.randn(1 + number % 3, 5) for number in range(8)]
        for group in ([0], [1], [3, 0], [0, 3, 1], [0, 1], [2, 1, 0], [4, 5, 6, 7], range(8)):
            found = computed(calls, *(offer(states[number], texts[number]) for number in group))
            for number, state in zip(group, found, strict=True):
                states[number] = state

    with torch.no_grad():
        groups()
        known = compute.use.captures
        for _ in range(3):
            groups()
    assert compute.use.captures == known <= 5


def test_positions_are_those_of_the_first_row_and_references_those_of_each() -> None:
    """Both are in one input, which lasts. A request of three rows has one row of positions."""
    for rows in (SharedRows(16), SharedRows(4, fixed=True)):
        calls, positions = stage_calls(rows, Counted()), torch.randn(1, 5)
        offers = []
        for size in (3, 1):
            given = {"x": torch.randn(size, 5), "fixed": (positions, torch.randn(size, 5))}
            call = StageCall(POSITIONS, MODULE, given)
            offers.append(replace(offer(given["x"]), calls=(call,)))
        computed(calls, *offers)
        computed(calls, offers[1])


def test_two_calls_of_one_request_have_their_own_numbers_of_rows() -> None:
    calls = stage_calls(SharedRows(4, fixed=True), Counted())
    one, other = torch.randn(1, 5), torch.randn(6, 5)
    pair = (offer(one).calls[0], offer(other).calls[0])
    sizes, none = (len(one), len(other)), (None, None)
    alone = replace(offer(one), calls=pair, sizes=sizes, factors=none, forms=({}, {}))
    first, second = calls.alone(alone)
    assert torch.equal(taken(first[0]), one * 2) and torch.equal(taken(second[0]), other * 2)
