"""Stops a server before it accepts requests."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from katz_graph.executor.measure.store import FILE
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


def test_it_preloads_before_it_takes_jobs_and_measures_the_device_after_the_first(
    tmp_path: Path,
) -> None:
    """A workflow that cannot be read is reported, and does not stop the server."""

    def rates() -> list[float]:
        with sqlite3.connect(tmp_path / "server" / "cache" / FILE) as costs:
            return [flops for (flops,) in costs.execute("select flops from rates")]

    options = ("--preload", "txt2img", "--preload", "absent.safetensors")
    server = Served(tmp_path / "server", *options)
    server.start(wait=False)
    said: list[str] = []
    try:
        while not said or not said[-1].startswith("ok"):
            with suppress(OSError):  # the port is not open yet
                said.append(server.get("/readyz").body.decode())
            time.sleep(0.05)
        assert "the runner is starting, and preloads txt2img, absent.safetensors\n" in said[:-1]
        ready = r"ok; preloaded txt2img in \d+\.\d s; absent\.safetensors is not preloaded\n"
        assert re.fullmatch(ready, said[-1])
        assert re.search(r"--preload absent\.safetensors: .*ckpt_name", server.log)
        bytes_of_models = re.search(
            r"katz_model_bytes{.*} (\S+)", server.get("/metrics").body.decode()
        )
        assert bytes_of_models is not None and float(bytes_of_models[1]) > 1e6
        assert not list((tmp_path / "server").rglob("*.png"))
        assert not rates()
        server.submit(
            json.loads(files("katz_graph.workflows").joinpath("txt2img.json").read_text())
        )
        server.drain()
        ends = time.monotonic() + 20
        while not rates():
            assert time.monotonic() < ends, "the device is not measured"
            time.sleep(0.05)
    finally:
        server.end()
