"""Fixtures of all tests: what this machine was measured to do, and random-weight models, made once
however many processes run tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import Katz, command
from filelock import FileLock

from katz_graph.host.garbage import expect_imports, imports_are_done

if TYPE_CHECKING:
    from katz_graph.bench.parity import Models

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
def costs(shared_folder: Path) -> Path:
    """A cache folder for rates, contention and links: the first engine that opens measures, later
    ones read.
    """
    folder = shared_folder / "costs"
    folder.mkdir(exist_ok=True)
    return folder


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
    from katz_graph.bench.parity import random_models

    with FileLock(folder / f"{family}.lock"):
        return random_models(folder / family, family, layers)


@pytest.fixture
def katz(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, costs: Path
) -> Katz:
    return command(monkeypatch, capfd, tmp_path, costs)
