"""The jobs of a runner: each ends with one event, whatever goes wrong around it, and then counts no more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from processes import eventually

from katz_graph.executor.cache import ResultCache
from katz_graph.folders import Folders
from katz_graph.web.events import Ended, JobEvent, Started
from katz_graph.web.runner.caches import Caches
from katz_graph.web.runner.order import Order
from katz_graph.web.runner.runs import Place, Runs
from katz_graph.web.runner.unkept import UnkeptFiles


class Engine:
    """Only lets go of models, which there are none of."""

    def unload(self) -> None: ...


def runs_in(folder: Path, tell: Callable[[JobEvent], None]) -> Runs:
    folders = Folders((folder,), folder, folder)
    registry: Mapping[str, Any] = {}
    return Runs(Place(Engine(), registry, folders, Caches(ResultCache()), "cpu", False, 1000), tell, UnkeptFiles())  # type: ignore[arg-type]


def ends(told: list[JobEvent]) -> list[Ended]:
    return [one for one in told if isinstance(one, Ended)]


def test_a_job_that_cannot_even_begin_ends_and_holds_up_nobody(tmp_path: Path) -> None:
    told: list[JobEvent] = []
    runs = runs_in(tmp_path, told.append)
    runs.start(Order("bad", {"1": object()}, ("1",)))  # JSON cannot say it: no picture could carry it
    eventually(lambda: len(ends(told)) == 1, 10)
    assert isinstance(told[0], Started) and isinstance(told[-1], Ended)
    assert told[-1].status == "failed" and told[-1].error is not None and "internal error: TypeError" in told[-1].error.message
    runs.free(True, True)
    runs.start(Order("next", {}, ()))  # waits until memory is free, which waits for jobs that run
    eventually(lambda: len(ends(told)) == 2, 10)


def test_a_job_that_gets_no_thread_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    told: list[JobEvent] = []
    runs = runs_in(tmp_path, told.append)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError):
            runs.start(Order("a", {}, ()))
    runs.close(0.0)
    runs.start(Order("b", {}, ()))
    eventually(lambda: [end.job for end in ends(told)] == ["b"], 10)


def test_a_job_that_is_cancelled_as_it_begins_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("katz_graph.web.runner.runs.run_graph", lambda graph, registry, context, *rest: context.check_cancelled())
    told: list[JobEvent] = []
    held, may = threading.Event(), threading.Event()

    def tell(event: JobEvent) -> None:
        told.append(event)
        if isinstance(event, Started):
            held.set()
            may.wait(10)

    runs = runs_in(tmp_path, tell)
    runs.start(Order("a", {"1": {"class_type": "Nothing", "inputs": {}}}, ("1",)))
    assert held.wait(10)
    runs.cancel("a")
    may.set()
    runs.close(10)
    eventually(lambda: [end.status for end in ends(told)] == ["cancelled"], 10)
