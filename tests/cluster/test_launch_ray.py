"""Ray actors work as workers. One session in a separate network, because Ray listens on all
interfaces.
"""

from __future__ import annotations

import importlib.util
import re
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from ray_home import run_session

from katz_graph.core.errors import InputError
from katz_graph.executor.cluster.worker_handle import WorkerPatience
from katz_graph.executor.launch.ray import RayCluster, RayLauncher, RayPlace, find_places
from katz_graph.executor.transport.handshake import dial
from katz_graph.testing.model_files import Models


@pytest.fixture(scope="module")
def session(costs: Path, shared_folder: Path, sd1: Models) -> dict[str, Any]:
    return run_session("ray_session.py", costs, shared_folder / sd1.name)


def test_placements_by_chance_give_the_same_bits(session: dict[str, Any]) -> None:
    assert session["pictures"]["equal"] == [True] * 2


def test_a_request_of_a_killed_worker_ends_with_the_same_bits(session: dict[str, Any]) -> None:
    attempts, equal, _ = session["pictures"]["after a kill"]
    assert attempts == 2 and equal


def test_actors_serve_as_processes_do(session: dict[str, Any]) -> None:
    assert session["places"] == [["127.0.0.1", "cpu"]] * 2
    assert session["echo"] == ["ray:1", [0, 1, 2, 3, 4]]
    assert session["environment"] == {"OMP_NUM_THREADS": "1"}


def test_a_lost_actor_is_noticed_and_replaced(session: dict[str, Any]) -> None:
    """`katz bench faults` checks how fast."""
    lost, _, reason = session["killed"]
    assert lost < 5 and "did not answer" not in reason
    lost, _, reason = session["frozen"]
    silence = re.search(r"did not answer for (\S+) s", reason)
    assert silence and float(silence[1]) >= WorkerPatience().frozen, reason
    assert session["after"] == ["ray:0", "still here"]


def test_a_failing_actor_reports_the_reason(session: dict[str, Any]) -> None:
    assert "its worker did not start" in session["broken"]
    assert "libcuda.so.1: cannot open shared object file" in session["broken"]
    assert "\n" not in session["broken"]


def test_nothing_of_a_cluster_of_ours_is_left(session: dict[str, Any]) -> None:
    assert session["left"] == []


def test_too_few_devices_are_reported(session: dict[str, Any]) -> None:
    assert session["too many"].startswith(
        "--devices ray: 99 devices were asked for; the Ray cluster has "
    )


def test_cpus_are_used_only_without_a_gpu_unless_more_devices_are_requested() -> None:
    def node(number: int, alive: bool = True, **resources: float) -> dict[str, Any]:
        return {
            "NodeID": f"id{number}",
            "NodeManagerAddress": f"10.0.0.{number}",
            "Alive": alive,
            "Resources": resources,
        }

    nodes = [node(2, CPU=2.0), node(1, CPU=4.0, GPU=2.0), node(3, alive=False, GPU=8.0)]
    gpu, cpu = RayPlace("id1", "10.0.0.1", "cuda:0"), RayPlace("id2", "10.0.0.2", "cpu")
    # with a CPU among them, all would compute in float32
    assert find_places(nodes) == (gpu, gpu)
    assert find_places([nodes[0], node(4, CPU=1.0)]) == (cpu, RayPlace("id4", "10.0.0.4", "cpu"))
    assert find_places(nodes, 3) == (gpu, gpu, cpu)
    assert find_places(nodes, 1) == (gpu,)
    assert find_places(nodes, 4) == (gpu, gpu, cpu, RayPlace("id1", "10.0.0.1", "cpu"))
    with pytest.raises(
        InputError, match="9 devices were asked for; the Ray cluster has 8 on 2 machines"
    ):
        find_places(nodes, 9)
    with pytest.raises(InputError, match="some devices"):
        find_places([])


class RayStandIn:
    """Replaces Ray for `RayLauncher`. Before its actor connects to the driver, another client does,
    and sends nothing.
    """

    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def remote(self, actor: object) -> Any:
        work = SimpleNamespace(remote=self._work)
        made = SimpleNamespace(remote=lambda: SimpleNamespace(work=work))
        return SimpleNamespace(options=lambda **_: made)

    def wait(self, works: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return [], works

    def kill(self, actor: object) -> None:
        pass

    def _work(self, host: str, port: int, token: bytes, *_: object) -> object:
        self.opened.append(socket.create_connection((host, port)))
        threading.Thread(target=lambda: self.opened.append(dial(host, port, token))).start()
        return object()


@pytest.mark.defect(39)
def test_a_silent_stranger_does_not_end_the_wait_for_an_actor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray, scheduling = RayStandIn(), SimpleNamespace(NodeAffinitySchedulingStrategy=MagicMock())
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "ray.util", ray.util)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", scheduling)  # type: ignore[arg-type]
    launcher = RayLauncher(RayPlace("id", "127.0.0.1", "cpu"), 1, "entry", threading.Event())
    began = time.monotonic()
    actor = launcher.launch("a")
    assert time.monotonic() - began < 3
    actor.connection.close()
    for one in ray.opened:
        one.close()


def test_the_way_out_without_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'katz-graph\[cluster\]'"):
        RayCluster()
