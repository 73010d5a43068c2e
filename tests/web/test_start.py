"""Stops a server before it accepts requests."""

from __future__ import annotations

import time
from pathlib import Path

from katz_graph.testing.server_process import Served, alive


def test_a_server_that_ends_during_its_start_leaves_no_files_or_waiters(
    tmp_path: Path,
) -> None:
    """Workers start to load before the supervisor watches them."""
    server = Served(tmp_path)
    server.start(wait=False)
    try:
        while len(server.family()) < 3:  # the runner, and a worker that starts loading
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
