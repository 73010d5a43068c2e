"""Provides fixtures for all tests: measured costs and random-weight models, made once for all test
processes, and each process's fork server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import Katz, command
from filelock import FileLock

from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.host.garbage import expect_imports, imports_are_done
from katz_graph.settings.environment import WAITING

if TYPE_CHECKING:
    from katz_graph.testing.model_files import Models

expect_imports()
os.environ["KATZ_CHECK_WEIGHTS"] = "1"
os.environ["KATZ_LIBRARY_PRODUCTS"] = "1"  # results do not depend on the machine


def pytest_collection_finish() -> None:
    imports_are_done()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder that all test processes of a session share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def costs(shared_folder: Path) -> Iterator[Path]:
    """Yields a cache folder for rates, contention and links. The first engine measures and later
    ones read. Accepts measurements on a busy machine, because test processes never run alone.
    """
    from katz_graph.executor.measure import store
    from katz_graph.host.schedule import Scheduled

    folder = shared_folder / "costs"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "scheduled", lambda: Scheduled(waited=1.0))
        yield folder


@pytest.fixture(scope="session")
def sd1(shared_folder: Path) -> Models:
    return made_once(shared_folder, "sd1", layers=1)


@pytest.fixture(scope="session")
def sdxl(shared_folder: Path) -> Models:
    return made_once(shared_folder, "sdxl", layers=2)


def made_once(folder: Path, family: str, layers: int) -> Models:
    """Returns a pipeline, ControlNets and LoRAs of random weights with `layers` layers per block.
    The first test process creates them. One layer takes half the time of two and is enough for one
    of the families.
    """
    from katz_graph.testing.model_files import random_models

    with FileLock(folder / f"{family}.lock"):
        return random_models(folder / family, family, layers)


@pytest.fixture(scope="session")
def fork_server_output() -> list[str]:
    """Collects the lines that the fork server prints during loading."""
    return []


@pytest.fixture(scope="session")
def fork_server(fork_server_output: list[str]) -> Iterator[ForkServer]:
    """Yields the fork server of real workers; it can also run entry points of tests."""
    with pytest.MonkeyPatch.context() as environment:
        for variable in WAITING:
            environment.delenv(variable, raising=False)
        # OpenMP prints its settings when torch loads it
        environment.setenv("OMP_DISPLAY_ENV", "VERBOSE")
        prefix = ("env", f"PYTHONPATH={Path(__file__).parent / 'cluster'}")
        server = ForkServer(prefix=prefix, echo=fork_server_output.append)
        server.begin()
    with server:
        yield server


@pytest.fixture
def katz(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, costs: Path
) -> Katz:
    return command(monkeypatch, capfd, tmp_path, costs)
