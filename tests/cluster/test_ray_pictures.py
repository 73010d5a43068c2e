"""The same picture on Ray actors, also when one is lost in the middle."""

from __future__ import annotations

from typing import Any

import pytest
from ray_home import run_session


@pytest.fixture(scope="module")
def session() -> dict[str, Any]:
    return run_session("ray_pictures.py")


def test_placements_by_chance_give_the_same_bits(session: dict[str, Any]) -> None:
    assert session["equal"] == [True] * 6


def test_a_request_whose_worker_was_killed_ends_with_the_same_bits(session: dict[str, Any]) -> None:
    attempts, equal, _ = session["after a kill"]
    assert attempts == 2 and equal
