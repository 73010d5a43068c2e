"""Pages report open files; pages that are left or silent are forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

from web_server import serving

from katz_graph.web.live.presence import MAX_PAGES, STAYS, Presence


def test_pages_hear_of_each_other_until_they_are_left() -> None:
    now = 0.0
    there = Presence(lambda: now)
    assert there.update("", "one", "Ann", ["a.json", "b.json"]) == {}
    assert there.update("", "two", "", ["a.json"]) == {"a.json": ["Ann"]}
    assert there.update("", "one", "Ann", ["a.json", "b.json"]) == {"a.json": [""]}
    assert there.update("another user", "three", "Eve", ["a.json"]) == {}
    there.update("", "two", "", [])
    assert there.update("", "one", "Ann", ["a.json"]) == {}
    now = STAYS + 1
    assert there.update("", "four", "", ["a.json"]) == {}


def test_pages_are_bounded() -> None:
    there = Presence(lambda: 0.0)
    for number in range(MAX_PAGES + 50):
        there.update("", str(number), "", [f"{number}.json"])
    assert there.update("", "new", "", ["0.json", f"{MAX_PAGES}.json"]) == {
        f"{MAX_PAGES}.json": [""]
    }


def test_the_route_accepts_expected_values(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:

            async def reported(**body: object) -> int:
                return (await server.client.post("/katz/presence", json=body)).status_code

            assert await reported(page="p", name="Ann", files=["a.json"]) == 200
            answer = await server.client.post(
                "/katz/presence", json={"page": "q", "files": ["a.json"]}
            )
            assert answer.json() == {"files": {"a.json": ["Ann"]}}
            assert await reported(page="", files=[]) == 400
            assert await reported(page="p", files=["a"] * 101) == 400
            assert await reported(page="p", name="x" * 61, files=[]) == 400

    asyncio.run(scenario())
