"""The list of packs shows their contents and problems, and no folder of this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from web_server import serving

from katz_graph.web.runner_client.facts import PackFacts


def test_packs_are_listed_with_their_problems(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            server.runner.found = (
                PackFacts("builtin", 3),
                PackFacts("broken", 0, True, ("ImportError: x (/opt/secret/broken.py:3)",)),
                PackFacts("/opt/secret/packs", problems=("no such folder of packs",)),
            )
            failed = {"name": "broken", "nodes": 0, "scripts": True}
            missing = {"name": "packs", "nodes": 0, "scripts": False}
            assert (await server.client.get("/katz/packs")).json() == {
                "packs": [
                    {"name": "builtin", "nodes": 3, "scripts": False, "problems": []},
                    failed | {"problems": ["ImportError: x (broken.py:3)"]},
                    missing | {"problems": ["no such folder of packs"]},
                ]
            }

    asyncio.run(scenario())
