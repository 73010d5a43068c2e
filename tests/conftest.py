"""Fixtures of all tests: what this machine was measured to do, and random-weight models, made once
however many processes run tests; and what each of these forks real workers from.
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
os.environ["KATZ_LIBRARY_PRODUCTS"] = "1"  # bits that do not depend on the machine


def pytest_collection_finish() -> None:
    imports_are_done()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all test processes of a session share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def costs(shared_folder: Path) -> Iterator[Path]:
    """A cache folder for rates, contention and links: the first engine that opens measures, later
    ones read, also what was measured while other programs ran: test processes never run alone.
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
    """A pipeline, ControlNets and LoRAs of random weights, with so many layers a block: one takes
    half the time of two, which is enough for one of the families. Drawn by whichever test process
    comes first.
    """
    from katz_graph.testing.model_files import random_models

    with FileLock(folder / f"{family}.lock"):
        return random_models(folder / family, family, layers)


@pytest.fixture(scope="session")
def fork_server_output() -> list[str]:
    """The lines that the server of real workers prints while it loads."""
    return []


@pytest.fixture(scope="session")
def fork_server(fork_server_output: list[str]) -> Iterator[ForkServer]:
    """What real workers are forked from; they can run entries of tests as well."""
    with pytest.MonkeyPatch.context() as environment:
        for variable in WAITING:
            environment.delenv(variable, raising=False)
        # OpenMP says what it read when torch loaded it
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
