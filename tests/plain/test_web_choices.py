"""Jobs choose where and how their stages run, as far as the operator permits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from web_server import GRAPH, Served, serving

from katz_graph.core.errors import InputError
from katz_graph.planner.changes import permissions


def with_server(
    folder: Path, scenario: Callable[[Served], Awaitable[None]], **options: Any
) -> None:
    async def run() -> None:
        async with serving(folder, **options) as server:
            await scenario(server)

    asyncio.run(run())


def asking(choices: object) -> dict[str, Any]:
    return {"prompt": GRAPH, "client_id": "me", "extra_data": {"katz": choices}}


def test_choices_of_a_job_are_deleted_with_it(tmp_path: Path) -> None:
    choices = {"devices": ["cpu"], "place": ["controlnet=cpu"], "batching": False}

    async def scenario(server: Served) -> None:
        answer = await server.client.post("/prompt", json=asking(choices))
        assert answer.status_code == 200, answer.text
        await server.settled(lambda: server.runner.taken)
        (order,) = server.runner.taken
        assert order.extra["katz"] == choices

    with_server(tmp_path, scenario)


@pytest.mark.parametrize(
    ("choices", "status", "said"),
    [
        ({"allow": "stale-controlnet"}, 403, "add stale-controlnet to --permit to allow it"),
        ({"allow": "magic"}, 400, "no such approximation"),
        ({"devices": ["cpu*2"]}, 400, "plan with others instead"),
        ({"link": "10"}, 400, "plan with others instead"),
        ({"devices": "cpu"}, 400, "devices"),
        ({"batching": "yes"}, 400, "batching"),
        ([1], 400, "not a JSON object"),
    ],
)
def test_impossible_and_operator_only_choices_are_refused(
    choices: object, status: int, said: str, tmp_path: Path
) -> None:
    async def scenario(server: Served) -> None:
        answer = await server.client.post("/prompt", json=asking(choices))
        error = answer.json()["error"]
        assert answer.status_code == status and said in f"{error['message']} {error['details']}"
        assert not server.state.jobs.pending and not server.runner.taken

    with_server(tmp_path, scenario)


def test_the_operator_sets_the_permitted_choices(tmp_path: Path) -> None:
    async def scenario(server: Served) -> None:
        stale = await server.client.post("/prompt", json=asking({"allow": "stale-controlnet"}))
        placed = await server.client.post("/prompt", json=asking({"batching": True}))
        nothing = await server.client.post("/prompt", json=asking({}))
        assert [one.status_code for one in (stale, placed, nothing)] == [200, 403, 200]

    with_server(tmp_path, scenario, permit="stale-controlnet")


def test_a_permission_of_nothing_is_reported() -> None:
    assert permissions("") == frozenset()
    assert permissions("place, async-lora") == {"place", "async-lora"}
    with pytest.raises(InputError, match="--permit everything: expected some of place"):
        permissions("everything")
