"""An open port serves: a client that connects as soon as it can, asks and posts at once, gets its
picture and no refusal.
"""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

from PIL import Image

from katz_graph.bench.served import Served, alive, painting
from katz_graph.bench.stranger import visit

PATIENCE = 120.0


def test_a_client_that_does_not_wait_gets_its_picture(tmp_path: Path) -> None:
    server, began = Served(tmp_path), time.perf_counter()
    server.start(wait=False)
    try:
        seen = visit("127.0.0.1", server.port, painting(1, 2), began, PATIENCE)
        assert (
            json.loads(Image.open(io.BytesIO(seen.picture)).info["prompt"])["5"]["inputs"]["seed"]
            == 1
        )
        assert "KSampler" in server.get("/object_info").data
        assert server.get("/readyz").status == 200
        family = server.family()
        assert server.stop()[0] == 0
        assert not alive(family)
    finally:
        server.kill()


def test_a_server_that_ends_while_it_starts_leaves_nothing_and_nobody_waiting(
    tmp_path: Path,
) -> None:
    """Workers load before anybody supervises them."""
    server = Served(tmp_path)
    server.start(wait=False)
    try:
        while len(server.family()) < 3:  # the runner, and a worker that begins to load
            assert server.pid in alive([server.pid])
            time.sleep(0.01)
        family = server.family()
        assert server.stop()[0] == 0
        ends = time.monotonic() + 10
        while alive(family):
            assert time.monotonic() < ends, "something is left"
            time.sleep(0.02)
    finally:
        server.kill()
