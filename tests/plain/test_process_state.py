"""Forbidden changes of the process by packs' nodes are undone and reported; allowed ones stay.

Each line of `MISCHIEF` has a node's action and the expected report.
"""

from __future__ import annotations

import asyncio
import builtins
import decimal
import gc
import importlib
import importlib.machinery
import io
import json  # noqa: F401
import locale
import logging
import os
import random
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from pace import pace
from PIL import Image, ImageFile  # noqa: F401

from katz_graph.host import process_state
from katz_graph.host.process_aspects import ASPECTS, Aspect
from katz_graph.host.process_state import ProcessState
from katz_graph.models.loading.quiet import quiet

pytestmark = pytest.mark.defect(24)


def interrupt(number: int, frame: Any) -> None:
    """Represents a signal handler of a pack."""


MISCHIEF: tuple[tuple[str, Callable[[Path], object], str], ...] = (
    ("chdir", lambda folder: os.chdir(folder), "the working directory"),
    ("umask", lambda folder: os.umask(0), "the umask"),
    ("new variable", lambda folder: os.environ.update(EVIL="1"), "the environment (EVIL)"),
    ("lost variable", lambda folder: os.environ.pop("PATH"), "the environment (PATH)"),
    ("other variable", lambda folder: os.environ.update(PATH="/"), "the environment (PATH)"),
    ("handler", lambda folder: signal.signal(signal.SIGTERM, interrupt), "signal handlers"),
    ("locale", lambda folder: locale.setlocale(locale.LC_ALL, "C.UTF-8"), "the locale"),
    ("path", lambda folder: sys.path.insert(0, str(folder)), "sys.path"),
    ("lost path", lambda folder: sys.path.clear(), "sys.path"),
    ("warnings", lambda folder: warnings.simplefilter("error"), "the warning filters"),
    ("time-out", lambda folder: socket.setdefaulttimeout(0.001), "the default timeout of sockets"),
    ("recursion", lambda folder: sys.setrecursionlimit(5_000), "the recursion limit"),
    ("switches", lambda folder: sys.setswitchinterval(1.0), "the thread switch interval"),
    ("garbage", lambda folder: gc.disable(), "garbage collection"),
    ("logs", lambda folder: logging.disable(logging.CRITICAL), "the log level"),
    ("tempdir", lambda folder: setattr(tempfile, "tempdir", str(folder)), "temporary files"),
    ("dtype", lambda folder: torch.set_default_dtype(torch.float64), "torch's default dtype"),
    ("device", lambda folder: torch.set_default_device("meta"), "torch's default device"),
    ("threads", lambda folder: torch.set_num_threads(3), "torch's number of threads"),
    (
        "determinism",
        lambda folder: torch.use_deterministic_algorithms(True),
        "torch's deterministic mode",
    ),
    (
        "cudnn",
        lambda folder: setattr(torch.backends.cudnn, "benchmark", True),
        "torch's backends",
    ),
    ("gradients", lambda folder: torch.set_grad_enabled(False), "torch's gradient mode"),
    ("decimals", lambda folder: setattr(decimal.getcontext(), "prec", 3), "the decimal context"),
    (
        "precision",
        lambda folder: torch.set_float32_matmul_precision("medium"),
        "torch's float32 precision",
    ),
    (
        "precision of an operation",
        lambda folder: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        "torch's float32 precision",
    ),
    (
        "tf32",
        lambda folder: setattr(
            torch.backends.cudnn, "allow_tf32", not torch.backends.cudnn.allow_tf32
        ),
        "torch's float32 precision",
    ),
    ("autocast", lambda folder: torch.set_autocast_enabled("cpu", True), "torch's autocast"),
    ("anomalies", lambda folder: torch.set_anomaly_enabled(True), "torch's autocast"),
    ("numpy.seterr", lambda folder: numpy.seterr(all="raise"), "NumPy's error handling"),
    ("environ", lambda folder: setattr(os, "environ", {}), "os.environ"),
    ("stdout", lambda folder: setattr(sys, "stdout", io.StringIO()), "the standard streams"),
    ("excepthook", lambda folder: setattr(sys, "excepthook", print), "error hooks"),
    ("alarm", lambda folder: signal.alarm(1000), "timers"),
    ("argv", lambda folder: sys.argv.append("--evil"), "sys.argv"),
    ("socket", lambda folder: setattr(socket, "socket", None), "sockets"),
    (
        "certificates",
        lambda folder: setattr(ssl, "_create_default_https_context", None),
        "certificate checks",
    ),
    (
        "event loops",
        lambda folder: asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy()),
        "the event loop policy",
    ),
    ("Pillow", lambda folder: setattr(Image, "MAX_IMAGE_PIXELS", None), "Pillow's limits"),
    ("root level", lambda folder: logging.root.setLevel(50), "the root logger"),
    ("root handlers", lambda folder: logging.root.handlers.clear(), "the root logger"),
    (
        "a logger",
        lambda folder: setattr(logging.getLogger("katz_graph"), "disabled", True),
        "disabled loggers",
    ),
    ("print", lambda folder: setattr(builtins, "print", None), "builtins (print)"),
    ("a module", lambda folder: sys.modules.update(json=os), "sys.modules (json)"),
    ("lost module", lambda folder: sys.modules.pop("json"), "sys.modules (json)"),
    ("tracing", lambda folder: sys.settrace(lambda *_: None), "tracing"),
    ("random", lambda folder: random.seed(1), ""),
    ("numpy.random", lambda folder: numpy.random.seed(1), ""),
    ("torch.manual_seed", lambda folder: torch.manual_seed(1), ""),
)


def state() -> dict[str, Any]:
    return {aspect.name: aspect.read() for aspect in ASPECTS if aspect.reported}


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Undoes the changes of a failing test."""
    torch.use_deterministic_algorithms(False)  # imports libraries on its first call
    before = state()
    yield
    for aspect in ASPECTS:
        if aspect.reported and aspect.read() != before[aspect.name]:
            aspect.restore(before[aspect.name])


@pytest.mark.parametrize(
    ("act", "reported"), [one[1:] for one in MISCHIEF], ids=[o[0] for o in MISCHIEF]
)
@pytest.mark.parametrize("fails", [False, True], ids=["", "and fails"])
def test_process_changes_by_a_node_are_undone_and_reported(
    tmp_path: Path, act: Callable[[Path], object], reported: str, fails: bool
) -> None:
    process, lines, before = ProcessState(), list[str](), state()
    for _ in range(2):
        try:
            with process.guarded("node 5 (Evil)", lines.append):
                act(tmp_path)
                if fails:
                    raise ValueError
        except ValueError:
            pass
        assert state() == before
    if reported:
        (line,) = lines
        assert line.startswith("node 5 (Evil) changed ") and reported in line
        assert line.endswith("for this whole process: it was restored")
    else:
        assert not lines


def test_a_library_that_another_thread_still_imports_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check may run while the devices start."""
    import_started = types.ModuleType("torch")
    import_started.__spec__ = importlib.machinery.ModuleSpec("torch", None)
    monkeypatch.setattr(import_started.__spec__, "_initializing", True, raising=False)
    monkeypatch.setitem(sys.modules, "torch", import_started)
    with ProcessState().guarded("a check", print):
        pass


def test_imports_of_other_threads_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import may happen between two checks of the modules."""
    process, lines, names = ProcessState(), list[str](), list[str]()

    def imports() -> None:
        names.append(f"imported_by_another_thread_{len(names)}")
        sys.modules[names[-1]] = types.ModuleType(names[-1])
        os.environ[names[-1].upper()] = "1"

    monkeypatch.setattr(
        process_state, "ASPECTS", (Aspect("nothing", imports, lambda _: None), *ASPECTS)
    )
    try:
        for _ in range(3):
            with process.guarded("a node", lines.append):
                pass
        assert len(names) == 6 and not lines
        assert all(name in sys.modules and name.upper() in os.environ for name in names)
    finally:
        for name in names:
            sys.modules.pop(name, None)
            os.environ.pop(name.upper(), None)


@pytest.mark.parametrize("when", ["before", "meanwhile", "afterwards"])
def test_a_library_of_another_thread_is_quiet_meanwhile(when: str) -> None:
    """A library's temporary change of the warning filters affects all threads; no node is blamed.
    Loading starts `before` the node and ends in it, or continues `afterwards`.
    """
    lines, filters = list[str](), list(warnings.filters)
    with ExitStack() as loading:
        if when == "before":
            loading.enter_context(quiet())
        with ProcessState().guarded("a node", lines.append):
            if when != "before":
                loading.enter_context(quiet())
            if when != "afterwards":
                loading.close()
        assert (list(warnings.filters) == filters) == (when != "afterwards")
    assert list(warnings.filters) == filters and not lines
    with ProcessState().guarded("a node", lines.append):
        warnings.simplefilter("error")
    assert list(warnings.filters) == filters and len(lines) == 1


def test_an_import_of_another_thread_may_fail_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "fails_while_a_node_runs"
    (tmp_path / f"{name}.py").write_text(
        "import builtins\nbuiltins.import_started.set()\nassert builtins.go_on.wait(10)\nraise OSError\n"
    )
    import_started, go_on, lines = threading.Event(), threading.Event(), list[str]()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "import_started", import_started, raising=False)
    monkeypatch.setattr(builtins, "go_on", go_on, raising=False)

    def imports() -> None:
        with pytest.raises(OSError):
            importlib.import_module(name)

    other = threading.Thread(target=imports)
    other.start()
    assert import_started.wait(10)
    with ProcessState().guarded("a node", lines.append):
        go_on.set()
        other.join()
    assert name not in sys.modules and not lines


@pytest.mark.parametrize(
    ("seed", "draw"),
    [
        (random.seed, random.random),
        (numpy.random.seed, numpy.random.random),
        (torch.manual_seed, lambda: float(torch.rand(()))),
    ],
    ids=["random", "numpy", "torch"],
)
def test_seeds_are_unique_and_draws_never_repeat(
    seed: Callable[[int], object], draw: Callable[[], float]
) -> None:
    process = ProcessState()

    def run(seeds: bool, draws: int) -> list[float]:
        with process.guarded("node", print):
            if seeds:
                seed(1)
            return [draw() for _ in range(draws)]

    seeded = run(True, 3)
    assert run(True, 3) == seeded, "inside of the node its seed holds"
    seen = {draw() for _ in range(5)} | set(run(False, 5)) | set(run(False, 5)) | set(run(False, 5))
    assert len(seen) == 20 and not seen & set(seeded)
    seed(7)
    first = [draw(), run(False, 1), draw()]
    seed(7)
    assert [draw(), run(False, 1), draw()] == first, "who seeds the whole program gets the same"


def test_imports_inside_a_node_stay(tmp_path: Path) -> None:
    (tmp_path / "lazily_imported_here.py").write_text("import os\nos.environ['LAZY'] = '1'\n")
    process, lines = ProcessState(), list[str]()
    path = list(sys.path)
    try:
        with process.guarded("node", lines.append):
            sys.path.insert(0, str(tmp_path))
            importlib.import_module("lazily_imported_here")
        assert sys.path == [*path, str(tmp_path)], "behind the others: it hides none of them"
        assert os.environ["LAZY"] == "1"
    finally:
        sys.path[:] = path
        os.environ.pop("LAZY", None)
        sys.modules.pop("lazily_imported_here", None)


def test_concurrent_runs_are_compared_when_none_is_active(tmp_path: Path) -> None:
    process, lines, before = ProcessState(), list[str](), str(Path.cwd())
    inside, go_on = threading.Event(), threading.Event()

    def visit() -> None:
        with process.guarded("a visitor that goes back", lines.append):
            os.chdir(tmp_path)
            inside.set()
            assert go_on.wait(10)
            os.chdir(before)

    visitor = threading.Thread(target=visit)
    visitor.start()
    assert inside.wait(10)
    with process.guarded("another", lines.append):
        pass
    assert str(Path.cwd()) == str(tmp_path), "nobody takes its folder from a node that runs"
    go_on.set()
    visitor.join()
    assert str(Path.cwd()) == before and not lines


@pytest.mark.parametrize("importing", [False, True])
def test_it_costs_a_millisecond_and_three_looks_at_all_modules(
    importing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing thousands of modules takes most of this CPU time. It happens twice per node, also
    while a thread imports a module.
    """
    if importing:
        module = types.ModuleType("half")
        module.__spec__ = types.SimpleNamespace(_initializing=True)  # type: ignore[assignment]
        monkeypatch.setitem(sys.modules, "half", module)
    process = ProcessState()
    seen = sys.modules.copy()
    times, looks = [], []
    for _ in range(300):
        began = time.thread_time()
        with process.guarded("node", print):
            pass
        times.append(time.thread_time() - began)
        began = time.thread_time()
        bool(sys.modules == seen)
        looks.append(time.thread_time() - began)
    assert min(times) < 1e-3 * pace() + 3 * min(looks)
